"""What each call of the array-backed manager that shares blocks does, block by block."""

from __future__ import annotations

import pytest
import torch

from pagedkv.configurable import NULL_BLOCK
from pagedkv.protocol import (
    AlreadyHolding,
    HoldsNothing,
    InvalidBlockTable,
    OutOfBlocks,
)
from sharing_arrays import admitted, equations, forked, grow, made, new, refs, rows

# ------------------------------------------------------------------ sharing, by name


@pytest.mark.parametrize("writer", [0, 1])
def test_whichever_side_of_a_fork_writes_first_gets_a_copy_of_the_tail(writer):
    manager = made("fork")
    [parent] = admitted(manager, "123")
    manager.physical_kv_cache[:2, :, 0] = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    sides = [parent, forked(manager, parent, 1)]
    assert [side.block_table for side in sides] == [[0, 1], [0, 1]]
    assert refs(manager) == {0: 2, 1: 2}
    grow(manager, sides[writer], "4")
    assert sides[writer].block_table == [0, 2]
    assert sides[1 - writer].block_table == [0, 1]
    assert refs(manager) == {0: 2, 1: 1, 2: 1}
    assert rows(manager)[2] == [3.0, 0.0]
    grow(manager, sides[1 - writer], "5")
    assert refs(manager) == {0: 2, 1: 1, 2: 1}
    manager.release_request(parent)
    manager.release_request(sides[1])
    assert manager.free_blocks == [0, 1, 2, 3, 4, 5]


def test_an_eager_fork_copies_a_partly_filled_tail_at_once_and_a_full_one_never():
    manager = made("fork", forks_eagerly=True)
    parent, full = admitted(manager, "123", "45")
    manager.physical_kv_cache[1, 0] = 3.0
    assert forked(manager, parent, 2).block_table == [0, 3]
    assert rows(manager)[3] == [3.0, 0.0]
    assert forked(manager, full, 3).block_table == [2]
    assert refs(manager) == {0: 2, 1: 1, 2: 2, 3: 1}


def test_a_fork_that_finds_no_block_for_the_tail_changes_nothing():
    manager = made("fork", forks_eagerly=True, geometry=(2, 2))
    [parent] = admitted(manager, "123")
    child, before = new(1, "123"), manager.snapshot()
    with pytest.raises(OutOfBlocks) as caught:
        manager.fork_request(parent, child)
    assert (caught.value.needed, caught.value.available) == (1, 0)
    assert (manager.snapshot(), child.block_table) == (before, [])


def test_an_append_into_a_shared_tail_needs_the_copy_besides_the_new_blocks():
    manager = made("fork", "append", "ask", geometry=(3, 2))
    [parent] = admitted(manager, "1")
    child = forked(manager, parent, 1)
    child.tokens += [0] * 4
    assert manager.can_append(child, 3)
    assert not manager.can_append(child, 5)
    with pytest.raises(OutOfBlocks) as caught:
        manager.allocate_for_append(child, 5)
    assert (caught.value.needed, caught.value.available) == (3, 2)
    manager.allocate_for_append(child, 3)
    assert (parent.block_table, child.block_table) == ([0], [1, 2])


# ------------------------------------------------------------------ prefixes


def test_a_prompt_finds_its_full_blocks_but_for_its_last_token():
    manager = made("prefix")
    admitted(manager, "112233")
    again, longer, other = admitted(manager, "112233", "1122334", "1133", first=1)
    assert again.block_table == [0, 1, 3]
    assert longer.block_table == [0, 1, 2, 4]
    assert other.block_table == [0, 5]
    assert [manager.cached_tokens(r) for r in (again, longer, other)] == [4, 6, 2]
    assert refs(manager) == {0: 4, 1: 3, 2: 2, 3: 1, 4: 1, 5: 1}
    # The second copy of 33 behind 1122 is not published, nor is the tail.
    assert sorted(manager.snapshot().index.values()) == [0, 1, 2, 5]


def test_equal_tokens_behind_another_prefix_or_under_another_extra_key_are_not_found():
    manager = made("prefix", geometry=(9, 2))
    admitted(manager, "112233")
    for name, request in enumerate([new(0, "22330"), new(0, "112233", extra_key="salt")], 1):
        request.request_id = name
        manager.allocate_for_prefill(request)
        assert manager.cached_tokens(request) == 0


