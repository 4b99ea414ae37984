"""Group: blocks that come back inside a group are withheld until it ends.

withheld is seen  <=>  a group is open
inside a group:  held before - held after <= withheld; withheld only grows, and is not handed out
at its end:      withheld <= free + cached
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import NOBODY, Command, Handles, Undo, nothing_to_undo
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import (
    HOLDS,
    VACUOUS,
    Broken,
    EveryStep,
    Judgement,
    Need,
    Property,
    Sometimes,
)
from pagedkv.specs.show import show
from pagedkv.specs.steps import Expected, Grant, State, Step


@dataclass(frozen=True, slots=True)
class Grouping(Command):
    """The beginning or the end of a group."""

    takes_blocks: ClassVar[bool] = False
    opens: ClassVar[bool]
    request: int = field(default=NOBODY, init=False)

    def enabled(self, model: Model, setting: Setting) -> bool:
        return "group" in setting.declared.abilities and model.grouping != self.opens

    def expect(self, model: Model, setting: Setting) -> Expected:
        return Grant(0, 0)

    def prepare(self, handles: Handles, state: State) -> Undo:
        return nothing_to_undo

    def advance(self, model: Model, setting: Setting) -> Model:
        return replace(model, grouping=self.opens)

    def names(self) -> tuple[int, ...]:
        return ()

    def renamed(self, names: Any) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class GroupBegin(Grouping):
    """Blocks that come back from now on are withheld."""

    op: ClassVar[str] = "group_begin"
    opens: ClassVar[bool] = True

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.free_group_begin()


@dataclass(frozen=True, slots=True)
class GroupEnd(Grouping):
    """The withheld blocks come back."""

    op: ClassVar[str] = "group_end"
    opens: ClassVar[bool] = False

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.free_group_end()


def candidates(model: Model, setting: Setting) -> Iterator[Command]:
    """The one of the two that makes sense."""
    if "group" in setting.active:
        yield GroupEnd() if model.grouping else GroupBegin()


def judge_withheld(step: Step) -> Judgement:
    """Inside a group blocks that come back are withheld, all of them, and come back at its end."""
    was, now = step.before.seen.snapshot.withheld, step.after.seen.snapshot.withheld
    grouping = step.after.model.grouping
    if grouping != (now is not None):
        state = "open" if grouping else "not open"
        return Broken(f"withheld = {show(now)} though a group is {state}; after {step.command}")
    if was is None and now is None:
        return VACUOUS
    before, after = step.before.seen, step.after.seen
    null = step.after.setting.declared.null_block
    if early := (was or frozenset()) & after.held:
        return Broken(
            f"{step.command} handed out block {min(early)}, which is withheld", tuple(sorted(early))
        )
    if now is None:
        snapshot = after.snapshot
        back = snapshot.cached.union(snapshot.free_blocks or (), snapshot.pending or ())
        seen = snapshot.free_blocks is not None
        lost = (was or frozenset()) - back if seen else frozenset()
    else:
        lost = ((was or frozenset()) | (before.held - after.held)) - now - {null}
    if lost:
        return Broken(
            f"{step.command}: withheld {show(was)} before, {show(now)} after; block {min(lost)} is "
            f"missing",
            tuple(sorted(lost)),
        )
    return HOLDS


def _came_back(step: Step) -> bool:
    return isinstance(step.command, GroupEnd) and bool(step.before.seen.snapshot.withheld)


GROUP = Ability(
    id="group",
    statement="Blocks released inside a group come back when it ends.",
    commands=(GroupBegin, GroupEnd),
    candidates=candidates,
    properties=(
        Property(
            "withheld",
            "Blocks that come back inside a group are withheld until it ends, and then are there.",
            "group open: withheld += held before - held after; closed: withheld = {}",
            EveryStep(judge_withheld),
            frozenset({Need.GROUP}),
        ),
        Property(
            "group-freed",
            "A group that withheld a block ended.",
            "group_end with withheld != {}",
            Sometimes(_came_back),
            frozenset({Need.GROUP}),
        ),
    ),
)
