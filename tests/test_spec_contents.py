"""Reconstructed cache equivalence, on plain data."""

from __future__ import annotations

import pytest

from builders import message, setting, state
from pagedkv.specs.contents import judge_contents
from pagedkv.specs.model import POISON
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken
from pagedkv.specs.steps import Unreadable

WITHIN = setting()
TABLES = {0: (0, 1), 1: (3,)}
TAGS = tuple(WITHIN.tag(0, p) for p in range(3))


def reading(*tags):
    return state({0: 3, 1: 1}, TABLES, within=WITHIN, contents={0: tags})


def test_accepts_every_token_in_its_place():
    assert judge_contents(reading(*TAGS)) is HOLDS


def test_accepts_tags_that_come_back_as_floats():
    assert judge_contents(reading(*map(float, TAGS))) is HOLDS


def test_nothing_to_read_without_a_live_request():
    assert judge_contents(state({}, {}, released={0: 3})) is VACUOUS


def test_rejects_anothers_token_by_its_name():
    judgement = judge_contents(reading(TAGS[0], TAGS[1], WITHIN.tag(1, 0)))
    expected = "cache of request 0, position 2: reads token 0 of request 1 != token 2 of request 0"
    assert Broken(expected, (1,), (0,)) == judgement


def test_rejects_own_tokens_in_another_order():
    judgement = judge_contents(reading(TAGS[1], TAGS[0], TAGS[2]))
    expected = "cache of request 0, position 0: reads token 1 of request 0 != token 0 of request 0"
    assert Broken(expected, (0,), (0,)) == judgement


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (POISON, "nothing (a free or unwritten slot)"),
        (0.0, "0.0 (no token's tag)"),
        (2.5, "2.5 (no token's tag)"),
        (-7.0, "-7.0 (no token's tag)"),
        (float("nan"), "nan (no token's tag)"),
        (float("inf"), "inf (no token's tag)"),
    ],
)
def test_rejects_what_is_no_token(value, words):
    judgement = judge_contents(reading(TAGS[0], value, TAGS[2]))
    expected = f"cache of request 0, position 1: reads {words} != token 1 of request 0"
    assert expected == message(judgement)


def test_rejects_a_cache_of_another_length():
    judgement = judge_contents(reading(*TAGS[:2]))
    assert Broken("cache of request 0 has 2 != 3 tokens", (), (0,)) == judgement


def test_rejects_a_cache_that_cannot_be_read():
    seen = state({0: 3}, {0: (0, 1)}, contents={0: Unreadable("KeyError: 0")})
    expected = "cache of request 0 can't be read: KeyError: 0"
    assert Broken(expected, (), (0,)) == judge_contents(seen)


def test_rejects_a_live_request_that_is_not_read_at_all():
    seen = state({0: 3}, {0: (0, 1)}, contents={0: None})
    assert Broken("request 0 is live but can't be read", (), (0,)) == judge_contents(seen)


def test_no_block_is_named_where_the_table_does_not_reach():
    seen = state({0: 3}, {0: (0,)}, contents={0: (*TAGS[:2], POISON)})
    judgement = judge_contents(seen)
    assert isinstance(judgement, Broken)
    assert judgement.blocks == ()


def test_no_block_is_named_of_a_request_without_a_table():
    judgement = judge_contents(state({0: 3}, {}, contents={0: (*TAGS[:2], POISON)}))
    assert isinstance(judgement, Broken)
    assert (judgement.blocks, judgement.requests) == ((), (0,))


def test_every_request_is_read_not_only_the_first():
    wrong = state({0: 3, 1: 1}, TABLES, within=WITHIN, contents={1: (WITHIN.tag(0, 0),)})
    expected = "cache of request 1, position 0: reads token 0 of request 0 != token 0 of request 1"
    assert Broken(expected, (3,), (1,)) == judge_contents(wrong)
