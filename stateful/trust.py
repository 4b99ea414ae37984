"""What a search may rely on: keys that tell states apart, copies that are copies.

Both are the target's own where it brings them, generic where not, and both are checked against
plain replays while the search runs. What fails the check is given up, never argued with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

from pagedkv.specs.commands import Command
from pagedkv.specs.model import Setting
from pagedkv.specs.steps import State, Step


@dataclass(frozen=True, slots=True)
class Trust:
    """Which key and which copy are used: the target's own, the generic one, or none."""

    key: Literal["own", "whole", "none"] = "own"
    clone: Literal["own", "deep", "none"] = "own"


@dataclass(frozen=True)
class Distrust(Exception):
    """Something that was relied on did not hold."""

    what: Literal["key", "clone"]
    reason: str

    def __str__(self) -> str:
        return self.reason

    def less(self, trust: Trust) -> Trust:
        """`trust` without what failed; changes nothing."""
        if self.what == "key":
            return replace(trust, key="whole" if trust.key == "own" else "none")
        return replace(trust, clone="deep" if trust.clone == "own" else "none")


class NotDeterministic(Exception):
    """The same commands on a fresh target did something else the second time."""


class System(Protocol):
    """What a driver needs of a world, or of two in lockstep."""

    @property
    def setting(self) -> Setting:
        """What stays the same through a history."""

    @property
    def state(self) -> State:
        """What is known and seen now."""

    def candidates(self) -> list[Command]:
        """Every command that makes sense now, in canonical order; changes nothing."""

    def apply(self, command: Command) -> Step:
        """Run one command. Mutates the system."""

    def hooks(self) -> Trust:
        """What the target brings of its own, where there is nothing yet to distrust."""

    def clone(self, trust: Trust) -> Self:
        """A system of its own in the same state; changes nothing."""

    def key(self, trust: Trust) -> bytes | None:
        """A digest that two systems share only if they behave alike from here on."""


def told(step: Step) -> tuple[object, ...]:
    """Everything that an observer sees of a step, for comparing two of them."""
    seen = step.after.seen
    own = (type(step.outcome), step.returned, seen.snapshot, seen.handles)
    return own if step.peer is None else (*own, told(step.peer))


def same_from_here(
    one: Callable[[], System], other: Callable[[], System], trust: Trust, walk: int = 6
) -> str | None:
    """Continue two makers' systems alike; None if they agree, else the first difference.

    Every command that makes sense is tried on each, and one longer walk.
    """
    first = one()
    commands = first.candidates()
    if commands != other().candidates():
        return "they allow different commands"
    for command in commands:
        a, b = one(), other()
        if told(a.apply(command)) != told(b.apply(command)):
            return f"they answer {command} differently"
        if a.key(trust) != b.key(trust):
            return f"they differ after {command}"
    a, b = one(), other()
    for i in range(walk):
        commands = a.candidates()
        command = commands[(7 * i + 3) % len(commands)]
        if told(a.apply(command)) != told(b.apply(command)):
            return f"they answer {command} differently after {i} more commands"
    return None
