"""The judge: the chosen properties, applied to states and steps, and what they have seen so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from pagedkv.specs.properties import (
    HOLDS,
    Broken,
    EveryState,
    EveryStep,
    Need,
    Property,
    Sometimes,
    Violation,
)
from pagedkv.specs.steps import State, Step


class Judge:
    """Judges states and steps, and counts what was judged.

    properties: those to judge; one whose needs are not all in `offered` is left out.
    evaluations: per property, how often it was judged and had something to judge; a goal is
        judged until it is reached, which is its one evaluation.
    commands: per op, how many steps.
    """

    def __init__(self, properties: Iterable[Property], offered: frozenset[Need]) -> None:
        self.properties = tuple(prop for prop in properties if prop.needs <= offered)
        self.evaluations: Counter[str] = Counter({prop.id: 0 for prop in self.properties})
        self.commands: Counter[str] = Counter()
        self._states = [
            (prop, prop.expectation.judge)
            for prop in self.properties
            if isinstance(prop.expectation, EveryState)
        ]
        self._steps = [
            (prop, prop.expectation.judge)
            for prop in self.properties
            if isinstance(prop.expectation, EveryStep)
        ]
        self._goals = [
            (prop, prop.expectation.reached)
            for prop in self.properties
            if isinstance(prop.expectation, Sometimes)
        ]

    def state(self, state: State, step: int = 0) -> list[Violation]:
        """Judge a state that was not judged before; `step` is where it was reached."""
        found = []
        evaluations = self.evaluations
        for prop, judge in self._states:
            judgement = judge(state)
            if judgement is HOLDS:
                evaluations[prop.id] += 1
            elif isinstance(judgement, Broken):
                evaluations[prop.id] += 1
                found.append(Violation(prop, judgement, step))
        return found

    def step(self, step: Step) -> list[Violation]:
        """Judge a step, not the state it leads to."""
        found = []
        evaluations = self.evaluations
        self.commands[step.command.op] += 1
        for prop, judge in self._steps:
            judgement = judge(step)
            if judgement is HOLDS:
                evaluations[prop.id] += 1
            elif isinstance(judgement, Broken):
                evaluations[prop.id] += 1
                found.append(Violation(prop, judgement, step.index))
        for goal in [goal for goal in self._goals if goal[1](step)]:
            evaluations[goal[0].id] += 1
            self._goals.remove(goal)
        if step.peer is not None:
            found.extend(self._of_peer(step.peer, found))
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
            Violation(prop, judgement, peer.index)
            for prop, judge in self._steps
            if prop.id not in known and isinstance(judgement := judge(peer), Broken)
        ]
        return _of_second(more)


def _of_second(violations: list[Violation]) -> list[Violation]:
    """The same violations, said to be the second target's."""
    return [
        replace(v, broken=replace(v.broken, message=f"the second target: {v.broken.message}"))
        for v in violations
    ]
