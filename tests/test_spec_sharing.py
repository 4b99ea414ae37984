"""What the core's properties make of cached, withheld and evicted blocks, on plain data."""

from __future__ import annotations

from typing import Any

import pytest

from able import able, after, seen
from builders import message, setting, state, step
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.free_list import judge_conserved, judge_counted
from pagedkv.specs.model import EMPTY, Model
from pagedkv.specs.pending import judge_pending
from pagedkv.specs.properties import HOLDS
from pagedkv.specs.rollback import judge_exact, judge_unchanged
from pagedkv.specs.steps import NoBlocks

OOM = NoBlocks("OOM")
GROUPED = able("group", "prefix")
ONE = after(GROUPED, Prefill(0, 2))


# ---------------------------------------------------------------- conservation


def test_cached_and_withheld_blocks_are_counted():
    here = seen(GROUPED, ONE, {0: (0,)}, cached={1}, withheld={2})
    assert here.seen.snapshot.free_blocks == (3,)
    assert judge_conserved(here) is HOLDS


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"cached": {0}}, "double count, block 0: held by request 0, cached"),
        ({"withheld": {0}}, "double count, block 0: held by request 0, withheld"),
        ({"cached": {1}, "withheld": {1}}, "double count, block 1: cached, withheld"),
        ({"withheld": {2}, "free_blocks": (1, 2, 3)}, "double count, block 2: free, withheld"),
        ({"withheld": (), "free_blocks": (1, 2)}, "leak, block 3 belongs to nobody"),
    ],
    ids=str,
)
def test_rejects_blocks_that_are_in_two_places_or_in_none(there, words):
    assert message(judge_conserved(seen(GROUPED, ONE, {0: (0,)}, **there))).endswith(words)


def test_withheld_blocks_stand_in_the_equation_where_there_may_be_some():
    lost: dict[str, Any] = {"free_blocks": (1,)}
    outside = message(judge_conserved(seen(GROUPED, ONE, {0: (0,)}, **lost)))
    inside = message(judge_conserved(seen(GROUPED, ONE, {0: (0,)}, withheld={2}, **lost)))
    assert outside.startswith("free(1) + held(1) + cached(0) != usable(4)")
    assert inside.startswith("free(1) + held(1) + cached(0) + withheld(1) != usable(4)")


def test_a_counter_without_a_list_counts_no_withheld_block():
    hidden: dict[str, Any] = {"free_blocks": None, "withheld": {2}}
    assert judge_counted(seen(GROUPED, ONE, {0: (0,)}, num_free=2, **hidden)) is HOLDS
    wrong = judge_counted(seen(GROUPED, ONE, {0: (0,)}, num_free=3, **hidden))
    assert message(wrong) == "num_free = 3 != 2 = usable - held - pending"


def test_withheld_blocks_are_not_there_to_be_handed_out():
    here = seen(GROUPED, ONE, {0: (0,)}, withheld={1, 2}, free_blocks=None)
    assert here.available == 1
    assert judge_exact(step(Prefill(1, 6), here, here, outcome=OOM)) is HOLDS


# ---------------------------------------------------------------- refusals that evict


EVICTS = able("prefix", evicts_cached=True)
BASE: dict[str, Any] = {"cached": {2, 3}, "index": {"a": 2, "b": 3}, "free_blocks": (0, 1)}


def refused(within, **now):
    before = seen(within, EMPTY, {}, **BASE)
    after_it = seen(within, EMPTY, {}, **{**BASE, **now})
    return judge_unchanged(step(Prefill(0, 9), before, after_it, outcome=OOM))


EVICTED: dict[str, Any] = {"cached": {3}, "index": {"b": 3}, "free_blocks": (0, 1, 2)}


def test_accepts_a_refusal_that_evicts_only_where_that_is_declared():
    assert refused(EVICTS, **EVICTED) is HOLDS
    strict = message(refused(able("prefix"), **EVICTED))
    assert "free_blocks before [0, 1] != [0, 1, 2] after" in strict


