"""Copies on the way to a state are checked against a second run of its history."""

from __future__ import annotations

from copy import deepcopy

import pytest

from allocators import Plain
from faults import Tired
from pagedkv import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.paths import Nodes, Paths
from pagedkv.stateful.replay import replay
from pagedkv.stateful.trust import Distrust, NotDeterministic, Trust
from pagedkv.stateful.world import World

OWN, GENERIC, NONE = Trust(), Trust("whole", "deep"), Trust("none", "none")
POOL = Geometry(2, 1)


class SharesList(Plain):
    """Its clone shares the free list, which is changed in place."""

    def clone(self, requests):
        twin, handles = deepcopy((self, dict(requests)))
        twin.free = self.free
        return twin, handles

    def take(self, blocks):
        shared, taken = self.free, super().take(blocks)
        shared[:], self.free = self.free, shared
        return taken


class SharesPool(KVCacheManager):
    """Its clone shares the tensor."""

    key: object = None

    def clone(self, requests):
        twin, handles = super().clone(requests)
        twin.physical_kv_cache = self.physical_kv_cache
        return twin, handles


def paths(factory, trust, *commands):
    """The paths of one history, and the number of its last state."""
    nodes = Nodes()

    def make(geometry):
        return World(factory, geometry, requests=2)

    here = make(POOL)
    node = nodes.add_root(here.key(trust), 0)
    for command in commands:
        here.apply(command)
        node = nodes.add(here.key(trust), node, command)
    assert commands == nodes.history(node)
    return Paths(make, (POOL,), nodes, trust), node


@pytest.mark.parametrize("trust", [OWN, GENERIC, NONE], ids=["own", "generic", "none"])
def test_a_fork_is_at_its_node_and_moves_alone(trust):
    way, node = paths(KVCacheManager, trust, Prefill(0, 1), Decode(0))
    first = way.fork(node)
    assert first.state.seen.tables == {0: (0, 1)}
    first.apply(Release(0))
    assert way.fork(node).state.seen.tables == {0: (0, 1)}


@pytest.mark.parametrize(
    ("factory", "trust"),
    [
        (SharesList, Trust("whole", "own")),
        (SharesPool, Trust("whole", "own")),
        (SharesPool, Trust("none", "own")),
    ],
    ids=["free list", "pool", "pool without a key"],
)
def test_a_clone_that_shares_its_insides_is_distrusted(factory, trust):
    way, node = paths(factory, trust, Prefill(0, 1))
    with pytest.raises(Distrust, match=r"^a copy ") as caught:
        way.fork(node)
    assert caught.value.what == "clone"


def test_a_clone_that_fails_is_distrusted_with_its_reason():
    class Unique(Plain):
        def __init__(self, *geometry):
            super().__init__(*geometry)
            self.waiting = (block for block in range(3))

    way, node = paths(Unique, Trust("none", "deep"), Prefill(0, 1))
    with pytest.raises(Distrust) as caught:
        way.fork(node)
    expected = "copying failed: `waiting` is a generator"
    assert (expected, "clone") == (caught.value.reason, caught.value.what)


def test_a_target_that_does_something_else_each_time_is_not_deterministic():
    made = []

    class Moody(Plain):
        def __init__(self, *geometry):
            super().__init__(*geometry)
            made.append(self)
            self.free = self.free[:: 1 if len(made) % 2 else -1]

    way, node = paths(Moody, Trust("whole", "none"), Prefill(0, 1))
    with pytest.raises(NotDeterministic) as caught:
        way.fork(node)
    assert str(caught.value) == "two runs of one history: they answer decode(0) differently"


def search(factory):
    def make(geometry):
        return World(factory, geometry, requests=1)

    fresh = make(POOL)
    needs = offered(fresh.state)

    def judge():
        return Judge(PROPERTIES.values(), needs)

    found, _ = explore(make, [Geometry(1, 1)], judge, Limits(depth=4))
    return found, lambda commands: replay(lambda: make(Geometry(1, 1)), commands, judge())


def test_what_a_search_finds_breaks_again_though_the_targets_key_misses_something():
    found, again = search(Tired)
    assert found.found
    assert all(again(history.commands).violations for history in found.found.values())
