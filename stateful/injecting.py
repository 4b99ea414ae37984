"""The part of a campaign that makes calls fail, in a process of its own.

A trace function takes the place of a coverage tool's or a debugger's while a command runs, and a
failure in a target written in C may end the process: neither is the campaign's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from pagedkv.specs.commands import Command
from pagedkv.specs.faults import UNDER_FAULT, Fault
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Broken
from pagedkv.stateful.aftermath import Aftermath
from pagedkv.stateful.apart import Lost, Note, Tell, Unsendable, apart
from pagedkv.stateful.exploration import INTERRUPTED, Limits, Progress
from pagedkv.stateful.failing import frames_under_fault, under_fault
from pagedkv.stateful.injection import Found, Sweep, Terms, sweep
from pagedkv.stateful.points import Injector, modules_of
from pagedkv.stateful.profiles import EVERY, Scope
from pagedkv.stateful.report import Counterexample, Injection, OneMinimal, Proof, Shortest
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.world import World

if TYPE_CHECKING:
    from pagedkv.stateful.subject import Subject

GRACE_SECONDS = 60.0
"""How long past its budget the other process may take before it is ended."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is tried.

    scopes, limits: what is searched, and each one's limits, the main scope first. trust: what may
    be relied on, as the searches without failures found. past: redundant properties that the
    target breaks anyway. depth: histories of so many commands must have been tried.
    """

    subject: Subject
    scopes: tuple[Scope, ...]
    limits: tuple[Limits, ...]
    trust: Trust
    past: frozenset[str]
    depth: int


@dataclass(frozen=True, slots=True)
class Injected:
    """What came of it. `trouble` is why it can't be relied on, None if it can."""

    injection: Injection
    example: Counterexample | None
    trouble: str | None


def inject_apart(task: Task, tell: Callable[[str, Progress], None]) -> Injected:
    """Try it in a process of its own, or in this one where the target can't be sent to another.

    Changes nothing but the targets it makes.
    """

    def told(value: object) -> None:
        tell(*cast(tuple[str, Progress], value))

    seconds = sum(limits.hard_seconds or 0.0 for limits in task.limits) + GRACE_SECONDS
    try:
        return apart(inject, task, told, seconds)
    except Unsendable:
        return inject(task, told, lambda _: None)
    except Lost as lost:
        return _nothing(str(lost))
    except KeyboardInterrupt:
        return _nothing(INTERRUPTED)


def _nothing(reason: str) -> Injected:
    return Injected(Injection(stopped=reason), None, reason)


def inject(task: Task, tell: Tell, note: Note) -> Injected:
    """Search all scopes, each later one only for what is shorter than what was found."""
    swept: list[Sweep] = []
    found: Found | None = None
    for scope, limits in zip(task.scopes, task.limits, strict=True):
        if found is not None:
            limits = replace(limits, depth=len(found.commands) - 1)  # noqa: PLW2901 - only shorter
        terms = Terms(limits, task.past, on_progress=_telling(tell, scope), note=note)
        swept.append(sweep(_maker(task.subject, scope), scope.geometries, terms, task.trust))
        found = swept[-1].found or found
        if swept[-1].stopped == INTERRUPTED:
            break
    figures = _together(task, swept)
    if found is None:
        return Injected(figures, None, _trouble(task, swept, figures))
    return Injected(figures, _example(task, swept, found), None)


def _telling(tell: Tell, scope: Scope) -> Callable[[Progress], None]:
    return lambda progress: tell((f"{scope.words}, calls failing", progress))


def _maker(subject: Subject, scope: Scope) -> Callable[[Geometry], World]:
    return lambda geometry: cast(World, subject.world(scope, geometry))


def _together(task: Task, swept: list[Sweep]) -> Injection:
    """The figures of all searches."""
    whole = Injection(scope="; ".join(map(str, task.scopes)))
    stopped = []
    for scope, one in zip(task.scopes, swept, strict=False):
        counts = one.counts
        whole.states += counts.states
        whole.commands += counts.commands
        whole.points += counts.points
        whole.failures += counts.failures
        whole.spared += counts.spared
        whole.retried += counts.retried
        whole.unseen += counts.unseen
        whole.places = max(whole.places, counts.places)
        whole.inside |= counts.inside
        if one.stopped is not None:
            stopped.append(f"{scope.words}: {one.stopped}")
    whole.stopped = "; ".join(stopped) or None
    return whole


def _trouble(task: Task, swept: list[Sweep], figures: Injection) -> str | None:
    for one in swept:
        if not one.covers(task.depth):
            return f"calls made to fail: stopped at depth {one.depth}: {one.stopped}"
    if not figures.points:
        where = ", ".join(sorted(figures.inside)) or "it has no code here"
        return f"no call inside the target can be made to fail ({where})"
    return None


def _example(task: Task, swept: list[Sweep], found: Found) -> Counterexample:
    steps = len(found.commands)
    states = 1 + sum(one.counts.states for one in swept)  # and the one that it was found in
    short = [one for one in swept if not one.covers(steps - 1)]
    proof: Proof = Shortest(states)
    if found.fault.step < steps:
        proof = OneMinimal("what the failure left behind shows only later")
    elif short:
        proof = OneMinimal(f"the search ended: {short[0].stopped}")
    elif task.scopes[0].name != "fixed":
        proof = OneMinimal(f"only {task.scopes[0]} were searched")
    return example_under_fault(
        task.subject, found.geometry, found.commands, found.fault, found.broken, proof
    )


def example_under_fault(
    subject: Subject,
    geometry: Geometry,
    commands: tuple[Command, ...],
    fault: Fault,
    broken: Broken,
    proof: Proof,
) -> Counterexample:
    """The counterexample of a history with its failure; runs it once more."""
    world = _replaying(subject, geometry, commands)(geometry)
    injector = Injector(modules_of(world.manager))
    return Counterexample(
        property=UNDER_FAULT.id,
        statement=UNDER_FAULT.statement,
        equation=UNDER_FAULT.equation,
        message=broken.message,
        geometry=geometry,
        commands=commands,
        proof=proof,
        frames=frames_under_fault(world, commands, fault, injector),
        blocks=broken.blocks,
        requests=broken.requests,
        fault=fault,
    )


def _replaying(
    subject: Subject, geometry: Geometry, commands: tuple[Command, ...]
) -> Callable[[Geometry], World]:
    names = max((command.request for command in commands), default=0) + 1
    return _maker(
        subject, Scope("replay", (geometry,), names, keeps_released=True, abilities=EVERY)
    )


def rerun_under_fault(
    subject: Subject, geometry: Geometry, commands: tuple[Command, ...], fault: Fault
) -> Broken | None:
    """Run a history with its failure on a fresh target, in this process; what it breaks.

    Changes nothing but the targets it makes. Raises CannotDrive, and ValueError where there is no
    such command or the subject is two targets.
    """
    if len(subject.factories) != 1:
        raise ValueError("calls are made to fail inside one target, not inside two in lockstep")
    if fault.step > len(commands):
        raise ValueError(f"step = {fault.step} of a fault in a history of {len(commands)}")
    make = _replaying(subject, geometry, commands)
    fresh = make(geometry)
    injector = Injector(modules_of(fresh.manager))
    return under_fault(make, geometry, commands, fault, injector, Aftermath(fresh))
