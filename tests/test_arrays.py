"""What is special about the array-backed manager: its arrays, their growth, rows and ownership."""

from __future__ import annotations

import random
from copy import deepcopy

import numpy as np
import pytest
import torch

from managing import Nth, admit, key_of
from pagedkv import ArrayKVCacheManager, HoldsNothing, Owned, Request, rows
from pagedkv.arrays import NOBODY
from pagedkv.rows import FEW, KEPT


def settled(manager):
    """The equations of what is left for later; afterwards nothing is."""
    below = manager._num_free - len(manager._top)
    stack = manager._free[:below].tolist() + manager._top
    row, left = manager._left_in
    assert not left or manager._tables[row, : len(left)].tolist() == left
    given = {row: held for row, held in enumerate(manager._given) if held is not None}
    assert given == {row: manager._table(row) for row in given}
    assert sum(map(len, given.values())) <= manager.num_blocks / 2
    manager._settle()
    assert (manager._top, manager._late) == ([], {})
    assert stack == manager._free[: manager._num_free].tolist()


def invariants(manager):
    """The equations at the head of pagedkv/rows.py, as code."""
    settled(manager)
    free = manager._free[: manager._num_free].tolist()
    held = []
    for name, row in manager._rows.items():
        handle = manager._handles[row]
        assert (name, manager._table(row)) == (handle.request_id, handle.block_table)
        assert handle.seq_len == manager._lengths[row]
    live_rows = np.flatnonzero(manager._lengths).tolist()
    for row in live_rows:
        blocks = manager._tables[row, : manager._counts[row]].tolist()
        assert sorted(blocks) == np.flatnonzero(manager._owner == row).tolist()
        assert -(-int(manager._lengths[row]) // manager.block_size) == len(blocks)
        held += blocks
    assert sorted(free + held) == list(range(manager.num_blocks))
    assert sorted(free) == np.flatnonzero(manager._owner == NOBODY).tolist()
    free_rows = manager._free_rows[: manager._num_free_rows].tolist()
    assert set(live_rows) >= set(manager._rows.values())
    arrays = (manager._lengths, manager._counts, manager._free_rows, manager._handles)
    assert {len(array) for array in arrays} == {manager._tables.shape[0]}
    assert sorted(free_rows + live_rows) == list(range(len(manager._counts)))
    nameless = set(range(len(manager._counts))) - set(manager._rows.values())
    assert [manager._handles[row] for row in nameless] == [None] * len(nameless)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (5, 1), (16, 3)])
