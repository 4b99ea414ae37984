"""Block-table uniqueness and validity, on plain data."""

from __future__ import annotations

from builders import message, setting, state
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken
from pagedkv.specs.tables import judge_unique, judge_valid, name_blocks, owners


def test_accepts_tables_of_usable_blocks_in_any_order():
    seen = state({0: 3, 1: 2}, {0: (3, 0), 1: (2,)})
    assert judge_valid(seen) is HOLDS
    assert judge_unique(seen) is HOLDS


def test_accepts_usable_blocks_that_do_not_start_at_zero():
    within = setting(usable=frozenset({7, 9}))
    assert judge_valid(state({0: 3}, {0: (9, 7)}, within=within)) is HOLDS


def test_nothing_to_judge_without_a_table():
    fresh = state({}, {})
    assert judge_valid(fresh) is VACUOUS
    assert judge_unique(fresh) is VACUOUS


def test_an_empty_table_has_no_wrong_entry():
    seen = state({0: 1}, {0: ()})
    assert judge_valid(seen) is HOLDS
    assert judge_unique(seen) is HOLDS


def test_rejects_a_block_beyond_the_pool():
    judgement = judge_valid(state({0: 3}, {0: (0, 4)}))
    expected = "block_table[0][1] = 4 is not in the usable blocks {0, 1, 2, 3}"
    assert expected == message(judgement)
    assert Broken(expected, (4,), (0,)) == judgement


def test_rejects_a_negative_block():
    judgement = judge_valid(state({2: 1}, {2: (-1,)}))
    assert message(judgement).startswith("block_table[2][0] = -1 is not in the usable blocks")


def test_rejects_a_block_that_is_missing_in_the_middle_of_the_usable_ones():
    within = setting(usable=frozenset({0, 1, 3}))
    judgement = judge_valid(state({0: 1}, {0: (2,)}, within=within))
    assert message(judgement).startswith("block_table[0][0] = 2 is not in the usable blocks")


def test_rejects_a_reserved_block_by_that_name():
    within = setting(usable=frozenset({1, 2, 3}))
    judgement = judge_valid(
        state({0: 3}, {0: (1, 0)}, within=within, reserved=frozenset({0}), free=(2, 3))
    )
    assert Broken("block_table[0][1] = 0 is reserved", (0,), (0,)) == judgement


def test_rejects_a_reserved_block_that_is_also_called_usable():
    judgement = judge_valid(state({0: 1}, {0: (0,)}, reserved=frozenset({0})))
    assert message(judgement) == "block_table[0][0] = 0 is reserved"


def test_rejects_a_block_in_two_tables():
    judgement = judge_unique(state({0: 3, 1: 1}, {0: (0, 1), 1: (1,)}))
    expected = "references(block 1) = 2 > 1: held by request 0, request 1"
    assert Broken(expected, (1,), (0, 1)) == judgement


def test_rejects_a_block_twice_in_one_table():
    judgement = judge_unique(state({1: 4}, {1: (2, 2)}))
    expected = "references(block 2) = 2 > 1: held by request 1, request 1"
    assert Broken(expected, (2,), (1,)) == judgement


def test_the_lowest_shared_block_is_the_one_named():
    tables = {0: (3, 1), 1: (3, 1), 2: (3,)}
    judgement = judge_unique(state({0: 3, 1: 3, 2: 1}, tables))
    assert message(judgement) == "references(block 1) = 2 > 1: held by request 0, request 1"


def test_owners_are_named_once_for_each_entry():
    assert owners(state({}, {2: (5,), 0: (5, 5)}), 5) == (0, 0, 2)


def test_blocks_are_named_in_order_and_in_the_right_number():
    assert name_blocks([3]) == "block 3"
    assert name_blocks({2, 1}) == "blocks 1, 2"
