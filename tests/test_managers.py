"""What holds for both managers alike: making one, prefill and decode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from managing import admit, everything
from pagedkv import (
    HoldsNothing,
    InvalidBlockTable,
    OutOfBlocks,
    PagedKVManager,
    Request,
)

# ------------------------------------------------------------------ construction


def test_a_manager_keeps_the_protocol_for_the_type_checker(make):
    manager: PagedKVManager = make(1, 1, 1)
    assert (manager.num_blocks, manager.block_size, manager.head_dim) == (1, 1, 1)


def test_a_fresh_pool_is_float32_zeros(make):
    pool = make(3, 2, 5).physical_kv_cache
    assert ((3, 2, 5), torch.float32, 0) == (tuple(pool.shape), pool.dtype, pool.count_nonzero())


def test_a_fresh_pool_is_float32_whatever_the_default_type(make):
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.float32 == make(1, 1, 1).physical_kv_cache.dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_every_block_of_a_fresh_pool_is_free(make):
    manager = make(3, 2, 1)
    assert manager.free_blocks == [0, 1, 2]
    assert manager.snapshot().free_blocks == (0, 1, 2)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (True, TypeError),
        (np.True_, TypeError),
        (2.0, TypeError),
        (np.float32(2), TypeError),
        ("2", TypeError),
        (None, TypeError),
    ],
)
def test_construction_refuses_what_is_no_positive_integer(make, place, value, error):
    arguments = [2, 2, 2]
    arguments[place] = value
    with pytest.raises(error, match=("num_blocks", "block_size", "head_dim")[place]):
        make(*arguments)


def test_construction_takes_numpy_integers(make):
    manager = make(np.int32(2), np.uint8(3), np.int64(1))
    admit(manager, 4)
    assert [int] * 3 == [
        type(n) for n in (manager.num_blocks, manager.block_size, manager.head_dim)
    ]
    assert manager.free_blocks == []


# ------------------------------------------------------------------ prefill


def test_prefill_takes_the_lowest_blocks_of_a_fresh_pool(make):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 5)
    assert (request.block_table, request.seq_len, manager.free_blocks) == ([0, 1], 5, [2, 3])


@pytest.mark.parametrize(
    ("tokens", "block_size", "blocks"), [(1, 4, 1), (4, 4, 1), (5, 4, 2), (6, 4, 2), (3, 1, 3)]
)
def test_prefill_takes_the_ceiling_of_tokens_over_block_size(make, tokens, block_size, blocks):
    manager = make(10, block_size, 1)
    (request,) = admit(manager, tokens)
    assert (blocks, 10 - blocks) == (len(request.block_table), len(manager.free_blocks))


def test_prefill_may_take_the_last_block(make):
    manager = make(2, 4, 1)
    (request,) = admit(manager, 8)
    assert (request.block_table, manager.free_blocks) == ([0, 1], [])


def test_prefill_without_enough_blocks_changes_nothing(make):
    manager = make(2, 4, 1)
    request = Request(3, 9)
    before = everything(manager, request)
    with pytest.raises(OutOfBlocks, match=r"^OOM: request 3 needs 3 more block\(s\), 2 available"):
        manager.allocate_for_prefill(request)
    assert before == everything(manager, request)


def test_prefill_beside_others_without_enough_blocks_changes_nothing(make):
    manager = make(3, 1, 1)
    first, second = admit(manager, 1, 1)
    manager.release_request(first)
    request = Request(2, 3)
    before = everything(manager, first, second, request)
    with pytest.raises(OutOfBlocks, match=r"needs 3 more block\(s\), 2 available"):
        manager.allocate_for_prefill(request)
    assert before == everything(manager, first, second, request)


def test_prefill_reads_the_length_that_the_handle_has_now(make):
    manager = make(4, 2, 1)
    request = Request(0, 1)
    request.seq_len = 5
    manager.allocate_for_prefill(request)
    assert (len(request.block_table), manager.snapshot().seq_lens[0]) == (3, 5)


@pytest.mark.parametrize(
    ("seq_len", "error"), [(0, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_prefill_refuses_an_edited_length_that_is_none(make, seq_len, error):
    manager = make(4, 2, 1)
    request = Request(0, 1)
    request.seq_len = seq_len
    before = everything(manager, request)
    with pytest.raises(error, match="seq_len must be"):
        manager.allocate_for_prefill(request)
    assert before == everything(manager, request)


# ------------------------------------------------------------------ decode


def test_decode_takes_a_third_block_at_nine_tokens_only(make):
    manager = make(10, 4, 1)
    (request,) = admit(manager, 6)
    tables = []
    for _ in range(3):
        manager.allocate_for_decode(request)
        tables.append((request.seq_len, request.block_table))
    assert tables == [(7, [0, 1]), (8, [0, 1]), (9, [0, 1, 2])]
    assert (
        manager.snapshot().seq_lens,
        manager.snapshot().block_tables,
    ) == ({0: 9}, {0: (0, 1, 2)})


def test_decode_at_a_full_block_takes_a_second_one(make):
    manager = make(2, 4, 1)
    (request,) = admit(manager, 4)
    manager.allocate_for_decode(request)
    assert (request.block_table, request.seq_len, manager.free_blocks) == ([0, 1], 5, [])


def test_decode_at_block_size_one_takes_a_block_each_time(make):
    manager = make(3, 1, 1)
    (request,) = admit(manager, 1)
    manager.allocate_for_decode(request)
    manager.allocate_for_decode(request)
    assert (request.block_table, request.seq_len) == ([0, 1, 2], 3)


def test_decode_within_a_block_needs_no_free_block(make):
    manager = make(1, 4, 1)
    (request,) = admit(manager, 3)
    manager.allocate_for_decode(request)
    assert (request.block_table, request.seq_len) == ([0], 4)


@pytest.mark.parametrize("block_size", [1, 4])
def test_decode_without_a_free_block_changes_nothing(make, block_size):
    manager = make(1, block_size, 1)
    (request,) = admit(manager, block_size)
    before = everything(manager, request)
    with pytest.raises(OutOfBlocks, match=r"^OOM: request 0 needs 1 more block\(s\), 0 available"):
        manager.allocate_for_decode(request)
    assert before == everything(manager, request)


def test_decode_leaves_tokens_to_the_caller(make):
    manager = make(2, 1, 1)
    (request,) = admit(manager, 1)
    manager.allocate_for_decode(request)
    assert request.tokens == [0]


@pytest.mark.parametrize("released", [False, True])
def test_decode_of_a_request_that_holds_nothing_is_refused(make, released):
    manager = make(2, 4, 1)
    (request,) = admit(manager, 3)
    if released:
        manager.release_request(request)
    else:
        request = Request(1, 3)
    before = everything(manager, request)
    with pytest.raises(
        HoldsNothing, match=r"^decode of request \d, which holds no blocks; prefill"
    ):
        manager.allocate_for_decode(request)
    assert before == everything(manager, request)


@pytest.mark.parametrize("seq_len", [1, 4, 9])
def test_decode_refuses_an_edited_length_that_does_not_fit_the_table(make, seq_len):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 5)
    request.seq_len = seq_len
    before = everything(manager, request)
    with pytest.raises(
        InvalidBlockTable,
        match=rf"^decode of request \d: seq_len = {seq_len} was edited, .* holds 2",
    ):
        manager.allocate_for_decode(request)
    assert before == everything(manager, request)


@pytest.mark.parametrize("seq_len", [5, 8])
def test_decode_goes_on_from_an_edited_length_that_fits_the_table(make, seq_len):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 6)
    request.seq_len = seq_len
    manager.allocate_for_decode(request)
    assert (seq_len + 1, {0: seq_len + 1}) == (request.seq_len, manager.snapshot().seq_lens)
