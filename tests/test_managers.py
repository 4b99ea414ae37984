"""What holds for both managers alike, and that they agree over long random histories."""

from __future__ import annotations

import copy
import dis
import marshal
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pagedkv
from pagedkv import (
    AlreadyHolding,
    ArrayKVCacheManager,
    HoldsNothing,
    InvalidBlockTable,
    KVCacheManager,
    MisuseError,
    OutOfBlocks,
    PagedKVManager,
    Request,
    Snapshot,
)

MANAGERS = [KVCacheManager, ArrayKVCacheManager]


@pytest.fixture(params=MANAGERS, ids=["reference", "array"])
def make(request):
    return request.param


def admit(manager, *lengths):
    """Prefill requests 0, 1, ... of these lengths and return them."""
    requests = [Request(name, length) for name, length in enumerate(lengths)]
    for request in requests:
        manager.allocate_for_prefill(request)
    return requests


def key_of(manager):
    """The state key in which each request is called by its own id."""
    return manager.state_key({name: name for name in manager.snapshot().block_tables})


def everything(manager, *handles):
    """All that a call may have changed: what is seen, what is hidden, the pool, the handles."""
    return (
        manager.snapshot(),
        key_of(manager),
        manager.physical_kv_cache.tolist(),
        [(h.request_id, h.seq_len, list(h.block_table), list(h.tokens)) for h in handles],
    )


def number(manager):
    """Write its own number into every slot of the pool: block * block_size + offset."""
    slots = torch.arange(manager.num_blocks * manager.block_size, dtype=torch.float32)
    shape = (manager.num_blocks, manager.block_size, 1)
    manager.physical_kv_cache[:] = slots.reshape(shape)


def read(manager, request):
    return manager.get_physical_cache(request)[:, 0].int().tolist()


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
    with pytest.raises(InvalidBlockTable, match=rf"seq_len = {seq_len} was edited, .* holds 2"):
        manager.allocate_for_decode(request)
    assert before == everything(manager, request)


@pytest.mark.parametrize("seq_len", [5, 8])
def test_decode_goes_on_from_an_edited_length_that_fits_the_table(make, seq_len):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 6)
    request.seq_len = seq_len
    manager.allocate_for_decode(request)
    assert (seq_len + 1, {0: seq_len + 1}) == (request.seq_len, manager.snapshot().seq_lens)


# ------------------------------------------------------------------ release and resume


def test_release_gives_every_block_back_and_keeps_the_length(make):
    manager = make(3, 4, 1)
    (request,) = admit(manager, 9)
    manager.release_request(request)
    assert (request.block_table, request.seq_len, manager.free_blocks) == ([], 9, [0, 1, 2])


def test_release_in_any_order_leaves_an_ascending_free_list(make):
    manager = make(4, 1, 1)
    first, second, third = admit(manager, 1, 2, 1)
    for request in (second, first, third):
        manager.release_request(request)
    assert manager.free_blocks == [0, 1, 2, 3]
    assert list is type(manager.free_blocks)
    assert {int} == {type(block) for block in manager.free_blocks}


def test_release_leaves_the_others_alone(make):
    manager = make(4, 2, 1)
    first, second = admit(manager, 3, 3)
    manager.release_request(first)
    assert (second.block_table, second.seq_len) == ([2, 3], 3)
    assert manager.snapshot().block_tables == {1: (2, 3)}


def test_a_released_request_is_resumed_at_its_kept_length(make):
    manager = make(3, 2, 1)
    (request,) = admit(manager, 4)
    manager.allocate_for_decode(request)
    manager.release_request(request)
    manager.allocate_for_prefill(request)
    assert (len(request.block_table), request.seq_len) == (3, 5)


def test_a_released_id_may_be_given_to_a_new_request(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 2)
    manager.release_request(request)
    successor = Request(0, 3)
    manager.allocate_for_prefill(successor)
    assert (manager.snapshot().seq_lens, request.block_table) == ({0: 3}, [])
    with pytest.raises(HoldsNothing):
        manager.release_request(request)


def test_a_table_that_the_caller_kept_is_never_changed_in_place(make):
    manager = make(2, 1, 1)
    (request,) = admit(manager, 1)
    at_prefill = request.block_table
    manager.allocate_for_decode(request)
    at_decode = request.block_table
    manager.release_request(request)
    assert (at_prefill, at_decode, request.block_table) == ([0], [0, 1], [])


