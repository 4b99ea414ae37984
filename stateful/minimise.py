"""Cutting a history down: fewest commands, then the smallest geometry, then the smallest commands.

The order is total, so that one fault has one answer wherever the search for it began.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, combinations
from math import inf
from time import monotonic

from pagedkv.specs.catalogue import COMMANDS
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.replay import replay
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import System

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
        """The case, cut to the commands that ran, if the property breaks; changes nothing.

        Its requests are called 0, 1, 2, ... as they first appear, unless it breaks under their
        own names only.
        """
        case = self._as_named(geometry, commands)
        if case is None:
            return None
        canonical = _canonical_names(case.commands)
        if canonical == case.commands:
            return case
        return self._as_named(geometry, canonical) or case

    def _as_named(self, geometry: Geometry, commands: Sequence[Command]) -> Case | None:
        try:
            ran = replay(
                lambda: self.make(geometry), commands, self.new_judge(), look_past=self.look_past
            )
        except CannotDrive:
            return None
        for violation in ran.violations:
            if violation.property.id == self.property:
                return Case(geometry, ran.commands, violation)
        return None

    def one_minimal(
        self, geometry: Geometry, commands: Sequence[Command], *, until: float = inf
    ) -> Case | None:
        """The smallest case that cutting reaches; None if the history breaks nothing.

        No single command and no pair can go from it, no length and no geometry can shrink; unless
        time ran out, which is at `until`, as `monotonic` counts.
        """
        case = self.broken(geometry, commands)
        while case is not None:
            smaller = next(self._smaller(case, until), None)
            if smaller is None:
                return case
            case = smaller
        return None

    def _smaller(self, case: Case, until: float) -> Iterator[Case]:
        for geometry, commands in _candidates(case):
            if monotonic() > until:
                return
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
    return (_RANK[command.op], *(_size(getattr(command, f.name)) for f in fields(command)))


def _size(value: object) -> object:
    """The shorter of two prompts is the smaller one."""
    return (len(value), value) if isinstance(value, tuple) else value


def _candidates(case: Case) -> Iterator[tuple[Geometry, History]]:
    """Everything worth trying instead: fewer commands, smaller pools, smaller sizes."""
    commands, geometry = case.commands, case.geometry
    for fewer in chain(_cut(commands), _merged(commands)):
        yield geometry, fewer
    for simpler in _all_simpler(commands):
        yield geometry, simpler
    for smaller in _geometries(geometry):
        yield smaller, commands
    for i, command in enumerate(commands):
        for less in _less(command):
            yield geometry, (*commands[:i], less, *commands[i + 1 :])
    # Last, since what it leads to has smaller blocks but can have more of them.
    for smaller in _geometries(geometry):
        if smaller.block_size < geometry.block_size:
            yield smaller, _scaled(commands, geometry.block_size, smaller.block_size, full=False)
            yield smaller, _scaled(commands, geometry.block_size, smaller.block_size, full=True)


def _cut(commands: History) -> Iterator[History]:
    """Without a run of commands, the longest runs first, then without a pair."""
    size = len(commands) // 2
    while size:
        for start in range(0, len(commands), size):
            yield commands[:start] + commands[start + size :]
        size //= 2
    if len(commands) <= PAIRS_UP_TO:
        for i, j in combinations(range(len(commands)), 2):
            yield tuple(c for k, c in enumerate(commands) if k not in (i, j))


def _merged(commands: History) -> Iterator[History]:
    """All or one of a request's commands of one kind put into the size of an earlier one.

    A prompt of five tokens stands for one of two and three decodes.
    """
    for i, command in enumerate(commands):
        for name in command.sizes:
            later = [
                j
                for j in range(i + 1, len(commands))
                if commands[j].request == command.request and not commands[j].sizes
            ]
            kinds = {
                commands[j].op: [k for k in later if commands[k].op == commands[j].op]
                for j in later
            }
            for gone in (*kinds.values(), *([j] for j in later)):
                larger = replace(command, **{name: getattr(command, name) + len(gone)})
                yield tuple(
                    larger if k == i else c for k, c in enumerate(commands) if k not in gone
                )


EVERY_SIZE_UP_TO = 8
"""Smaller pools and blocks are all tried up to here; of larger ones, halves and one less."""
EVERY_LENGTH_UP_TO = 36
"""The same for lengths in tokens."""


def _geometries(geometry: Geometry) -> list[Geometry]:
    """Smaller geometries, smallest first."""
    return [
        smaller
        for blocks in _up_to(geometry.num_blocks)
        for block_size in _up_to(geometry.block_size)
        for head_dim in sorted({1, geometry.head_dim})
        if (smaller := Geometry(blocks, block_size, head_dim)) < geometry
    ]


def _up_to(number: int, every: int = EVERY_SIZE_UP_TO) -> list[int]:
    few = range(1, min(number, every) + 1)
    return sorted({*few, number, max(1, number - 1), max(1, number // 2)})


def _scaled(commands: History, size: int, smaller: int, *, full: bool) -> History:
    """The same numbers of blocks in smaller ones: the last of each full, or with one token."""
    return tuple(command.scaled(size, smaller, full=full) for command in commands)


def _all_simpler(commands: History) -> Iterator[History]:
    """Every command simpler in the same way: prompts that find each other stay alike."""
    simpler = [list(command.simpler()) for command in commands]
    for k in range(max(map(len, simpler), default=0)):
        yield tuple(
            less[k] if k < len(less) else c for c, less in zip(commands, simpler, strict=True)
        )


def _less(command: Command) -> Iterator[Command]:
    """What asks for less in its place, the smallest first."""
    yield from command.simpler()
    for name in command.sizes:
        value = getattr(command, name)
        for less in _up_to(value, EVERY_LENGTH_UP_TO):
            if less < value:
                yield replace(command, **{name: less})


def _canonical_names(commands: Sequence[Command]) -> History:
    """The history with its requests called 0, 1, 2, ... as they first appear."""
    names: dict[int, int] = {}
    for command in commands:
        for name in command.names():
            names.setdefault(name, len(names))
    return tuple(command.renamed(names) for command in commands)
