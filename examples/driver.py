"""A paged allocator behind pagedkv's line protocol, in Python, with the standard library alone.

    pagedkv check "exec:python3 examples/driver.py"
    pagedkv check "exec:python3 examples/driver.py --fault"

With --fault, a decode takes its new block one token too late.
"""

import json
import sys

FAULT = "--fault" in sys.argv[1:]


class Pool:
    """Free blocks, lowest first, and the table and length of each request that holds blocks."""

    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.tables = {}
        self.lengths = {}

    def prefill(self, request, length):
        if request in self.tables:
            return "refused", "the request holds blocks"
        need = -(-length // self.block_size)
        if need > len(self.free):
            return "out_of_blocks", f"{need} needed, {len(self.free)} free"
        self.tables[request], self.free = self.free[:need], self.free[need:]
        self.lengths[request] = length
        return "done", ""

    def decode(self, request):
        if request not in self.tables:
            return "refused", "the request holds no blocks"
        length, room = self.lengths[request], len(self.tables[request]) * self.block_size
        if length > room if FAULT else length == room:
            if not self.free:
                return "out_of_blocks", "1 needed, 0 free"
            self.tables[request].append(self.free.pop(0))
        self.lengths[request] += 1
        return "done", ""

    def release(self, request, table):
        if request not in self.tables or self.tables[request] != table:
            return "refused", "not the blocks of this request"
        self.free = sorted(self.free + self.tables.pop(request))
        del self.lengths[request]
        return "done", ""

    def state(self):
        """What every answer ends with: what there is to see, and a key that says all of it."""
        snapshot = {
            "block_tables": self.tables,
            "seq_lens": self.lengths,
            "free_blocks": self.free,
        }
        return {"snapshot": snapshot, "key": json.dumps(snapshot, sort_keys=True)}


def answer(pool, message):
    """The answer to a message about `pool`, without the state."""
    do = message["do"]
    if do == "hello":
        return {"version": 1, "has": ["snapshot", "key"]}
    if do not in ("prefill", "decode", "release"):
        return {}  # reset and look ask for the state alone
    request, table = message["request"], message["block_table"]
    if do == "prefill":
        outcome, why = pool.prefill(request, message["seq_len"])
    elif do == "decode":
        outcome, why = pool.decode(request)
    else:
        outcome, why = pool.release(request, table)
    if outcome != "done":
        return {"outcome": outcome, "message": why}
    length = pool.lengths.get(request, message["seq_len"])
    return {"outcome": outcome, "seq_len": length, "block_table": pool.tables.get(request, [])}


def main():
    pool = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["do"] == "bye":
            break
        if message["do"] in ("hello", "reset"):
            pool = Pool(message["num_blocks"], message["block_size"])
        print(
            json.dumps({"id": message["id"], **answer(pool, message), **pool.state()}), flush=True
        )


if __name__ == "__main__":
    main()