def test_the_equations_hold_after_every_call_of_a_random_history(num_blocks, block_size):
    draw = random.Random(num_blocks)
    manager = ArrayKVCacheManager(num_blocks, block_size, 1)
    live: dict[int, Request] = {}
    for step in range(600):
        if live and draw.random() < 0.4:
            manager.release_request(live.pop(draw.choice(list(live))))
        elif live and draw.random() < 0.5:
            request = draw.choice(list(live.values()))
            if manager.free_blocks:
                manager.allocate_for_decode(request)
        else:
            length = draw.randint(1, num_blocks * block_size)
            if -(-length // block_size) <= len(manager.free_blocks):
                live[step] = Request(step, length)
                manager.allocate_for_prefill(live[step])
        invariants(manager)


@pytest.mark.parametrize(("num_blocks", "longest"), [(12, 5), (600, FEW + 40), (900, 30)])
def test_the_equations_hold_whatever_single_calls_leave_for_later(num_blocks, longest):
    draw = random.Random(num_blocks)
    manager = ArrayKVCacheManager(num_blocks, 1, 1)
    live: list[Request] = []
    for step in range(500):
        held = sum(len(request.block_table) for request in live)
        count = draw.randint(1, longest)
        match draw.choices(("admit", "release", "decode", "in a batch", "look"), (9, 9, 4, 1, 1)):
            case ["admit"] if held + count <= num_blocks:
                live.append(Request(step, count))
                manager.allocate_for_prefill(live[-1])
            case ["release"] if live:
                manager.release_request(live.pop(draw.randrange(len(live))))
            case ["decode"] if live and held < num_blocks:
                manager.allocate_for_decode(draw.choice(live))
            case ["in a batch"] if live and held + 2 <= num_blocks:
                rows = manager.prefill_rows(np.array([1, 1]))
                manager.release_rows(np.append(rows, manager.row_of(live.pop())))
            case ["look"]:
                assert len(manager.free_blocks) == num_blocks - held
            case _:
                pass
        assert len(manager._top) <= KEPT + FEW
        invariants(deepcopy(manager))


# ------------------------------------------------------------------ order


def test_the_last_freed_blocks_come_first_in_the_order_of_their_table():
    manager = ArrayKVCacheManager(6, 1, 1)
    first, second, _ = admit(manager, 2, 2, 1)
    manager.release_request(first)
    manager.release_request(second)
    assert manager.snapshot().free_blocks == (2, 3, 0, 1, 5)
    assert manager.free_blocks == [0, 1, 2, 3, 5]
    late = Request(9, 3)
    manager.allocate_for_prefill(late)
    assert late.block_table == [2, 3, 0]


# ------------------------------------------------------------------ arrays


@pytest.mark.parametrize("count", [FEW - 1, FEW, FEW + 1, KEPT + 1])
def test_large_tables_come_and_go_in_the_same_order(count):
    manager = ArrayKVCacheManager(KEPT + 9, 1, 1)
    small, large = admit(manager, 2, count)
    assert (small.block_table, large.block_table) == ([0, 1], [*range(2, count + 2)])
    manager.release_request(small)
    manager.release_request(large)
    invariants(manager)
    large, small = admit(manager, count, 3)
    assert (large.block_table, small.block_table) == ([*range(2, count + 2)], [0, 1, count + 2])
    invariants(manager)


def test_all_bookkeeping_is_int32_but_the_free_stack_which_is_an_index():
    manager = ArrayKVCacheManager(5, 1, 1)
    admit(manager, 3, 1)
    types = {name: getattr(manager, name).dtype for name in ArrayKVCacheManager._ARRAYS}
    assert types.pop("_free") == np.intp
    assert {np.dtype(np.int32)} == set(types.values())


def test_bookkeeping_takes_at_most_sixteen_bytes_a_block_and_four_a_table_entry():
    manager = ArrayKVCacheManager(4096, 1, 1)
    admit(manager, *[64] * 64)
    per_block = manager._free.nbytes + manager._owner.nbytes
    listed = sum(len(held) for held in manager._given if held is not None)
    assert 0 < 8 * listed <= 4 * 4096
    per_row = manager._lengths.nbytes + manager._counts.nbytes + manager._free_rows.nbytes
    assert per_block == 12 * 4096
    assert (manager._tables.nbytes, per_row) == (4 * 64 * 64, 12 * 64)


def test_handles_get_plain_ints():
    manager = ArrayKVCacheManager(3, 1, 1)
    (request,) = admit(manager, 2)
    manager.allocate_for_decode(request)
    assert {int} == {type(block) for block in request.block_table} | {type(request.seq_len)}


@pytest.mark.parametrize(("num_blocks", "block_size"), [(2**31, 1), (2**16, 2**15), (1, 2**31)])
def test_a_pool_that_int32_can_not_count_is_refused(num_blocks, block_size):
    with pytest.raises(ValueError, match=r"does not fit the int32 arrays, at most 2147483647"):
        ArrayKVCacheManager(num_blocks, block_size, 1)


def test_a_pool_that_int32_can_just_count_is_made(monkeypatch):
    monkeypatch.setattr(rows, "INT32_MAX", 8)
    assert ArrayKVCacheManager(4, 2, 1).free_blocks == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"3 \* 3 does not fit the int32 arrays, at most 8"):
        ArrayKVCacheManager(3, 3, 1)


def test_a_pool_of_a_million_blocks_is_handed_out_in_one_call():
    manager = ArrayKVCacheManager(2**20, 1, 1)
    (request,) = admit(manager, 2**20)
    assert (manager.free_blocks, len(request.block_table)) == ([], 2**20)
    manager.release_request(request)
    assert manager.snapshot().num_free == 2**20