def test_two_releases_are_not_one(make):
    manager = make(3, 4, 1)
    (request,) = admit(manager, 5)
    manager.release_request(request)
    before = everything(manager, request)
    with pytest.raises(
        HoldsNothing, match=r"^release of request 0, which holds no blocks; prefill"
    ):
        manager.release_request(request)
    assert before == everything(manager, request)


def test_release_of_a_fresh_request_is_refused(make):
    with pytest.raises(HoldsNothing):
        make(1, 1, 1).release_request(Request(0, 1))


def test_release_does_not_look_at_an_edited_length(make):
    manager = make(3, 4, 1)
    (request,) = admit(manager, 5)
    request.seq_len = 1
    manager.release_request(request)
    assert (manager.free_blocks, request.seq_len) == ([0, 1, 2], 1)


# ------------------------------------------------------------------ wrong use


def test_two_prefills_are_not_one(make):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 5)
    before = everything(manager, request)
    with pytest.raises(
        AlreadyHolding, match=r"request 0, which holds the blocks \[0, 1\]; release"
    ):
        manager.allocate_for_prefill(request)
    assert before == everything(manager, request)


def test_prefill_with_a_table_set_by_hand_is_refused(make):
    manager = make(4, 4, 1)
    request = Request(0, 5)
    request.block_table = [3, 1]
    before = everything(manager, request)
    with pytest.raises(AlreadyHolding, match=r"carries the blocks \[3, 1\] set by hand; empty"):
        manager.allocate_for_prefill(request)
    assert before == everything(manager, request)


def test_prefill_of_a_live_request_with_an_emptied_table_is_refused(make):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 5)
    request.block_table = []
    before = everything(manager, request)
    with pytest.raises(AlreadyHolding, match="its block_table was emptied by hand; put"):
        manager.allocate_for_prefill(request)
    assert before == everything(manager, request)


def test_prefill_of_an_id_that_is_live_is_refused(make):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 5)
    other = Request(0, 1)
    before = everything(manager, request, other)
    with pytest.raises(AlreadyHolding, match=r"a live request with the blocks \[0, 1\] has; use"):
        manager.allocate_for_prefill(other)
    assert before == everything(manager, request, other)


def test_wrong_use_is_told_before_out_of_blocks(make):
    manager = make(1, 1, 1)
    (request,) = admit(manager, 1)
    with pytest.raises(AlreadyHolding):
        manager.allocate_for_prefill(request)


FORGED = {
    "duplicate": ([0, 0], "block 0 stands there twice"),
    "beyond the pool": ([0, 5], r"5 is no block of the pool, 0 \.\. 4"),
    "negative": ([0, -1], r"-1 is no block of the pool, 0 \.\. 4"),
    "no integer": ([0, 1.5], r"1\.5 is no block of the pool, 0 \.\. 4"),
    "free": ([0, 3], "block 3 is free"),
    "foreign": ([0, 2], "block 2 belongs to another request with the id 1"),
    "shortened": ([0], r"it was given \[0, 1\]"),
    "lengthened": ([0, 1, 3], "block 3 is free"),
    "out of order": ([1, 0], r"it was given \[0, 1\]"),
    "emptied": ([], r"it was given \[0, 1\]"),
}


@pytest.mark.parametrize("action", ["release", "decode"])
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_table_is_refused_and_changes_nothing(make, action, kind):
    manager = make(5, 4, 1)
    request, other = admit(manager, 5, 1)
    table, flaw = FORGED[kind]
    request.block_table = table
    before = everything(manager, request, other)
    call = {"release": manager.release_request, "decode": manager.allocate_for_decode}[action]
    with pytest.raises(InvalidBlockTable, match=f"^{action} of request 0 with .*: {flaw}; leave"):
        call(request)
    assert before == everything(manager, request, other)
    request.block_table = [0, 1]
    call(request)


@pytest.mark.parametrize("action", ["release_request", "allocate_for_decode"])
@pytest.mark.parametrize("request_id", [0, 1])
def test_a_handle_with_the_table_of_another_is_refused(make, action, request_id):
    manager = make(4, 4, 1)
    (request,) = admit(manager, 5)
    thief = Request(request_id, 5)
    thief.block_table = [0, 1]
    before = everything(manager, request, thief)
    with pytest.raises(InvalidBlockTable, match="belongs to another request with the id 0"):
        getattr(manager, action)(thief)
    assert before == everything(manager, request, thief)


