"""Counterexamples from histories: what was broken, and the pool after each command."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.exploration import VARIES
from pagedkv.stateful.replay import replay
from pagedkv.stateful.report import Counterexample, Frame, Proof
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import System

SHOWN = 60
"""The pool is shown after each command of histories of at most so many."""


def others(name: str) -> tuple[str, ...]:
    """The redundant properties beside `name`: their violations end no history."""
    return tuple(prop.id for prop in PROPERTIES.values() if prop.redundant and prop.id != name)


def example_of(
    make: Callable[[], System],
    judge: Callable[[], Judge],
    geometry: Geometry,
    commands: Sequence[Command],
    violation: Violation,
    proof: Proof,
) -> Counterexample:
    """The counterexample of a history that ends in this violation; changes nothing.

    It runs again on a fresh target, unless it is too long to be shown step by step. Raises
    CannotDrive where it does not end so again: what is shown must be what is said.
    """
    prop = violation.property
    frames: tuple[Frame, ...] = ()
    if len(commands) <= SHOWN:
        ran = replay(make, commands, judge(), frames=True, look_past=others(prop.id))
        if all(again.property is not prop for again in ran.violations):
            run = ", ".join(map(str, commands)) or "nothing"
            raise CannotDrive(
                f"{VARIES}: {prop.id} broke after {run}, and not when this was run again"
            )
        frames = ran.frames
    return Counterexample(
        property=prop.id,
        statement=prop.statement,
        equation=prop.equation,
        message=violation.broken.message,
        geometry=geometry,
        commands=tuple(commands),
        proof=proof,
        frames=frames,
        blocks=violation.broken.blocks,
        requests=violation.broken.requests,
    )
