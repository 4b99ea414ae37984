"""Free-list disjointness and conservation, on plain data."""

from __future__ import annotations

from typing import Any

import pytest

from able import able, after, seen
from builders import message, setting, state
from pagedkv.specs.abilities.core import Prefill
from pagedkv.specs.free_list import judge_conserved, judge_counted, judge_disjoint, judge_valid
from pagedkv.specs.properties import HOLDS, Broken


@pytest.mark.parametrize("free", [(2, 3), (3, 2)], ids=["ascending", "lifo"])
def test_accepts_a_free_list_in_any_order(free):
    here = state({0: 3}, {0: (0, 1)}, free=free, num_free=2)
    assert judge_valid(here) is HOLDS
    assert judge_disjoint(here) is HOLDS
    assert judge_conserved(here) is HOLDS
    assert judge_counted(here) is HOLDS


def test_accepts_a_fresh_pool_and_a_full_one():
    for here in (state({}, {}), state({0: 8}, {0: (0, 1, 2, 3)})):
        assert judge_valid(here) is HOLDS
        assert judge_disjoint(here) is HOLDS
        assert judge_conserved(here) is HOLDS


def test_rejects_a_free_block_beyond_the_pool():
    judgement = judge_valid(state({}, {}, free=(0, 1, 2, 3, 9)))
    assert Broken("free_blocks names 9, which is no usable block", (9,)) == judgement


def test_rejects_a_negative_free_block():
    judgement = judge_valid(state({}, {}, free=(-1, 0, 1, 2, 3)))
    assert message(judgement) == "free_blocks names -1, which is no usable block"


def test_rejects_a_reserved_free_block():
    within = setting(usable=frozenset({1, 2, 3}))
    judgement = judge_valid(
        state({}, {}, within=within, free=(0, 1, 2, 3), reserved=frozenset({0}))
    )
    assert Broken("free_blocks names block 0, which is reserved", (0,)) == judgement


def test_rejects_a_block_that_is_free_twice():
    judgement = judge_valid(state({}, {}, free=(0, 1, 2, 3, 1)))
    assert Broken("free_blocks names block 1 2 times", (1,)) == judgement


def test_rejects_a_block_that_is_free_and_held():
    judgement = judge_disjoint(state({0: 3}, {0: (1, 0)}, free=(1, 2, 3)))
    expected = "free & held = {1} != {}: block 1 is free and held by request 0"
    assert Broken(expected, (1,), (0,)) == judgement


def test_every_block_that_is_free_and_held_is_named():
    judgement = judge_disjoint(state({1: 3}, {1: (2, 0)}, free=(0, 1, 2, 3)))
    expected = "free & held = {0, 2} != {}: block 0 is free and held by request 1"
    assert Broken(expected, (0, 2), (1,)) == judgement


def test_rejects_a_leaked_block_by_name():
    judgement = judge_conserved(state({0: 3}, {0: (0, 1)}, free=(3,)))
    expected = "free(1) + held(2) + cached(0) != usable(4): leak, block 2 belongs to nobody"
    assert Broken(expected, (2,)) == judgement


def test_rejects_a_leak_of_several_blocks():
    judgement = judge_conserved(state({}, {}, free=(1, 3)))
    assert (
        message(judgement)
        == "free(2) + held(0) + cached(0) != usable(4): leak, blocks 0, 2 belong to nobody"
    )


def test_rejects_a_double_count():
    judgement = judge_conserved(state({0: 3}, {0: (0, 1)}, free=(1, 2, 3)))
    expected = (
        "free(3) + held(2) + cached(0) != usable(4): double count, block 1: free, held by request 0"
    )
    assert Broken(expected, (1,)) == judgement


@pytest.mark.parametrize(
    ("tables", "fields", "words"),
    [
        ({0: (0,), 1: (0,)}, {}, "block 0: held by request 0, held by request 1"),
        ({0: (0, 0)}, {}, "block 0: held by request 0, held by request 0"),
        ({0: (0,)}, {"free": (1, 1, 2, 3)}, "block 1: free 2 times"),
        ({0: (0,)}, {"free": (1, 2, 3, 9)}, "block 9 not usable"),
        (
            {0: (0,)},
            {"free": (0, 1, 2, 3, 9), "cached": frozenset({1})},
            "block 0: free, held by request 0; block 1: free, cached; block 9 not usable",
        ),
    ],
    ids=["two tables", "one table", "free twice", "a stray", "everything"],
)
def test_a_double_count_names_everyone_who_counts_the_block(tables, fields, words):
    fields = {"free": (1, 2, 3), **fields}
    judgement = judge_conserved(state(dict.fromkeys(tables, 1), tables, **fields))
    assert message(judgement).endswith(f"!= usable(4): double count, {words}")


def test_a_double_count_of_many_blocks_names_the_first_three():
    judgement = judge_conserved(state({0: 8}, {0: (0, 1, 2, 3)}, free=(0, 1, 2, 3)))
    assert isinstance(judgement, Broken)
    assert judgement.blocks == (0, 1, 2, 3)
    assert "block 2: free" in judgement.message
    assert "block 3" not in judgement.message


def test_rejects_sums_that_balance_over_a_lost_block():
    # Block 1 is held twice, block 2 by nobody: 2 + 2 = 4 all the same.
    judgement = judge_conserved(state({0: 1, 1: 1}, {0: (1,), 1: (1,)}, free=(0, 3)))
    assert (
        Broken("free(2) + held(2) + cached(0) = usable(4): leak, block 2 belongs to nobody", (2,))
        == judgement
    )


def test_cached_blocks_are_neither_lost_nor_free():
    here = state({0: 1}, {0: (0,)}, free=(2, 3), cached=frozenset({1}))
    assert judge_conserved(here) is HOLDS


def test_rejects_a_block_that_is_cached_and_held():
    judgement = judge_conserved(state({0: 1}, {0: (0,)}, cached=frozenset({0})))
    assert message(judgement) == (
        "free(3) + held(1) + cached(1) != usable(4): "
        "double count, block 0: held by request 0, cached"
    )


def test_only_usable_blocks_are_counted():
    within = setting(usable=frozenset({5, 7}))
    assert judge_conserved(state({0: 1}, {0: (7,)}, within=within, free=(5,))) is HOLDS


def test_rejects_a_counter_that_is_not_the_free_list():
    judgement = judge_counted(state({0: 3}, {0: (0, 1)}, num_free=3))
    assert Broken("num_free = 3 != 2 = len(free_blocks)") == judgement


def test_a_counter_is_held_against_the_tables_where_the_free_list_cannot_be_seen():
    right = state({0: 3}, {0: (0, 1)}, free=None, num_free=2)
    wrong = state({0: 3}, {0: (0, 1)}, free=None, num_free=1)
    assert judge_counted(right) is HOLDS
    assert message(judge_counted(wrong)) == "num_free = 1 != 2 = usable - held"


@pytest.mark.parametrize(("num_free", "available"), [(1, 2), (2, 2)])
def test_where_the_free_list_is_not_seen_a_counter_may_count_the_cached_or_not(num_free, available):
    within = able("prefix")
    dense = after(within, Prefill(0, 3))
    unseen: dict[str, Any] = {"cached": {2}, "free_blocks": None}
    here = seen(within, dense, {0: (0, 1)}, num_free=num_free, **unseen)
    assert judge_counted(here) is HOLDS
    assert here.available == available
    wrong = seen(within, dense, {0: (0, 1)}, num_free=3, **unseen)
    assert message(judge_counted(wrong)) == "num_free = 3 != 2 = usable - held"