def test_release_of_a_never_admitted_request_with_a_table_is_refused(make):
    manager = make(2, 4, 1)
    request = Request(0, 5)
    request.block_table = [0, 1]
    before = everything(manager, request)
    with pytest.raises(InvalidBlockTable, match="block 0 is free"):
        manager.release_request(request)
    assert before == everything(manager, request)


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


# ------------------------------------------------------------------ state key and clone


def test_a_state_key_is_made_of_ints_and_survives_marshalling(make):
    manager = make(4, 2, 1)
    first, _ = admit(manager, 3, 1)
    manager.allocate_for_decode(first)
    key = key_of(manager)
    assert key == marshal.loads(marshal.dumps(key))
    assert hash(key) == hash(key_of(manager))

    def leaves(part):
        return [leaf for p in part for leaf in leaves(p)] if isinstance(part, tuple) else [part]

    assert {int} == {type(leaf) for leaf in leaves(key)}


def test_state_keys_tell_apart_what_behaves_differently(make):
    keys = set()
    for arguments in ((4, 2, 1), (4, 1, 1), (4, 2, 2), (3, 2, 1)):
        manager = make(*arguments)
        keys.add(key_of(manager))
        first, second = admit(manager, 1, 2)
        keys.add(key_of(manager))
        manager.allocate_for_decode(first)
        keys.add(key_of(manager))
        manager.release_request(second)
        keys.add(key_of(manager))
    assert len(keys) == 16


def test_a_state_key_does_not_depend_on_the_order_of_admission(make):
    one, other = make(2, 1, 1), make(2, 1, 1)
    a, b = Request(0, 1), Request(1, 1)
    one.allocate_for_prefill(a)
    one.allocate_for_prefill(b)
    admit(other, 1, 1)
    # The same tables, admitted the other way round.
    third = make(2, 1, 1)
    c, d = Request(1, 1), Request(0, 1)
    filler = Request(9, 1)
    third.allocate_for_prefill(filler)
    third.allocate_for_prefill(c)
    third.release_request(filler)
    third.allocate_for_prefill(d)
    assert key_of(one) == key_of(other) == key_of(third)


def test_states_that_differ_in_names_only_have_one_key(make):
    one, other = make(4, 2, 1), make(4, 2, 1)
    admit(one, 3, 1)
    for request in (Request(7, 3), Request(5, 1)):
        other.allocate_for_prefill(request)
    key = one.state_key({0: 0, 1: 1})
    assert key == other.state_key({7: 0, 5: 1})
    assert key != other.state_key({7: 1, 5: 0})


def test_a_state_key_does_not_depend_on_the_contents(make):
    manager = make(2, 1, 1)
    before = key_of(manager)
    number(manager)
    assert before == key_of(manager)


def test_a_clone_equals_its_original_and_shares_nothing_with_it(make):
    manager = make(6, 2, 1)
    number(manager)
    requests = dict(enumerate(admit(manager, 3, 1)))
    twin, handles = manager.clone(requests)
    assert type(twin) is make
    assert everything(manager, *requests.values()) == everything(twin, *handles.values())
    before = everything(manager, *requests.values())
    for name, handle in handles.items():
        assert handle.block_table is not requests[name].block_table
    handles[0].tokens.append(1)
    for _ in range(4):
        twin.allocate_for_decode(handles[0])
    twin.release_request(handles[1])
    twin.allocate_for_prefill(Request(7, 2))
    twin.physical_kv_cache.fill_(7)
    assert before == everything(manager, *requests.values())


def test_an_original_goes_on_without_its_clone(make):
    manager = make(6, 2, 1)
    requests = dict(enumerate(admit(manager, 3, 1)))
    twin, handles = manager.clone(requests)
    before = everything(twin, *handles.values())
    manager.allocate_for_decode(requests[0])
    manager.release_request(requests[1])
    manager.physical_kv_cache.fill_(7)
    assert before == everything(twin, *handles.values())