# ------------------------------------------------------------------ growth, rows and the tensor


def test_rows_and_width_grow_by_doubling_and_no_wider_than_the_pool():
    manager = ArrayKVCacheManager(11, 1, 1)
    shapes = []
    for name, length in enumerate((1, 1, 1, 3, 5)):
        manager.allocate_for_prefill(Request(name, length))
        shapes.append(manager._tables.shape)
    assert shapes == [(1, 1), (2, 1), (4, 1), (4, 3), (8, 6)]
    wide = ArrayKVCacheManager(5, 1, 1)
    (request,) = admit(wide, 3)
    wide.allocate_for_decode(request)
    assert wide._tables.shape == (1, 5)


def test_growth_keeps_every_table():
    manager = ArrayKVCacheManager(64, 1, 1)
    requests = admit(manager, *range(1, 9))
    for request in requests:
        manager.allocate_for_decode(request)
        invariants(manager)


def test_growth_gives_the_lowest_new_row_first():
    manager = ArrayKVCacheManager(8, 1, 1)
    assert [manager.row_of(r) for r in admit(manager, *[1] * 5)] == [0, 1, 2, 3, 4]


def test_growth_that_fails_at_any_inner_call_keeps_the_equations():
    shapes: list[tuple[int, ...]] = []
    while not shapes or shapes[-1] == (1, 1):
        manager = ArrayKVCacheManager(8, 1, 1)
        admit(manager, 1)
        request = Request(9, 3)
        Nth(len(shapes) + 1).run(lambda: manager.allocate_for_prefill(request))  # noqa: B023
        invariants(manager)
        shapes.append(manager._tables.shape)
    assert shapes[-1] == (2, 3)
    assert len(shapes) > 10


def test_out_of_blocks_does_not_grow_the_tables():
    manager = ArrayKVCacheManager(2, 1, 1)
    with pytest.raises(RuntimeError, match="OOM"):
        manager.allocate_for_prefill(Request(0, 3))
    assert manager._tables.shape == (1, 1)


def test_a_row_is_kept_until_release_and_given_to_the_next_request():
    manager = ArrayKVCacheManager(8, 1, 1)
    first, second = admit(manager, 1, 1)
    rows = manager.row_of(first), manager.row_of(second)
    manager.release_request(first)
    assert rows[1] == manager.row_of(second)
    late = Request(9, 1)
    manager.allocate_for_prefill(late)
    assert rows == (manager.row_of(late), manager.row_of(second))


def test_a_request_that_is_not_live_has_no_row():
    manager = ArrayKVCacheManager(2, 1, 1)
    (request,) = admit(manager, 1)
    for stranger in (Request(1, 1), Request(0, 1)):
        with pytest.raises(HoldsNothing, match=rf"row of request {stranger.request_id}, which is"):
            manager.row_of(stranger)
    manager.release_request(request)
    with pytest.raises(HoldsNothing):
        manager.row_of(request)


def test_the_tables_are_one_int32_tensor_that_follows_without_a_copy():
    manager = ArrayKVCacheManager(8, 1, 1)
    first, second = admit(manager, 3, 1)
    tables = manager.block_tables_tensor
    assert (torch.int32, (2, 3)) == (tables.dtype, tuple(tables.shape))
    assert tables[manager.row_of(first)].tolist() == [0, 1, 2]
    manager.allocate_for_decode(second)
    assert second.block_table == tables[manager.row_of(second), :2].tolist() == [3, 4]
    assert tables.data_ptr() == manager.block_tables_tensor.data_ptr()


@pytest.mark.parametrize("admits", ["one", "a batch"])
def test_the_tensor_follows_a_table_that_just_fits(admits):
    manager = ArrayKVCacheManager(4, 1, 1)
    manager.release_rows(manager.prefill_rows(np.array([2, 1])))
    tables = manager.block_tables_tensor
    assert tables.shape == (2, 2)
    if admits == "one":
        admit(manager, 2)
    else:
        manager.prefill_rows(np.array([2, 2]))
    assert np.shares_memory(tables.numpy(), manager.block_tables_tensor.numpy())


