"""transformers' PagedAttentionCache behind its adapter: transformers 5.24.0."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers.generation.continuous_batching.cache_allocators")

from counting import counted
from pagedkv.engines.transformers_paged import (
    TransformersPaged,
    TransformersSectors,
    TransformersSharing,
)
from pagedkv.protocol import Request
from pagedkv.specs.model import Geometry

ALL = (TransformersPaged, TransformersSectors, TransformersSharing)


def admit(manager: TransformersPaged, name: int, tokens: int) -> Request:
    request = Request(name, tokens)
    assert manager.allocate_for_prefill(request) is True
    manager.computed(request)
    return request


def decode(manager: TransformersPaged, request: Request) -> bool:
    granted = manager.allocate_for_decode(request)
    if granted:
        manager.computed(request)
    return granted


# ---------------------------------------------------------------- the protocol


@pytest.mark.parametrize(
    ("make", "blocks", "reserved"),
    [
        (TransformersPaged, {2, 3, 4, 5}, {0, 1}),
        (TransformersSectors, {4, 5, 6, 7}, {0, 1, 2, 3}),
        (TransformersSharing, {2, 3, 4, 5}, {0, 1}),
    ],
)
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_the_first_two_sectors_are_for_padding(make, blocks, reserved, block_size):
    shown = make(4, block_size, 1).snapshot()
    assert (shown.blocks, shown.reserved, shown.num_free) == (blocks, reserved, 4)
    assert set(shown.free_blocks) == blocks


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(("block_size", "blocks"), [(1, 3), (2, 2), (4, 1)])
def test_prefill_takes_the_first_free_blocks(make, block_size, blocks):
    manager = make(4, block_size, 1)
    free = manager.snapshot().free_blocks
    request = admit(manager, 0, 3)
    assert sorted(request.block_table) == sorted(free[:blocks])
    assert request.seq_len == 3


@pytest.mark.parametrize(
    ("make", "tables"),
    [
        (TransformersPaged, [(2, [3]), (3, [3, 2]), (4, [3, 2])]),
        (TransformersSectors, [(2, [4]), (3, [4, 5]), (4, [4, 5])]),
        (TransformersSharing, [(2, [3]), (3, [3, 2]), (4, [3, 2])]),
    ],
)
def test_decode_takes_a_block_at_the_boundary_only(make, tables):
    manager, found = make(2, 2, 1), []
    request = admit(manager, 0, 1)
    for _ in range(3):
        assert decode(manager, request) is True
        found.append((request.seq_len, list(request.block_table)))
    assert found == tables
    first, second = tables[-1][1]
    assert manager.slots(request) == [(0, b, i) for b in (first, second) for i in (0, 1)]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("block_size", [1, 2])
def test_out_of_blocks_is_told_as_declared_and_changes_nothing(make, block_size):
    manager = make(2, block_size, 1)
    live, fresh = admit(manager, 0, 2 * block_size), Request(1, 1)
    (told,) = manager.declares.out_of_blocks
    before = manager.snapshot(), repr(live), manager.state_key({0: 0})
    for answer in (manager.allocate_for_prefill(fresh), decode(manager, live)):
        assert told.says(answer)
    assert before == (manager.snapshot(), repr(live), manager.state_key({0: 0}))
    assert (fresh.seq_len, fresh.block_table) == (1, [])


@pytest.mark.parametrize("make", ALL)
def test_a_released_request_may_be_prefilled_again(make):
    manager = make(2, 1, 1)
    request = admit(manager, 0, 1)
    assert decode(manager, request) is True
    manager.release_request(request)
    assert (request.seq_len, request.block_table, manager.snapshot().block_tables) == (2, [], {})
    assert manager.allocate_for_prefill(request) is True
    assert set(request.block_table) == manager.snapshot().blocks


# ---------------------------------------------------------------- the engine's own ways


def test_two_blocks_in_a_sector():
    manager = TransformersSectors(4, 2, 1)
    assert (manager._group.blocks_per_sector, manager._cache.num_sectors) == (2, 2)
    request = admit(manager, 0, 1)
    assert (request.block_table, manager.snapshot().free_blocks) == ([6], (7, 4, 5))
    manager.release_request(request)
    assert manager.snapshot().free_blocks == (6, 7, 4, 5)


def test_a_refusal_may_give_a_sector_back_and_so_change_the_order():
    manager = TransformersSectors(4, 1, 1)
    low, high = admit(manager, 0, 1), admit(manager, 1, 3)
    manager.release_request(low)
    manager.release_request(high)
    before = manager.snapshot().free_blocks
    assert manager.allocate_for_prefill(Request(2, 5)) is False
    after = manager.snapshot().free_blocks
    assert (sorted(before), before) == (sorted(after), (7, 6, 4, 5))
    assert after == (4, 5, 6, 7)
    assert manager.declares.reorders_free


def test_without_sharing_a_finished_request_leaves_nothing_cached():
    manager = TransformersPaged(2, 2, 1)
    manager.release_request(admit(manager, 0, 4))
    assert (manager.snapshot().cached, manager.snapshot().num_free) == (frozenset(), 2)


def test_with_sharing_a_finished_request_leaves_its_complete_blocks_cached():
    manager = TransformersSharing(3, 2, 1)
    manager.release_request(admit(manager, 0, 5))
    assert (manager.snapshot().cached, manager.snapshot().free_blocks) == ({4, 3}, (2,))


def test_a_block_that_a_decode_completes_is_cached_too():
    manager = TransformersSharing(3, 2, 1)
    request = admit(manager, 0, 1)
    assert decode(manager, request) is True
    manager.release_request(request)
    assert manager.snapshot().cached == {4}


def test_no_two_requests_have_the_same_content():
    manager = TransformersSharing(3, 1, 1)
    tables = [admit(manager, name, 1).block_table for name in range(3)]
    assert sorted(tables) == [[2], [3], [4]]
    assert manager.snapshot().ref_counts == {2: 1, 3: 1, 4: 1}


def test_when_blocks_run_out_all_that_is_cached_is_evicted_first():
    manager = TransformersSharing(3, 1, 1)
    manager.release_request(admit(manager, 0, 2))
    assert manager.snapshot().cached == {4, 3}
    assert len(admit(manager, 1, 2).block_table) == 2
    assert manager.snapshot().cached == frozenset()


def test_a_refusal_may_evict():
    manager = TransformersSharing(2, 1, 1)
    manager.release_request(admit(manager, 0, 1))
    assert manager.allocate_for_prefill(Request(1, 3)) is False
    assert (manager.snapshot().cached, manager.snapshot().num_free) == (frozenset(), 2)
    assert manager.declares.evicts_cached


# ---------------------------------------------------------------- the copies


@pytest.mark.parametrize("make", ALL)
def test_a_new_manager_has_nothing_of_one_made_before(make):
    fresh = make(2, 2, 1).state_key({})
    admit(make(2, 2, 1), 0, 3)
    assert fresh == make(2, 2, 1).state_key({})


@pytest.mark.parametrize("make", ALL)
def test_a_clone_shares_nothing_that_changes(make):
    manager = make(4, 2, 1)
    live, gone = admit(manager, 0, 3), admit(manager, 1, 2)
    manager.release_request(gone)
    names = {0: 0, 2: 2}
    twin, handles = manager.clone({0: live})
    before = manager.state_key(names), repr(live)
    assert before == (twin.state_key(names), repr(handles[0]))
    assert twin._cache.layer_to_allocator[0] is twin._group
    decode(twin, handles[0])
    decode(twin, handles[0])
    admit(twin, 2, 2)
    twin.release_request(handles[0])
    assert before == (manager.state_key(names), repr(live))


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize(
    ("make", "blocks", "block_size", "expected"),
    [
        (TransformersPaged, 2, 1, (13, 50)),
        (TransformersPaged, 2, 2, (22, 110)),
        (TransformersSectors, 2, 2, (15, 71)),
    ],
)
def test_the_states_of_a_pool_are_exhausted(make, blocks, block_size, expected):
    assert counted(make, Geometry(blocks, block_size)) == expected
