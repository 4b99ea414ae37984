"""The reference with abilities, with exact tables and counts: swap, window, asking."""

from __future__ import annotations

import pytest

from pagedkv import (
    AlreadyHolding,
    HoldsNothing,
    InvalidBlockTable,
    OutOfBlocks,
    Request,
)
from pagedkv.shared_reference import SharedKVCacheManager
from shared_calls import (
    admit,
    append,
    decode,
    fork,
    found,
    kind,
    number,
    read,
    where,
)
from sharing import everything

# ------------------------------------------------------------------ swap


def test_a_request_is_moved_to_the_second_pool_and_back_with_its_content():
    manager = kind("swap")(4, 2, 1)
    number(manager)
    request, other = admit(manager, 0, 1, 2, 3), admit(manager, 1, 1)
    manager.swap_out(request)
    seen = manager.snapshot()
    assert (request.block_table, request.seq_len) == ([], 3)
    assert (seen.block_tables, seen.swapped) == ({1: (2,)}, {0: (0, 1)})
    assert (seen.free_blocks, seen.host_free) == ((0, 1, 3), (2, 3))
    manager.physical_kv_cache[[0, 1, 3]] = -1
    admit(manager, 2, 1)
    manager.swap_in(request)
    seen = manager.snapshot()
    assert (request.block_table, seen.swapped, seen.host_free) == ([1, 3], {}, (0, 1, 2, 3))
    assert read(manager, request) == [0, 1, 2]
    assert read(manager, other) == [4]


def test_a_swap_moves_a_request_and_leaves_what_others_hold():
    manager = kind("swap", "fork", "prefix")(4, 1, 1)
    parent = admit(manager, 0, 1, 2)
    child = fork(manager, parent, 1)
    manager.swap_out(parent)
    assert where(manager) == ([2, 3], [], {0: 1, 1: 1})
    manager.swap_in(parent)
    manager.computed(parent)
    assert (parent.block_table, child.block_table) == ([2, 3], [0, 1])
    assert found(manager) == {(None, (1,)): 0, (None, (1, 2)): 1}
    manager.swap_out(child)
    assert where(manager) == ([], [1, 0], {2: 1, 3: 1})


def test_what_was_swapped_in_is_published_when_computed_or_at_once():
    for at_once in (False, True):
        manager = kind("swap", "prefix", publishes_at_once=at_once)(2, 1, 1)
        request = admit(manager, 0, 1)
        manager.swap_out(request)
        manager.release_request(admit(manager, 1, 2, 2))
        assert (None, (1,)) not in found(manager)
        manager.swap_in(request)
        assert ((None, (1,)) in found(manager)) == at_once
        manager.computed(request)
        assert (None, (1,)) in found(manager)


def test_what_a_prefill_found_is_kept_over_a_swap():
    manager = kind("swap", "prefix")(4, 1, 1)
    admit(manager, 0, 1)
    request = admit(manager, 1, 1, 2)
    manager.swap_out(request)
    with pytest.raises(HoldsNothing, match="which is not live"):
        manager.cached_tokens(request)
    manager.swap_in(request)
    assert manager.cached_tokens(request) == 1


def test_a_swap_without_room_in_either_pool_changes_nothing():
    manager = kind("swap", "ask")(2, 1, 1)
    request = admit(manager, 0, 1, 1)
    manager.swap_out(request)
    other = admit(manager, 1, 1)
    before = everything(manager)
    assert not manager.can_swap_in(request)
    with pytest.raises(OutOfBlocks, match=r"request 0 needs 2 more block.s., 1 available"):
        manager.swap_in(request)
    assert not manager.can_swap_out(other)
    with pytest.raises(OutOfBlocks, match=r"request 1 needs 1 more block.s., 0 available"):
        manager.swap_out(other)
    assert everything(manager) == before
    manager.release_request(other)
    assert manager.can_swap_in(request)


def test_a_swapped_request_can_be_released_and_nothing_else():
    manager = SharedKVCacheManager(3, 1, 1)
    request = admit(manager, 0, 1)
    manager.swap_out(request)
    before = everything(manager)
    with pytest.raises(AlreadyHolding, match=r"^prefill of request 0, which is swapped out"):
        manager.allocate_for_prefill(request)
    with pytest.raises(AlreadyHolding, match="whose id a request that is swapped out has"):
        manager.allocate_for_prefill(Request(0, 1))
    for call, arguments in [
        ("allocate_for_decode", ()),
        ("allocate_for_append", (1,)),
        ("truncate_request", (1,)),
        ("fork_request", (Request(1, 1, [1]),)),
        ("swap_out", ()),
    ]:
        with pytest.raises(HoldsNothing, match="of request 0, which is swapped out; swap it in"):
            getattr(manager, call)(request, *arguments)
    manager.computed(request)
    assert everything(manager) == before
    manager.release_request(request)
    seen = manager.snapshot()
    assert (seen.swapped, seen.host_free, request.seq_len) == ({}, (0, 1, 2), 1)
    with pytest.raises(HoldsNothing, match="swap_in of request 0, which is not swapped out"):
        manager.swap_in(request)


