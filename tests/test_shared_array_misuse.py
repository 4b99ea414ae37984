"""Wrong use of the array-backed manager that shares blocks is refused and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pagedkv.protocol import AlreadyHolding, InvalidBlockTable, MisuseError
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from sharing_arrays import admitted, forked, made, new

CALLS: dict[str, list[Any]] = {
    "append": [("allocate_for_append", 1)],
    "truncate": [("truncate_request", 1)],
    "fork": [("fork_request", new(1, "12"))],
    "prefix": [("cached_tokens",)],
    "swap": [("swap_out",), ("swap_in",)],
    "ask": [("can_prefill",), ("can_decode",), ("can_append", 1), ("can_fork",)],
    "group": [("free_group_begin", None), ("free_group_end", None)],
}


@pytest.mark.parametrize("ability", CALLS)
def test_a_call_of_an_ability_that_is_off_is_misuse(ability):
    manager = made()
    [request] = admitted(manager, "12")
    for name, *arguments in CALLS[ability]:
        with pytest.raises(MisuseError, match=ability):
            getattr(manager, name)(*([] if arguments == [None] else [request, *arguments]))


def test_a_question_about_wrong_use_or_an_ability_that_is_off_is_a_no():
    manager = made("ask")
    [request] = admitted(manager, "12")
    stranger = new(1, "12")
    assert not manager.can_prefill(request)
    assert not manager.can_decode(stranger)
    assert not manager.can_append(request, 1)
    assert not manager.can_fork(request)
    assert not manager.can_swap_out(request)
    assert not manager.can_swap_in(request)
    assert manager.can_prefill(stranger)
    assert manager.can_decode(request)


@pytest.mark.parametrize(
    ("child", "error"),
    [
        (lambda _: new(1, "123"), ValueError),
        (lambda _: new(1, "21"), ValueError),
        (lambda _: new(1, "12", extra_key="salt"), ValueError),
        (lambda _: new(0, "12"), AlreadyHolding),
        (lambda parent: parent, AlreadyHolding),
    ],
)
def test_a_child_that_is_not_its_parents_like_is_refused(child, error):
    manager = made("fork", "prefix")
    [parent] = admitted(manager, "12")
    before = manager.snapshot()
    with pytest.raises(error):
        manager.fork_request(parent, child(parent))
    assert manager.snapshot() == before


@pytest.mark.parametrize("forged", [[0], [0, 0], [0, 9], [0, 3], [0, 2], [0, 1, 3], []])
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("allocate_for_decode", ()),
        ("allocate_for_append", (2,)),
        ("truncate_request", (1,)),
        ("fork_request", (new(9, "123"),)),
        ("swap_out", ()),
        ("release_request", ()),
    ],
)
def test_a_table_that_was_not_handed_out_is_refused(call, arguments, forged):
    manager = SharedArrayKVCacheManager(4, 2, 1)
    request, _ = admitted(manager, "123", "4")
    request.block_table = forged
    before = manager.snapshot()
    with pytest.raises(InvalidBlockTable):
        getattr(manager, call)(request, *arguments)
    assert (manager.snapshot(), request.block_table) == (before, forged)


def test_a_shared_block_in_a_forged_table_is_not_called_another_requests():
    manager = made("fork")
    [parent] = admitted(manager, "12")
    child = forked(manager, parent, 1)
    child.block_table = [0, 0]
    with pytest.raises(InvalidBlockTable, match="block 0 stands there twice"):
        manager.release_request(child)


@pytest.mark.parametrize(
    ("call", "argument"),
    [("allocate_for_append", 0), ("truncate_request", 0), ("truncate_request", 4)],
)
def test_another_count_or_length_is_a_value_error(call, argument):
    manager = SharedArrayKVCacheManager(4, 2, 1)
    [request] = admitted(manager, "123")
    with pytest.raises(ValueError, match=str(argument)):
        getattr(manager, call)(request, argument)


def test_a_prompt_whose_tokens_are_not_seq_len_many_is_refused():
    manager = made("prefix")
    request = new(0, "123")
    request.tokens.pop()
    with pytest.raises(MisuseError, match="2 tokens and seq_len = 3"):
        manager.allocate_for_prefill(request)
    made().allocate_for_prefill(request)
    assert request.block_table == [0, 1]


def test_a_group_in_a_group_and_the_end_of_none_are_misuse():
    manager = made("group")
    with pytest.raises(MisuseError, match="outside a group"):
        manager.free_group_end()
    manager.free_group_begin()
    with pytest.raises(MisuseError, match="inside a group"):
        manager.free_group_begin()


def test_what_is_of_no_ability_is_not_in_the_snapshot():
    seen = made().snapshot()
    assert (seen.ref_counts, seen.index, seen.withheld, seen.swapped, seen.host_free) == (None,) * 5
    whole = SharedArrayKVCacheManager(2, 1, 1).snapshot()
    assert (whole.ref_counts, whole.index, whole.swapped) == ({}, {}, {})
    assert whole.host_free == (0, 1)
