"""What a refusal may change where that is declared, and nothing beside it, on plain data."""

from __future__ import annotations

from typing import Any

import pytest

from able import NULL, able, after, seen
from builders import message, step
from pagedkv.protocol import Owned
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.properties import HOLDS
from pagedkv.specs.rollback import judge_exact, judge_unchanged
from pagedkv.specs.steps import DONE, Handle, NoBlocks

OOM = NoBlocks("OOM: none left")

# ---------------------------------------------------------------- blocks behind the window


def sliding(**declared):
    """Six blocks of 2 tokens, with a window of 3."""
    return able("append", "window", "fork", "group", "prefix", blocks=6, window=3, **declared)


STRICT, DROPS = sliding(), sliding(drops_behind_window=True)
SEVEN = after(DROPS, Prefill(0, 7))
"""Four blocks of 2 tokens; the next token reads positions 5 and 6 and its own."""
FULL, LEFT = (0, 1, 2, 3), (NULL, 1, 2, 3)


def refused(before, now, table=FULL, left=LEFT, within=DROPS, dense=SEVEN, **fields):
    """The judgement of a refused call after which request 0 has the table `left`."""
    others = {r: (table if r == 0 else (5,)) for r in dense.live}
    tables = {**others, 0: table}, {**others, 0: left}
    command = Append(0, 8)
    first, second = (
        seen(within, dense, t, **shown) for t, shown in zip(tables, (before, now), strict=True)
    )
    given = first.seen.handles[0]
    fields = {"returned": second.seen.handles[0], **fields}
    return judge_unchanged(step(command, first, second, outcome=OOM, given=given, **fields))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, {}),
        ({"num_free": 2}, {"num_free": 3}),
        ({"free_blocks": None, "num_free": 2}, {"free_blocks": None, "num_free": 3}),
        ({"num_free": 2}, {"cached": {0}, "num_free": 2}),
        ({"eviction_order": (), "index": {"k": 0}}, {"cached": {0}, "eviction_order": (0,)}),
        ({"withheld": (), "num_free": 2}, {"withheld": {0}, "num_free": 2}),
        ({"pending": {}, "num_free": 2}, {"pending": {0: 1}, "free_blocks": (4, 5), "num_free": 2}),
        (
            {"free_blocks": None, "pending": {4: 2}, "num_free": 1},
            {"free_blocks": None, "pending": {4: 2, 0: 1}, "num_free": 1},
        ),
        (
            {"free_blocks": None, "withheld": {4}, "num_free": 1},
            {"free_blocks": None, "withheld": {4, 0}, "num_free": 1},
        ),
        ({"ref_counts": dict.fromkeys(FULL, 1)}, {"ref_counts": dict.fromkeys((1, 2, 3), 1)}),
        (
            {"ref_counts": dict.fromkeys(FULL, 1)},
            {"ref_counts": {0: 0, **dict.fromkeys((1, 2, 3), 1)}},
        ),
        ({"capacities": {0: 8}}, {"capacities": {0: 6}}),
        (
            {"reverse_map": {Owned(0, i, b) for i, b in enumerate(FULL)}},
            {"reverse_map": {Owned(0, i, i) for i in (1, 2, 3)}},
        ),
    ],
    ids=lambda fields: ", ".join(f"{name} {value}" for name, value in fields.items()) or "free",
)
def test_a_dropped_block_may_be_wherever_a_block_is_that_nobody_holds(before, now):
    if "index" in before:
        now = {"index": before["index"], **now}
    assert refused(before, now) is HOLDS
    assert "block_table before [0, 1, 2, 3] != [-1, 1, 2, 3] after" in message(
        refused(before, now, within=STRICT)
    )


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {"free_blocks": (0, 5)}, "free_blocks before [4, 5] != [5] after"),
        ({}, {"free_blocks": (5, 4, 0)}, "free_blocks before [4, 5] != [5, 4] after"),
        ({"num_free": 2}, {"num_free": 2}, "num_free before 2 != 1 after"),
        (
            {"free_blocks": None, "num_free": 2},
            {"free_blocks": None, "num_free": 4},
            "num_free before 2 != 3 after",
        ),
        (
            {"ref_counts": dict.fromkeys(FULL, 1)},
            {"ref_counts": dict.fromkeys(FULL, 1)},
            "ref_counts before {0: 1, 1: 1, 2: 1, 3: 1} != {0: 2, 1: 1, 2: 1, 3: 1} after",
        ),
        ({"capacities": {0: 8}}, {"capacities": {0: 8}}, "capacities before {0: 8} != {0: 10}"),
        ({"capacities": {0: 8}}, {"capacities": {}}, "capacities before {0: 8} != {0: 2} after"),
        ({"reverse_map": {Owned(0, 0, 0)}}, {"reverse_map": {Owned(0, 1, 1)}}, "reverse_map"),
        (
            {"withheld": {4}, "free_blocks": (5,)},
            {"withheld": {0}, "free_blocks": (5,)},
            "withheld before {4} != {} after",
        ),
        ({"pending": {4: 2}}, {"pending": {0: 2}}, "pending before {4: 2} != {} after"),
        (
            {"cached": {4}, "free_blocks": (5,)},
            {"cached": {0}, "free_blocks": (5,)},
            "cached before {4} != {} after",
        ),
        (
            {"eviction_order": (4, 5)},
            {"eviction_order": (5, 0, 4)},
            "eviction_order before [4, 5] != [5, 4] after",
        ),
        ({"index": {"k": 0}}, {"index": {}}, "index before {k: 0} != {} after"),
    ],
    ids=str,
)
def test_nothing_else_may_change_beside_a_dropped_block(before, now, words):
    assert words in message(refused(before, now))


