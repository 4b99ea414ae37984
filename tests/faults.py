"""Allocators with one planted fault each, targets that lie or hide, and the search over both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from pagedkv import Declarations, KVCacheManager, OutOfBlocks, Request
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Need
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.profiles import Profile, Scope
from pagedkv.stateful.world import World

# ---------------------------------------------------------------- planted faults


class Boundary(KVCacheManager):
    """Takes a block when the length leaves 1, which block size 1 never does."""

    def allocate_for_decode(self, req: Request) -> None:
        if self.block_size == 1 and req.block_table:
            req.seq_len += 1
        else:
            super().allocate_for_decode(req)


class LeakWhenOut(KVCacheManager):
    """Loses a block when it finds too few for a prompt."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            self._free = self._free[1:]
            raise


class KeepsLast(KVCacheManager):
    """Forgets the last of several blocks on release."""

    def release_request(self, req: Request) -> None:
        last = req.block_table[-1] if len(req.block_table) > 1 else None
        super().release_request(req)
        self._free = [block for block in self._free if block != last]


class FreeTwice(KVCacheManager):
    """Puts a block on the free list twice when another request is live."""

    def release_request(self, req: Request) -> None:
        blocks = list(req.block_table)
        super().release_request(req)
        if self._live:
            self._free = sorted([*self._free, blocks[0]])


class StaysFree(KVCacheManager):
    """Leaves the block that a decode takes on the free list."""

    def allocate_for_decode(self, req: Request) -> None:
        before = self._free
        super().allocate_for_decode(req)
        self._free = before


class EarlyOut(KVCacheManager):
    """Refuses the last block of a pool of at least two to a decode."""

    def allocate_for_decode(self, req: Request) -> None:
        full = req.block_table and req.seq_len == len(req.block_table) * self.block_size
        if full and self.num_blocks > 1 and len(self._free) == 1:
            raise OutOfBlocks(req.request_id, 1, 0)
        super().allocate_for_decode(req)


class LongerWhenOut(KVCacheManager):
    """Counts the token of a decode that found no block."""

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            req.seq_len += 1
            raise


class SortsTable(KVCacheManager):
    """Reads the cache in ascending, not in logical, order."""

    def get_physical_cache(self, req: Request) -> Any:
        shown = Request(req.request_id, req.seq_len)
        shown.block_table = sorted(req.block_table)
        return super().get_physical_cache(shown)


class SilentRelease(KVCacheManager):
    """Takes a second release for a request."""

    def release_request(self, req: Request) -> None:
        if req.block_table or req.request_id in self._live:
            super().release_request(req)


class TakesForged(KVCacheManager):
    """Believes a table of one block too many if the block is free."""

    def release_request(self, req: Request) -> None:
        if len(req.block_table) > 1 and req.block_table[-1] in self._free:
            req.block_table = req.block_table[:-1]
        super().release_request(req)


class WrongReport(KVCacheManager):
    """Counts one token too many in its report, which is redundant, and nowhere else."""

    def allocation_report(self, req: Request) -> dict[str, float]:
        report = super().allocation_report(req)
        return {**report, "logical_tokens": report["logical_tokens"] + 1}


class SecondRelease(KVCacheManager):
    """Loses a block in the second release of its life: only a counter tells."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.releases = 0

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self.releases += 1
        if self.releases == 2:
            self._free = self._free[1:]


class Planted(NamedTuple):
    """A fault, the property it breaks and the length of the shortest history."""

    factory: Callable[[int, int, int], Any]
    property: str
    steps: int


PLANTED = (
    Planted(Boundary, "table-cover", 2),
    Planted(LeakWhenOut, "rollback", 1),
    Planted(KeepsLast, "conservation", 2),
    Planted(FreeTwice, "free-valid", 3),
    Planted(StaysFree, "free-disjoint", 2),
    Planted(EarlyOut, "out-of-blocks", 2),
    Planted(LongerWhenOut, "rollback", 2),
    Planted(SortsTable, "contents", 4),
    Planted(SilentRelease, "misuse-refused", 1),
    Planted(TakesForged, "misuse-refused", 2),
    Planted(WrongReport, "report-agrees", 1),
    Planted(SecondRelease, "conservation", 4),
)

# ---------------------------------------------------------------- liars and hiders


class Tired(KVCacheManager):
    """Its own key misses that, once out of blocks, a release loses a block."""

    tired = False

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            self.tired = True
            raise

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        if self.tired:
            self._free.pop()

    def state_key(self, names: Mapping[int, int]) -> tuple[Any, ...]:
        return super().state_key(names)


class LyingKey(SecondRelease):
    """Its key leaves out the counter that its fault depends on."""

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        return super().state_key(names)


class SharingClone(SecondRelease):
    """Its copies share one counter, kept in a list."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.shared = [0]
        super().__init__(num_blocks, block_size, head_dim)

    @property
    def releases(self) -> int:
        return self.shared[0]

    @releases.setter
    def releases(self, value: int) -> None:
        self.shared[0] = value

    def clone(self, requests: Mapping[int, Request]) -> Any:
        twin, handles = super().clone(requests)
        twin.shared = self.shared
        return twin, handles


