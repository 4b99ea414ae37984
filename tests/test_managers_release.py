"""What holds for both managers alike: release, resume and wrong use."""

from __future__ import annotations

import pytest

from managing import admit, everything
from pagedkv import (
    AlreadyHolding,
    HoldsNothing,
    InvalidBlockTable,
    Request,
)

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
