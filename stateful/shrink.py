"""From a recorded history to the shortest core that breaks the same property.

The fixed scope is searched first, and those of what the history uses beyond it: most faults
show there, and what is found there is proven shortest, however long the history was. Only for the
others the history itself is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import Fault
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.examples import example_of, others
from pagedkv.stateful.exploration import Found
from pagedkv.stateful.injecting import example_under_fault, rerun_under_fault
from pagedkv.stateful.locate import Break, Locator, Tell, nobody
from pagedkv.stateful.minimise import Case, Minimiser
from pagedkv.stateful.naming import renamed
from pagedkv.stateful.profiles import EVERY, Scope
from pagedkv.stateful.proving import Prover, Searched
from pagedkv.stateful.reduce import Reducer
from pagedkv.stateful.report import Counterexample, Proof, Unfinished
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.swift import SwiftWorld
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.traces import Trace
from pagedkv.stateful.trust import System

SMALL_NAMES = 64
"""Requests are renamed where a recorded id is not below this: tags are made from names."""
FIXED_SECONDS = 12.0
"""How long the fixed scope may be searched, and so long that of abilities."""
LOOKED_AT = 500
"""Up to so many commands are tried without pairs, merges and smaller sizes, each judged whole."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What a recorded history came down to.

    example: None if the history breaks nothing. commands: how many of the recorded ones ran, up
    to the violation; None if the fixed scope had the answer. unfinished: why the example could be
    shorter yet; None if cutting was finished.
    """

    example: Counterexample | None
    commands: int | None = None
    unfinished: str | None = None


def shrink(
    subject: Subject, trace: Trace, *, seconds: float = 120.0, tell: Tell = nobody
) -> Shrunk:
    """Cut a recorded history down; changes nothing but the targets it makes.

    seconds: how long cutting the history may take. Raises CannotDrive if the target can't be made
    with the trace's geometry. KeyboardInterrupt ends with the shortest so far, if there is one.
    So it does for a history inside which a call fails: such a one is found shortest first.
    """
    if trace.fault is not None:
        raise CannotDrive("a call inside it fails, which was looked for shortest first; replay it")
    return _Shrinking(subject, trace, seconds, tell).run()


def rerun(subject: Subject, trace: Trace, tell: Tell = nobody) -> Counterexample | None:
    """Run a recorded history again, as it is; None if it breaks nothing any more.

    What breaks is the recorded property, if it is among those that the first bad step breaks.
    Raises CannotDrive, and MakesNoSense for a command that can't be run where it stands.
    """
    if trace.fault is not None:
        return _rerun_under_fault(subject, trace, trace.fault)
    history = History(subject, trace)
    found = history.locator(strict=True, tell=tell).locate(history.commands)
    if found is None:
        return None
    commands = history.commands[: found.steps]
    proof = Unfinished("it is as it was recorded")
    return history.example(history.geometry, commands, history.which(found), proof)


def _rerun_under_fault(subject: Subject, trace: Trace, fault: Fault) -> Counterexample | None:
    proof = Unfinished("it is as it was recorded")
    geometry, commands = trace.geometry, trace.commands
    try:
        broken = rerun_under_fault(subject, geometry, commands, fault)
    except ValueError as error:
        raise CannotDrive(str(error)) from error
    if broken is None:
        return None
    return example_under_fault(subject, geometry, commands, fault, broken, proof)


class History:
    """A recorded history on one subject: what makes its worlds, and what judges them."""

    def __init__(self, subject: Subject, trace: Trace) -> None:
        self.subject, self.trace, self.geometry = subject, trace, trace.geometry
        commands = trace.commands
        if max((command.request for command in commands), default=0) >= SMALL_NAMES:
            commands = renamed(commands)
        self.commands: tuple[Command, ...] = commands
        self._requests = max((command.request for command in commands), default=0) + 1
        fresh = self.world(self.geometry)
        self.declared = fresh.setting.declared
        self._offered = offered(*fresh.states)

    def world(self, geometry: Geometry) -> System:
        """A fresh world that keeps released handles. Raises CannotDrive."""
        if len(self.subject.factories) == 1:
            (factory,) = self.subject.factories
            return SwiftWorld(
                factory, geometry, requests=self._requests, keeps_released=True, abilities=EVERY
            )
        scope = Scope("trace", (geometry,), self._requests, keeps_released=True, abilities=EVERY)
        return self.subject.world(scope, geometry)

    def judge(self, only: str | None = None) -> Judge:
        """Of one property, or of all."""
        chosen = PROPERTIES.values() if only is None else [PROPERTIES[only]]
        return Judge(chosen, self._offered)

    def locator(self, *, strict: bool = False, tell: Tell = nobody) -> Locator:
        """What finds the first break; a recorded property is not hidden by redundant ones."""
        breaks = self.trace.breaks
        return Locator(
            lambda: self.world(self.geometry),
            self.judge,
            lambda: self.judge(breaks),
            () if breaks is None else others(breaks),
            strict,
            tell,
        )

    def which(self, found: Break) -> Violation:
        """The recorded property's violation, or the first one."""
        named = (v for v in found.violations if v.property.id == self.trace.breaks)
        return next(named, found.violations[0])

    def example(
        self,
        geometry: Geometry,
        commands: Sequence[Command],
        violation: Violation,
        proof: Proof,
    ) -> Counterexample:
        """The counterexample of a history that ends in this violation."""
        return example_of(
            lambda: self.world(geometry),
            self.judge,
            geometry,
            commands,
            violation,
            proof,
        )


