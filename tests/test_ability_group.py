"""Group: blocks released inside a group come back when it ends."""

from __future__ import annotations

import pytest

from able import NULL, PLAIN, able, after, said, seen
from builders import message, step
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.group import GROUP, GroupBegin, GroupEnd, judge_withheld
from pagedkv.specs.catalogue import candidates
from pagedkv.specs.commands import NOBODY
from pagedkv.specs.model import EMPTY
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, Sometimes
from pagedkv.specs.steps import Grant

WITHIN = able("group", size=1)
OPEN = after(WITHIN, GroupBegin())
ONE = after(WITHIN, Prefill(0, 2), GroupBegin())
HELD = seen(WITHIN, ONE, {0: (1, 0)}, withheld=())


def test_a_group_begins_outside_and_ends_inside_of_one():
    assert GroupBegin().enabled(EMPTY, WITHIN)
    assert GroupEnd().enabled(OPEN, WITHIN)
    assert not GroupEnd().enabled(EMPTY, WITHIN)
    assert not GroupBegin().enabled(OPEN, WITHIN)
    assert not GroupBegin().enabled(EMPTY, PLAIN)
    assert after(WITHIN, GroupEnd(), start=OPEN) == EMPTY


@pytest.mark.parametrize("command", [GroupBegin(), GroupEnd()], ids=str)
def test_a_group_is_about_no_request_and_takes_no_blocks(command):
    assert Grant(0, 0) == command.expect(EMPTY, WITHIN)
    assert (command.request, command.names(), command.takes_blocks) == (NOBODY, (), False)
    assert command is command.renamed({})
    command.prepare({}, HELD)()


def test_a_group_makes_its_calls():
    assert said(GroupBegin()) == ("free_group_begin",)
    assert said(GroupEnd()) == ("free_group_end",)


def test_the_one_that_makes_sense_is_tried():
    def tried(dense, within):
        return [c for c in candidates(dense, within) if isinstance(c, GroupBegin | GroupEnd)]

    assert [GroupBegin()] == tried(EMPTY, WITHIN)
    assert [GroupEnd()] == tried(OPEN, WITHIN)
    assert tried(EMPTY, PLAIN) == []


def released(withheld, **snapshot):
    """What a release of blocks 1 and 0 inside the group leads to."""
    now = seen(WITHIN, after(WITHIN, Release(0), start=ONE), {}, withheld=withheld, **snapshot)
    return step(Release(0), HELD, now)


def test_accepts_blocks_that_come_back_inside_a_group_and_are_withheld():
    assert judge_withheld(released({0, 1})) is HOLDS


@pytest.mark.parametrize(("withheld", "lost"), [((), 0), ((0,), 1)], ids=str)
def test_rejects_a_block_that_comes_back_inside_a_group_and_is_not_withheld(withheld, lost):
    judgement = judge_withheld(released(frozenset(withheld)))
    assert f"after; block {lost} is missing" in message(judgement)
    assert isinstance(judgement, Broken)
    assert judgement.blocks == tuple(sorted({0, 1} - {*withheld}))


def test_rejects_a_block_that_was_withheld_and_is_no_longer_while_the_group_is_open():
    before = seen(WITHIN, OPEN, {}, withheld={3})
    now = seen(WITHIN, after(WITHIN, Prefill(0, 1), start=OPEN), {0: (0,)}, withheld=())
    judgement = judge_withheld(step(Prefill(0, 1), before, now))
    assert message(judgement) == (
        "prefill(0, 1): withheld {3} before, {} after; block 3 is missing"
    )


def test_rejects_a_withheld_block_that_is_handed_out():
    before = seen(WITHIN, OPEN, {}, withheld={3})
    now = seen(WITHIN, after(WITHIN, Prefill(0, 1), start=OPEN), {0: (3,)}, withheld={3})
    judgement = judge_withheld(step(Prefill(0, 1), before, now))
    assert Broken("prefill(0, 1) handed out block 3, which is withheld", (3,)) == judgement


def ended(**snapshot):
    """What the end of a group leads to, in which block 3 was withheld."""
    before = seen(WITHIN, OPEN, {}, withheld={3})
    return step(GroupEnd(), before, seen(WITHIN, EMPTY, {}, **snapshot))


@pytest.mark.parametrize(
    "there",
    [
        {},
        {"cached": {3}},
        {"free_blocks": (0, 1, 2), "pending": {3: 1}},
        {"free_blocks": None, "num_free": 4},
    ],
    ids=str,
)
def test_accepts_withheld_blocks_that_are_free_cached_or_pending_when_the_group_ends(there):
    assert judge_withheld(ended(**there)) is HOLDS


def test_rejects_a_withheld_block_that_is_nowhere_when_the_group_ends():
    judgement = judge_withheld(ended(free_blocks=(0, 1, 2)))
    expected = "group_end(): withheld {3} before, None after; block 3 is missing"
    assert Broken(expected, (3,)) == judgement


def test_rejects_what_is_withheld_outside_a_group_and_nothing_withheld_inside():
    inside = seen(WITHIN, OPEN, {}, withheld=None)
    begun = judge_withheld(step(GroupBegin(), seen(WITHIN, EMPTY, {}), inside))
    assert message(begun) == "withheld = None though a group is open; after group_begin()"
    outside = judge_withheld(ended(withheld={3}))
    assert message(outside) == "withheld = {3} though a group is not open; after group_end()"


def test_nothing_to_judge_without_a_group():
    now = seen(WITHIN, after(WITHIN, Prefill(0, 1)), {0: (0,)})
    assert judge_withheld(step(Prefill(0, 1), seen(WITHIN, EMPTY, {}), now)) is VACUOUS


def test_the_null_block_of_a_window_is_never_withheld():
    within = able("group", "window", size=1, window=1)
    dense = after(within, Prefill(0, 2), Decode(0), GroupBegin())
    before = seen(within, dense, {0: (NULL, NULL, 0)}, withheld=())
    now = seen(within, after(within, Release(0), start=dense), {}, withheld={0})
    assert judge_withheld(step(Release(0), before, now)) is HOLDS


def test_the_goal_is_a_group_that_gave_something_back():
    goal = GROUP.properties[-1].expectation
    assert isinstance(goal, Sometimes)
    assert goal.reached(ended())
    before = seen(WITHIN, OPEN, {}, withheld=())
    assert not goal.reached(step(GroupEnd(), before, seen(WITHIN, EMPTY, {})))
    assert not goal.reached(released({0, 1}))
