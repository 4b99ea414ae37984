"""Blocks given back late, on plain data: conserved, counted, not handed out, and free in time."""

from __future__ import annotations

import pytest

from builders import declaring, message, setting, state, step
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.free_list import judge_conserved, judge_counted
from pagedkv.specs.pending import PROPERTIES, judge_pending
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, Sometimes
from pagedkv.specs.rollback import judge_exact, judge_unchanged
from pagedkv.specs.steps import NoBlocks

CALLS = setting(declared=declaring(late_calls=2))
BLOCKS = setting(declared=declaring(late_blocks=2))
OOM = NoBlocks("OOM: none left")

HELD = state({0: 4}, {0: (0, 1)}, within=CALLS, pending={})


def waiting(pending, free, within=CALLS, **fields):
    """Request 1 holds block 3; the rest is pending or free."""
    return state({1: 1}, {1: (3,)}, within=within, pending=pending, free=free, **fields)


# ---------------------------------------------------------------- the state


def test_pending_blocks_are_neither_lost_nor_free():
    assert judge_conserved(waiting({0: 1, 1: 2}, (2,))) is HOLDS


def test_a_leak_beside_pending_blocks_is_told_with_their_number():
    expected = (
        "free(1) + held(1) + cached(0) + pending(1) != usable(4): leak, block 1 belongs to nobody"
    )
    assert Broken(expected, (1,)) == judge_conserved(waiting({0: 1}, (2,)))


@pytest.mark.parametrize(
    ("pending", "free", "words"),
    [
        ({0: 1, 2: 1}, (1, 2), "block 2: free, pending"),
        ({3: 1}, (0, 1, 2), "block 3: held by request 1, pending"),
    ],
)
def test_a_block_that_is_pending_and_somewhere_else_is_counted_twice(pending, free, words):
    judgement = judge_conserved(waiting(pending, free))
    assert message(judgement).endswith(f"double count, {words}")


def test_a_counter_leaves_out_pending_blocks_where_the_free_list_cannot_be_seen():
    assert judge_counted(waiting({0: 1}, None, num_free=2)) is HOLDS
    wrong = judge_counted(waiting({0: 1}, None, num_free=3))
    assert message(wrong) == "num_free = 3 != 2 = usable - held - pending"


def test_pending_blocks_are_not_available_even_where_the_free_list_cannot_be_seen():
    assert waiting({0: 1, 1: 1}, (2,)).available == 1
    unseen = waiting({0: 1, 1: 1}, None)
    assert unseen.available == 1
    assert judge_exact(step(Prefill(0, 3), unseen, unseen, outcome=OOM)) is HOLDS


# ---------------------------------------------------------------- the step


def released(pending, within=CALLS):
    before = state({0: 4, 1: 1}, {0: (0, 1), 1: (3,)}, within=within, pending={})
    free = tuple(sorted({0, 1, 2} - set(pending)))
    after = waiting(pending, free, within, released={0: 4})
    return step(Release(0), before, after)


def test_accepts_blocks_that_wait_as_long_as_is_declared():
    assert judge_pending(released({0: 2, 1: 1})) is HOLDS
    assert judge_pending(released({1: 2}, BLOCKS)) is HOLDS


def test_nothing_to_judge_where_nothing_is_pending():
    assert judge_pending(released({})) is VACUOUS
    assert judge_pending(step(Decode(1), waiting(None, (0, 1, 2)), waiting(None, (0,)))) is VACUOUS


def test_what_was_withheld_may_wait_once_the_group_has_ended():
    before = waiting({}, (1, 2), withheld={0})
    assert judge_pending(step(Decode(1), before, waiting({0: 2}, (1, 2)))) is HOLDS
    nobody = judge_pending(step(Decode(1), waiting({}, (1, 2)), waiting({0: 2}, (1, 2))))
    assert "block 0 is pending, but nobody had held it" in message(nobody)


def test_what_is_withheld_has_not_come_back_for_those_that_wait_for_blocks():
    before = state({0: 2, 1: 1}, {0: (0,), 1: (3,)}, within=BLOCKS, pending={1: 1}, free=(2,))

    def after(**fields):
        return step(Release(0), before, waiting({1: 1}, (2,), BLOCKS, **fields))

    assert judge_pending(after(withheld={0})) is HOLDS
    assert "pending[1] = 1 > 0 = 1 before - 1 passed" in message(judge_pending(after()))


@pytest.mark.parametrize(
    ("within", "declared"),
    [(CALLS, "2 = declared late_calls"), (BLOCKS, "2 = declared late_blocks")],
    ids=["calls", "blocks"],
)
def test_rejects_a_block_that_is_to_wait_for_longer(within, declared):
    judgement = judge_pending(released({0: 3}, within))
    assert Broken(f"release(0): pending[0] = 3 > {declared}", (0,)) == judgement


def test_rejects_any_pending_block_where_none_is_declared():
    judgement = judge_pending(released({0: 1}, setting()))
    assert message(judgement) == "release(0): pending[0] = 1 > 0 = declared late_calls"


def test_rejects_a_block_that_waits_for_nothing():
    expected = "release(0): pending[0] = 0 < 1: it waits for nothing"
    assert message(judge_pending(released({0: 0}))) == expected


def test_rejects_a_free_block_that_becomes_pending():
    judgement = judge_pending(step(Decode(1), waiting({}, (0, 1, 2)), waiting({0: 1}, (1, 2))))
    assert message(judgement) == "decode(1): block 0 is pending, but nobody had held it"


