"""Index structures agree with the tables, on plain data."""

from __future__ import annotations

import pytest

from able import NULL, able, after
from able import seen as windowed
from builders import handle, message, setting, state
from pagedkv.protocol import Owned
from pagedkv.specs.abilities.core import Prefill
from pagedkv.specs.index import (
    judge_capacities,
    judge_handles,
    judge_ref_counts,
    judge_reports,
    judge_reverse_map,
)
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken
from pagedkv.specs.steps import Unreadable

LIVE, TABLES = {0: 3, 1: 1}, {0: (0, 2), 1: (1,)}
MAP = frozenset({Owned(0, 0, 0), Owned(0, 1, 2), Owned(1, 0, 1)})


def seen(**fields):
    return state(LIVE, TABLES, **fields)


def test_accepts_handles_that_carry_the_managers_tables():
    assert judge_handles(state(LIVE, TABLES, released={2: 4})) is HOLDS


def test_no_handle_no_judgement():
    assert judge_handles(state({}, {})) is VACUOUS


def test_rejects_a_handle_with_another_table():
    judgement = judge_handles(seen(handles={0: handle(0, 3, (2, 0))}))
    expected = "request 0: block_table = [2, 0] != [0, 2] in the manager's snapshot"
    assert Broken(expected, (), (0,)) == judgement


def test_rejects_a_released_handle_that_still_carries_a_table():
    judgement = judge_handles(state({}, {}, released={1: 2}, handles={1: handle(1, 2, (3,))}))
    assert message(judgement) == "request 1: block_table = [3] != [] in the manager's snapshot"


def test_accepts_the_reverse_map_that_the_tables_imply():
    assert judge_reverse_map(seen(reverse_map=MAP)) is HOLDS
    assert judge_reverse_map(state({}, {}, reverse_map=frozenset())) is HOLDS


def test_null_entries_are_in_no_reverse_map_and_no_capacity():
    within = able("window", blocks=6, window=3)
    live = after(within, Prefill(0, 5))

    def slid(**fields):
        return windowed(within, live, {0: (NULL, 1, 2)}, **fields)

    entries = frozenset({Owned(0, 1, 1), Owned(0, 2, 2)})
    assert judge_reverse_map(slid(reverse_map=entries)) is HOLDS
    judgement = judge_reverse_map(slid(reverse_map=entries | {Owned(0, 0, NULL)}))
    assert "reverse_map[request 0, block -1] = logical 0, but" in message(judgement)
    assert judge_capacities(slid(capacities={0: 4})) is HOLDS
    judgement = judge_capacities(slid(capacities={0: 6}))
    expected = "capacity of request 0 = 6 != 4 = 2 block(s) x block_size 2"
    assert Broken(expected, (1, 2), (0,)) == judgement


def test_rejects_a_reverse_map_without_an_entry():
    judgement = judge_reverse_map(seen(reverse_map=MAP - {Owned(0, 1, 2)}))
    expected = "block_table[0][1] = 2 is not in reverse_map"
    assert Broken(expected, (2,), (0,)) == judgement


@pytest.mark.parametrize(
    ("entry", "expected", "requests"),
    [
        (
            Owned(0, 2, 3),
            "reverse_map[request 0, block 3] = logical 2, but block_table = [0, 2]",
            (0,),
        ),
        (
            Owned(2, 0, 3),
            "reverse_map[request 2, block 3] = logical 0, but request 2 is not live",
            (2,),
        ),
        (
            Owned("row 2", 0, 3),
            "reverse_map[row 2, block 3] = logical 0, but row 2 is not live",
            (),
        ),
    ],
    ids=["live request", "other request", "row"],
)
def test_rejects_a_reverse_map_with_an_entry_too_many(entry, expected, requests):
    judgement = judge_reverse_map(seen(reverse_map=MAP | {entry}))
    assert Broken(expected, (3,), requests) == judgement


def test_of_many_entries_too_many_the_first_in_the_order_of_words_is_named():
    entries = {Owned("row 2", 0, 3), Owned(2, 0, 3)}  # These two can't be compared themselves.
    words = "reverse_map[row 2, block 3] = logical 0, but row 2 is not live"
    assert words == message(judge_reverse_map(seen(reverse_map=MAP | entries)))


def test_capacities_that_are_all_zero_are_judged():
    assert judge_capacities(state({}, {}, capacities={"row 0": 0})) is HOLDS


@pytest.mark.parametrize(
    ("capacities", "blocks", "requests"),
    [({0: 3, 1: 2}, (0, 2), (0,)), ({0: 4, 1: 2, "row 2": 2}, (), ())],
)
def test_a_wrong_capacity_names_its_blocks_and_its_request(capacities, blocks, requests):
    judgement = judge_capacities(seen(capacities=capacities))
    assert isinstance(judgement, Broken)
    assert (blocks, requests) == (judgement.blocks, judgement.requests)


def test_accepts_capacities_of_whole_blocks():
    assert judge_capacities(seen(capacities={0: 4, 1: 2, "row 2": 0})) is HOLDS
    assert judge_capacities(state({}, {}, capacities={})) is VACUOUS