def test_where_nobody_keeps_what_is_not_held_the_keys_of_dropped_blocks_go_too():
    was, forgets = (
        {"index": {"k": 0, "l": 1}},
        sliding(drops_behind_window=True, forgets_unheld=True),
    )
    assert refused(was, {"index": {"l": 1}}, within=forgets) is HOLDS
    assert refused({}, {}, within=forgets) is HOLDS
    for now in ({}, {"k": 0}, {"l": 2}):
        assert "index before" in message(refused(was, {"index": now}, within=forgets))


@pytest.mark.parametrize(
    ("was", "now"),
    [({"withheld": ()}, {"withheld": {0}}), ({"pending": {}}, {"pending": {0: 1}})],
    ids=["withheld", "pending"],
)
def test_a_dropped_block_that_waits_is_not_found_meanwhile(was, now):
    known = {"k": 0, "l": 1}
    free = {"free_blocks": (4, 5)}
    assert refused({"index": known, **was}, {"index": {"l": 1}, **now, **free}) is HOLDS
    lost = refused({"index": known, **was}, {"index": {}, **now, **free})
    assert "index before {k: 0, l: 1} != {k: 0} after" in message(lost)


def test_a_dropped_block_may_be_evicted_at_once_with_all_else_that_is_cached():
    both = sliding(drops_behind_window=True, evicts_cached=True)
    was = {"index": {"k": 0, "m": 4}, "cached": {4}, "eviction_order": (4,)}
    now: dict[str, Any] = {"index": {}, "cached": (), "eviction_order": ()}
    assert refused(was, now, within=both) is HOLDS
    assert "free_blocks before [5] != [4, 5] after" in message(refused(was, now))


def test_a_dropped_block_lets_another_ripen_where_blocks_are_counted():
    late = sliding(drops_behind_window=True, late_blocks=1)
    was = {"pending": {4: 1}, "free_blocks": (5,)}
    now = {"pending": {0: 1}, "free_blocks": (5, 4)}
    assert refused(was, now, within=late) is HOLDS
    same = {"pending": {}, "free_blocks": (5, 4)}
    judgement = refused(was, same, left=FULL, within=late)
    assert "free_blocks before [5] != [5, 4] after" in message(judgement)


@pytest.mark.parametrize("filled", [True, False])
def test_a_refused_prompt_has_dropped_nothing_and_leaves_nothing(filled):
    first = seen(DROPS, SEVEN, {0: FULL})
    given = Handle(1, 2, (), (0, 0), 2)
    tables = {0: FULL, 1: (4,)} if filled else {0: FULL}
    second = seen(DROPS, SEVEN, tables, free_blocks=(5,))
    returned = given._replace(block_table=(4,) if filled else ())
    judgement = judge_unchanged(
        step(Prefill(1, 2), first, second, outcome=OOM, given=given, returned=returned)
    )
    words = "block_table before [] != [4] after" if filled else "free_blocks before [4, 5] != [5]"
    assert words in message(judgement)


def test_several_blocks_may_be_dropped_at_once_and_entries_that_were_null_stay():
    assert refused({}, {}, left=(NULL, NULL, 2, 3)) is HOLDS
    assert refused({}, {}, table=LEFT, left=(NULL, NULL, 2, 3)) is HOLDS
    counts = {"ref_counts": dict.fromkeys(FULL, 1)}, {"ref_counts": {2: 1, 3: 1}}
    assert refused(*counts, left=(NULL, NULL, 2, 3)) is HOLDS


