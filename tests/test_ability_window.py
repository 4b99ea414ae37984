"""Sliding window: blocks behind it go back, and those that it still reads never do."""

from __future__ import annotations

from typing import Any

import pytest

from able import NULL, able, after, seen
from builders import message, step
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.abilities.window import WINDOW, judge_freed, judge_kept
from pagedkv.specs.contents import judge_contents
from pagedkv.specs.free_list import judge_conserved
from pagedkv.specs.index import judge_ref_counts, judge_reports
from pagedkv.specs.model import EMPTY, POISON
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, Sometimes
from pagedkv.specs.rollback import judge_exact
from pagedkv.specs.steps import Grant, NoBlocks, Unreadable
from pagedkv.specs.tables import judge_unique, judge_valid

WITHIN = able("append", "window", blocks=6, window=3)
"""Blocks of 2 tokens; 3 tokens are read."""
FIVE = after(WITHIN, Prefill(0, 5))
SIX = after(WITHIN, Decode(0), start=FIVE)


def test_accepts_null_entries_that_the_window_has_left_behind():
    assert judge_kept(seen(WITHIN, FIVE, {0: (NULL, 1, 2)})) is HOLDS
    assert judge_kept(seen(WITHIN, FIVE, {0: (0, 1, 2)})) is HOLDS


@pytest.mark.parametrize(
    ("dense", "table", "where"),
    [(FIVE, (0, NULL, 2), 1), (FIVE, (NULL, NULL, 2), 1), (SIX, (NULL, 1, NULL), 2)],
    ids=str,
)
def test_rejects_a_null_entry_that_the_window_still_reads(dense, table, where):
    length = len(dense.live[0])
    judgement = judge_kept(seen(WITHIN, dense, {0: table}))
    expected = (
        f"block_table[0][{where}] = -1 is null, but positions {2 * where} .. {2 * where + 1} >= "
        f"seq_len({length}) - window(3) are read"
    )
    assert Broken(expected, (), (0,)) == judgement


def test_what_no_token_to_come_reads_may_be_null_where_a_refusal_drops_it():
    lenient = able("append", "window", blocks=6, window=3, drops_behind_window=True)
    table = {0: (NULL, NULL, 2)}
    assert "window(3) are read" in message(judge_kept(seen(WITHIN, SIX, table)))
    assert judge_kept(seen(lenient, SIX, table)) is HOLDS
    assert "window(2) are read" in message(judge_kept(seen(lenient, FIVE, table)))


def test_nothing_to_judge_where_nobody_is_live_or_nothing_goes_back():
    assert judge_kept(seen(WITHIN, EMPTY, {})) is VACUOUS
    ring = able("append", "window", window=3, null_block=None, ring=True)
    assert judge_kept(seen(ring, FIVE, {0: (1, 2)})) is VACUOUS
    grew = step(Decode(0), seen(ring, FIVE, {0: (1, 2)}), seen(ring, SIX, {0: (1, 2)}))
    assert judge_freed(grew) is VACUOUS


def grew(table, *, before=(0, 1, 2), command=Decode(0), **more):  # noqa: B008 - it is frozen
    now = command.advance(FIVE, WITHIN)
    return step(command, seen(WITHIN, FIVE, {0: before}), seen(WITHIN, now, {0: table}), **more)


def test_accepts_a_call_that_gives_back_what_it_leaves_behind():
    assert judge_freed(grew((NULL, 1, 2))) is HOLDS


def test_rejects_a_call_that_keeps_what_it_leaves_behind():
    expected = "decode(0): block_table[0][0] = 0 != -1: the window of 3 left it behind at seq_len 6"
    assert Broken(expected, (0,), (0,)) == judge_freed(grew((0, 1, 2)))