@pytest.mark.parametrize(
    ("capacities", "words"),
    [
        ({0: 3, 1: 2}, "capacity of request 0 = 3 != 4 = 2 block(s) x block_size 2"),
        ({0: 4}, "capacity of request 1 = 0 != 2 = 1 block(s) x block_size 2"),
        ({0: 4, 1: 2, 2: 2}, "capacity of request 2 = 2 != 0 = 0 block(s) x block_size 2"),
        ({0: 4, 1: 2, "row 2": 2}, "capacity of row 2 = 2 != 0 = 0 block(s) x block_size 2"),
    ],
    ids=["too small", "missing", "stale request", "stale row"],
)
def test_rejects_a_capacity_that_is_not_what_the_table_holds(capacities, words):
    assert words == message(judge_capacities(seen(capacities=capacities)))


def test_accepts_one_reference_for_each_table_entry():
    assert judge_ref_counts(seen(ref_counts={0: 1, 1: 1, 2: 1, 3: 0})) is HOLDS
    assert judge_ref_counts(seen(ref_counts={0: 1, 1: 1, 2: 1})) is HOLDS


def test_a_reserved_block_may_have_references():
    within = setting(usable=frozenset({1, 2, 3}))
    shown = state(
        {0: 1}, {0: (1,)}, within=within, ref_counts={0: 1, 1: 1}, reserved=frozenset({0})
    )
    assert judge_ref_counts(shown) is HOLDS


@pytest.mark.parametrize(
    ("counts", "block", "words"),
    [
        ({0: 2, 1: 1, 2: 1}, 0, "ref_count[0] = 2 != 1 = table entries that name it"),
        ({0: 1, 1: 1}, 2, "ref_count[2] = 0 != 1 = table entries that name it"),
        ({0: 1, 1: 1, 2: 1, 3: 1}, 3, "ref_count[3] = 1 != 0 = table entries that name it"),
    ],
    ids=["too many", "missing", "of a free block"],
)
def test_rejects_a_reference_count_that_is_not_the_entries(counts, block, words):
    assert Broken(words, (block,)) == judge_ref_counts(seen(ref_counts=counts))


def test_accepts_the_arithmetic_of_length_and_table():
    assert judge_reports(seen()) is HOLDS


def test_no_report_is_judged_of_a_ring_or_of_several_tables():
    ring = able("window", window=2, null_block=None, ring=True)
    live = after(ring, Prefill(0, 5))
    assert judge_reports(windowed(ring, live, {0: (0,)}, reports={0: {}})) is VACUOUS
    several = able(windows=(None, None))
    live = after(several, Prefill(0, 1))
    assert judge_reports(windowed(several, live, {0: (0, 1)}, reports={0: {}})) is VACUOUS


def test_no_live_request_no_report():
    assert judge_reports(state({}, {}, released={0: 1})) is VACUOUS


RIGHT = {
    "logical_tokens": 3,
    "allocated_tokens": 4,
    "unused_tail_tokens": 1,
    "utilization": 0.75,
}


@pytest.mark.parametrize(
    ("name", "wrong", "due"),
    [
        ("logical_tokens", 4, 3),
        ("allocated_tokens", 3, 4),
        ("unused_tail_tokens", 0, 1),
        ("utilization", 1.0, 0.75),
        ("utilization", float("nan"), 0.75),
        ("utilization", "75%", 0.75),
    ],
)
def test_rejects_a_report_with_a_wrong_number(name, wrong, due):
    judgement = judge_reports(seen(reports={0: {**RIGHT, name: wrong}}))
    expected = f"allocation_report of request 0: {name} = {wrong} != {due}"
    assert Broken(expected, (), (0,)) == judgement


def test_rejects_a_report_without_one_of_its_numbers():
    short = {name: value for name, value in RIGHT.items() if name != "utilization"}
    judgement = judge_reports(seen(reports={0: short}))
    assert message(judgement) == "allocation_report of request 0: utilization = None != 0.75"


def test_rejects_a_report_that_raises():
    judgement = judge_reports(seen(reports={1: Unreadable("KeyError: 1")}))
    assert Broken("allocation_report of request 1: KeyError: 1", (), (1,)) == judgement


def test_a_request_without_blocks_uses_none_of_them():
    judgement = judge_reports(state({0: 3}, {}))
    assert judgement is HOLDS


@pytest.mark.parametrize("rounding", [1e-12, -1e-12])
def test_a_report_may_differ_by_rounding(rounding):
    near = {**RIGHT, "utilization": 0.75 + rounding}
    assert judge_reports(seen(reports={0: near})) is HOLDS


def test_rounding_goes_up_to_a_billionth():
    full = {**RIGHT, "logical_tokens": 4, "unused_tail_tokens": 1e-9, "utilization": 1.0}
    assert judge_reports(state({0: 4}, {0: (0, 2)}, reports={0: full})) is HOLDS
    full["unused_tail_tokens"] = 2e-9
    assert "unused_tail_tokens = 2e-09 != 0" in message(
        judge_reports(state({0: 4}, {0: (0, 2)}, reports={0: full}))
    )