def test_a_clone_knows_the_copied_handles_and_not_the_old_ones(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    twin, handles = manager.clone({5: request})
    with pytest.raises(InvalidBlockTable, match="belongs to another request"):
        twin.release_request(request)
    twin.release_request(handles[5])
    manager.release_request(request)


def test_a_clone_copies_live_handles_that_it_was_not_given(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    twin, handles = manager.clone({})
    manager.allocate_for_decode(request)
    assert handles == {}
    assert twin.snapshot().seq_lens == {0: 1}
    with pytest.raises(InvalidBlockTable):
        twin.allocate_for_decode(request)


def test_a_clone_keeps_one_handle_with_two_names_one(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    _, handles = manager.clone({0: request, 1: request})
    assert handles[0] is handles[1] is not request


def test_a_clone_copies_handles_that_hold_nothing(make):
    request = Request(3, 2, [4, 5])
    _, handles = make(1, 1, 1).clone({3: request})
    assert (
        handles[3].request_id,
        handles[3].prompt_len,
        handles[3].seq_len,
        handles[3].block_table,
        handles[3].tokens,
    ) == (3, 2, 2, [], [4, 5])
    assert handles[3].tokens is not request.tokens


def test_a_clone_of_a_subclass_copies_what_the_subclass_adds(make):
    class Tagged(Request):
        tag: list[str]

    class Logging(make):  # type: ignore[misc, valid-type]  # whichever manager is tested
        def __init__(self, *geometry):
            super().__init__(*geometry)
            self.log = []

        def allocate_for_prefill(self, req):
            super().allocate_for_prefill(req)
            self.log.append(req)

    manager = Logging(2, 2, 1)
    request = Tagged(0, 1)
    request.tag = ["x"]
    manager.allocate_for_prefill(request)
    twin, handles = manager.clone({0: request})
    assert type(twin) is Logging
    assert type(handles[0]) is Tagged
    assert twin.log == [handles[0]]
    assert (handles[0].tag, handles[0].tag is request.tag) == (["x"], False)


def test_a_deep_copy_of_manager_and_handles_works_too(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    twin, handle = copy.deepcopy((manager, request))
    twin.allocate_for_decode(handle)
    twin.release_request(handle)
    assert (request.block_table, manager.free_blocks) == ([0], [1])


# ------------------------------------------------------------------ failure in the middle


class Nth:
    """Make the n-th call inside the library fail on entry, whatever it calls, types included."""

    def __init__(self, n):
        self.left = n
        self.home = str(Path(pagedkv.__file__).parent)

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(self.home):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if operation.startswith("CALL"):
                self.left -= 1
                if self.left == 0:
                    raise MemoryError("injected")
        return self

    def run(self, call):
        """Whether the call failed; True stands for the injected failure."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except MemoryError:
            return True
        finally:
            sys.settrace(before)
        return False


def scenes(make):
    """One for each way through a call: what to set up, and the call; growth included."""

    def live(length, *others):
        manager = make(6, 2, 1)
        requests = admit(manager, *others, length)
        return manager, requests[-1]

    def fresh(length, *others):
        manager, _ = live(1, *others)
        return manager, Request(9, length)

    yield lambda: fresh(1), "allocate_for_prefill"
    yield lambda: fresh(7), "allocate_for_prefill"
    yield lambda: fresh(3, 1, 1), "allocate_for_prefill"
    yield lambda: live(1), "allocate_for_decode"
    yield lambda: live(2), "allocate_for_decode"
    yield lambda: live(4, 1), "allocate_for_decode"
    yield lambda: live(5, 2), "release_request"


@pytest.mark.parametrize("scene", range(7))
def test_a_failure_at_any_inner_call_changes_nothing(make, scene):
    set_up, name = list(scenes(make))[scene]
    n = 0
    while True:
        n += 1
        manager, request = set_up()
        before = everything(manager, request)
        failed = Nth(n).run(lambda: getattr(manager, name)(request))  # noqa: B023 - runs at once
        if not failed:
            break
        assert before == everything(manager, request), f"inner call {n}"
        getattr(manager, name)(request)
    assert n > 3, "no inner call was ever reached"


# ------------------------------------------------------------------ lockstep


class Pair:
    """Both managers side by side; block names may differ, all else may not."""

    def __init__(self, num_blocks, block_size):
        self.managers: list[Any] = [make(num_blocks, block_size, 1) for make in MANAGERS]
        self.requests: dict[int, list[Request]] = {}

    def apply(self, name, request_id, length=1):
        """Make the same call on both sides and return what it did, which must be the same."""
        if request_id not in self.requests:
            self.requests[request_id] = [Request(request_id, length) for _ in MANAGERS]
        outcomes: list[Any] = []
        for manager, request in zip(self.managers, self.requests[request_id], strict=True):
            before = everything(manager, request)
            try:
                getattr(manager, name)(request)
                outcomes.append(None)
            except (OutOfBlocks, MisuseError) as error:
                assert before == everything(manager, request)
                outcomes.append((type(error), str(error) if name == "decode" else None))
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def tag(self, request_id):
        """Write (request, position) where the tables say, as a forward pass would."""
        for manager, request in zip(self.managers, self.requests[request_id], strict=True):
            for position in range(request.seq_len):
                block = request.block_table[position // manager.block_size]
                tag = request_id * 1000 + position
                manager.physical_kv_cache[block, position % manager.block_size] = tag

    def compare(self):
        one, other = (manager.snapshot() for manager in self.managers)
        assert one.seq_lens == other.seq_lens
        assert len(one.free_blocks) == len(other.free_blocks) == other.num_free
        for name, sides in self.requests.items():
            assert sides[0].seq_len == sides[1].seq_len
            assert len(sides[0].block_table) == len(sides[1].block_table)
            for manager, request in zip(self.managers, sides, strict=True):
                if request.block_table:
                    tags = [name * 1000 + p for p in range(request.seq_len)]
                    assert tags == read(manager, request)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (4, 1), (3, 2), (8, 3)])
def test_both_managers_agree_over_a_random_history(num_blocks, block_size):
    draw = random.Random(num_blocks * 10 + block_size)
    pair = Pair(num_blocks, block_size)
    seen = set()
    for _ in range(1500):
        request_id = draw.randrange(4)
        name = draw.choice(["allocate_for_prefill", "allocate_for_decode", "release_request"])
        outcome = pair.apply(name, request_id, draw.randint(1, num_blocks * block_size + 1))
        seen.add((name, outcome and outcome[0]))
        if outcome is None and name != "release_request":
            pair.tag(request_id)
        if draw.random() < 0.2 and not pair.requests[request_id][0].block_table:
            del pair.requests[request_id]
        pair.compare()
    # The history went where it hurts: every call granted, refused, and out of blocks.
    assert {
        ("allocate_for_prefill", None),
        ("allocate_for_prefill", OutOfBlocks),
        ("allocate_for_prefill", AlreadyHolding),
        ("allocate_for_decode", OutOfBlocks),
        ("allocate_for_decode", HoldsNothing),
        ("release_request", None),
        ("release_request", HoldsNothing),
    } <= seen


def test_a_table_that_was_replaced_by_an_equal_sequence_is_still_the_own_one(make):
    manager = make(4, 1, 1)
    first, second = admit(manager, 2, 1)
    for request in (first, second):
        request.block_table = tuple(request.block_table)
    manager.allocate_for_decode(first)
    assert list(first.block_table) == [0, 1, 3]
    manager.release_request(second)
    assert len(manager.free_blocks) == 1


def test_a_decode_names_the_length_that_is_none(make):
    manager = make(4, 1, 1)
    (request,) = admit(manager, 2)
    request.seq_len = 0
    with pytest.raises(ValueError, match=r"^seq_len must be >= 1, got 0$"):
        manager.allocate_for_decode(request)
    assert request.block_table == [0, 1]


def test_a_prefill_of_an_emptied_table_says_the_whole_of_it(make):
    manager = make(4, 1, 1)
    (request,) = admit(manager, 2)
    request.block_table = []
    with pytest.raises(AlreadyHolding) as caught:
        manager.allocate_for_prefill(request)
    assert str(caught.value) == (
        "prefill of request 0, which holds blocks though its block_table was emptied by hand; "
        "put the table back"
    )


def test_a_table_set_by_hand_is_told_from_anothers_whoever_is_live(make):
    manager = make(4, 1, 1)
    admit(manager, 1)
    stray = Request(7, 1)
    stray.block_table = [3]
    with pytest.raises(AlreadyHolding, match=r"which carries the blocks \[3\] set by hand"):
        manager.allocate_for_prefill(stray)


@pytest.mark.parametrize(("place", "name"), [(0, "num_blocks"), (1, "block_size"), (2, "head_dim")])
def test_construction_names_what_it_refuses(make, place, name):
    sizes = [1, 1, 1]
    sizes[place] = 0
    with pytest.raises(ValueError, match=f"^{name} must be >= 1, got 0$"):
        make(*sizes)
