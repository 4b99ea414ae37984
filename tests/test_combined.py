"""Where declared behaviours meet, what is correct is not accused, and a fault is found."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from combinations import (
    COMBINATIONS,
    CarefulForkAhead,
    CarefulWindowAhead,
    DropsAhead,
    DropsForked,
    DropsInGroup,
    DropsLateCalls,
    DropsTensor,
    DropsThenEvicts,
    EagerAhead,
    EvictsLate,
    GroupLateCalls,
    GroupWaits,
    HiddenCounter,
    Kind,
    LateEvicts,
    LateUnseenEvicts,
    NullCounted,
    Outside,
    Ring,
    Sliding,
    WindowLate,
    ZeroCounts,
)
from combined import Combined
from pagedkv import OutOfBlocks, Request, Snapshot
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful import explorer
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.world import World

# The same code is measured elsewhere; a search that is traced takes three times as long.
pytestmark = pytest.mark.usefixtures("unmeasured")

DEPTH = 4
SMALL = [Geometry(1, 1), Geometry(2, 1)]
LARGER = [Geometry(3, 1), Geometry(1, 2)]

# ---------------------------------------------------------------- no false alarm


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
