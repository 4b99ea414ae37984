"""SGLang's slot allocators and its radix tree, behind their adapters: SGLang 0.5.23."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("sglang")

from counting import counted
from pagedkv.engines.sglang_paged import SGLangPaged, SGLangSorted
from pagedkv.engines.sglang_radix import SGLangRadix
from pagedkv.protocol import Request
from pagedkv.specs.model import Geometry

ALL = (SGLangPaged, SGLangSorted, SGLangRadix)
NO = {SGLangPaged: None, SGLangSorted: None, SGLangRadix: False}


def admit(manager: SGLangPaged, name: int, tokens: int) -> Request:
    request = Request(name, tokens)
    assert manager.allocate_for_prefill(request) is True
    computed(manager, request)
    return request


def decode(manager: SGLangPaged, request: Request) -> object:
    request.tokens.append(0)
    answer = manager.allocate_for_decode(request)
    if answer is True:
        computed(manager, request)
    else:
        request.tokens.pop()
    return answer


def computed(manager: SGLangPaged, request: Request) -> None:
    if isinstance(manager, SGLangRadix):
        manager.computed(request)


def free(manager: SGLangPaged) -> tuple[int, ...]:
    shown = manager.snapshot().free_blocks
    assert shown is not None
    return shown


# ---------------------------------------------------------------- the protocol


@pytest.mark.parametrize("make", ALL)
def test_pages_are_numbered_from_1_and_page_0_is_for_padding(make):
    shown = make(3, 2, 1).snapshot()
    assert (shown.blocks, shown.reserved, shown.num_free) == ({1, 2, 3}, {0}, 3)
    assert shown.free_blocks == (1, 2, 3)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(("block_size", "table"), [(1, [1, 2, 3]), (2, [1, 2]), (3, [1])])
def test_prefill_takes_a_page_for_each_started_block_size(make, block_size, table):
    request = admit(make(4, block_size, 1), 0, 3)
    assert (request.block_table, request.seq_len) == (table, 3)


@pytest.mark.parametrize("make", ALL)
def test_decode_takes_a_page_at_the_boundary_only(make):
    manager = make(2, 2, 1)
    request, tables = admit(manager, 0, 1), []
    for _ in range(3):
        assert decode(manager, request) is True
        tables.append((request.seq_len, list(request.block_table)))
    assert tables == [(2, [1]), (3, [1, 2]), (4, [1, 2])]
    assert manager.slots(request) == [(0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1)]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("block_size", [1, 2])
def test_out_of_pages_is_told_as_declared_and_changes_nothing(make, block_size):
    manager = make(2, block_size, 1)
    live, fresh = admit(manager, 0, 2 * block_size), Request(1, 1)
    (told,) = manager.declares.out_of_blocks
    before = manager.snapshot(), repr(live), manager.state_key({0: 0})
    for answer in (manager.allocate_for_prefill(fresh), decode(manager, live)):
        assert answer is NO[make]
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
    assert sorted(request.block_table) == [1, 2]


# ---------------------------------------------------------------- the engine's own ways


def test_freed_pages_come_back_first_and_freed_slots_last():
    pages, slots = SGLangPaged(4, 2, 1), SGLangPaged(4, 1, 1)
    for manager in (pages, slots):
        manager.release_request(admit(manager, 0, 2 * manager.block_size))
    assert (free(pages), free(slots)) == ((1, 2, 3, 4), (3, 4, 1, 2))


@pytest.mark.parametrize("block_size", [1, 2])
def test_staged_pages_are_free_last_and_sorted_in_when_short(block_size):
    manager = SGLangSorted(4, block_size, 1)
    first, second = admit(manager, 0, block_size), admit(manager, 1, block_size)
    manager.release_request(second)
    manager.release_request(first)
    assert free(manager) == (3, 4, 2, 1)
    assert manager.snapshot().num_free == 4
    assert admit(manager, 2, 4 * block_size).block_table == [1, 2, 3, 4]


def test_a_refusal_may_sort_the_free_list():
    manager = SGLangSorted(3, 2, 1)
    held = [admit(manager, name, 2) for name in range(3)]
    manager.release_request(held[1])
    manager.release_request(held[0])
    before = free(manager)
    assert manager.allocate_for_prefill(Request(3, 6)) is None
    assert (before, free(manager)) == ((2, 1), (1, 2))
    assert manager.declares.reorders_free


def test_a_copied_counter_would_hide_what_the_engine_counts():
    manager = SGLangSorted(3, 2, 1)
    manager.release_request(admit(manager, 0, 2))
    manager._allocator.num_staged_pages = 0
    assert (manager.snapshot().num_free, free(manager)) == (2, (2, 3, 1))


def test_a_finished_request_leaves_its_full_pages_in_the_tree():
    manager = SGLangRadix(4, 2, 1)
    manager.release_request(admit(manager, 0, 5))
    shown = manager.snapshot()
    assert (shown.cached, shown.free_blocks) == ({1, 2}, (3, 4))
    assert manager._tree.evictable_size() == 4


def test_what_a_live_request_has_put_into_the_tree_is_not_cached():
    manager = SGLangRadix(4, 2, 1)
    request = admit(manager, 0, 4)
    assert (manager._tree.protected_size(), manager.snapshot().cached) == (4, frozenset())
    assert manager.snapshot().block_tables == {0: tuple(request.block_table)}


def test_the_least_recently_finished_request_is_evicted_first():
    manager = SGLangRadix(3, 1, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 1)
    manager.release_request(second)
    manager.release_request(first)
    assert manager.snapshot().cached == {1, 2}
    assert admit(manager, 2, 2).block_table == [3, 2]
    assert manager.snapshot().cached == {1}


def test_a_refusal_evicts_nothing():
    manager = SGLangRadix(3, 1, 1)
    manager.release_request(admit(manager, 0, 1))
    admit(manager, 1, 1)
    before = manager.snapshot()
    assert before.cached == {1}
    assert manager.allocate_for_prefill(Request(2, 3)) is False
    assert before == manager.snapshot()
    assert manager._tree.protected_size() == 1


def test_no_request_finds_what_another_has_computed():
    manager = SGLangRadix(4, 2, 1)
    first = admit(manager, 0, 4)
    assert not set(first.block_table) & set(admit(manager, 1, 4).block_table)


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize(
    ("make", "blocks", "block_size", "expected"),
    [
        (SGLangPaged, 2, 1, (7, 28)),
        (SGLangPaged, 2, 2, (14, 66)),
        (SGLangSorted, 2, 2, (21, 105)),
        (SGLangRadix, 2, 1, (41, 159)),
        (SGLangRadix, 2, 2, (84, 404)),
    ],
)
def test_the_states_of_a_pool_are_exhausted(make, blocks, block_size, expected):
    assert counted(make, Geometry(blocks, block_size)) == expected


def test_nothing_stands_in_for_torchvision_after_the_import():
    assert find_spec("torchvision") is not None or "torchvision" not in sys.modules