def test_the_tensor_goes_stale_when_the_tables_grow():
    manager = ArrayKVCacheManager(8, 1, 1)
    (request,) = admit(manager, 1)
    stale = manager.block_tables_tensor
    manager.allocate_for_decode(request)
    assert (tuple(stale.shape), tuple(manager.block_tables_tensor.shape)) == ((1, 1), (1, 2))


# ------------------------------------------------------------------ snapshot


def test_a_snapshot_shows_the_counter_and_the_ownership():
    manager = ArrayKVCacheManager(4, 2, 1)
    first, second = admit(manager, 1, 3)
    manager.release_request(first)
    assert second.block_table == [1, 2]
    seen = manager.snapshot()
    assert seen.num_free == 2
    assert frozenset({Owned(1, 0, 1), Owned(1, 1, 2)}) == seen.reverse_map


def test_a_snapshot_is_read_from_the_real_arrays():
    manager = ArrayKVCacheManager(5, 1, 1)
    admit(manager, 2)
    manager._settle()
    row = 0
    manager._tables[row, 1] = 4
    manager._lengths[row] = 7
    manager._owner[3] = 1
    manager._num_free = 1
    seen = manager.snapshot()
    assert (
        seen.block_tables,
        seen.seq_lens,
        seen.free_blocks,
        seen.num_free,
    ) == ({0: (0, 4)}, {0: 7}, (4,), 1)
    # Block 1 is no longer in the table of its owner, and row 1 belongs to nobody.
    assert frozenset({Owned(0, 0, 0), Owned(0, 2, 1), Owned("row 1", 0, 3)}) == seen.reverse_map


def test_a_state_key_does_not_depend_on_the_names_of_rows():
    draw = random.Random(3)
    manager = ArrayKVCacheManager(3, 1, 1)
    rows_by_key: dict[object, set[tuple[int, ...]]] = {}
    live: list[Request] = []
    for _ in range(400):
        if live and (draw.random() < 0.5 or not manager.free_blocks):
            manager.release_request(live.pop(draw.randrange(len(live))))
        else:
            names = {0, 1, 2} - {request.request_id for request in live}
            live.append(Request(min(names), draw.randint(1, len(manager.free_blocks))))
            manager.allocate_for_prefill(live[-1])
        rows = rows_by_key.setdefault(key_of(manager), set())
        by_id = sorted(live, key=lambda request: request.request_id)
        rows.add(tuple(manager.row_of(request) for request in by_id))
    assert max(len(rows) for rows in rows_by_key.values()) > 1


def test_a_state_key_says_who_owns_a_block():
    manager = ArrayKVCacheManager(3, 1, 1)
    admit(manager, 1, 1)
    before = manager.state_key({0: 0, 1: 1})
    manager._owner[0] = manager._rows[1]
    assert manager.state_key({0: 0, 1: 1}) != before


def test_a_state_key_does_not_depend_on_the_room_there_is():
    manager = ArrayKVCacheManager(2, 1, 1)
    plain = ArrayKVCacheManager(2, 1, 1)
    big, small = Request(0, 2), Request(1, 1)
    manager.allocate_for_prefill(big)
    manager.release_request(big)
    assert manager._tables.shape != plain._tables.shape
    for one in (manager, plain):
        one.allocate_for_prefill(small)
        small.block_table = []
    assert key_of(manager) == key_of(plain)


def test_reading_is_one_gather_over_any_table():
    manager = ArrayKVCacheManager(64, 4, 3)
    manager.physical_kv_cache.copy_(torch.rand(64, 4, 3))
    request = Request(0, 250)
    request.block_table = random.Random(1).sample(range(64), 63)
    expected = manager.physical_kv_cache[request.block_table].reshape(-1, 3)[:250]
    assert torch.equal(expected, manager.get_physical_cache(request))
