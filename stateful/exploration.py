"""What a search is told, and what it says: its limits, how far it is, what it found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.shards import Cut
from pagedkv.stateful.trust import Trust

INTERRUPTED = "interrupted"
VARIES = "not deterministic"
"""What begins the reason why a search that says nothing of what it did not try has stopped."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is: what a progress bar needs."""

    states: int
    transitions: int
    depth: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Found:
    """The first, and so a shortest, history that breaks one property in the scope searched."""

    violation: Violation
    geometry: Geometry
    commands: tuple[Command, ...]
    states: int


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search did. `stopped` is None if every state and transition was tried.

    cuts: the pools of which only this shard's part was searched from there on.
    """

    states: int
    transitions: int
    depth: int
    stopped: str | None
    found: dict[str, Found]
    trust: Trust
    doubts: tuple[str, ...]
    cuts: tuple[Cut, ...] = ()
    keys: Mapping[Geometry, Set[bytes]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def exhausted(self) -> bool:
        """Whether every state and transition of the scope, or of the shard, was tried."""
        return self.stopped is None

    @property
    def unreliable(self) -> bool:
        """Whether what was tried says nothing of what was not: interrupted, or it varies."""
        return self.stopped is not None and self.stopped.startswith((INTERRUPTED, VARIES))

    def covers(self, length: int) -> bool:
        """Whether every history of up to `length` commands was tried, of the shard's if divided."""
        return self.exhausted or (self.depth >= length and not self.unreliable)

    def proves(self, length: int) -> bool:
        """Whether every history of up to `length` commands was tried, other shards' included."""
        return self.covers(length) and all(length <= cut.depth for cut in self.cuts)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search stops before it is done; None is "never".

    seconds: after so much processor time, but not before every history of `at_least` commands
    was tried, unless `hard_seconds` of real time are over too: how far a search comes should not
    depend on what else the machine does, and a verdict is worth waiting for.
    beyond: once a history was found that ends in a violation, so many commands longer ones, and
    all of `at_least` commands, are still tried for what else is broken.
    """

    seconds: float | None = None
    at_least: int = 0
    hard_seconds: float | None = None
    depth: int | None = None
    beyond: int | None = None
    states: int | None = None
    enough: Collection[str] | Literal["any"] | None = None
    """Property ids: stop once each has been found broken; "any": once one has."""