@pytest.mark.parametrize("left", [(NULL, 1, 2, 4), (1, 2, 3), (NULL, 1, 2), (4, 1, 2, 3)], ids=str)
def test_a_table_that_changes_in_anything_else_was_not_dropped_from(left):
    judgement = refused({}, {}, left=left)
    assert message(judgement).startswith("request 0: block_table before [0, 1, 2, 3] != [")
    kept = refused({}, {}, left=left, returned=seen(DROPS, SEVEN, {0: FULL}).seen.handles[0])
    assert "before" in message(kept)


def test_a_handle_may_only_have_lost_what_its_table_has_lost():
    shown = seen(DROPS, SEVEN, {0: (NULL, NULL, 2, 3)}).seen.handles[0]
    judgement = refused({}, {}, returned=shown)
    assert message(judgement).startswith(
        "request 0: block_table before [0, 1, 2, 3] != [-1, -1, 2, 3] after"
    )
    longer = seen(DROPS, SEVEN, {0: LEFT}).seen.handles[0]._replace(seq_len=8)
    assert message(refused({}, {}, returned=longer)).startswith("request 0: seq_len before 7 != 8")


def test_another_request_may_lose_nothing():
    both = after(DROPS, Prefill(1, 1), start=SEVEN)
    assert refused({}, {}, dense=both) is HOLDS
    first = seen(DROPS, both, {0: FULL, 1: (4,)})
    second = seen(DROPS, both, {0: FULL, 1: (NULL,)})
    given = first.seen.handles[0]
    judgement = judge_unchanged(step(Append(0, 8), first, second, outcome=OOM, given=given))
    assert "block_tables before {0: [0, 1, 2, 3], 1: [4]} != {0: [0, 1, 2, 3], 1: [-1]}" in message(
        judgement
    )


def test_a_dropped_block_that_a_fork_still_holds_stays_held():
    forked = after(DROPS, Fork(1, 0), start=SEVEN)
    tables = {0: FULL, 1: FULL}, {0: LEFT, 1: FULL}
    counts = dict.fromkeys(FULL, 2), {0: 1, 1: 2, 2: 2, 3: 2}

    def judged(free):
        first, second = (
            seen(DROPS, forked, t, ref_counts=n, free_blocks=blocks, num_free=len(blocks))
            for t, n, blocks in zip(tables, counts, ((4, 5), free), strict=True)
        )
        given, returned = first.seen.handles[0], second.seen.handles[0]
        call = Append(0, 8)
        return judge_unchanged(
            step(call, first, second, outcome=OOM, given=given, returned=returned)
        )

    assert judged((4, 5)) is HOLDS
    assert "free_blocks before [4, 5] != [4, 5, 0] after" in message(judged((4, 5, 0)))


# ---------------------------------------------------------------- what it left to be needed

DROPPING: dict[str, Any] = {"drops_behind_window": True}
WINDOW = able("append", "window", "fork", "group", blocks=8, size=1, window=2, **DROPPING)
FOUR = after(WINDOW, Prefill(0, 4))


def fits(command, dense, table, free, outcome, **tables):
    """The judgement of an answer, with so many blocks free and request 0 with this table."""
    others = {int(name[1:]): other for name, other in tables.items()}
    here = seen(WINDOW, dense, {0: table, **others}, free_blocks=tuple(range(8 - free, 8)))
    return judge_exact(step(command, here, here, outcome=outcome))


def test_what_was_dropped_before_makes_no_room_again():
    # Growing by one gives back all but the last block; three are behind the window then.
    assert fits(Decode(0), FOUR, (0, 1, 2, 3), 0, DONE) is HOLDS
    dropped = (NULL, NULL, NULL, 3)
    assert fits(Decode(0), FOUR, dropped, 1, DONE) is HOLDS
    assert fits(Decode(0), FOUR, dropped, 0, OOM) is HOLDS
    assert "granted: needed(1) > available(0)" in message(fits(Decode(0), FOUR, dropped, 0, DONE))
    assert "refused as out of blocks: needed(1) <= available(1)" in message(
        fits(Decode(0), FOUR, dropped, 1, OOM)
    )


def test_what_is_still_there_to_go_back_counts_for_what_is_needed():
    # Of the three behind the window of the fifth token, one went back before.
    assert fits(Decode(0), FOUR, (NULL, 1, 2, 3), 0, DONE) is HOLDS
    assert "needed(0) <= available(0)" in message(fits(Decode(0), FOUR, (NULL, 1, 2, 3), 0, OOM))
    for need, free in ((1, 1), (2, 2)):
        call = Append(0, 3 + need)  # of which the first three stand in place of what goes back
        assert fits(call, FOUR, (NULL, 1, 2, 3), free, DONE) is HOLDS
        low = message(fits(call, FOUR, (NULL, 1, 2, 3), free - 1, DONE))
        assert f"needed({need}) > available({free - 1})" in low


