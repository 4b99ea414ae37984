"""transformers' PagedAttentionCache behind its adapter: transformers 5.24.0."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers.generation.continuous_batching.cache_allocators")

from counting import counted
from pagedkv.engines.transformers_paged import TransformersPaged
from pagedkv.engines.transformers_sectors import TransformersSectors
from pagedkv.engines.transformers_sharing import TransformersForking, TransformersSharing
from pagedkv.engines.transformers_sliding import TransformersHybrid, TransformersSliding
from pagedkv.protocol import Request
from pagedkv.specs.model import Geometry

ALL = (TransformersPaged, TransformersSectors, TransformersSharing, TransformersForking)
RINGS = (TransformersSliding, TransformersHybrid)


def admit(
    manager: TransformersPaged, name: int, tokens: int | list[int], extra_key: int | None = None
) -> Request:
    """A request of this prompt; of a number alone, one that nobody else has."""
    prompt = [10 + name] * tokens if isinstance(tokens, int) else tokens
    request = Request(name, len(prompt), prompt, extra_key=extra_key)
    assert manager.allocate_for_prefill(request) is True
    manager.computed(request)
    return request


def decode(manager: TransformersPaged, request: Request, count: int = 0) -> bool:
    """One more token, or `count` by an append."""
    request.tokens += [0] * (count or 1)
    if count:
        granted = manager.allocate_for_append(request, count)
    else:
        granted = manager.allocate_for_decode(request)
    if granted:
        manager.computed(request)
    else:
        del request.tokens[-(count or 1) :]
    return granted


# ---------------------------------------------------------------- the protocol


@pytest.mark.parametrize(
    ("make", "blocks", "reserved"),
    [
        (TransformersPaged, {2, 3, 4, 5}, {0, 1}),
        (TransformersSectors, {4, 5, 6, 7}, {0, 1, 2, 3}),
        (TransformersSharing, {2, 3, 4, 5}, {0, 1}),
        (TransformersForking, {2, 3, 4, 5}, {0, 1}),
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
        (TransformersForking, [(2, [3]), (3, [3, 2]), (4, [3, 2])]),
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
    assert (manager._groups[0].blocks_per_sector, manager._cache.num_sectors) == (2, 2)
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
    assert before is not None
    assert after is not None
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
    assert manager.snapshot().cached == {4, 3}
    assert manager.snapshot().free_blocks == (2,)


def test_a_block_that_a_decode_completes_is_cached_too():
    manager = TransformersSharing(3, 2, 1)
    request = admit(manager, 0, 1)
    assert decode(manager, request) is True
    manager.release_request(request)
    assert manager.snapshot().cached == {4}


def test_a_prompt_finds_the_complete_blocks_of_another_but_for_its_last_token():
    manager = TransformersSharing(4, 2, 1)
    first, second = admit(manager, 0, [0, 0, 1, 0]), admit(manager, 1, [0, 0, 1, 0])
    assert (manager.cached_tokens(first), manager.cached_tokens(second)) == (0, 2)
    assert manager.snapshot().ref_counts == dict.fromkeys(first.block_table, 2)


def test_a_duplicate_is_exchanged_for_the_block_that_is_there_after_the_forward_pass():
    manager = TransformersSharing(2, 1, 1)
    first, second = admit(manager, 0, [0]), Request(1, 1)
    assert manager.allocate_for_prefill(second) is True
    assert (first.block_table, second.block_table) == ([3], [2])
    manager.computed(second)
    assert (second.block_table, manager.snapshot().free_blocks) == ([3], (2,))


def test_another_extra_key_is_other_content():
    manager = TransformersSharing(3, 1, 1)
    tables = [admit(manager, name, [0], name).block_table for name in range(3)]
    assert tables == [[4], [3], [2]]


def test_a_refused_prompt_gives_back_what_it_found():
    manager = TransformersSharing(2, 1, 1)
    live = admit(manager, 0, [0])
    before = manager.snapshot()
    assert manager.allocate_for_prefill(Request(1, 3)) is False
    assert before == manager.snapshot()
    assert before.ref_counts == {live.block_table[0]: 1}


def test_a_fork_shares_complete_blocks_and_copies_the_last_one_at_once():
    manager = TransformersForking(3, 2, 1)
    parent, child = admit(manager, 0, 3), Request(1, 3)
    assert manager.fork_request(parent, child) is True
    assert (parent.block_table, child.block_table) == ([4, 3], [4, 2])
    assert manager.snapshot().ref_counts == {4: 2, 3: 1, 2: 1}
    assert (manager.take_copies(), manager.take_copies()) == ([(3, 2)], [])


def test_a_fork_evicts_nothing():
    manager = TransformersForking(2, 2, 1)
    manager.release_request(admit(manager, 1, 2))
    parent = admit(manager, 0, 1)
    before = manager.snapshot()
    assert manager.fork_request(parent, Request(2, 1)) is False
    assert before == manager.snapshot()
    assert before.cached == {3}
    assert manager.declares.refuses_early


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


@pytest.mark.parametrize("make", ALL)
def test_an_append_takes_all_blocks_or_none(make):
    manager = make(4, 2, 1)
    request = admit(manager, 0, 1)
    before = manager.snapshot()
    assert decode(manager, request, 8) is False
    assert before == manager.snapshot()
    assert decode(manager, request, 7) is True
    assert (request.seq_len, len(request.block_table)) == (8, 4)


@pytest.mark.parametrize("make", [TransformersPaged, TransformersSectors])
def test_asking_answers_what_the_call_would_and_changes_nothing(make):
    manager = make(4, 1, 1)
    request = admit(manager, 0, 2)
    before = manager.snapshot(), manager.state_key({0: 0})
    assert [manager.can_prefill(Request(1, n)) for n in (2, 3)] == [True, False]
    assert [manager.can_append(request, n) for n in (2, 3)] == [True, False]
    assert manager.can_decode(request) is True
    assert before == (manager.snapshot(), manager.state_key({0: 0}))


# ---------------------------------------------------------------- layers with a window


def test_a_ring_keeps_its_blocks_and_is_written_over():
    manager = TransformersSliding(3, 2, 1)
    request, written = admit(manager, 0, 2), []
    for _ in range(3):
        assert decode(manager, request) is True
        written.append((list(request.block_table), manager.slots(request)[-1]))
    assert written == [([4, 3], (0, 3, 0)), ([4, 3], (0, 4, 0)), ([4, 3], (0, 4, 1))]
    assert manager.snapshot().free_blocks == (2,)


@pytest.mark.parametrize("make", RINGS)
def test_of_a_prompt_longer_than_the_window_the_last_tokens_are_stored(make):
    manager = make(6, 2, 1)
    request = admit(manager, 0, 4)
    ring = len(make.layers) - 1
    first, second = request.block_table[-2:]
    slots = [slot for slot in manager.slots(request) if slot[0] == ring]
    assert slots == [(ring, 1, 0), (ring, first, 1), (ring, second, 0), (ring, first, 0)]
    assert decode(manager, request) is True
    first, second = request.block_table[-2:]
    slots = [slot for slot in manager.slots(request) if slot[0] == ring]
    assert slots[-3:] == [(ring, second, 0), (ring, first, 0), (ring, first, 1)]
    assert slots[:2] == [(ring, 1, 0), (ring, 1, 0)]  # the write trash


def test_full_attention_and_a_window_have_tables_of_their_own_from_one_pool():
    manager = TransformersHybrid(8, 2, 1)
    request = admit(manager, 0, 5)
    assert (request.block_table, manager.snapshot().free_blocks) == ([9, 8, 7, 6, 5], (4, 3, 2))
    assert [slot for slot in manager.slots(request) if slot[0] == 0] == [
        (0, 9, 0),
        (0, 9, 1),
        (0, 8, 0),
        (0, 8, 1),
        (0, 7, 0),
    ]
    manager.release_request(request)
    assert manager.snapshot().num_free == 8


def test_both_groups_get_their_blocks_or_none_does():
    manager = TransformersHybrid(4, 1, 1)
    live, fresh = admit(manager, 0, 1), Request(1, 2)
    before = manager.snapshot(), repr(live), manager.state_key({0: 0})
    assert manager.allocate_for_prefill(fresh) is False
    assert decode(manager, live, 2) is False
    assert before == (manager.snapshot(), repr(live), manager.state_key({0: 0}))
    assert decode(manager, live) is True


def test_what_is_free_in_a_group_is_not_there_for_the_other_until_sectors_are_freed():
    """So the hybrid is not asked: the engine asks an empty cache only, and frees none for it."""
    manager = TransformersHybrid(6, 2, 1)
    for request in [admit(manager, name, 1) for name in range(3)]:
        manager.release_request(request)
    assert manager.snapshot().num_free == 6
    assert manager.can_prefill(Request(3, 8)) is False
    assert len(admit(manager, 3, 8).block_table) == 6
    assert "ask" not in manager.declares.abilities


# ---------------------------------------------------------------- the copies


@pytest.mark.parametrize("make", [*ALL, *RINGS])
def test_a_new_manager_has_nothing_of_one_made_before(make):
    fresh = make(4, 2, 1).state_key({})
    admit(make(4, 2, 1), 0, 3)
    assert fresh == make(4, 2, 1).state_key({})


@pytest.mark.parametrize("make", [*ALL, *RINGS])
def test_a_clone_shares_nothing_that_changes(make):
    manager = make(8, 2, 1)
    live, gone = admit(manager, 0, 3), admit(manager, 1, 2)
    manager.release_request(gone)
    names = {0: 0, 2: 2}
    twin, handles = manager.clone({0: live})
    before = manager.state_key(names), repr(live)
    assert before == (twin.state_key(names), repr(handles[0]))
    assert twin._cache.layer_to_allocator[0] is twin._groups[0]
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
        (TransformersSliding, 2, 2, (27, 127)),
        (TransformersSliding, 3, 1, (82, 370)),
        (TransformersHybrid, 4, 1, (156, 792)),
    ],
)
def test_the_states_of_a_pool_are_exhausted(make, blocks, block_size, expected):
    assert counted(make, Geometry(blocks, block_size)) == expected
