"""Cutting a long history that ends in a violation: first by whole requests, then by commands.

Nothing runs from the start that needs not: worlds are kept along the history, and a candidate
starts from the last one before its first cut. Nothing is looked at but the last command.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.stateful.locate import Tell, nobody
from pagedkv.stateful.naming import lives
from pagedkv.stateful.swift import SwiftWorld
from pagedkv.stateful.trust import System

FIRST_WINDOW = 64
KEPT_WORLDS = 16
SHORTEST_STRETCH = 64
"""Below so many commands a kept world saves less than it costs."""


@dataclass(frozen=True, slots=True)
class Reducer:
    """What it takes to say whether a history's last command breaks the property.

    judge: of that property alone. until: when to stop, as `monotonic` counts.
    """

    make: Callable[[], System]
    judge: Callable[[], Judge]
    property: str
    until: float
    tell: Tell = nobody

    def reduce(self, commands: Sequence[Command]) -> tuple[tuple[Command, ...], bool]:
        """A shorter history that still ends in the violation, and whether cutting was finished.

        Then no single command but the last can go. Where the whole history does not break the
        property again, it comes back as it is.
        """
        tape = self._window(commands)
        if tape is None:
            return tuple(commands), True
        finished = self._drop(tape, "cutting requests", _requests)
        finished = finished and self._drop(tape, "cutting commands", _singles)
        return tuple(tape.commands), finished

    def _window(self, commands: Sequence[Command]) -> _Tape | None:
        """The requests of the last so many commands, whole, and nothing else.

        Four times as many at each try: all of them cost a third more than the last alone.
        """
        about = lives(commands)
        size = FIRST_WINDOW
        while True:
            alive = set(about[-size:])
            window = [c for c, life in zip(commands, about, strict=True) if life in alive]
            self.tell("cutting requests", len(window), len(commands))
            tape = _Tape(self)
            if tape.accepts(0, window):
                return tape
            if size >= len(commands):
                return None
            size *= 4

    def _drop(
        self, tape: _Tape, phase: str, units_of: Callable[[Sequence[Command]], list[list[int]]]
    ) -> bool:
        """Drop runs of units, long ones first; returns False if time ran out.

        Loop invariant: the tape's last command breaks the property, and the units from `at` on
        were not tried in runs of `size`.
        """
        units = units_of(tape.commands)
        size = max(1, len(units) // 2)
        while True:
            at, dropped = 0, False
            while at < len(units):
                if monotonic() > self.until:
                    return False
                gone = {i for unit in units[at : at + size] for i in unit}
                gone.discard(len(tape.commands) - 1)
                if gone and tape.drops(gone):
                    units, dropped = units_of(tape.commands), True
                else:
                    at += size
                self.tell(phase, at, len(units))
            if size == 1 and not dropped:
                return True
            size = max(1, size // 2)


def _requests(commands: Sequence[Command]) -> list[list[int]]:
    """The positions of each request's commands, by request."""
    units: dict[int, list[int]] = {}
    for i, life in enumerate(lives(commands)):
        units.setdefault(life, []).append(i)
    return list(units.values())


def _singles(commands: Sequence[Command]) -> list[list[int]]:
    return [[i] for i in range(len(commands) - 1)]


class _Tape:
    """A history whose last command breaks the property, and worlds kept along it.

    Invariant: `_worlds[k]` is where the first `_starts[k]` commands lead, and is never moved.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self.commands: list[Command] = []
        self._starts: list[int] = [0]
        self._worlds: list[System | None] = [None]

    def drops(self, gone: set[int]) -> bool:
        """Drop the commands at these positions if the rest still breaks the property."""
        k = bisect_right(self._starts, min(gone)) - 1
        start = self._starts[k]
        rest = [c for i, c in enumerate(self.commands[start:], start) if i not in gone]
        return self.accepts(k, rest)

    def accepts(self, k: int, rest: Sequence[Command]) -> bool:
        """Go on with `rest` from the k-th kept world if its last command breaks the property."""
        start = self._starts[k]
        world = self._fork(k)
        if world is None or not rest:
            return False
        starts, worlds = self._starts[: k + 1], self._worlds[: k + 1]
        stretch = max(SHORTEST_STRETCH, (start + len(rest)) // KEPT_WORLDS)
        for at, piece in _pieces(rest[:-1], stretch):
            if not _moved(world, piece):
                return False
            if len(piece) == stretch and (kept := _copy(world)) is not None:
                starts.append(start + at + stretch)
                worlds.append(kept)
        if not self._breaks(world, rest[-1]):
            return False
        self.commands = [*self.commands[:start], *rest]
        self._starts, self._worlds = starts, worlds
        return True

    def _fork(self, k: int) -> System | None:
        world = self._worlds[k]
        return self._reducer.make() if world is None else _copy(world)

    def _breaks(self, world: System, command: Command) -> bool:
        judge = self._reducer.judge()
        if not command.enabled(world.state.model, world.setting):
            return False
        if any(judge.state(state) for state in world.states):
            return False
        step = world.apply(command)
        return any(
            violation.property.id == self._reducer.property
            for violation in judge.step(step) + judge.reached(step)
        )


def _pieces(commands: Sequence[Command], size: int) -> Iterator[tuple[int, Sequence[Command]]]:
    return ((at, commands[at : at + size]) for at in range(0, len(commands), size))


def _moved(world: System, commands: Sequence[Command]) -> bool:
    if isinstance(world, SwiftWorld):
        return world.hurry(commands)
    for command in commands:
        if command.enabled(world.state.model, world.setting):
            world.apply(command)
    return True


def _copy(world: System) -> System | None:
    """A copy, or None: a target need not be copyable, and what copies badly shows in the end."""
    try:
        return world.clone(world.hooks())
    except Exception:  # noqa: BLE001 - whatever a target's copying raises
        return None