def test_a_swapped_request_with_an_edited_handle_is_refused():
    manager = kind("swap")(3, 1, 1)
    request = admit(manager, 0, 1)
    manager.swap_out(request)
    before = everything(manager)
    request.block_table = [0]
    for call in (manager.swap_in, manager.release_request):
        with pytest.raises(InvalidBlockTable, match=r"block_table = \[0\], though it is swapped"):
            call(request)
    request.block_table, request.seq_len = [], 2
    with pytest.raises(InvalidBlockTable, match="swap_in of request 0: seq_len = 2 was edited"):
        manager.swap_in(request)
    request.seq_len = 1
    assert everything(manager) == before


# ------------------------------------------------------------------ window


def test_blocks_behind_the_window_go_back_before_blocks_are_taken():
    manager = kind("window", window=2)(3, 1, 1)
    number(manager)
    request = admit(manager, 0, 1, 1, 1)
    assert (request.block_table, read(manager, request)) == ([0, 1, 2], [1, 2])
    decode(manager, request, 1)
    assert (request.block_table, manager.free_blocks) == ([-1, -1, 2, 0], [1])
    assert (request.seq_len, read(manager, request)) == (4, [2, 0])
    manager.release_request(request)
    assert (manager.free_blocks, request.block_table) == ([0, 1, 2], [])


@pytest.mark.parametrize(
    ("window", "table"), [(1, [-1, -1, 0]), (2, [-1, 1, 0]), (3, [-1, 1, 0]), (4, [0, 1, 2])]
)
def test_only_whole_blocks_behind_the_window_go_back(window, table):
    manager = kind("window", window=window)(4, 2, 1)
    request = admit(manager, 0, 1, 1, 1, 1)
    decode(manager, request, 1)
    assert request.block_table == table
    number(manager)
    last = [2 * block + offset for block in table for offset in (0, 1)][:5]
    assert read(manager, request) == last[-min(window, 5) :]


def test_an_append_goes_on_over_what_it_frees_itself():
    manager = kind("window", "append", "ask", window=1)(3, 2, 1)
    request = admit(manager, 0, 1, 1, 1, 1)
    assert (manager.can_append(request, 6), manager.can_append(request, 7)) == (True, False)
    before = everything(manager)
    with pytest.raises(OutOfBlocks, match=r"needs 4 more block.s., 3 available"):
        manager.allocate_for_append(request, 7)
    assert (everything(manager), request.block_table) == (before, [0, 1])
    append(manager, request, 1, 1, 1, 1, 1, 1)
    assert (request.block_table, request.seq_len) == ([-1, -1, 0, 1, 2], 10)


def test_inside_a_group_what_falls_behind_the_window_is_withheld():
    manager = kind("window", "group", "ask", window=1)(2, 1, 1)
    request = admit(manager, 0, 1, 1)
    manager.free_group_begin()
    assert not manager.can_decode(request)
    with pytest.raises(OutOfBlocks, match=r"needs 1 more block.s., 0 available"):
        manager.allocate_for_decode(request)
    manager.free_group_end()
    decode(manager, request, 1)
    assert request.block_table == [-1, -1, 0]


def test_a_report_counts_null_entries_as_room_that_is_not_allocated():
    manager = kind("window", window=1)(4, 2, 1)
    request = admit(manager, 0, 1, 1, 1, 1)
    decode(manager, request, 1)
    assert request.block_table == [-1, -1, 0]
    assert manager.allocation_report(request) == {
        "logical_tokens": 5,
        "allocated_tokens": 2,
        "unused_tail_tokens": 1,
        "utilization": 0.5,
    }


def test_a_table_with_null_entries_is_checked_and_the_reason_is_not_the_null():
    manager = kind("window", window=1)(4, 1, 1)
    request = admit(manager, 0, 1, 1)
    decode(manager, request, 1)
    request.block_table = [-1, -1, 3]
    with pytest.raises(InvalidBlockTable, match="block 3 is free"):
        manager.release_request(request)
    request.block_table = [-1, -1, 9]
    with pytest.raises(InvalidBlockTable, match=r"9 is no block of the pool, 0 .. 3"):
        manager.get_physical_cache(request)
    request.block_table = [-1, -1, -1]
    with pytest.raises(InvalidBlockTable, match=r"-1 is no block of the pool, 0 .. 3"):
        manager.get_physical_cache(request)


# ------------------------------------------------------------------ ask


def test_asking_is_exact_and_wrong_use_is_a_no():
    manager = SharedKVCacheManager(2, 2, 1)
    request = admit(manager, 0, 1, 1)
    assert (manager.can_prefill(Request(1, 2)), manager.can_prefill(Request(1, 3))) == (True, False)
    assert manager.can_decode(request)
    admit(manager, 1, 0)
    before = everything(manager)
    assert not manager.can_decode(request)
    assert not manager.can_prefill(request)
    assert not manager.can_swap_in(request)
    for call in (manager.can_decode, manager.can_fork, manager.can_swap_out):
        assert not call(Request(7, 1))
    request.block_table = [1]
    assert not manager.can_swap_out(request)
    assert everything(manager) == before
