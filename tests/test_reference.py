"""What is special about the reference: the lowest free block first, and nothing but leases."""

from __future__ import annotations

import random

import pytest

from managing import admit, key_of
from pagedkv import KVCacheManager, Request


def test_prefill_hands_out_the_lowest_free_blocks_after_releases():
    manager = KVCacheManager(6, 1, 1)
    requests = admit(manager, 1, 1, 1, 1, 1)
    for request in (requests[3], requests[0]):
        manager.release_request(request)
    late = Request(9, 2)
    manager.allocate_for_prefill(late)
    assert late.block_table == [0, 3]


def test_decode_hands_out_the_lowest_free_block():
    manager = KVCacheManager(4, 1, 1)
    first, _, last = admit(manager, 1, 1, 1)
    manager.release_request(first)
    manager.allocate_for_decode(last)
    assert last.block_table == [2, 0]


def test_the_free_list_is_ascending_and_complete_after_every_call():
    draw = random.Random(0)
    manager = KVCacheManager(7, 2, 1)
    live: dict[int, Request] = {}
    for step in range(500):
        if live and draw.random() < 0.5:
            manager.release_request(live.pop(draw.choice(list(live))))
        elif len(manager.free_blocks) >= 3:
            live[step] = Request(step, draw.randint(1, 6))
            manager.allocate_for_prefill(live[step])
        held = [block for request in live.values() for block in request.block_table]
        assert sorted({*range(7)} - {*held}) == manager.free_blocks
        assert tuple(manager.free_blocks) == manager.snapshot().free_blocks


def test_a_snapshot_shows_no_structure_that_is_not_kept():
    seen = KVCacheManager(2, 1, 1).snapshot()
    assert (
        seen.num_free,
        seen.ref_counts,
        seen.reverse_map,
        seen.capacities,
    ) == (None, None, None, None)


def test_a_snapshot_is_read_from_the_real_free_list():
    manager = KVCacheManager(3, 1, 1)
    manager._free = [2, 2]
    assert manager.snapshot().free_blocks == (2, 2)
    assert manager.free_blocks == [2, 2]


def test_a_snapshot_shows_what_was_handed_out_and_not_an_edited_table():
    manager = KVCacheManager(3, 1, 1)
    (request,) = admit(manager, 2)
    request.block_table = [2]
    assert manager.snapshot().block_tables == {0: (0, 1)}


def test_a_state_key_and_a_clone_have_a_free_list_of_their_own():
    manager = KVCacheManager(3, 1, 1)
    key = key_of(manager)
    twin, _ = manager.clone({})
    # As a faulty subclass may do: no call of the reference changes the list in place.
    manager._free.reverse()
    assert key_of(manager) != key
    assert key_of(twin) == key


@pytest.mark.parametrize("num_blocks", [1, 1000])
def test_one_request_may_hold_the_whole_pool_and_give_it_back(num_blocks):
    manager = KVCacheManager(num_blocks, 3, 1)
    (request,) = admit(manager, num_blocks * 3)
    assert ([], num_blocks) == (manager.free_blocks, len(request.block_table))
    manager.release_request(request)
    assert list(range(num_blocks)) == manager.free_blocks
