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


def admit(
    manager: SGLangPaged, name: int, tokens: int | list[int], extra_key: int | None = None
) -> Request:
    """A request of this prompt; of a number alone, one that nobody else has."""
    prompt = [10 + name] * tokens if isinstance(tokens, int) else tokens
    request = Request(name, len(prompt), prompt, extra_key=extra_key)
    assert manager.allocate_for_prefill(request) is True
    computed(manager, request)
    return request


def decode(manager: SGLangPaged, request: Request, count: int = 0) -> object:
    """One more token, or `count` by an append."""
    request.tokens += [0] * (count or 1)
    if count:
        answer = manager.allocate_for_append(request, count)
    else:
        answer = manager.allocate_for_decode(request)
    if answer is True:
        computed(manager, request)
    else:
        del request.tokens[-(count or 1) :]
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
    assert shown.cached == {1, 2}
    assert shown.free_blocks == (3, 4)
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


def test_a_prompt_finds_the_full_pages_of_another_but_for_its_last_token():
    manager = SGLangRadix(4, 2, 1)
    first, second = admit(manager, 0, [0, 0, 1, 0]), Request(1, 4, [0, 0, 1, 0])
    assert manager.allocate_for_prefill(second) is True
    assert (manager.cached_tokens(first), manager.cached_tokens(second)) == (0, 2)
    assert (first.block_table, second.block_table) == ([1, 2], [1, 3])
    manager.computed(second)
    assert (second.block_table, free(manager)) == ([1, 2], (3, 4))


def test_another_extra_key_is_other_content():
    manager = SGLangRadix(4, 1, 1)
    tables = [admit(manager, 0, [0], key).block_table for key in (None, 1, 2)]
    assert tables == [[1], [2], [3]]


def test_the_index_has_each_page_by_all_the_tokens_up_to_its_end():
    manager = SGLangRadix(4, 2, 1)
    admit(manager, 0, [0, 1, 2, 3, 4])
    assert manager.snapshot().index == {(None, (0, 1)): 1, (None, (0, 1, 2, 3)): 2}


def test_a_refused_append_may_evict():
    manager = SGLangRadix(3, 1, 1)
    manager.release_request(admit(manager, 0, 1))
    live = admit(manager, 1, 1)
    assert decode(manager, live, 3) is False
    assert (manager.snapshot().cached, sorted(free(manager))) == (frozenset(), [1, 3])
    assert manager.declares.evicts_cached


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("block_size", [1, 2])
def test_an_append_takes_all_pages_or_none(make, block_size):
    manager = make(3, block_size, 1)
    request = admit(manager, 0, 1)
    before = manager.snapshot()
    assert decode(manager, request, 3 * block_size) is NO[make]
    assert before == manager.snapshot()
    assert decode(manager, request, 3 * block_size - 1) is True
    assert request.block_table == [1, 2, 3]
    assert [b for _, b, i in manager.slots(request) if i == 0] == [1, 2, 3]


@pytest.mark.parametrize("make", [SGLangPaged, SGLangSorted])
@pytest.mark.parametrize("block_size", [1, 2])
def test_what_is_freed_inside_a_group_is_withheld_until_it_ends(make, block_size):
    manager = make(2, block_size, 1)
    request = admit(manager, 0, block_size)
    assert manager.snapshot().withheld is None
    manager.free_group_begin()
    manager.release_request(request)
    shown = manager.snapshot()
    assert (shown.withheld, shown.free_blocks, shown.num_free) == ({1}, (2,), 1)
    manager.free_group_end()
    assert (manager.snapshot().withheld, sorted(free(manager))) == (None, [1, 2])


# ---------------------------------------------------------------- the search


@pytest.mark.parametrize(
    ("make", "blocks", "block_size", "expected"),
    [
        (SGLangPaged, 2, 1, (7, 28)),
        (SGLangPaged, 2, 2, (14, 66)),
        (SGLangSorted, 2, 2, (21, 105)),
    ],
)
def test_the_states_of_a_pool_are_exhausted(make, blocks, block_size, expected):
    assert counted(make, Geometry(blocks, block_size)) == expected


def test_nothing_stands_in_for_torchvision_after_the_import():
    assert find_spec("torchvision") is not None or "torchvision" not in sys.modules
