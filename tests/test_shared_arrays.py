"""The array-backed manager with all abilities: its arrays, and lockstep with the reference."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv.protocol import Request
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.stateful.copying import freeze, thaw
from pagedkv.stateful.target import own_hook
from sharing import Drive
from sharing_arrays import admitted, equations, made, new
from side_by_side import Both, Player

# ------------------------------------------------------------------ lockstep

ALL = ("append", "truncate", "fork", "prefix", "swap", "ask", "group")
KINDS: list[Any] = [
    ((6, 2), None, {}),
    ((5, 1), ALL, {"publishes_at_once": True}),
    ((6, 3), ALL, {"forks_eagerly": True}),
    ((7, 2), ("fork", "prefix", "truncate"), {}),
    ((5, 2), ("append", "fork", "swap"), {}),
    ((4, 2), (), {}),
    ((5, 2), ("append", "window", "ask", "group"), {"window": 3}),
    ((5, 1), ("append", "window"), {"window": 1}),
    ((5, 1), ("prefix", "group", "ask"), {}),
]
STEP = st.tuples(st.integers(0, 12), st.integers(0, 9), st.integers(0, 9), st.integers(0, 511))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, derandomize=True, database=None, deadline=None)
@given(choices=st.lists(STEP, max_size=30))
def test_both_managers_are_one_up_to_block_names(kind, choices):
    geometry, abilities, how = kind
    Player(Both(geometry, abilities, **how)).play(choices)


@pytest.mark.parametrize("kind", KINDS)
def test_both_managers_are_one_along_a_long_random_history(kind):
    geometry, abilities, how = kind
    draw, both = random.Random(3), Both(geometry, abilities, **how)
    numbers = [
        (draw.randrange(99), draw.randrange(99), draw.randrange(99), draw.choice((0, 0, 511, 3)))
        for _ in range(400)
    ]
    Player(both).play(numbers)
    called = {
        "truncate": "truncate_request",
        "fork": "fork_request",
        "swap": "swap_in",
        "append": "allocate_for_append",
        "group": "free_group_end",
    }
    due = {call for ability, call in called.items() if ability in both.on}
    assert due | {"allocate_for_prefill: OutOfBlocks", "release_request"} <= both.seen.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_the_equations_hold_after_every_call_and_of_a_clone(kind):
    geometry, abilities, how = kind
    draw, both = random.Random(5), Both(geometry, abilities, **how)
    player = Player(both)
    for _ in range(120):
        player.play([(draw.randrange(99), draw.randrange(99), draw.randrange(99), 0)])
        manager = both.managers[1]
        equations(manager)
        twin, handles = manager.clone({name: pair[1] for name, pair in both.handles.items()})
        equations(twin)
        names = {name: name for name in handles}
        assert twin.state_key(names) == manager.state_key(names)
        assert twin.snapshot() == manager.snapshot()


# ------------------------------------------------------------------ keys and copies


def test_the_key_tells_apart_what_later_calls_can():
    """Two histories that end in equal tables and free lists, but not in one state."""

    def ended(*, evicts_first):
        manager = made("prefix", geometry=(4, 1))
        pair = admitted(manager, "1", "2")
        for request in pair if evicts_first else pair[::-1]:
            manager.release_request(request)
        return manager

    one, other = ended(evicts_first=True), ended(evicts_first=False)
    first, second = one.snapshot(), other.snapshot()
    assert (first.eviction_order, second.eviction_order) == ((0, 1), (1, 0))
    assert replace(first, eviction_order=None) == replace(second, eviction_order=None)
    assert one.state_key({}) != other.state_key({})


def test_the_key_tells_apart_which_blocks_of_the_second_pool_come_next():
    def ended(*, first_back_first):
        manager = made("swap", geometry=(2, 1))
        pair = admitted(manager, "1", "2")
        for request in pair:
            manager.swap_out(request)
        for request in pair if first_back_first else pair[::-1]:
            manager.release_request(request)
        return manager

    one, other = ended(first_back_first=True), ended(first_back_first=False)
    assert one.snapshot().host_free == (1, 0)
    assert other.snapshot().host_free == (0, 1)
    assert one.state_key({}) != other.state_key({})


def test_the_key_tells_apart_where_in_the_second_pool_a_request_is():
    def ended(*order):
        manager = made("swap", geometry=(2, 1))
        pair = admitted(manager, "1", "2")
        for which in order:
            manager.swap_out(pair[which])
        return manager.state_key({0: 0, 1: 1})

    assert ended(0, 1)[-1] != ended(1, 0)[-1]
    assert ended(0, 1) == ended(0, 1)


def test_the_key_tells_apart_what_a_withheld_block_will_be_found_by():
    def ended(text):
        manager = made("prefix", "group")
        [request] = admitted(manager, text)
        manager.free_group_begin()
        manager.release_request(request)
        return manager

    assert ended("11").snapshot() == ended("22").snapshot()
    assert ended("11").state_key({}) != ended("22").state_key({})


def test_the_key_names_requests_as_told_and_leaves_gaps_in_the_queue_out():
    manager, other = made("prefix", "swap"), made("prefix", "swap")
    for which, names in ((manager, (0, 1)), (other, (5, 3))):
        first, second = [new(name, "112") for name in names]
        which.allocate_for_prefill(first)
        which.allocate_for_prefill(second)
        which.computed(first)
        which.swap_out(second)
    assert manager.state_key({0: 0, 1: 1}) == other.state_key({5: 0, 3: 1})
    assert manager.state_key({0: 0, 1: 1}) != other.state_key({5: 1, 3: 0})
    before = manager.state_key({0: 0, 1: 1})
    manager._close_gaps()
    assert manager.state_key({0: 0, 1: 1}) == before


def test_a_clone_shares_nothing_with_what_it_is_a_clone_of():
    manager = SharedArrayKVCacheManager(6, 2, 1)
    first, second = admitted(manager, "112", "3")
    manager.swap_out(second)
    before = manager.state_key({0: 0, 1: 1})
    twin, handles = manager.clone({0: first, 1: second})
    twin.free_group_begin()
    twin.release_request(handles[0])
    twin.free_group_end()
    twin.swap_in(handles[1])
    twin.physical_kv_cache[:] = 7.0
    twin.host_kv_cache[:] = 7.0
    assert manager.state_key({0: 0, 1: 1}) == before
    assert (first.block_table, second.block_table) == ([0, 1], [])
    assert not manager.physical_kv_cache.any()
    assert not manager.host_kv_cache.any()


def test_the_queue_of_cached_blocks_closes_its_gaps_and_keeps_its_order():
    manager = made("prefix", geometry=(4, 1))
    [request] = admitted(manager, "1234")
    for length in (4, 3, 2, 4, 1, 3, 4):
        manager.release_request(request)
        [request] = admitted(manager, "1234"[:length], first=9)
        equations(manager)
    manager.release_request(request)
    assert manager._cached().tolist()[-1] == 0
    equations(manager)


# ------------------------------------------------------------------ no loop over blocks


def lines_run(call):
    """How many lines of the library a call runs."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if "pagedkv" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_no_hot_path_runs_more_lines_for_more_blocks():
    def lines(blocks):
        manager = made("append", "truncate", "fork", "ask", geometry=(8 * blocks, 2))
        parent = Request(0, 2 * blocks - 1)
        child = Request(1, 2 * blocks)
        return [
            lines_run(call)
            for call in (
                lambda: manager.allocate_for_prefill(parent),
                lambda: manager.allocate_for_decode(parent),
                lambda: manager.fork_request(parent, child),
                lambda: manager.allocate_for_append(child, 2 * blocks),
                lambda: manager.truncate_request(child, 1),
                lambda: manager.allocate_for_decode(child),
                lambda: manager.release_request(parent),
            )
        ]

    assert lines(3) == lines(300)