def test_rejects_a_pending_block_that_is_handed_out():
    before = waiting({0: 2}, (1, 2))
    after = state({1: 3}, {1: (3, 0)}, within=CALLS, pending={}, free=(1, 2))
    judgement = judge_pending(step(Decode(1), before, after))
    expected = "decode(1) handed out block 0, which was pending: pending[0] = 2 before"
    assert Broken(expected, (0,), (1,)) == judgement


def test_a_pending_block_that_becomes_free_was_not_handed_out():
    assert judge_pending(step(Decode(1), waiting({0: 2}, (1, 2)), waiting({}, (1, 2, 0)))) is HOLDS


def test_rejects_a_granted_call_after_which_a_block_waits_as_long_as_before():
    before, same, less = waiting({0: 2}, (1, 2)), waiting({0: 2}, (1, 2)), waiting({0: 1}, (1, 2))
    assert judge_pending(step(Decode(1), before, less)) is HOLDS
    assert judge_pending(step(Prefill(0, 9), before, same, outcome=OOM)) is HOLDS
    judgement = judge_pending(step(Decode(1), before, same))
    expected = "decode(1): pending[0] = 2 > 1 = 2 before - 1 passed (late_calls)"
    assert message(judgement) == expected


def test_blocks_that_wait_for_blocks_wait_for_no_call():
    before = waiting({0: 2}, (1, 2), BLOCKS)
    assert judge_pending(step(Decode(1), before, waiting({0: 2}, (1, 2), BLOCKS))) is HOLDS
    after = state({}, {}, within=BLOCKS, pending={0: 2, 3: 1}, free=(1, 2), released={1: 1})
    expected = "release(1): pending[0] = 2 > 1 = 2 before - 1 passed (late_blocks)"
    assert message(judge_pending(step(Release(1), before, after))) == expected


def test_the_goal_is_a_granted_call_after_which_a_pending_block_is_free():
    goal = next(p.expectation for p in PROPERTIES if isinstance(p.expectation, Sometimes))
    before, after = waiting({0: 1}, (1, 2)), waiting({}, (1, 2, 0))
    assert goal.reached(step(Decode(1), before, after))
    assert goal.reached(step(Decode(1), waiting({0: 1}, None), waiting({}, None)))
    assert not goal.reached(step(Prefill(0, 9), before, after, outcome=OOM))
    assert not goal.reached(step(Decode(1), before, waiting({0: 1}, (1, 2))))
    assert not goal.reached(step(Decode(1), before, waiting({}, (1, 2))))


# ---------------------------------------------------------------- the refusal


def refused(before, after):
    return judge_unchanged(step(Prefill(0, 9), before, after, outcome=OOM))


def test_time_may_pass_in_a_refused_call():
    before = waiting({0: 2, 1: 1}, (2,), num_free=1)
    assert refused(before, waiting({0: 1}, (2, 1), num_free=2)) is HOLDS
    assert refused(before, waiting({0: 1, 1: 1}, (2,), num_free=1)) is HOLDS
    unseen = waiting({0: 2, 1: 1}, None)
    assert refused(unseen, waiting({0: 2}, None)) is HOLDS


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (({0: 1}, (2,), 1), "pending before {0: 2, 1: 1} != {0: 1} after"),
        (({0: 1}, (1, 0), 2), "free_blocks before [2] != [0] after"),
        (({0: 3, 1: 1}, (2,), 1), "pending before {0: 2, 1: 1} != {0: 3, 1: 1} after"),
        (({0: 2, 1: 1, 2: 1}, (), 0), "free_blocks before [2] != [] after"),
        (({0: 1}, (2, 1), 1), "num_free before 1 != 0 after"),
        (({0: 1}, (1,), 1), "free_blocks before [2] != [] after"),
        ((None, (2, 0, 1), 3), "free_blocks before [2] != [2, 0, 1] after"),
    ],
    ids=["lost", "another", "longer", "a free one", "not counted", "a free one lost", "none"],
)
def test_nothing_else_may_change_with_it(after, words):
    pending, free, count = after
    before = waiting({0: 2, 1: 1}, (2,), num_free=1)
    assert words in message(refused(before, waiting(pending, free, num_free=count)))


def test_what_time_has_ripened_may_be_cached():
    before = waiting({0: 2, 1: 1}, (2,), num_free=1, eviction_order=())
    cached = {"cached": {1}, "eviction_order": (1,)}
    assert refused(before, waiting({0: 1}, (2,), num_free=1, **cached)) is HOLDS
    assert "free_blocks before [2] != [] after" in message(
        refused(before, waiting({0: 1}, (1,), num_free=1, cached={2}))
    )


def test_where_the_free_list_is_not_seen_the_counter_counts_what_has_ripened():
    before = waiting({0: 2, 1: 1}, None, num_free=1)
    assert refused(before, waiting({0: 1}, None, num_free=2)) is HOLDS
    assert "num_free before 1 != 0 after" in message(
        refused(before, waiting({0: 1}, None, num_free=1))
    )


def test_no_time_passes_for_blocks_that_wait_for_blocks():
    judgement = refused(waiting({0: 1}, (1, 2), BLOCKS), waiting({}, (1, 2, 0), BLOCKS))
    assert "free_blocks before [1, 2] != [1, 2, 0] after" in message(judgement)


def test_a_manager_that_stops_saying_what_is_pending_has_nothing_pending():
    before = state({0: 4}, {0: (0, 1)}, within=CALLS, pending={2: 1}, free=(3,))
    after = state({0: 4}, {0: (0, 1)}, within=CALLS)
    assert judge_pending(step(Decode(0), before, after, outcome=OOM)) is HOLDS