class _Shrinking:
    """The steps of one shrinking."""

    def __init__(self, subject: Subject, trace: Trace, seconds: float, tell: Tell) -> None:
        self._history = History(subject, trace)
        self._subject, self._trace, self._tell = subject, trace, tell
        self._until = monotonic() + seconds
        self._best: Case | None = None

    def run(self) -> Shrunk:
        history, name = self._history, self._trace.breaks
        searched = None if name is None else self._search(name)
        if searched is not None and searched.found is not None:
            return self._fixed(searched, searched.found)
        found = history.locator(tell=self._tell).locate(history.commands)
        if found is None:
            return Shrunk(None)
        violation = history.which(found)
        other = violation.property.id
        if searched is None or other != name:
            searched = self._search(other)
            if searched.found is not None:
                return self._fixed(searched, searched.found)
        self._best = Case(history.geometry, history.commands[: found.steps], violation)
        return self._cut(searched, found.steps)

    def _search(self, name: str) -> Searched:
        """The fixed scope, and that of the history's abilities, searched for one property."""
        history, declared = self._history, self._history.declared
        prover = Prover(self._subject, declared, history.judge, FIXED_SECONDS, self._tell)
        return prover.search(name, history.commands)

    def _fixed(self, searched: Searched, found: Found) -> Shrunk:
        proof = searched.proof_of(found)
        return Shrunk(self._history.example(found.geometry, found.commands, found.violation, proof))

    def _cut(self, searched: Searched, steps: int) -> Shrunk:
        unfinished = None
        try:
            finished = self._reduce(searched.name)
            if not finished:
                unfinished = "the time for cutting was spent"
        except KeyboardInterrupt:
            unfinished = "interrupted"
        best = self._best
        assert best is not None
        proof = searched.proof_beside(len(best.commands))
        if unfinished is not None:
            proof = Unfinished(unfinished)
        example = self._history.example(best.geometry, best.commands, best.violation, proof)
        return Shrunk(example, steps, unfinished)

    def _reduce(self, name: str) -> bool:
        """Make `_best` smaller; returns whether cutting was finished."""
        history, best = self._history, self._best
        assert best is not None
        reducer = Reducer(
            lambda: history.world(history.geometry),
            lambda: history.judge(name),
            name,
            self._until,
            self._tell,
        )
        minimiser = Minimiser(history.world, history.judge, name, others(name))
        commands, finished = reducer.reduce(best.commands)
        case = minimiser.broken(history.geometry, commands)
        if case is None:
            # Something else broke first on the way, where nobody looked.
            commands, finished = best.commands, len(best.commands) <= LOOKED_AT
        else:
            self._best = case
        if len(commands) <= LOOKED_AT:
            smallest = minimiser.one_minimal(history.geometry, commands, until=self._until)
            self._best = smallest or self._best
        return finished and monotonic() < self._until