# ------------------------------------------------------------------ what a search needs


@pytest.mark.parametrize("kind", [SharedArrayKVCacheManager, SharedKVCacheManager])
def test_a_search_takes_the_hooks_of_the_classes_and_of_those_that_are_configured(kind):
    for made_of in (kind, kind.configured("fork", "prefix")):
        manager = made_of(3, 2, 1)
        request = new(0, "112")
        manager.allocate_for_prefill(request)
        assert own_hook(manager, "state_key") is not None
        assert own_hook(manager, "clone") is not None
        twin, handle = thaw(freeze((manager, request)))
        assert type(twin) is made_of
        assert twin.state_key({0: 0}) == manager.state_key({0: 0})
        assert twin._live[0].handle is handle


# ------------------------------------------------------------------ beside a dictionary


@pytest.mark.parametrize("kind", KINDS)
def test_random_calls_keep_what_a_dictionary_of_contents_says(kind):
    (num_blocks, block_size), abilities, how = kind
    made_of = SharedArrayKVCacheManager
    if abilities is not None:
        made_of = made_of.configured(*abilities, **how)
    drive = Drive(made_of(num_blocks, block_size, 1), seed=7)
    for _ in range(150):
        drive.step()
        equations(drive.manager)
    assert drive.seen["prefill"]


def test_the_head_of_the_queue_moves_past_what_was_evicted():
    manager = made("prefix", geometry=(3, 1))
    [request] = admitted(manager, "123")
    manager.release_request(request)
    admitted(manager, "99", first=1)
    assert (manager._head, manager._tail, manager._cached().tolist()) == (2, 3, [0])
