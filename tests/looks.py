"""What each property looks at, measured: its judge is given states that keep a record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from allocators import world
from pagedkv import KVCacheManager, Snapshot
from pagedkv.mutants.able import AskedBehindWindow
from pagedkv.mutants.bases import Indexed, Late, Unlisted
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import EveryState, EveryStep, Property
from pagedkv.specs.steps import State
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.profiles import EVERY
from pagedkv.stateful.world import World

HISTORY: tuple[Command, ...] = (
    Prefill(0, 2),
    Prefill(1, 3),
    Decode(0),
    Decode(1),
    Prefill(2, 9),
    Misuse(0, "prefill-live"),
    Release(0),
    Resume(0),
    Misuse(1, "release-foreign"),
    Release(1),
)
"""Every kind of answer, on 4 blocks of 2 tokens."""

BEYOND: tuple[Command, ...] = (
    Prefill(0, 3),
    Fork(1, 0),
    Append(0, 1),
    Release(1),
    Admit(1, (0, 0, 1, 0), 0),
    Truncate(1, 1),
    Prefill(2, 9),
    SwapOut(0),
    SwapIn(0),
    GroupBegin(),
    Release(0),
    GroupEnd(),
)
"""The commands of the abilities, and some after which there is something to judge."""
GROWING: tuple[Command, ...] = (Prefill(0, 1), Append(0, 4), Decode(0))
"""The same behind a window."""

Log = set[str]


class _Watched:
    """Another object's attributes, each of which is entered in a log when it is asked for."""

    def __init__(self, inner: Any, log: Log) -> None:
        self._inner, self._log = inner, log

    def _enter(self, name: str) -> None:
        if name not in ("blocks", "reserved"):  # These are the pool's, and stay the same.
            self._log.add(name)


class _Fields(_Watched):
    """A snapshot, or an observation, of which tables are the tables of its snapshot."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name == "snapshot":
            return _Fields(value, self._log)
        self._enter("block_tables" if name in ("tables", "held") else name)
        return value

    def __eq__(self, other: object) -> bool:
        if not (isinstance(other, _Fields) and isinstance(self._inner, Snapshot)):
            return NotImplemented
        for field in fields(Snapshot):
            self._enter(field.name)
            other._enter(field.name)
        return bool(self._inner == other._inner)

    def __hash__(self) -> int:
        return id(self)


class _WatchedStep(_Watched):
    """A step."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name in ("before", "after"):
            return watched(value, self._log)
        if name == "peer" and value is not None:
            self._enter(name)
            return _WatchedStep(value, self._log)
        if name in ("outcome", "granted", "given", "returned", "asked"):
            self._enter("outcome" if name == "granted" else name)
        return value


def watched(state: State, log: Log) -> State:
    """The same state; what is looked at goes into `log`."""
    seen: Any = _Fields(state.seen, log)
    return State(state.setting, state.model, seen)


def _systems() -> Iterator[tuple[World | Lockstep, tuple[Command, ...]]]:
    yield Lockstep(world(Indexed), world(KVCacheManager)), HISTORY
    for kind in (Indexed, Unlisted, Late):
        yield world(kind), HISTORY
    for able, history in ((SharedKVCacheManager, BEYOND), (AskedBehindWindow, GROWING)):
        yield World(able, Geometry(4, 2), abilities=EVERY), history


@cache
def looks() -> Mapping[str, frozenset[str]]:
    """By property, all that its judge asked for in a history with every kind of answer."""
    logs: dict[str, Log] = defaultdict(set)
    for system, history in _systems():
        offer = offered(*system.states)
        judged = [prop for prop in PROPERTIES.values() if prop.needs <= offer]
        for command in history:
            step = system.apply(command)
            for prop in judged:
                log, due = logs[prop.id], prop.expectation
                if isinstance(due, EveryState):
                    due.judge(watched(step.after, log))
                elif isinstance(due, EveryStep):
                    watch: Any = _WatchedStep(step, log)
                    due.judge(watch)
    return {name: frozenset(log) for name, log in logs.items()}


def needs_more(prop: Property, than: Property) -> bool:
    """Whether `prop` looks at all that `than` looks at and at more, or at what tokens hold."""
    mine, others = looks()[prop.id], looks()[than.id]
    return mine > others or ("read" in mine and "read" not in others)