def test_nothing_is_found_before_it_is_computed_unless_published_at_once():
    late, soon = made("prefix"), made("prefix", publishes_at_once=True)
    for manager, found in ((late, 0), (soon, 2)):
        manager.allocate_for_prefill(new(0, "112"))
        second = new(1, "112")
        manager.allocate_for_prefill(second)
        assert manager.cached_tokens(second) == found


def test_released_blocks_stay_and_the_longest_unheld_goes_first_the_last_of_a_release_before():
    manager = made("prefix", geometry=(5, 1))
    first, second = admitted(manager, "12", "34")
    manager.release_request(second)
    manager.release_request(first)
    assert (manager.free_blocks, manager.snapshot().cached) == ([4], {0, 1, 2, 3})
    assert manager._cached().tolist() == [3, 2, 1, 0]
    [taker] = admitted(manager, "999", first=2)
    assert taker.block_table == [4, 3, 2]
    assert manager._cached().tolist() == [1, 0]
    [back] = admitted(manager, "12", first=3)
    assert (back.block_table, manager.cached_tokens(back)) == ([0, 1], 1)


def test_hits_are_pinned_before_anything_is_evicted_and_not_counted_as_available():
    manager = made("prefix", geometry=(3, 1))
    [first] = admitted(manager, "123")
    manager.release_request(first)
    assert manager._cached().tolist() == [2, 1, 0]
    with pytest.raises(OutOfBlocks) as caught:
        manager.allocate_for_prefill(new(1, "1299"))
    assert (caught.value.needed, caught.value.available) == (2, 1)
    assert manager._cached().tolist() == [2, 1, 0]
    manager.allocate_for_prefill(again := new(1, "199"))
    assert again.block_table == [0, 2, 1]
    assert [*manager.snapshot().index.values()] == [0]


def test_a_resumed_request_finds_what_it_left():
    manager = made("prefix")
    [request] = admitted(manager, "11223")
    grow(manager, request, "3")
    manager.release_request(request)
    assert manager._cached().tolist() == [2, 1, 0]
    manager.allocate_for_prefill(request)
    manager.computed(request)
    assert (request.block_table, manager.cached_tokens(request)) == ([0, 1, 3], 4)
    assert manager._cached().tolist() == [2]


def test_a_published_tail_that_one_request_holds_is_withdrawn_before_it_is_written():
    manager = made("prefix", "truncate")
    [request] = admitted(manager, "1122")
    before = manager.snapshot().index
    manager.truncate_request(request, 3)
    del request.tokens[3:]
    assert manager.snapshot().index == before
    request.tokens.append(7)
    manager.allocate_for_decode(request)
    assert request.block_table == [0, 1]
    assert [*manager.snapshot().index.values()] == [0]
    manager.computed(request)
    assert [manager.cached_tokens(r) for r in admitted(manager, "11225", "11275", first=1)] == [
        2,
        4,
    ]


@pytest.mark.parametrize("at_once", [False, True], ids=["when computed", "at once"])
@pytest.mark.parametrize("text", ["25678", "95678"], ids=["the same again", "other"])
def test_one_call_may_withdraw_its_own_tail_and_evict_besides(at_once, text):
    manager = made("prefix", "truncate", "append", geometry=(4, 2), publishes_at_once=at_once)
    request, other = admitted(manager, "1122", "34")
    manager.release_request(other)
    manager.truncate_request(request, 3)
    del request.tokens[3:]
    assert sorted(manager.snapshot().index.values()) == [0, 1, 2]
    request.tokens += [int(token) for token in text]
    manager.allocate_for_append(request, 5)
    assert request.block_table == [0, 1, 3, 2]
    equations(manager)
    assert [*manager.snapshot().index.values()] == ([0, 1, 3, 2] if at_once else [0])
    manager.computed(request)
    equations(manager)
    assert [*manager.snapshot().index.values()] == [0, 1, 3, 2]


