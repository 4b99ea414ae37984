/* A paged allocator behind pagedkv's line protocol, in C.
 *
 *     cc -o driver examples/driver.c         && pagedkv check exec:./driver
 *     cc -DFAULT -o faulty examples/driver.c && pagedkv check exec:./faulty
 *
 * With FAULT, a prompt that finds too few blocks keeps those that it took already.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256, LINE = 1 << 16 };

typedef struct {
    int live, length, blocks, table[MOST];
} Request;

static int num_blocks, block_size;
static int num_free, free_list[MOST]; /* the next to be handed out is the last */
static Request requests[MOST];
static const char *why;

/* ------------------------------------------------------------ the allocator */

static void reset(void)
{
    memset(requests, 0, sizeof requests);
    for (num_free = 0; num_free < num_blocks; num_free++)
        free_list[num_free] = num_blocks - 1 - num_free;
}

static void take(Request *request)
{
    request->table[request->blocks++] = free_list[--num_free];
}

static void give_back(Request *request)
{
    while (request->blocks)
        free_list[num_free++] = request->table[--request->blocks];
}

static const char *prefill(Request *request, int length)
{
    int need = (length + block_size - 1) / block_size;
    if (request->live)
        return why = "the request holds blocks", "refused";
    while (request->blocks < need && num_free)
        take(request);
    if (request->blocks < need) {
#ifdef FAULT
        request->blocks = 0;
#endif
        give_back(request);
        return why = "the pool has too few", "out_of_blocks";
    }
    request->live = 1;
    request->length = length;
    return "done";
}

static const char *decode(Request *request)
{
    if (!request->live)
        return why = "the request holds no blocks", "refused";
    if (request->length == request->blocks * block_size) {
        if (!num_free)
            return why = "the pool is empty", "out_of_blocks";
        take(request);
    }
    request->length++;
    return "done";
}

static const char *release(Request *request, const int *table, int blocks)
{
    if (!request->live || blocks != request->blocks ||
        memcmp(table, request->table, blocks * sizeof *table))
        return why = "not the blocks of this request", "refused";
    give_back(request);
    request->live = 0;
    return "done";
}

/* ------------------------------------------------------------ the protocol */

/* What stands behind "name": in the line, or an empty string. Messages have no spaces. */
static const char *after(const char *line, const char *name)
{
    char quoted[32];
    const char *found;
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    found = strstr(line, quoted);
    return found ? found + strlen(quoted) : "";
}

static int number(const char *line, const char *name)
{
    return atoi(after(line, name));
}

static int numbers(const char *line, const char *name, int *into)
{
    int count = 0;
    char *at = (char *)after(line, name);
    while (*at == '[' || *at == ',') {
        if (at[1] == ']' || count == MOST)
            break;
        into[count++] = (int)strtol(at + 1, &at, 10);
    }
    return count;
}

static void print_list(const int *items, int count)
{
    printf("[");
    for (int i = 0; i < count; i++)
        printf("%s%d", i ? "," : "", items[i]);
    printf("]");
}

static void print_tables(void)
{
    const char *comma = "";
    printf("\"block_tables\":{");
    for (int r = 0; r < MOST; r++)
        if (requests[r].live) {
            printf("%s\"%d\":", comma, r);
            print_list(requests[r].table, requests[r].blocks);
            comma = ",";
        }
    comma = "";
    printf("},\"seq_lens\":{");
    for (int r = 0; r < MOST; r++)
        if (requests[r].live) {
            printf("%s\"%d\":%d", comma, r, requests[r].length);
            comma = ",";
        }
    printf("}");
}

/* What every answer ends with: what there is to see, and a key that says all of it. */
static void print_state(void)
{
    int order[MOST];
    for (int i = 0; i < num_free; i++)
        order[i] = free_list[num_free - 1 - i];
    printf(",\"snapshot\":{\"free_blocks\":");
    print_list(order, num_free);
    printf(",");
    print_tables();
    printf("},\"key\":{\"free\":");
    print_list(order, num_free);
    printf(",");
    print_tables();
    printf("}}\n");
    fflush(stdout);
}

static void print_outcome(const char *outcome, const Request *request)
{
    printf(",\"outcome\":\"%s\"", outcome);
    if (strcmp(outcome, "done")) {
        printf(",\"message\":\"%s\"", why);
        return;
    }
    if (request->live)
        printf(",\"seq_len\":%d", request->length);
    printf(",\"block_table\":");
    print_list(request->table, request->blocks);
}

int main(void)
{
    static char line[LINE];
    static int table[MOST];
    while (fgets(line, sizeof line, stdin)) {
        const char *verb = after(line, "do"); /* with its quotes */
        Request *request = &requests[number(line, "request") % MOST];
        int blocks = numbers(line, "block_table", table);
        if (!strncmp(verb, "\"bye\"", 5))
            break;
        printf("{\"id\":%d", number(line, "id"));
        if (!strncmp(verb, "\"hello\"", 7) || !strncmp(verb, "\"reset\"", 7)) {
            num_blocks = number(line, "num_blocks");
            block_size = number(line, "block_size");
            reset();
        }
        if (!strncmp(verb, "\"hello\"", 7))
            printf(",\"version\":1,\"has\":[\"snapshot\",\"key\"],"
                   "\"declares\":{\"max_blocks\":%d,\"because\":{\"max_blocks\":\"MOST\"}}",
                   MOST);
        else if (!strncmp(verb, "\"prefill\"", 9))
            print_outcome(prefill(request, number(line, "seq_len")), request);
        else if (!strncmp(verb, "\"decode\"", 8))
            print_outcome(decode(request), request);
        else if (!strncmp(verb, "\"release\"", 9))
            print_outcome(release(request, table, blocks), request);
        print_state();
    }
    return 0;
}
