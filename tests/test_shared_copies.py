"""The reference with abilities: keys, copies, failing calls and random histories."""

from __future__ import annotations

import marshal
import random

import pytest

from pagedkv import (
    Request,
)
from pagedkv.shared_blocks import Withheld
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.stateful.points import Injector, modules_of
from shared_calls import (
    ALL,
    admit,
    fork,
    kind,
    number,
    truncate,
)
from sharing import Drive, everything

# ------------------------------------------------------------------ state key and clone


def scene():
    """A manager in whose state everything occurs, and its requests."""
    manager = SharedKVCacheManager(10, 2, 1)
    number(manager)
    requests = [admit(manager, 0, 1, 1, 1), admit(manager, 1, 2, 2, 2, 2), admit(manager, 2, 3)]
    requests.append(fork(manager, requests[0], 3))
    manager.swap_out(requests[2])
    manager.release_request(admit(manager, 4, 5, 5, 5, 5))
    manager.free_group_begin()
    truncate(manager, requests[1], 2)
    return manager, requests


def test_a_state_key_survives_marshalling_and_names_are_the_callers():
    manager, _ = scene()
    names = {0: 3, 1: 2, 2: 1, 3: 0}
    key = manager.state_key(names)
    assert key == marshal.loads(marshal.dumps(key))
    assert hash(key) == hash(manager.state_key(names))
    assert key != manager.state_key({name: name for name in names})


def test_whatever_a_later_call_can_depend_on_is_in_the_key():
    manager, _ = scene()
    keys = {everything(manager)[1]}
    for change in (
        lambda m: m._blocks.free.reverse(),
        lambda m: m._blocks.cached.reverse(),
        lambda m: m._blocks.refs.update({0: 7}),
        lambda m: m._blocks.index.update({(None, (1, 1)): 9}),
        lambda m: m._blocks.withheld.append(Withheld(9, None)),
        lambda m: setattr(m._blocks, "withheld", None),
        lambda m: m._host_free.reverse(),
        lambda m: m._live.update({0: m._live[0]._replace(cached_tokens=2)}),
        lambda m: m._live.update({0: m._live[0]._replace(blocks=(1, 0))}),
        lambda m: m._swapped.update({2: m._swapped[2]._replace(blocks=(5,))}),
    ):
        twin, _ = manager.clone({})
        change(twin)
        keys.add(everything(twin)[1])
    assert len(keys) == 11


def test_a_clone_is_equal_and_shares_nothing():
    manager, requests = scene()
    before = everything(manager)
    twin, handles = manager.clone({request.request_id: request for request in requests[:3]})
    assert everything(twin) == before
    # The calls of the reference replace it; a subclass may change it in place.
    assert twin._blocks is not manager._blocks
    assert twin._live[1].handle is handles[1]
    assert twin._swapped[2].handle is handles[2]
    assert twin._live[3].handle is not requests[3]
    for name in (0, 1, 2):
        twin.release_request(handles[name])
    twin.free_group_end()
    twin.physical_kv_cache[:] = -1
    twin.host_kv_cache[:] = -1
    assert everything(manager) == before
    assert [request.block_table for request in requests] == [[0, 1], [2], [], [0, 1]]


def test_a_clone_copies_what_a_subclass_adds():
    class Counting(SharedKVCacheManager):
        def __init__(self, *geometry):
            super().__init__(*geometry)
            self.calls = [0]

    twin, _ = Counting(1, 1, 1).clone({})
    assert twin.calls == [0]
    original = Counting(1, 1, 1)
    assert original.clone({})[0].calls is not original.calls


# ------------------------------------------------------------------ rollback at any failure

CALLS = {
    "prefill": lambda m, r, fresh: m.allocate_for_prefill(fresh),
    "decode": lambda m, r, fresh: m.allocate_for_decode(r[0]),
    "append": lambda m, r, fresh: m.allocate_for_append(r[0], 4),
    "truncate": lambda m, r, fresh: m.truncate_request(r[1], 1),
    "fork": lambda m, r, fresh: m.fork_request(r[1], Request(9, 2, [2, 2])),
    "computed": lambda m, r, fresh: m.computed(r[0]),
    "release": lambda m, r, fresh: m.release_request(r[1]),
    "release-out": lambda m, r, fresh: m.release_request(r[2]),
    "swap_out": lambda m, r, fresh: m.swap_out(r[0]),
    "swap_in": lambda m, r, fresh: m.swap_in(r[2]),
    "group": lambda m, r, fresh: m.free_group_end(),
    "ask": lambda m, r, fresh: m.can_append(r[0], 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_failure_at_any_inner_call_leaves_everything_as_it_was(call):
    manager, requests = scene()
    fresh = Request(8, 5, [5, 5, 5, 5, 5])
    requests[0].tokens.append(1)
    requests[0].seq_len += call == "computed"
    before = everything(manager)
    handles = [*requests, fresh]
    looks = [(h.seq_len, h.block_table, h.tokens[:]) for h in handles]
    injector = Injector(modules_of(manager))
    point, failed = 0, 1
    while failed:
        point += 1
        try:
            injector.run(lambda: CALLS[call](manager, requests, fresh), point)
        except MemoryError:
            assert everything(manager) == before
            assert [(h.seq_len, h.block_table, h.tokens[:]) for h in handles] == looks
        failed = injector.failed
    assert point > 5
    assert call == "ask" or everything(manager) != before


# ------------------------------------------------------------------ random calls

MIXES = [
    kind(*ALL),
    kind(*ALL, forks_eagerly=True, publishes_at_once=True),
    kind("append", "ask", "group", "window", window=2),
    kind("fork", "truncate", "append"),
    kind(),
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.__name__[len("SharedKVCacheManager") :])
def test_random_calls_keep_what_a_dictionary_of_contents_says(mix):
    seen: dict[str, int] = {}
    for seed, (blocks, size) in enumerate([(3, 1), (4, 2), (6, 2), (8, 3)]):
        drive = Drive(mix(blocks, size, 1), seed, vocabulary=random.Random(seed).choice([1, 2]))
        for _ in range(150):
            drive.step()
        for name, times in drive.seen.items():
            seen[name] = seen.get(name, 0) + times
    wanted = {"prefill", "prefill refused", "decode", "decode refused", "release"}
    wanted |= {name for name in ("append", "truncate", "fork") if name in mix.abilities}
    if "prefix" in mix.abilities:
        wanted |= {"hit", "evicted", "swap_out", "swap_in", "swap_in refused", "swap_out refused"}
    if "fork" in mix.abilities and not mix.forks_eagerly:
        wanted |= {"copied"}
    assert {name for name, times in seen.items() if times} >= wanted