def test_what_a_prompt_finds_is_not_evicted_for_it_nor_what_another_found_before():
    manager = made("prefix", geometry=(5, 2))
    for request in admitted(manager, "11", "22", "33"):
        manager.release_request(request)
    (first,) = admitted(manager, "115", first=3)
    assert first.block_table[0] == 0
    (second,) = admitted(manager, "226789", first=4)
    assert second.block_table == [1, 4, 2]
    equations(manager)


def test_a_published_tail_that_several_hold_is_copied_and_still_found():
    manager = made("prefix", "truncate")
    first, second = admitted(manager, "1122", "11223")
    assert second.block_table == [0, 1, 2]
    manager.truncate_request(second, 3)
    del second.tokens[3:]
    assert manager.free_blocks == [2, 3, 4, 5]
    grow(manager, second, "9")
    assert (first.block_table, second.block_table) == ([0, 1], [0, 2])
    assert sorted(manager.snapshot().index.values()) == [0, 1, 2]


def test_no_block_is_published_whose_tokens_are_not_there():
    manager = made("prefix")
    request = new(0, "1122")
    manager.allocate_for_prefill(request)
    del request.tokens[3:]
    manager.computed(request)
    assert [*manager.snapshot().index.values()] == [0]


def test_what_publishes_at_once_publishes_nothing_when_told_that_it_is_computed():
    manager = made("prefix", "truncate", publishes_at_once=True)
    first, second = admitted(manager, "1122", "1122")
    assert (first.block_table, second.block_table) == ([0, 1], [0, 2])
    manager.truncate_request(first, 3)
    first.tokens[3:] = [7]
    manager.allocate_for_decode(first)
    before = manager.snapshot().index
    manager.computed(second)
    assert manager.snapshot().index == before
    assert sorted(before.values()) == [0, 1]


def test_a_fork_of_a_found_prefix_counts_every_table():
    manager = made("prefix", "fork")
    _, second = admitted(manager, "1122", "11223")
    child = forked(manager, second, 2)
    assert refs(manager) == {0: 3, 1: 3, 2: 2}
    grow(manager, child, "3")
    manager.release_request(second)
    assert refs(manager) == {0: 2, 1: 2, 3: 1}
    manager.release_request(child)
    # Its last block is published; the first two are held.
    assert (refs(manager), manager._cached().tolist()) == ({0: 1, 1: 1}, [3])


# ------------------------------------------------------------------ groups, swaps, windows


def test_a_group_withholds_what_comes_back_and_hides_it_until_it_ends():
    manager = made("prefix", "group")
    first, second = admitted(manager, "112", "334")
    manager.free_group_begin()
    manager.release_request(first)
    manager.release_request(second)
    seen = manager.snapshot()
    assert (seen.withheld, seen.cached, seen.free_blocks) == ({0, 1, 2, 3}, frozenset(), (4, 5))
    assert seen.index == {}
    [again] = admitted(manager, "112", first=2)
    assert (again.block_table, manager.cached_tokens(again)) == ([4, 5], 0)
    manager.free_group_end()
    # Block 0 has what block 4 is found by now, so it is free; block 2 is cached.
    assert manager.snapshot().free_blocks == (3, 0, 1)
    assert manager._cached().tolist() == [2]
    assert sorted(manager.snapshot().index.values()) == [2, 4]


def test_of_two_withheld_blocks_with_one_content_the_first_given_back_is_cached():
    manager = made("prefix", "group", geometry=(3, 1))
    manager.free_group_begin()
    for name in (0, 1):
        [request] = admitted(manager, "1", first=name)
        manager.release_request(request)
    manager.free_group_end()
    assert (manager._cached().tolist(), manager.free_blocks) == ([0], [1, 2])
    equations(manager)


