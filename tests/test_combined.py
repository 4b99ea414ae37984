"""Correct allocators whose declared behaviours meet: none is accused, and a fault in them is found.

Each says with its switches what it does; what is odd is how these behaviours act on each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from builders import declaring
from combined import Combined, Refusal
from pagedkv import OutOfBlocks, Request, SharedKVCacheManager, Snapshot
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful import explorer
from pagedkv.stateful.explorer import Exploration, Limits, explore
from pagedkv.stateful.world import World

# The same code is measured elsewhere; a search that is traced takes three times as long.
pytestmark = pytest.mark.usefixtures("unmeasured")

DEPTH = 4
SMALL = [Geometry(1, 1), Geometry(2, 1)]
LARGER = [Geometry(3, 1), Geometry(1, 2)]
MAPS = frozenset({"capacities", "free_blocks", "index", "ref_counts", "reverse_map"})


class Prefix(Combined):
    abilities = frozenset({"prefix"})


class Sliding(Combined):
    abilities = frozenset({"append", "window"})
    window = 2


# ---------------------------------------------------------------- cached blocks


class HiddenCounter(Prefix):
    """The counter of a free list that is not seen leaves the cached blocks out."""

    shows = frozenset({"index", "num_free"})


class DropsThenEvicts(Prefix, Sliding):
    """What a refused call drops is cached, and evicted at once."""

    abilities = frozenset({"append", "prefix", "window"})
    refusal = ("drop", "evict")


class LatePrefix(Prefix):
    """A block that can be found is not found while it waits, and is cached then."""

    late_calls = 1


class LatePrefixTicks(LatePrefix):
    refusal: Refusal = ("wait",)


class LateEvicts(LatePrefix):
    """What a refused call evicted, it makes room for: what waited is cached in its place."""

    refusal = ("evict", "wait")


class LatePrefixUnseen(LatePrefixTicks):
    shows = frozenset({"free_blocks"})


class LateUnseenEvicts(LateEvicts):
    shows = frozenset({"free_blocks"})


class LateUnpublished(LatePrefixTicks):
    """Only what can't be found waits; the rest is cached at once."""

    late_published = False


class LateUnpublishedEvicts(LateUnpublished):
    refusal = ("wait", "evict")


class EvictsLate(LateUnpublishedEvicts):
    evicts = "lru-tail-first"
    shows = frozenset({"eviction_order", "free_blocks", "index"})


class DropsInGroup(Prefix, Sliding):
    """What a refused call drops inside a group is withheld, and not found until it ends."""

    abilities = frozenset({"append", "group", "prefix", "window"})
    refusal = ("drop",)


class DropsLatePrefix(Prefix, Sliding):
    """What a refused call drops waits, and is not found meanwhile."""

    abilities = frozenset({"append", "prefix", "window"})
    late_calls = 1
    refusal = ("drop",)


# ---------------------------------------------------------------- late blocks


class GroupLateBlocks(Combined):
    """What a group withheld comes back at its end, and waits from then on."""

    abilities = frozenset({"group"})
    late_blocks = 1


class GroupLateCalls(GroupLateBlocks):
    late_blocks, late_calls = 0, 1


class GroupWaits(GroupLateBlocks):
    """What a group withheld has waited enough; no block comes back inside one."""

    late_withheld = False


class WindowLate(Sliding):
    """What goes back behind the window waits, and makes no room for the call."""

    late_calls = 1


class DropsLateBlocks(Sliding):
    late_blocks = 1
    refusal = ("drop",)


class DropsLateCalls(Sliding):
    late_calls = 1
    refusal = ("drop", "wait")


class HiddenDropsLate(DropsLateCalls):
    """Of the free blocks only the number is seen."""

    abilities = frozenset({"append", "group", "window"})
    late_calls = 2
    late_withheld = False
    shows = MAPS - {"free_blocks"} | {"num_free"}


# ---------------------------------------------------------------- lookahead and forks


class WindowAhead(Sliding):
    """The tables are longer than the tokens, and begin behind the window."""

    lookahead = window = 1


class DropsAhead(WindowAhead):
    refusal = ("drop",)


class WindowForked(Sliding):
    """What one leaves behind its window, the other may still hold."""

    abilities = frozenset({"append", "fork", "window"})


class DropsForked(WindowForked):
    refusal = ("drop",)


class DropsForkedShown(DropsForked):
    abilities = frozenset({"append", "fork", "group", "window"})
    shows = MAPS


class EagerAhead(Combined):
    """A fork takes its own blocks beyond the tokens too."""

    abilities = frozenset({"fork"})
    forks_eagerly = True
    lookahead = 1


class CarefulAhead(Combined):
    abilities = frozenset({"append"})
    judged = True
    lookahead = 1


class CarefulForkAhead(CarefulAhead):
    abilities = frozenset({"fork"})