def test_what_a_fork_holds_too_was_never_room():
    forked = after(WINDOW, Fork(1, 0), start=FOUR)
    for table in ((0, 1, 2, 3), (NULL, NULL, NULL, 3)):
        judged = fits(Decode(0), forked, table, 1, DONE, r1=(0, 1, 2, 3))
        assert judged is HOLDS
        low = fits(Decode(0), forked, table, 0, DONE, r1=(0, 1, 2, 3))
        assert "needed(1) > available(0)" in message(low)


def test_what_another_has_dropped_it_holds_no_more():
    forked = after(WINDOW, Fork(1, 0), start=FOUR)
    assert fits(Decode(0), forked, (0, 1, 2, 3), 0, DONE, r1=(NULL, NULL, NULL, 3)) is HOLDS
    low = fits(Decode(0), forked, (0, 1, 2, 3), 0, DONE, r1=(NULL, NULL, 2, 3))
    assert low is HOLDS
    both = fits(Decode(0), forked, (0, 1, 2, 3), 0, DONE, r1=(0, 1, 2, 3))
    assert "needed(1) > available(0)" in message(both)


def test_what_is_reserved_behind_the_tokens_hides_no_drop():
    ahead = able("append", "window", blocks=8, size=1, window=2, **DROPPING, lookahead=1)
    four = after(ahead, Prefill(0, 4))
    here = seen(ahead, four, {0: (NULL, NULL, NULL, 3, 4)}, free_blocks=(7,))
    assert judge_exact(step(Append(0, 3), here, here)) is HOLDS
    assert judge_exact(step(Append(0, 3), here, here, outcome=OOM)) is HOLDS
    none = seen(ahead, four, {0: (NULL, NULL, NULL, 3, 4)}, free_blocks=())
    granted = judge_exact(step(Append(0, 3), none, none))
    assert "granted: needed(1) > available(0)" in message(granted)


def test_inside_a_group_what_goes_back_is_no_room_dropped_or_not():
    grouped = after(WINDOW, GroupBegin(), start=FOUR)
    for table in ((0, 1, 2, 3), (NULL, NULL, NULL, 3)):
        assert fits(Decode(0), grouped, table, 1, DONE) is HOLDS
        assert "needed(1) > available(0)" in message(fits(Decode(0), grouped, table, 0, DONE))
    ended = after(WINDOW, GroupEnd(), start=grouped)
    assert fits(Decode(0), ended, (0, 1, 2, 3), 0, DONE) is HOLDS


def test_who_is_new_has_dropped_nothing():
    here = seen(WINDOW, FOUR, {0: (NULL, NULL, NULL, 3)}, free_blocks=(6, 7))
    assert judge_exact(step(Prefill(1, 2), here, here)) is HOLDS
    assert "needed(3) > available(2)" in message(judge_exact(step(Prefill(1, 3), here, here)))


def test_what_takes_no_block_is_not_judged_by_what_was_dropped():
    here = seen(WINDOW, FOUR, {0: (NULL, NULL, NULL, 3)}, free_blocks=())
    assert judge_exact(step(Release(0), here, here)) is HOLDS


# ---------------------------------------------------------------- time


def waited(before, now):
    """The judgement of a refused call that let time pass, where what ripens is cached."""
    within = able("prefix", blocks=6, late_calls=2)
    dense = after(within, Prefill(0, 2))
    first, second = (
        seen(within, dense, {0: (0,)}, free_blocks=(5,), **shown) for shown in (before, now)
    )
    given, returned = first.seen.handles[0], second.seen.handles[0]
    return judge_unchanged(
        step(Decode(0), first, second, outcome=OOM, given=given, returned=returned)
    )


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"pending": {4: 2}, "index": {"k": 0}}, {"pending": {4: 1}, "index": {"k": 0}}),
        ({"pending": {4: 1}, "index": {}}, {"pending": {}, "cached": {4}, "index": {"m": 4}}),
        (
            {"pending": {4: 1}, "index": {"k": 0}},
            {"pending": {}, "cached": {4}, "index": {"k": 0, "m": 4}},
        ),
        (
            {"pending": {4: 1}, "index": {"k": 4}},
            {"pending": {}, "cached": {4}, "index": {"k": 4}},
        ),
    ],
    ids=str,
)
def test_what_has_waited_long_enough_may_be_found_after_a_refusal(before, now):
    assert waited(before, now) is HOLDS


def test_what_could_be_found_before_is_found_while_others_ripen():
    lost = waited(
        {"pending": {4: 1}, "index": {"k": 0}}, {"pending": {}, "cached": {4}, "index": {"m": 4}}
    )
    assert message(lost).startswith("index before {k: 0} != {} after")
