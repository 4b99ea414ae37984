"""One command inside which a call fails, on one world; and one history with its failure, again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from pagedkv.protocol import PagedKVManager
from pagedkv.specs.commands import Command, Handles
from pagedkv.specs.faults import Fault, Mode
from pagedkv.specs.model import Geometry, Model
from pagedkv.specs.properties import Broken
from pagedkv.specs.steps import Step
from pagedkv.stateful.aftermath import Aftermath
from pagedkv.stateful.copying import freeze
from pagedkv.stateful.opaque import Opaque
from pagedkv.stateful.points import Injector
from pagedkv.stateful.replay import frame_of
from pagedkv.stateful.report import Frame
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.world import World

MakeWorld = Callable[[Geometry], World]


class Failing:
    """A command that stands for itself, but inside which a call fails."""

    def __init__(self, command: Command, injector: Injector, call: int, mode: Mode) -> None:
        self.op, self.request, self.takes_blocks = command.op, command.request, command.takes_blocks
        self.expect, self.advance = command.expect, command.advance
        self.prepare, self.enabled = command.prepare, command.enabled
        self.written, self.names = command.written, command.names
        self.question, self.asks_about = command.question, command.asks_about
        self._command, self._injector, self._call, self._mode = command, injector, call, mode

    def perform(self, manager: PagedKVManager, handles: Handles) -> object:
        perform = self._command.perform
        return self._injector.run(lambda: perform(manager, handles), self._call, self._mode)

    # What is remembered of the command holds for this too.
    def __eq__(self, other: object) -> bool:
        return self._command == (other._command if isinstance(other, Failing) else other)

    def __hash__(self) -> int:
        return hash(self._command)

    def __str__(self) -> str:
        return f"{self._command} [call {self._call} fails{_on(self._mode)}]"


def _on(mode: Mode) -> str:
    return "" if mode == "once" else ", and all later ones"


def apply_failing(
    world: World, command: Command, injector: Injector, call: int, mode: Mode
) -> Step:
    """Run one command with a call failing. Mutates the world; the step is the command's own."""
    failing = cast(Command, Failing(command, injector, call, mode))
    return world.apply(failing)._replace(command=command)


def whole_of(world: World) -> bytes | None:
    """The whole state, hidden parts and all; None if it can't be seen. Changes nothing."""
    try:
        inner = freeze((world.manager, world.handles))
    except Opaque:
        return world.key(Trust("whole"))
    except Exception:  # noqa: BLE001 - an object may do anything when it is looked at
        return None
    model = world.state.model
    known = model.identity if world.setting.declared.abilities else _lengths(model)
    return inner + repr((world.pool.key(None), known)).encode()


def _lengths(model: Model) -> object:
    return ([(r, len(tags)) for r, tags in model.live.items()], model.released)


def under_fault(
    make: MakeWorld,
    geometry: Geometry,
    commands: Sequence[Command],
    fault: Fault,
    injector: Injector,
    aftermath: Aftermath,
) -> Broken | None:
    """Run one history with its failure on a fresh target; what it breaks, with the place.

    Changes nothing but the targets it makes. None too if the call that is to fail is not reached.
    """
    world, twin = make(geometry), make(geometry)
    before, command = commands[: fault.step - 1], commands[fault.step - 1]
    for one in before:
        world.apply(one)
        twin.apply(one)
    step = apply_failing(world, command, injector, fault.call, fault.mode)
    where = injector.first
    if where is None:
        return None
    broken = aftermath.at_once(step)
    due = apply_failing(twin, command, injector, 0, "once")
    total = injector.points
    if broken is None:
        if not step.granted:
            twin = make(geometry)
            for one in before:
                twin.apply(one)
        elif not due.granted:
            return None
        broken = aftermath.follow(world, twin, commands[fault.step :])
    if broken is None:
        return None
    place = f"failed at call {fault.call} of {total}: {where}, {fault.mode}"
    place = place if fault.mode == "once" else f"{place}: every later call failed too"
    place = place if fault.step == len(commands) else f"before, {command} {place}"
    return Broken(f"{broken.message}; {place}", broken.blocks, broken.requests)


def frames_under_fault(
    world: World, commands: Sequence[Command], fault: Fault, injector: Injector
) -> tuple[Frame, ...]:
    """The pool after each command of a history with its failure. Mutates the world."""
    shown = [frame_of(world.state, None)]
    for number, command in enumerate(commands, start=1):
        if number == fault.step:
            failing = cast(Command, Failing(command, injector, fault.call, fault.mode))
            step = world.apply(failing)
        else:
            step = world.apply(command)
        shown.append(frame_of(step.after, step))
    return tuple(shown)
