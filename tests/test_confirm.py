"""Each violation that a search finds is broken once more from nothing, before it is reported."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from itertools import count
from typing import Any

import pytest

from allocators import world
from pagedkv import KVCacheManager, Request
from pagedkv.specs.abilities.core import Misuse, Prefill, Release, Resume
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Broken, Violation
from pagedkv.stateful import explorer, paths
from pagedkv.stateful.examples import example_of
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.report import Shortest
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import System, Trust
from pagedkv.stateful.world import World


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    """Keys and copies are not checked on the way, so that it is the confirmation that finds out."""
    monkeypatch.setattr(explorer, "CHECKED_MERGES", 0)
    monkeypatch.setattr(paths, "CHECKED_CLONES", 0)


def search(factory: Any, depth: int = 4) -> Exploration:
    def make(geometry: Geometry) -> System:
        return world(factory, geometry.num_blocks, geometry.block_size, requests=1)

    def judge() -> Judge:
        return Judge(PROPERTIES.values(), needs)

    needs = offered(*make(Geometry(2, 1)).states)
    return explore(make, [Geometry(2, 1)], judge, Limits(depth=depth))[0]


class LosesOne(KVCacheManager):
    """The second release of its life loses a block."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.releases = [0]

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self.releases[0] += 1
        if self.releases[0] == 2:
            self._free = self._free[1:]


AGAIN = (Prefill(0, 1), Release(0), Resume(0), Release(0))


def test_what_breaks_again_is_reported():
    found = search(LosesOne)
    assert found.trust == Trust("whole", "deep")
    assert found.doubts == ()
    assert found.found["conservation"].commands == AGAIN


def test_a_key_under_which_a_violation_does_not_break_again_is_given_up():
    class Drifts(KVCacheManager):
        """The second refusal of its life loses a block; its key leaves out how many it had."""

        refusals = 0

        def release_request(self, req: Request) -> None:
            try:
                super().release_request(req)
            except ValueError:
                self.refusals += 1
                self._free = self._free[self.refusals == 2 :]
                raise

        def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
            return super().state_key(names)

    found = search(Drifts)
    assert found.trust.key == "whole"
    run = "prefill(0, 1), misuse(0, release-out-of-range)"
    assert found.doubts == (f"rollback broke after {run}, but not when this alone was run",)
    assert found.found["rollback"].commands == (Misuse(0, "release-fresh"),) * 2


class Hides(LosesOne):
    """Its state can't be seen, and it can't be copied but by itself."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.ids: object = (n for n in range(3))


def test_a_copy_in_which_a_violation_does_not_break_again_is_given_up():
    class Shares(Hides):
        """Its copies share the counter."""

        def clone(self, requests: Mapping[int, Request]) -> tuple[Shares, dict[int, Request]]:
            ids, self.ids = self.ids, None
            twin, handles = deepcopy((self, dict(requests)))
            self.ids = twin.ids = ids
            twin.releases = self.releases
            return twin, handles

    found = search(Shares)
    assert found.trust == Trust("none", "none")
    doubt = "conservation broke after prefill(0, 2), release(0), but not when this alone was run"
    assert doubt in found.doubts
    assert found.found["conservation"].commands == AGAIN


def test_what_does_not_break_again_though_nothing_is_relied_on_is_not_deterministic():
    every = count()

    class Moody(Hides):
        """The thirtieth prefill of all that are made loses a block."""

        def allocate_for_prefill(self, req: Request) -> None:
            super().allocate_for_prefill(req)
            if next(every) == 30:
                self._free = self._free[1:]

    found = search(Moody)
    assert found.trust == Trust("none", "none")
    assert found.found == {}
    assert str(found.stopped).startswith("not deterministic: conservation broke after prefill(0")
    assert str(found.stopped).endswith(", and not when this was run again")
    assert not found.exhausted


def test_a_history_that_does_not_end_as_it_did_is_not_shown():
    def make() -> World:
        return world(KVCacheManager, 2, 1)

    violation = Violation(PROPERTIES["conservation"], Broken("1 + 0 != 2", (), ()), 1)
    with pytest.raises(CannotDrive, match="not deterministic: conservation broke after prefill"):
        example_of(
            make,
            lambda: Judge(PROPERTIES.values(), offered(make().state)),
            Geometry(2, 1),
            (Prefill(0, 1),),
            violation,
            Shortest(1),
        )


def test_a_fresh_state_that_is_broken_is_confirmed_without_a_command():
    class Short(KVCacheManager):
        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            super().__init__(num_blocks, block_size, head_dim)
            self._free = self._free[1:]

    found = search(Short)
    assert (found.found["conservation"].commands, found.transitions) == ((), 0)


def test_a_fresh_state_that_is_broken_once_only_costs_the_keys_their_trust():
    made = count()

    class First(KVCacheManager):
        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            super().__init__(num_blocks, block_size, head_dim)
            # The first is made to learn what it offers, the second to learn its hooks.
            if next(made) == 2:
                self._free = self._free[1:]

    found = search(First)
    (doubt,) = found.doubts
    assert doubt.startswith("conservation broke after ")
    assert doubt.endswith(", but not when this alone was run")
    assert found.found == {}