def test_a_swapped_request_keeps_its_content_in_the_second_pool():
    manager = made("swap", geometry=(4, 2))
    [request] = admitted(manager, "123")
    manager.physical_kv_cache[:2, :, 0] = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    manager.swap_out(request)
    manager.physical_kv_cache[:] = -1.0
    seen = manager.snapshot()
    assert (request.block_table, seen.block_tables, seen.seq_lens) == ([], {}, {})
    assert (seen.swapped, seen.host_free, seen.free_blocks) == ({0: (0, 1)}, (2, 3), (0, 1, 2, 3))
    admitted(manager, "9", first=1)
    manager.swap_in(request)
    assert request.block_table == [1, 2]
    assert manager.get_physical_cache(request)[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert manager.snapshot().host_free == (0, 1, 2, 3)


def test_a_swap_out_leaves_shared_and_published_blocks_where_they_are():
    manager = made("swap", "fork", "prefix")
    [parent] = admitted(manager, "112")
    child = forked(manager, parent, 1)
    manager.swap_out(child)
    assert refs(manager) == {0: 1, 1: 1}
    manager.swap_out(parent)
    assert (manager._cached().tolist(), manager.free_blocks) == ([0], [1, 2, 3, 4, 5])
    assert manager.snapshot().swapped == {1: (0, 1), 0: (2, 3)}
    manager.swap_in(parent)
    assert parent.block_table == [1, 2]


def test_swaps_run_out_of_blocks_in_the_pool_that_is_full():
    manager = made("swap", "ask", geometry=(2, 1))
    [first] = admitted(manager, "12")
    manager.swap_out(first)
    [second] = admitted(manager, "34", first=1)
    assert not manager.can_swap_out(second)
    assert not manager.can_swap_in(first)
    for call in (manager.swap_out, manager.swap_in):
        with pytest.raises(OutOfBlocks) as caught:
            call(second if call == manager.swap_out else first)
        assert (caught.value.needed, caught.value.available) == (2, 0)
    manager.release_request(first)
    assert manager.can_swap_out(second)


def test_wrong_use_of_a_swapped_request_says_that_it_is_swapped_out():
    manager = made("swap", "append")
    [request] = admitted(manager, "12")
    with pytest.raises(HoldsNothing, match="not swapped out"):
        manager.swap_in(request)
    manager.swap_out(request)
    for call in (manager.swap_out, manager.allocate_for_decode):
        with pytest.raises(HoldsNothing, match="is swapped out; swap it in first"):
            call(request)
    with pytest.raises(AlreadyHolding, match="which is swapped out"):
        manager.allocate_for_prefill(request)
    with pytest.raises(AlreadyHolding, match="whose id a request that is swapped out has"):
        manager.allocate_for_prefill(new(0, "12"))
    request.block_table = [3]
    for call in (manager.swap_in, manager.release_request):
        with pytest.raises(InvalidBlockTable, match="leave the table empty"):
            call(request)


def test_blocks_behind_the_window_go_back_first_and_count_as_available():
    manager = made("append", "window", "ask", window=2, geometry=(3, 2))
    [request] = admitted(manager, "1234")
    manager.physical_kv_cache[:2, :, 0] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert manager.get_physical_cache(request)[:, 0].tolist() == [3.0, 4.0]
    request.tokens += [0] * 9
    assert not manager.can_append(request, 9)
    with pytest.raises(OutOfBlocks) as caught:
        manager.allocate_for_append(request, 9)
    assert (caught.value.needed, caught.value.available) == (5, 3)
    assert request.block_table == [0, 1]
    assert manager.can_append(request, 2)
    manager.allocate_for_append(request, 2)
    assert request.block_table == [NULL_BLOCK, NULL_BLOCK, 0]
    assert manager.free_blocks == [1, 2]
    assert manager.allocation_report(request) == {
        "logical_tokens": 6,
        "allocated_tokens": 2,
        "unused_tail_tokens": 0,
        "utilization": 1.0,
    }
    request.block_table[-1] = 7
    with pytest.raises(InvalidBlockTable, match="7 is no block of the pool"):
        manager.get_physical_cache(request)


def test_a_group_withholds_blocks_behind_the_window():
    manager = made("window", "group", window=1, geometry=(2, 1))
    [request] = admitted(manager, "1")
    manager.free_group_begin()
    grow(manager, request, "2")
    assert (request.block_table, manager.snapshot().withheld) == ([NULL_BLOCK, 1], {0})
    with pytest.raises(OutOfBlocks):
        manager.allocate_for_decode(request)
    manager.free_group_end()
    grow(manager, request, "3")
    assert request.block_table == [NULL_BLOCK, NULL_BLOCK, 1]