class DroppingClone(SecondRelease):
    """Its copies count from 0 again; its key is right."""

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        return (self.releases, *super().state_key(names))

    def clone(self, requests: Mapping[int, Request]) -> Any:
        twin, handles = super().clone(requests)
        twin.releases = 0
        return twin, handles


class Uncopied(SecondRelease):
    """Can't be copied for its generator, and brings a right key."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.generator = (n for n in range(10))

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        return (self.releases, *super().state_key(names))


class Locked(SecondRelease):
    """Holds a lock while it releases, by itself and by a condition over it."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.lock = threading.Lock()
        self.released = threading.Condition(self.lock)

    def release_request(self, req: Request) -> None:
        with self.lock:
            assert not self.lock.acquire(blocking=False)
            super().release_request(req)
        with self.released:
            assert self.lock.locked()
            self.released.notify_all()


class LockedAndHooked(Locked):
    """Has a function without a name beside, so that it is copied in the slower way."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.hook = lambda: None


class Jams(KVCacheManager):
    """A refused release leaves its lock held, and a release that finds it held loses a block."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.lock = threading.Lock()

    def release_request(self, req: Request) -> None:
        jammed = not self.lock.acquire(blocking=False)
        super().release_request(req)
        if jammed:
            self._free = self._free[1:]
        self.lock.release()


class Unseen(SecondRelease):
    """Keeps its count in a generator, which nobody can look into or copy."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.generator = (n for n in range(10))


class Fickle(KVCacheManager):
    """Tosses a coin, which all managers share, for the end of the free list to take from."""

    coin = Random(0)

    def allocate_for_prefill(self, req: Request) -> None:
        if self.coin.random() < 0.5:
            self._free = self._free[::-1]
        try:
            super().allocate_for_prefill(req)
        finally:
            self._free = sorted(self._free)


# ---------------------------------------------------------------- the search


@dataclass(frozen=True, slots=True)
class Tiny(Profile):
    """A profile whose scopes are exhausted at once."""

    def scopes(self, declared: Declarations, *, pair: bool) -> tuple[Scope, ...]:
        pools = (Geometry(1, 1), Geometry(1, 2), Geometry(2, 1))
        return Scope("fixed", pools, 3), Scope("resume", pools, 2, keeps_released=True)


TINY = Tiny("quick", 1.0, 3, 8, 30, True, pair_requests=2, pair_blocks=3, engine_blocks=3)


def worlds(
    factory: Any, requests: int = 3, *, keeps_released: bool = False
) -> Callable[[Geometry], World]:
    return lambda geometry: World(
        factory, geometry, requests=requests, keeps_released=keeps_released
    )


SHOWN = frozenset({Need.FREE_LIST, Need.REPORT, Need.HANDLE_TABLES, Need.WRONG_USE})
"""What can be seen of the reference, and so of everything here."""


def judging() -> Judge:
    """A judge of every property that applies to one target."""
    return Judge(PROPERTIES.values(), SHOWN)


def searched(factory: Any, *geometries: Geometry, requests: int = 3, **limits: Any) -> Exploration:
    make = worlds(factory, requests)
    return explore(make, geometries, judging, Limits(**limits))[0]


def broken_history(planted: Planted, seed: int) -> tuple[Geometry, list[Command]]:
    """A random history whose last command breaks the property."""
    random = Random(seed)
    while True:
        geometry = Geometry(random.randint(1, 6), random.randint(1, 3), random.randint(1, 2))
        here = worlds(planted.factory, 4, keeps_released=True)(geometry)
        judge, commands = judging(), []
        for _ in range(30):
            offers = here.candidates()
            plain = [command for command in offers if command.op != "misuse"]
            commands.append(random.choice(plain if random.random() < 0.8 else offers))
            step = here.apply(commands[-1])
            broken = {v.property.id for v in judge.step(step) + judge.reached(step)}
            if planted.property in broken:
                return geometry, commands
            if broken:
                break
