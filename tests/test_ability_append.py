"""Append: many tokens at once."""

from __future__ import annotations

import pytest

from able import PLAIN, able, after, named, said, seen
from builders import state, step
from pagedkv import Request
from pagedkv.specs.abilities.append import APPEND, Append
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.specs.catalogue import candidates
from pagedkv.specs.model import EMPTY
from pagedkv.specs.properties import Sometimes
from pagedkv.specs.steps import Grant, NoBlocks

WITHIN = able("append")
THREE = after(WITHIN, Prefill(0, 3))


def test_only_live_requests_of_a_target_that_declares_it_can_append():
    assert Append(0, 2).enabled(THREE, WITHIN)
    assert not Append(1, 2).enabled(THREE, WITHIN)
    assert not Append(0, 2).enabled(THREE, PLAIN)


@pytest.mark.parametrize(("count", "blocks"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_an_append_needs_the_blocks_that_its_tokens_begin(count, blocks):
    assert Grant(blocks, blocks) == Append(0, count).expect(THREE, WITHIN)


def test_lookahead_blurs_what_an_append_needs():
    ahead = able("append", lookahead=1)
    assert Grant(0, 2) == Append(0, 2).expect(THREE, ahead)


def test_the_model_has_the_tokens_behind_those_that_were_there():
    assert after(WITHIN, Prefill(0, 5)) == Append(0, 2).advance(THREE, WITHIN)


def test_an_append_brings_its_tokens_and_takes_them_back():
    handles = {0: Request(0, 3)}
    tokens = handles[0].tokens
    undo = Append(0, 2).prepare(handles, seen(WITHIN, THREE, {0: (0, 1)}))
    assert tokens == [0] * 5
    handles[0].tokens = [9]
    undo()
    assert tokens == [0] * 3
    assert handles[0].tokens is tokens


def test_an_append_makes_its_call_and_asks_the_question_about_it():
    assert said(Append(0, 2), 0) == ("allocate_for_append", "r0", 2)
    assert Append(0, 2).question() == ("can_append", (2,))
    assert Append(0, 2).asks_about() == 0
    assert Append(1, 2) == Append(0, 2).renamed({0: 1})


def test_counts_go_to_the_next_block_one_beyond_what_is_free_and_beyond_the_pool():
    found = [c for c in candidates(THREE, WITHIN) if isinstance(c, Append)]
    assert [c.tokens for c in found] == [1, 2, 3, 4, 5, 6, 10]
    assert {c.request for c in found} == {0}


def test_what_its_last_block_has_room_for_is_counted_from_its_end():
    within = able("append", blocks=2, size=3)
    found = candidates(after(within, Prefill(0, 4)), within)
    appends = [c.tokens for c in found if isinstance(c, Append)]
    assert appends == [1, 2, 3, 9]  # The block is full at 2; 9 are more than the pool holds.


def test_nothing_is_appended_where_that_is_not_tried():
    assert not [c for c in candidates(THREE, PLAIN) if isinstance(c, Append)]
    assert not [c for c in candidates(EMPTY, WITHIN) if isinstance(c, Append)]


def test_behind_a_window_a_request_grows_by_the_pool_and_a_window_at_most():
    within = able("append", "window", blocks=2, size=1, window=3)
    long = after(within, Prefill(0, 2), Append(0, 2))
    assert Append(0, 1).enabled(long, within)
    assert not Append(0, 2).enabled(long, within)
    appends = named(c for c in candidates(long, within) if isinstance(c, Append))
    assert appends == ["append(0, 1)"]
    assert not Decode(0).enabled(Append(0, 1).advance(long, within), within)


(SEVERAL,) = APPEND.properties


@pytest.mark.parametrize(
    ("command", "table", "outcome", "reached"),
    [
        (Append(0, 4), (0, 1, 2, 3), None, True),
        (Append(0, 2), (0, 1, 2), None, False),
        (Append(0, 4), (0, 1), NoBlocks("OOM"), False),
        (Prefill(1, 4), (2, 3), None, False),
    ],
    ids=str,
)
def test_the_goal_is_an_append_that_took_several_blocks(command, table, outcome, reached):
    before = state({0: 3}, {0: (0, 1)}, within=WITHIN)
    there = {0: (0, 1), command.request: table}
    now = state(dict.fromkeys(there, 4), there, within=WITHIN)
    done = {} if outcome is None else {"outcome": outcome}
    assert isinstance(SEVERAL.expectation, Sometimes)
    assert reached == SEVERAL.expectation.reached(step(command, before, now, **done))