class CarefulWindowAhead(WindowAhead):
    judged = True


# ---------------------------------------------------------------- what is shown


class Outside(Combined):
    """Tables stand in the snapshot only: wrong use is told by the handle alone."""

    judged = tables_outside = True

    def fill_in(self) -> None:
        for request, req in self.live.items():
            req.seq_len = self.lengths[request]

    def own(self, req: Request) -> int:
        if self.live.get(req.request_id) is not req:
            raise ValueError(f"request {req.request_id} holds nothing")
        return req.request_id


class NullCounted(Sliding):
    """The null block is one of the pool, and counts the entries that name it."""

    null = 0
    refusal: Refusal = ("drop",)
    window_of_first = True

    def snapshot(self) -> Snapshot:
        nulls = sum(table.count(self.null) for table in self.tables.values())
        return replace(super().snapshot(), ref_counts={**self.refs, self.null: nulls})


class NullCountedNoDrops(NullCounted):
    refusal = ()


class ZeroCounts(Combined):
    """Looking a free block's count up leaves an entry that says 0."""

    abilities = frozenset({"fork"})
    shows = frozenset({"free_blocks", "ref_counts"})

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.refs = defaultdict(int)

    def refuse(self, req: Request | None) -> None:
        super().refuse(req)
        assert sum(self.refs[block] for block in self.free) == 0


class ZeroRoom(Combined):
    """The request that was refused last has an entry that says it has no room."""

    shows = frozenset({"capacities", "free_blocks"})
    refused: frozenset[int] = frozenset()

    def refuse(self, req: Request | None) -> None:
        super().refuse(req)
        self.refused = frozenset() if req is None else frozenset({req.request_id})

    def snapshot(self) -> Snapshot:
        shown = super().snapshot()
        rooms: dict[int | str, int] = dict.fromkeys(self.refused, 0)
        return replace(shown, capacities={**rooms, **(shown.capacities or {})})


class ZeroEvicted(Prefix):
    """A cached block has a count of 0, a free one has none."""

    refusal = ("evict",)

    def snapshot(self) -> Snapshot:
        counts = {**dict.fromkeys(self.cached, 0), **self.refs}
        return replace(super().snapshot(), ref_counts=counts)


class Ring(Sliding):
    """The report counts what the window leaves in the table, and not all tokens."""

    ring = True

    def blocks_for(self, tokens: int) -> int:
        return super().blocks_for(min(tokens, self.window or tokens))

    def allocation_report(self, req: Request) -> dict[str, float]:
        room = len(self.tables[req.request_id]) * self.block_size
        kept = min(req.seq_len, self.window or req.seq_len)
        return {
            "logical_tokens": req.seq_len,
            "allocated_tokens": room,
            "unused_tail_tokens": room - kept,
            "utilization": kept / room,
        }


# ---------------------------------------------------------------- managers with a tensor


Swapping: Any = SharedKVCacheManager.configured("swap")
Windowed: Any = SharedKVCacheManager.configured("append", "window", window=2)


class HostFreeUnseen(Swapping):  # type: ignore[misc]
    """What is swapped out is seen, and not what the second pool has left."""

    hidden = frozenset({"host_free"})

    def snapshot(self) -> Snapshot:
        shown: Snapshot = super().snapshot()
        nothing: Any = dict.fromkeys(self.hidden)
        return replace(shown, **nothing)


class HostUnseen(HostFreeUnseen):
    hidden = frozenset({"host_free", "swapped"})


class DropsTensor(Windowed):  # type: ignore[misc]
    """A table of which a refused call dropped blocks can't be read whole."""

    declares = declaring(
        abilities={"append", "window"},
        window=2,
        null_block=-1,
        window_of_first=True,
        drops_behind_window=True,
    )
    first = 0
    _blocks: Any

    def _slide(self, blocks: Any, table: tuple[int, ...], seq_len: int) -> Any:
        return super()._slide(blocks, table, self.first or seq_len)

    def allocate_for_decode(self, req: Request) -> None:
        self.dropping(req, super().allocate_for_decode, req)

    def allocate_for_append(self, req: Request, count: int) -> None:
        self.dropping(req, super().allocate_for_append, req, count)

    def dropping(self, req: Request, call: Any, *given: Any) -> None:
        self.first = req.seq_len + 1
        try:
            call(*given)
        except OutOfBlocks:
            lease, blocks = self._live[req.request_id], self._blocks.copy()
            table = self._slide(blocks, lease.blocks, self.first)
            self._blocks = blocks
            self._live[req.request_id] = lease._replace(blocks=tuple(table))
            req.block_table = list(table)
            raise
        finally:
            self.first = 0


# ---------------------------------------------------------------- no false alarm

Kind = Any
"""A class of these, `Combined` or not."""