def test_what_an_append_takes_itself_goes_back_at_the_next_call():
    seven = Append(0, 5)
    assert judge_freed(grew((NULL, NULL, NULL, 3, 4), command=seven)) is HOLDS
    late = judge_freed(grew((NULL, NULL, 2, 3, 4), command=seven))
    assert message(late).startswith("append(0, 5): block_table[0][2] = 2 != -1: the window of 3")
    short = after(WITHIN, Prefill(0, 1))
    long = after(WITHIN, Append(0, 8), start=short)
    taken = seen(WITHIN, long, {0: (NULL, 1, 2, 3, 4)})
    assert judge_freed(step(Append(0, 8), seen(WITHIN, short, {0: (0,)}), taken)) is HOLDS


def test_nothing_to_judge_of_a_call_that_grows_nothing():
    first = seen(WITHIN, FIVE, {0: (0, 1, 2)})
    assert judge_freed(step(Decode(0), first, first, outcome=NoBlocks("OOM"))) is VACUOUS
    assert judge_freed(step(Prefill(0, 5), seen(WITHIN, EMPTY, {}), first)) is VACUOUS
    gone = seen(WITHIN, after(WITHIN, Release(0), start=FIVE), {})
    assert judge_freed(step(Release(0), first, gone)) is VACUOUS


def test_the_goal_is_a_table_with_a_null_entry():
    goal = WINDOW.properties[-1].expectation
    assert isinstance(goal, Sometimes)
    assert goal.reached(grew((NULL, 1, 2)))
    assert not goal.reached(grew((0, 1, 2)))


# ---------------------------------------------------------------- how the model moves


def test_what_goes_back_counts_towards_what_is_needed():
    within = able("append", "window", blocks=4, size=1, window=1)
    two = after(within, Prefill(0, 2))
    assert Grant(0, 0) == Decode(0).expect(two, within)
    assert Grant(1, 1) == Append(0, 3).expect(two, within)
    wider = able("append", "window", blocks=4, size=1, window=2)
    assert Grant(1, 1) == Decode(0).expect(after(wider, Prefill(0, 1)), wider)


def test_a_request_grows_up_to_the_pool_and_its_window_and_no_further():
    within = able("append", "window", blocks=2, size=1, window=1)
    two = after(within, Prefill(0, 2))
    assert Decode(0).enabled(two, within)
    three = after(within, Decode(0), start=two)
    assert not Decode(0).enabled(three, within)
    assert not Decode(1).enabled(two, within)


@pytest.mark.parametrize(("size", "tokens", "takes"), [(1, 4, True), (2, 6, True), (2, 5, False)])
def test_a_call_that_takes_a_block_may_be_refused_early_though_it_needs_none(size, tokens, takes):
    early = able("group", "window", blocks=8, size=size, window=2, refuses_early=True)
    live = after(early, Prefill(0, tokens))
    here = seen(early, live, {0: tuple(range(early.blocks_for(tokens)))})
    assert Grant(0, 0) == Decode(0).expect(live, early)
    judgement = judge_exact(step(Decode(0), here, here, outcome=NoBlocks("OOM")))
    assert (judgement is HOLDS) == takes
    for command in (Release(0), GroupBegin()):
        late = judge_exact(step(command, here, here, outcome=NoBlocks("OOM")))
        assert "refused as out of blocks: needed(0)" in message(late)


@pytest.mark.parametrize("late", ["late_calls", "late_blocks"])
def test_what_goes_back_late_may_be_room_or_not(late):
    counted: dict[str, Any] = {late: 1}
    within = able("append", "window", blocks=4, size=1, window=1, **counted)
    two = after(within, Prefill(0, 2))
    assert Grant(0, 1) == Decode(0).expect(two, within)
    assert Grant(1, 3) == Append(0, 3).expect(two, within)


def test_inside_a_group_what_goes_back_is_withheld_and_does_not_count():
    within = able("window", "group", blocks=4, size=1, window=1)
    two = after(within, Prefill(0, 2), GroupBegin())
    assert Grant(1, 1) == Decode(0).expect(two, within)
    assert Grant(0, 0) == Decode(0).expect(after(within, GroupEnd(), start=two), within)


def test_a_page_that_was_left_behind_counts_once():
    within = able("append", "window", blocks=4, size=1, window=1)
    three = after(within, Prefill(0, 2), Decode(0))
    assert three.pages == {0: (-1, -1, 0)}
    assert Grant(0, 0) == Decode(0).expect(three, within)
    assert after(within, Decode(0), start=three).pages == {0: (-1, -1, -1, 0)}


