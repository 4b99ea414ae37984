"""Where a recorded history first breaks something, without looking after each of its commands.

A broken state mostly stays broken. So long histories run in chunks, only the state after each
chunk is judged, and only the chunk that ends badly runs again, judged step by step. What breaks
and heals within a chunk is missed by that, so where nothing was found every step is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.properties import Violation
from pagedkv.stateful.replay import MakesNoSense
from pagedkv.stateful.swift import SwiftWorld
from pagedkv.stateful.trust import System

CHUNK = 1000
Tell = Callable[[str, int, int], None]
"""Told the phase, how many commands of it are done, and how many there are."""


def nobody(_phase: str, _done: int, _of: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Break:
    """The first `steps` commands of the history break something; the ones before do not."""

    steps: int
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Locator:
    """What it takes to judge a history.

    make: a fresh target. judge: of everything; thorough: of what every step of a long history is
    judged for where the quick way found nothing. look_past: redundant properties that end no
    history. strict: a command that makes no sense where it stands raises MakesNoSense; else it is
    left out.
    """

    make: Callable[[], System]
    judge: Callable[[], Judge]
    thorough: Callable[[], Judge]
    look_past: Collection[str] = ()
    strict: bool = False
    tell: Tell = nobody

    def locate(self, commands: Sequence[Command]) -> Break | None:
        """The first break; None if there is none. Changes nothing but the targets it makes."""
        world = self.make()
        judge = self.judge()
        fresh = self._left([v for state in world.states for v in judge.state(state)])
        if fresh:
            return Break(0, fresh)
        if len(commands) <= 2 * CHUNK:
            return self._judged(world, commands, 0, judge)
        found = self._quickly(world, commands, judge) if isinstance(world, SwiftWorld) else None
        return found or self._judged(self.make(), commands, 0, self.thorough(), "judging each step")

    def _quickly(
        self, world: SwiftWorld, commands: Sequence[Command], judge: Judge
    ) -> Break | None:
        trust = world.hooks()
        for start in range(0, len(commands), CHUNK):
            try:
                kept = world.clone(trust)
            except Exception:  # noqa: BLE001 - a target need not be copyable
                return None
            chunk = commands[start : start + CHUNK]
            if not world.hurry(chunk, strict=self.strict) or self._left(judge.state(world.state)):
                return self._judged(kept, chunk, start, judge)
            self.tell("looking for the fault", start + len(chunk), len(commands))
        return None

    def _judged(
        self,
        world: System,
        commands: Sequence[Command],
        start: int,
        judge: Judge,
        phase: str = "",
    ) -> Break | None:
        for i, command in enumerate(commands, start=start):
            if not command.enabled(world.state.model, world.setting):
                if self.strict:
                    raise MakesNoSense(i, command)
                continue
            step = world.apply(command)
            violations = self._left(judge.step(step) + judge.reached(step))
            if violations:
                return Break(i + 1, violations)
            if phase and i % CHUNK == 0:
                self.tell(phase, i, len(commands))
        return None

    def _left(self, violations: Sequence[Violation]) -> tuple[Violation, ...]:
        return tuple(v for v in violations if v.property.id not in self.look_past)
