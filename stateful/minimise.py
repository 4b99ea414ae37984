"""Cutting a history down: fewest commands, then the smallest geometry, then the smallest commands.

The order is total, so that one fault has one answer wherever the search for it began.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations

from pagedkv.specs.catalogue import COMMANDS
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.replay import replay
from pagedkv.stateful.trust import System
from pagedkv.stateful.world import CannotDrive

History = tuple[Command, ...]
_RANK = {op: rank for rank, op in enumerate(COMMANDS)}
PAIRS_UP_TO = 60
"""Pairs are tried on histories of at most so many commands: their number is quadratic."""


@dataclass(frozen=True, slots=True)
class Minimiser:
    """What it takes to say whether a history still breaks a property.

    make: a fresh target for a geometry. look_past: redundant properties that end no history.
    """

    make: Callable[[Geometry], System]
    new_judge: Callable[[], Judge]
    property: str
    look_past: Collection[str] = ()

    def broken(self, geometry: Geometry, commands: Sequence[Command]) -> Case | None:
        """The case, cut to the commands that ran, if the property breaks; changes nothing."""
        try:
            ran = replay(
                lambda: self.make(geometry), commands, self.new_judge(), look_past=self.look_past
            )
        except CannotDrive:
            return None
        for violation in ran.violations:
            if violation.property.id == self.property:
                return Case(geometry, _canonical_names(ran.commands), violation)
        return None

    def one_minimal(self, geometry: Geometry, commands: Sequence[Command]) -> Case | None:
        """The smallest case that cutting reaches; None if the history breaks nothing.

        No single command and no pair can go from it, no length and no geometry can shrink.
        """
        case = self.broken(geometry, commands)
        while case is not None:
            smaller = next((c for c in self._smaller(case)), None)
            if smaller is None:
                return case
            case = smaller
        return None

    def _smaller(self, case: Case) -> Iterator[Case]:
        for geometry, commands in _candidates(case):
            smaller = self.broken(geometry, commands)
            if smaller is not None and smaller.rank < case.rank:
                yield smaller


@dataclass(frozen=True, slots=True)
class Case:
    """A geometry and a history whose last command breaks something."""

    geometry: Geometry
    commands: History
    violation: Violation

    @property
    def rank(self) -> tuple[object, ...]:
        """The total order: fewest commands, the smallest geometry, the order of commands."""
        return (len(self.commands), self.geometry, tuple(map(_rank, self.commands)))


def _rank(command: Command) -> tuple[object, ...]:
    return (_RANK[command.op], *(str(getattr(command, f.name)).zfill(9) for f in fields(command)))


def _candidates(case: Case) -> Iterator[tuple[Geometry, History]]:
    """Everything worth trying instead, the largest cuts first."""
    commands, geometry = case.commands, case.geometry
    size = len(commands) // 2
    while size:
        for start in range(0, len(commands), size):
            yield geometry, commands[:start] + commands[start + size :]
        size //= 2
    if len(commands) <= PAIRS_UP_TO:
        for i, j in combinations(range(len(commands)), 2):
            yield geometry, tuple(c for k, c in enumerate(commands) if k not in (i, j))
    for blocks in range(1, geometry.num_blocks + 1):
        for block_size in range(1, geometry.block_size + 1):
            for head_dim in {1, geometry.head_dim}:
                if (smaller := Geometry(blocks, block_size, head_dim)) < geometry:
                    yield smaller, commands
    for i, command in enumerate(commands):
        for less in _less(command):
            yield geometry, (*commands[:i], less, *commands[i + 1 :])


def _less(command: Command) -> Iterator[Command]:
    """The same command with smaller sizes: 1, half, one less."""
    for f in fields(command):
        value = getattr(command, f.name)
        if f.name != "request" and isinstance(value, int):
            for less in sorted({1, value // 2, value - 1}):
                if 0 < less < value:
                    yield replace(command, **{f.name: less})


def _canonical_names(commands: Sequence[Command]) -> History:
    """The history with its requests called 0, 1, 2, ... as they first appear."""
    names: dict[int, int] = {}
    return tuple(
        replace(command, request=names.setdefault(command.request, len(names)))
        for command in commands
    )
