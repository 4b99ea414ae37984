"""The judge: the chosen properties, applied to states and steps, and what they have seen so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pagedkv.specs.properties import (
    HOLDS,
    VACUOUS,
    Broken,
    EveryState,
    EveryStep,
    Expectation,
    Need,
    Property,
    Sometimes,
    Violation,
)
from pagedkv.specs.steps import State, Step


class _Tally:
    """One property and how often it was judged and had something to judge."""

    __slots__ = ("judge", "property", "times")

    def __init__(self, prop: Property) -> None:
        self.property, self.times = prop, 0
        due = prop.expectation
        self.judge: Callable[[Any], Any] = due.reached if isinstance(due, Sometimes) else due.judge


class Judge:
    """Judges states and steps, and counts what was judged.

    properties: those to judge; one whose needs are not all in `offered` is left out.
    commands: per op, how many steps.
    """

    def __init__(self, properties: Iterable[Property], offered: frozenset[Need]) -> None:
        self.properties = tuple(prop for prop in properties if prop.needs <= offered)
        self.commands: Counter[str] = Counter()
        self._tallies = [_Tally(prop) for prop in self.properties]
        self._states = self._of(EveryState)
        self._steps = self._of(EveryStep)
        self._goals = self._of(Sometimes)

    def _of(self, kind: type[Expectation]) -> list[_Tally]:
        return [t for t in self._tallies if isinstance(t.property.expectation, kind)]

    @property
    def evaluations(self) -> Counter[str]:
        """Per property, how often it was judged and had something to judge.

        A goal is judged until it is reached, which is its one evaluation.
        """
        return Counter({tally.property.id: tally.times for tally in self._tallies})

    def state(self, state: State, step: int = 0) -> list[Violation]:
        """Judge a state that was not judged before; `step` is where it was reached."""
        return self._judged(self._states, state, step)

    def step(self, step: Step) -> list[Violation]:
        """Judge a step, not the state it leads to."""
        self.commands[step.command.op] += 1
        found = self._judged(self._steps, step, step.index)
        if self._goals:
            for goal in [goal for goal in self._goals if goal.judge(step)]:
                goal.times = 1
                self._goals.remove(goal)
        if step.peer is not None:
            found.extend(self._of_peer(step.peer, found))
        return found

    @staticmethod
    def _judged(tallies: list[_Tally], what: State | Step, step: int) -> list[Violation]:
        found = []
        for tally in tallies:
            judgement = tally.judge(what)
            if judgement is VACUOUS:
                continue
            tally.times += 1
            if judgement is not HOLDS:
                found.append(Violation(tally.property, judgement, step))
        return found

    def reached(self, step: Step) -> list[Violation]:
        """Judge the state that a step leads to, of both targets in lockstep."""
        found = self.state(step.after, step.index) if step.observed else []
        if step.peer is not None and step.peer.observed and not found:
            found = _of_second(self.state(step.peer.after, step.index))
        return found

    def _of_peer(self, peer: Step, found: list[Violation]) -> list[Violation]:
        known = {violation.property.id for violation in found}
        more = [
            Violation(tally.property, judgement, peer.index)
            for tally in self._steps
            if tally.property.id not in known and isinstance(judgement := tally.judge(peer), Broken)
        ]
        return _of_second(more)


def _of_second(violations: list[Violation]) -> list[Violation]:
    """The same violations, said to be the second target's."""
    return [
        replace(v, broken=replace(v.broken, message=f"the second target: {v.broken.message}"))
        for v in violations
    ]
