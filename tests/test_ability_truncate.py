"""Truncate: the last tokens of a request go."""

from __future__ import annotations

import pytest

from able import PLAIN, able, after, said, seen
from builders import state, step
from pagedkv import Request
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.truncate import EDGES_FROM, TRUNCATE, Truncate
from pagedkv.specs.catalogue import candidates
from pagedkv.specs.properties import Sometimes
from pagedkv.specs.steps import Grant

WITHIN = able("truncate")
FIVE = after(WITHIN, Prefill(0, 5))


@pytest.mark.parametrize(
    ("command", "enabled"),
    [
        (Truncate(0, 1), True),
        (Truncate(0, 4), True),
        (Truncate(0, 5), True),
        (Truncate(0, 6), False),
        (Truncate(0, 0), False),
        (Truncate(1, 1), False),
    ],
    ids=str,
)
def test_a_live_request_keeps_some_of_its_tokens_or_all(command, enabled):
    assert enabled == command.enabled(FIVE, WITHIN)
    assert not command.enabled(FIVE, PLAIN)


def test_a_truncation_needs_no_block_and_can_not_run_out():
    assert Grant(0, 0) == Truncate(0, 1).expect(FIVE, WITHIN)
    assert not Truncate.takes_blocks
    assert Truncate(0, 1).question() is None


def test_the_model_keeps_the_first_tokens_and_those_that_follow_are_the_same_again():
    cut = Truncate(0, 3).advance(FIVE, WITHIN)
    assert after(WITHIN, Prefill(0, 3)) == cut
    assert after(WITHIN, Decode(0), Decode(0), start=cut) == FIVE


def test_pages_beyond_the_kept_tokens_go_and_the_tails_page_stays():
    within = able("truncate", "fork")
    both = after(within, Prefill(0, 5), Fork(1, 0), Truncate(1, 3))
    assert both.pages == {0: (0, 1, 2), 1: (0, 1)}
    assert Grant(1, 1) == Decode(1).expect(both, within)
    alone = after(within, Release(0), start=both)
    assert Grant(0, 0) == Decode(1).expect(alone, within)


def test_the_tokens_are_cut_before_the_call_and_put_back_after_a_refusal():
    handles = {0: Request(0, 5, [1, 2, 3, 4, 5])}
    tokens = handles[0].tokens
    undo = Truncate(0, 3).prepare(handles, seen(WITHIN, FIVE, {0: (0, 1, 2)}))
    assert handles[0].tokens == [1, 2, 3]
    undo()
    assert handles[0].tokens is tokens
    assert tokens == [1, 2, 3, 4, 5]


def test_a_truncation_makes_its_call():
    assert said(Truncate(0, 3), 0) == ("truncate_request", "r0", 3)


def lengths(within, tokens):
    found = candidates(after(within, Prefill(0, tokens)), within)
    return [c.tokens for c in found if isinstance(c, Truncate)]


def test_every_length_is_tried_and_of_long_requests_those_at_block_edges():
    assert lengths(WITHIN, 5) == [1, 2, 3, 4, 5]
    wide = able("truncate", blocks=8, size=8)
    assert lengths(wide, EDGES_FROM) == [*range(1, EDGES_FROM + 1)]
    assert lengths(wide, EDGES_FROM + 1) == [1, 7, 8, 9, 15, 16, 17]
    assert lengths(wide, EDGES_FROM + 4) == [1, 7, 8, 9, 15, 16, 17, 20]
    ahead = able("truncate", blocks=8, size=8, lookahead_tokens=3)
    assert lengths(ahead, EDGES_FROM + 1) == [1, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17]
    assert lengths(PLAIN, 5) == []


(GAVE_BACK,) = TRUNCATE.properties


def reached(command, before, now):
    assert isinstance(GAVE_BACK.expectation, Sometimes)
    first = state({0: 5}, {0: before}, within=WITHIN)
    second = state({0: 3}, {0: now}, within=WITHIN)
    return GAVE_BACK.expectation.reached(step(command, first, second))


def test_the_goal_is_a_truncation_that_gave_a_block_back():
    assert reached(Truncate(0, 3), (0, 1, 2), (0, 1))
    assert not reached(Truncate(0, 5), (0, 1, 2), (0, 1, 2))
    assert not reached(Release(0), (0, 1, 2), ())