# ---------------------------------------------------------------- the core beside null entries


NULLED = seen(WITHIN, after(WITHIN, Prefill(1, 5), start=FIVE), {0: (NULL, 1, 2), 1: (NULL, 3, 4)})


def test_null_entries_are_valid_are_no_block_and_may_stand_in_many_tables():
    assert judge_valid(NULLED) is HOLDS
    assert judge_unique(NULLED) is HOLDS
    assert judge_conserved(NULLED) is HOLDS
    shared = able("fork", "window", blocks=6, window=3)
    both = after(shared, Prefill(0, 5), Prefill(1, 5))
    assert judge_unique(seen(shared, both, NULLED.seen.tables)) is HOLDS


def test_a_block_in_two_tables_is_found_beside_null_entries():
    dense = NULLED.model
    twice = seen(WITHIN, dense, {0: (NULL, 1, 2), 1: (NULL, 1, 4)})
    assert message(judge_unique(twice)).startswith("references(block 1) = 2 > 1")
    assert message(judge_valid(seen(WITHIN, dense, {0: (NULL, -2, 2)}))).startswith(
        "block_table[0][1] = -2 is not in the usable blocks"
    )


def test_null_entries_have_no_reference_count_and_are_not_allocated():
    counts = dict.fromkeys((1, 2, 3, 4), 1)
    report = {
        "logical_tokens": 5,
        "allocated_tokens": 4,
        "unused_tail_tokens": 1,
        "utilization": 0.75,
    }
    told = seen(
        WITHIN,
        NULLED.model,
        NULLED.seen.tables,
        ref_counts=counts,
        reports={0: report, 1: report},
    )
    assert judge_ref_counts(told) is HOLDS
    assert judge_reports(told) is HOLDS
    wrong = seen(
        WITHIN, NULLED.model, NULLED.seen.tables, reports={0: {**report, "allocated_tokens": 6}}
    )
    assert "allocated_tokens = 6 != 4" in message(judge_reports(wrong))


def test_only_the_window_is_read_and_a_wrong_token_is_named_by_its_position():
    tags = FIVE.live[0]
    assert judge_contents(seen(WITHIN, FIVE, {0: (NULL, 1, 2)})) is HOLDS
    every = judge_contents(seen(WITHIN, FIVE, {0: (NULL, 1, 2)}, contents={0: tags}))
    assert message(every) == "cache of request 0 has 5 != 3 tokens"
    wrong = seen(WITHIN, FIVE, {0: (NULL, 1, 2)}, contents={0: (tags[2], tags[2], tags[4])})
    judgement = judge_contents(wrong)
    expected = "cache of request 0, position 3: reads token 2 of request 0 != token 3 of request 0"
    assert Broken(expected, (1,), (0,)) == judgement


def test_what_a_refusal_dropped_is_not_read_and_the_rest_still_is():
    dropping = able("append", "window", blocks=6, window=3, drops_behind_window=True)
    last = FIVE.live[0][4]

    def judged(within, table, *read):
        return judge_contents(seen(within, FIVE, {0: table}, contents={0: read}))

    two, one = (NULL, NULL, 2), (NULL, 1, 2)
    assert judged(dropping, two, POISON, POISON, last) is HOLDS
    assert "position 4: reads nothing" in message(judged(dropping, two, *[POISON] * 3))
    assert "position 2: reads nothing" in message(judged(dropping, one, POISON, POISON, last))
    assert "position 2: reads nothing" in message(judged(WITHIN, two, POISON, POISON, last))

    def unreadable(within, table, read):
        return judge_contents(seen(within, FIVE, {0: table}, contents={0: read}))

    for read in (Unreadable("no such row"), (last,)):
        assert unreadable(dropping, two, read) is HOLDS
        assert "cache of request 0" in message(unreadable(dropping, one, read))
        assert "cache of request 0" in message(unreadable(WITHIN, two, read))