def test_evicted_blocks_may_stand_anywhere_in_the_free_list():
    assert refused(EVICTS, **{**EVICTED, "free_blocks": (2, 0, 1)}) is HOLDS
    judgement = refused(EVICTS, **{**EVICTED, "free_blocks": (2, 1, 0)})
    assert "free_blocks before [0, 1] != [1, 0] after" in message(judgement)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"index": {"a": 2, "b": 3}}, "cached before {2, 3} != {3} after"),
        ({"index": {}}, "cached before {2, 3} != {3} after"),
        ({"cached": {3, 1}}, "cached before {2, 3} != {1, 3} after"),
        ({"free_blocks": (0,)}, "free_blocks before [0, 1] != [0] after"),
    ],
    ids=["still found", "more let go", "another cached", "lost"],
)
def test_rejects_a_refusal_that_does_more_than_evict(now, words):
    assert words in message(refused(EVICTS, **{**EVICTED, "free_blocks": (0, 1), **now}))


def test_a_counter_goes_up_by_what_was_evicted_or_stays():
    def counted(was, now):
        before = seen(EVICTS, EMPTY, {}, **BASE, num_free=was)
        there = seen(EVICTS, EMPTY, {}, **{**BASE, **EVICTED}, num_free=now)
        return judge_unchanged(step(Prefill(0, 9), before, there, outcome=OOM))

    assert counted(2, 3) is HOLDS
    assert counted(4, 4) is HOLDS
    assert "num_free before 2 != 4 after" in message(counted(2, 4))


def test_nothing_is_excused_where_nothing_was_evicted():
    judgement = refused(EVICTS, free_blocks=(1, 0))
    assert "free_blocks before [0, 1] != [1, 0] after" in message(judgement)


# ---------------------------------------------------------------- pending beside null entries


def test_a_null_entry_that_comes_is_no_block_given_back():
    within = able("window", size=1, window=1, late_blocks=2)
    two = after(within, Prefill(0, 2))
    three = after(within, Decode(0), start=two)
    before = seen(within, three, {0: (-1, -1, 2)}, pending={3: 2})
    over = seen(within, after(within, Release(0), start=three), {}, pending={3: 1, 2: 2})
    assert judge_pending(step(Release(0), before, over)) is HOLDS
    stays = seen(within, over.model, {}, pending={3: 2, 2: 2})
    assert "pending[3] = 2 > 1 = 2 before - 1 passed" in message(
        judge_pending(step(Release(0), before, stays))
    )


# ---------------------------------------------------------------- the model's own facts


def test_a_target_without_abilities_has_the_model_it_had():
    within = setting()
    facts = (within.shares, within.by_content, within.tracks_pages, within.cuts_shared)
    assert not any(facts)
    assert within.names == within.requests
    assert within.may_grow(10**6)
    tags = tuple(range(9))
    assert within.readable(tags) is tags
    dense = Model({0: (1,)}, {1: 2})
    assert dense.identity == (((0, (1,)),), ((1, 2),))


def test_a_window_reads_the_last_tokens_and_bounds_what_a_request_grows_to():
    within = able("window", blocks=2, window=3)
    assert within.readable((1, 2, 3, 4, 5)) == (3, 4, 5)
    assert within.readable((1, 2)) == (1, 2)
    assert within.may_grow(7)
    assert not within.may_grow(8)
    assert within.tag(1, 0) > within.tag(0, 8)


def test_each_part_of_a_model_tells_it_apart():
    parts = [
        Model({}, {}),
        Model({}, {}, swapped={0: (1,)}),
        Model({}, {}, kept={0: (1,)}),
        Model({}, {}, pages={0: (0,)}),
        Model({}, {}, grouping=True),
    ]
    assert len({part.identity for part in parts}) == len(parts)


def test_a_state_without_cached_blocks_hands_out_the_free_ones():
    assert state({0: 4}, {0: (0, 1)}).available == 2
