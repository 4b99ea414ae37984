"""Running one given history, judged at every step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.properties import Violation
from pagedkv.specs.steps import State, Step
from pagedkv.stateful.report import Frame
from pagedkv.stateful.trust import System


class MakesNoSense(Exception):
    """A command can't be run where it stands: `index` counts from 0."""

    def __init__(self, index: int, command: Command) -> None:
        super().__init__(
            f"{command} makes no sense where it stands: a call before it was answered otherwise "
            f"than when this was recorded, or it was written wrongly"
        )
        self.index = index


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a history did: the violations at its last step (0 is the fresh state), if any.

    commands: those that ran, up to and with the one that broke something; a command that made
    no sense where it stood is left out.
    """

    commands: tuple[Command, ...]
    violations: tuple[Violation, ...]
    frames: tuple[Frame, ...]


def replay(
    make: Callable[[], System],
    commands: Iterable[Command],
    judge: Judge,
    *,
    frames: bool = False,
    look_past: Collection[str] = (),
    strict: bool = False,
) -> Replayed:
    """Run a history on a fresh target until a property breaks; changes nothing else.

    look_past: redundant properties whose violations do not end the history. strict: raise
    MakesNoSense for a command that can't be run where it stands, instead of leaving it out.
    """
    world = make()
    ran: list[Command] = []
    shown = [_first_frame(world)] if frames else []
    fresh = [violation for state in world.states for violation in judge.state(state)]
    violations = _left(fresh, look_past)
    if violations:
        return Replayed((), violations, tuple(shown))
    for index, command in enumerate(commands):
        if not command.enabled(world.state.model, world.setting):
            if strict:
                raise MakesNoSense(index, command)
            continue
        step = world.apply(command)
        ran.append(command)
        if frames:
            shown.append(frame_of(step.after, step))
        violations = _left(judge.step(step) + judge.reached(step), look_past)
        if violations:
            break
    return Replayed(tuple(ran), violations, tuple(shown))


def _left(violations: Sequence[Violation], look_past: Collection[str]) -> tuple[Violation, ...]:
    return tuple(v for v in violations if v.property.id not in look_past)


def _first_frame(world: System) -> Frame:
    """The fresh pool, or both where two run in lockstep."""
    first, *others = (frame_of(state, None) for state in world.states)
    return replace(first, peer=others[0]) if others else first


def frame_of(state: State, step: Step | None) -> Frame:
    """What the pool looks like in `state`, which `step` led to; changes nothing."""
    snapshot, tables = state.seen.snapshot, state.seen.tables
    held = state.seen.held - {state.setting.declared.null_block}
    named = sorted({*state.setting.usable, *snapshot.reserved, *held})
    owners = {
        block: tuple(r for r in sorted(tables) for entry in tables[r] if entry == block)
        for block in named
    }
    return Frame(
        command=None if step is None else str(step.command),
        outcome="a fresh pool" if step is None else str(step.outcome),
        owners=owners,
        tables=dict(sorted(tables.items())),
        seq_lens=dict(sorted(snapshot.seq_lens.items())),
        free=snapshot.free_blocks,
        reserved=snapshot.reserved,
        cached=snapshot.cached,
        peer=None if step is None or step.peer is None else frame_of(step.peer.after, step.peer),
        shares=state.setting.shares,
        withheld=snapshot.withheld or frozenset(),
        swapped=dict(sorted((snapshot.swapped or {}).items())),
    )