COMBINATIONS: list[Kind] = [
    *(HiddenCounter, DropsThenEvicts, LatePrefix, LatePrefixTicks, LateEvicts),
    *(LatePrefixUnseen, LateUnseenEvicts, LateUnpublished, LateUnpublishedEvicts, EvictsLate),
    *(DropsInGroup, DropsLatePrefix, GroupLateBlocks, GroupLateCalls, GroupWaits, WindowLate),
    *(DropsLateBlocks, DropsLateCalls, HiddenDropsLate, WindowAhead, DropsAhead, WindowForked),
    *(DropsForked, DropsForkedShown, EagerAhead, CarefulAhead, CarefulForkAhead),
    *(CarefulWindowAhead, Outside, NullCounted, NullCountedNoDrops, ZeroCounts, ZeroRoom),
    *(ZeroEvicted, Ring, HostFreeUnseen, HostUnseen, DropsTensor),
]


@pytest.fixture(autouse=True)
def checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether equal keys are equal states is tried once for each kind of command: it takes long."""
    monkeypatch.setattr(explorer, "CHECKED_MERGES", 1)


def made(kind: Kind, pool: Geometry) -> World:
    return World(kind, pool, requests=2, abilities=kind.declares.abilities)


def searched(kind: Kind, depth: int, pools: Iterable[Geometry], **limits: Any) -> Exploration:
    """An exhaustive search of those of the pools that it can have."""
    can = [pool for pool in pools if kind.declares.supports(pool.num_blocks, pool.block_size)]
    judged = offered(made(kind, can[0]).state)
    found, _ = explore(
        lambda pool: made(kind, pool),
        can,
        lambda: Judge(PROPERTIES.values(), judged),
        Limits(depth=depth, **limits),
    )
    return found


def is_quick(kind: Kind) -> bool:
    """Whether a larger pool is soon searched: not with many prompts, and not with a tensor."""
    return issubclass(kind, Combined) and "prefix" not in kind.abilities


def messages(found: Exploration) -> dict[str, str]:
    return {name: one.violation.broken.message for name, one in found.found.items()}


@pytest.mark.parametrize("kind", COMBINATIONS)
def test_no_short_history_accuses_a_correct_combination(kind):
    found = searched(kind, DEPTH, SMALL)
    assert messages(found) == {}
    assert found.covers(DEPTH), found.stopped
    assert found.doubts == ()


@pytest.mark.parametrize("kind", [kind for kind in COMBINATIONS if is_quick(kind)])
def test_no_history_in_a_larger_pool_accuses_a_correct_combination(kind):
    assert messages(searched(kind, DEPTH, LARGER)) == {}


LONGER: list[tuple[Kind, Geometry, int]] = [
    (GroupWaits, Geometry(2, 1), 5),
    (DropsAhead, Geometry(4, 1), 4),
    (EagerAhead, Geometry(4, 2), 3),
]


def with_longer(kind: Kind) -> list[Geometry]:
    """The pools in which it, or what it is made of, is searched."""
    longer = [pool for other, pool, _ in LONGER if issubclass(kind, other)]
    return [*SMALL, *(LARGER if is_quick(kind) else ()), *longer]


@pytest.mark.parametrize(("kind", "pool", "depth"), LONGER)
def test_no_longer_history_accuses_a_correct_combination(kind, pool, depth):
    assert messages(searched(kind, depth, [pool])) == {}


HISTORIES: list[tuple[Kind, Geometry, tuple[Command, ...]]] = [
    (DropsThenEvicts, Geometry(3, 1), (Prefill(0, 2), Prefill(1, 1), Append(0, 3), Decode(0))),
    (
        LateUnseenEvicts,
        Geometry(2, 1),
        (Prefill(0, 1), Prefill(1, 2), Release(1), Release(0), Prefill(0, 2)),
    ),
    (DropsAhead, Geometry(4, 1), (Prefill(0, 3), Append(0, 6), Prefill(1, 1), Append(0, 3))),
    (NullCounted, Geometry(4, 1), (Prefill(0, 2), Append(0, 3), Decode(0), Append(0, 2))),
    (DropsForked, Geometry(4, 1), (Prefill(0, 4), Fork(1, 0), Append(0, 3), Decode(1), Decode(0))),
    (
        DropsInGroup,
        Geometry(3, 1),
        (Prefill(0, 3), GroupBegin(), Decode(0), Release(0), GroupEnd()),
    ),
]


@pytest.mark.parametrize(("kind", "pool", "commands"), HISTORIES)
def test_no_history_known_to_matter_accuses_a_correct_combination(kind, pool, commands):
    here = made(kind, pool)
    judge = Judge(PROPERTIES.values(), offered(here.state))
    for command in commands:
        step = here.apply(command)
        assert [str(violation) for violation in judge.step(step) + judge.reached(step)] == []


@pytest.mark.parametrize("kind", [Outside, CarefulForkAhead, CarefulWindowAhead])
def test_wrong_use_that_nobody_can_tell_is_not_tried(kind):
    here = made(kind, Geometry(2, 1))
    here.apply(Prefill(0, 1))
    tried = {command.kind for command in here.candidates() if isinstance(command, Misuse)}
    assert "prefill-live" in tried
    assert "release-free" not in tried
    assert ("release-duplicate" in tried) == (kind is not Outside)


# ---------------------------------------------------------------- what is declared is needed

BEHAVIOURS = (
    *("drops_behind_window", "evicts_cached", "forks_eagerly", "late_blocks", "late_calls"),
    *("lookahead", "tables_outside", "window_of_first"),
)
DECLARED = [
    (kind, name)
    for kind in COMBINATIONS
    if issubclass(kind, Combined)
    for name in BEHAVIOURS
    if getattr(kind.declares, name)
    # Once is enough: what is searched with one kind is not searched again with those made of it.
    and not getattr(getattr(kind.__base__, "declares", None), name, False)
]


@pytest.mark.parametrize(("kind", "name"), DECLARED)
def test_a_combination_that_leaves_a_behaviour_undeclared_is_accused(kind, name):
    silent = type("Silent", (kind,), {"undeclared": frozenset({name})})
    assert searched(silent, DEPTH, with_longer(silent), enough="any").found != {}


# ---------------------------------------------------------------- a fault is found


class LosesWhatItDrops(DropsInGroup):
    """Inside a group, what a refused call drops is nowhere."""

    def refuse(self, req: Request | None) -> None:
        withheld = copy(self.withheld)
        super().refuse(req)
        self.withheld = withheld


class DropsOneMore(DropsLateCalls):
    """A refused call drops what the next token reads."""

    def refuse(self, req: Request | None) -> None:
        if req is not None and self.live.get(req.request_id) is req:
            self.slide(req.request_id, self.lengths[req.request_id] + 2)


class FreesWhatTheForkHolds(DropsForked):
    def refuse(self, req: Request | None) -> None:
        self.refs = dict.fromkeys(self.refs, 1)
        super().refuse(req)


class HandsOutEarly(GroupLateCalls):
    """What is pending is there for whoever needs it."""

    def take(self, count: int) -> list[int]:
        if count > len(self.free):
            self.pass_time()
        return super().take(count)


class WaitsForever(WindowLate):
    """Time does not pass for what is pending."""

    def pass_time(self) -> None:
        pass


class KeepsTheKey(LateEvicts):
    """An evicted block is free, and can still be found."""

    def evict(self, block: int) -> None:
        self.cached.remove(block)
        self.free.append(block)


class EvictsNewest(EvictsLate):
    def take(self, count: int) -> list[int]:
        self.cached.reverse()
        return super().take(count)


class CountsCachedTwice(HiddenCounter):
    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), num_free=len(self.free) + 2 * len(self.cached))


class CountsWhatIsFree(ZeroCounts):
    """An entry that was left for a free block says 1."""

    def snapshot(self) -> Snapshot:
        counts = {block: count or 1 for block, count in self.refs.items()}
        return replace(super().snapshot(), ref_counts=counts)


class CopiesNothing(EagerAhead):
    """A fork takes a block of its own for the tail, and leaves it empty."""

    def take_copies(self) -> list[tuple[int, int]]:
        return []


class TakesAnyTable(CarefulForkAhead):
    """A table that it did not give is taken for its own."""

    def own(self, req: Request) -> int:
        if self.live.get(req.request_id) is not req:
            raise ValueError(f"request {req.request_id} holds nothing")
        return req.request_id


class RingTooLong(Ring):
    def blocks_for(self, tokens: int) -> int:
        return Sliding.blocks_for(self, min(tokens, 3))


class TellsNobody(DropsTensor):
    """What a refused call dropped still stands in the handle."""

    def dropping(self, req: Request, call: Any, *given: Any) -> None:
        table = req.block_table
        try:
            super().dropping(req, call, *given)
        except OutOfBlocks:
            req.block_table = table
            raise


FAULTS: dict[Kind, str] = {
    CopiesNothing: "contents",
    CountsCachedTwice: "free-count",
    CountsWhatIsFree: "ref-counts",
    DropsOneMore: "window-kept",
    EvictsNewest: "eviction-order",
    FreesWhatTheForkHolds: "free-disjoint",
    HandsOutEarly: "pending",
    KeepsTheKey: "index-exact",
    LosesWhatItDrops: "conservation",
    RingTooLong: "table-cover",
    TakesAnyTable: "misuse-refused",
    TellsNobody: "handles-agree",
    WaitsForever: "pending",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_in_a_combination_is_found(kind):
    found = searched(kind, DEPTH, with_longer(kind), enough=[FAULTS[kind]])
    assert FAULTS[kind] in messages(found)
