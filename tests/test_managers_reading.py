"""What holds for both managers alike: what they read back and report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from managing import admit, number, read
from pagedkv import (
    InvalidBlockTable,
    Request,
    Snapshot,
)

# ------------------------------------------------------------------ reading


def test_reading_follows_the_table_and_not_the_physical_order(make):
    manager = make(4, 2, 1)
    number(manager)
    request = Request(0, 3)
    request.block_table = [3, 1]
    assert read(manager, request) == [6, 7, 2]


def test_reading_gives_one_row_for_each_token(make):
    manager = make(4, 2, 5)
    request = Request(0, 3)
    request.block_table = [3, 1]
    assert tuple(manager.get_physical_cache(request).shape) == (3, 5)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_reading_stops_at_the_length(make, tokens):
    manager = make(2, 2, 1)
    number(manager)
    (request,) = admit(manager, tokens)
    assert list(range(tokens)) == read(manager, request)


def test_reading_after_a_hole_was_filled_is_in_logical_order(make):
    manager = make(3, 1, 1)
    number(manager)
    first, second = admit(manager, 1, 1)
    manager.release_request(first)
    manager.allocate_for_decode(second)
    assert second.block_table == read(manager, second) == [1, 0]


def test_reading_gives_a_copy(make):
    manager = make(1, 2, 1)
    (request,) = admit(manager, 2)
    manager.get_physical_cache(request).fill_(7)
    assert manager.physical_kv_cache.count_nonzero() == 0


def test_reading_takes_a_table_that_is_longer_than_needed_or_repeats(make):
    manager = make(3, 1, 1)
    number(manager)
    request = Request(0, 2)
    request.block_table = [2, 2, 0]
    assert read(manager, request) == [2, 2]


def test_reading_takes_numpy_integers_and_arrays_as_tables(make):
    manager = make(3, 1, 1)
    number(manager)
    request: Any = Request(0, 2)
    request.block_table = [np.int32(2), np.int64(0)]
    assert read(manager, request) == [2, 0]
    request.block_table = np.array([1, 0])
    assert read(manager, request) == [1, 0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "too short, seq_len = 3 needs 2 block"),
        ([1], "too short"),
        ([0, 4], r"4 is no block of the pool, 0 \.\. 3"),
        ([-1, 0], "-1 is no block of the pool"),
        ([0, 1, 9], "9 is no block of the pool"),
        ([0, 2**70], f"{2**70} is no block of the pool"),
        ([0, 1.0], "1.0 is no block of the pool"),
        ([0, "1"], "'1' is no block of the pool"),
    ],
)
def test_reading_refuses_a_table_that_is_too_short_or_leaves_the_pool(make, table, message):
    manager = make(4, 2, 1)
    request = Request(0, 3)
    request.block_table = table
    with pytest.raises(InvalidBlockTable, match=f"^reading request 0 with .*{message}"):
        manager.get_physical_cache(request)


def test_reading_a_released_request_is_refused(make):
    manager = make(4, 2, 1)
    (request,) = admit(manager, 3)
    manager.release_request(request)
    with pytest.raises(InvalidBlockTable, match=r"block_table = \[\]: it is too short"):
        manager.get_physical_cache(request)


@pytest.mark.parametrize(("seq_len", "error"), [(0, ValueError), (1.0, TypeError)])
def test_reading_refuses_an_edited_length_that_is_none(make, seq_len, error):
    manager = make(4, 2, 1)
    (request,) = admit(manager, 3)
    request.seq_len = seq_len
    with pytest.raises(error, match="seq_len must be"):
        manager.get_physical_cache(request)


# ------------------------------------------------------------------ report and snapshot


def test_report_of_five_tokens_at_block_size_four(make):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 5)
    assert manager.allocation_report(request) == {
        "logical_tokens": 5,
        "allocated_tokens": 8,
        "unused_tail_tokens": 3,
        "utilization": 0.625,
    }
    manager.release_request(request)
    assert tuple(manager.allocation_report(request).values()) == (5, 0, 0, 0.0)


def test_a_snapshot_names_live_requests_only(make):
    manager = make(4, 2, 1)
    first, _ = admit(manager, 3, 1)
    manager.release_request(first)
    seen = manager.snapshot()
    assert (seen.block_tables, seen.seq_lens) == ({1: (2,)}, {1: 1})
    assert {0, 1, 3} == set(seen.free_blocks)


def test_a_snapshot_shows_the_blocks_in_the_order_they_are_handed_out_in(make):
    manager = make(5, 1, 1)
    requests = admit(manager, 2, 1, 1)
    for request in (requests[1], requests[0]):
        manager.release_request(request)
    order = manager.snapshot().free_blocks
    late = Request(7, 4)
    manager.allocate_for_prefill(late)
    assert order == tuple(late.block_table)


def test_a_snapshot_is_a_value(make):
    manager = make(4, 1, 1)
    (request,) = admit(manager, 1)
    before, again = manager.snapshot(), manager.snapshot()
    manager.allocate_for_decode(request)
    assert before == again != manager.snapshot()
    assert isinstance(before, Snapshot)


def test_changing_the_free_blocks_changes_no_manager(make):
    manager = make(2, 1, 1)
    manager.free_blocks.clear()
    assert manager.free_blocks == [0, 1]
