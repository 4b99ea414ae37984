"""Fork: a second request over the same blocks, and the copy before a write.

What each table must read back is judged by `contents`, that blocks are shared only where the same
tokens stand by `table-unique`, and their references by `ref-counts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pagedkv.protocol import Request
from pagedkv.specs.abilities.core import put
from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command, Handles, Undo
from pagedkv.specs.growth import copies_at_fork, forked, free_name
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import Need, Property, Sometimes
from pagedkv.specs.steps import Expected, Grant, State, Step


@dataclass(frozen=True, slots=True)
class Fork(Command):
    """A new request that holds what the live request `parent` holds."""

    op: ClassVar[str] = "fork"
    takes: ClassVar[bool] = True
    begins: ClassVar[bool] = True
    parent: int

    def enabled(self, model: Model, setting: Setting) -> bool:
        taken = self.request in model.live or self.request in model.swapped
        return "fork" in setting.declared.abilities and not taken and self.parent in model.live

    def expect(self, model: Model, setting: Setting) -> Expected:
        need = int(copies_at_fork(model, setting, self.parent))
        return Grant(need, need + setting.declared.lookahead)

    def prepare(self, handles: Handles, state: State) -> Undo:
        parent = handles[self.parent]
        # Of the parent's true length: its handle may have been changed.
        seq_len = len(state.model.live[self.parent])
        tokens = [*parent.tokens, *[0] * seq_len][:seq_len]
        child = Request(self.request, seq_len, tokens, extra_key=parent.extra_key)
        return put(handles, self.request, child)

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_fork", ()

    def asks_about(self) -> int:
        return self.parent

    def written(self, manager: Any, before: State, request: Request) -> int:
        return len(before.model.live[self.parent])

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.fork_request(handles[self.parent], handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        return forked(model, setting, self.parent, self.request)

    def names(self) -> tuple[int, ...]:
        return (self.request, self.parent)

    def renamed(self, names: Any) -> Self:
        return type(self)(names[self.request], names[self.parent])


def candidates(model: Model, setting: Setting) -> Iterator[Command]:
    """A fork of every live request."""
    if "fork" in setting.active and (fresh := free_name(model, setting)) is not None:
        for r in sorted(model.live):
            yield Fork(fresh, r)


def _shared(step: Step) -> bool:
    tables = step.after.seen.tables.values()
    null = step.after.setting.declared.null_block
    entries = [block for table in tables for block in table if block != null]
    return len(set(entries)) < len(entries)


def _copied(step: Step) -> bool:
    """A request that only grew has another block where it had one."""
    own = step.command.request
    before, after = step.before.seen.tables.get(own), step.after.seen.tables.get(own)
    return bool(step.granted and before and after and after[: len(before)] != before)


FORK = Ability(
    id="fork",
    statement="A second request over the same blocks; a shared tail is copied before a write.",
    commands=(Fork,),
    candidates=candidates,
    properties=(
        Property(
            "block-shared",
            "Two requests held one block.",
            "references(b) >= 2",
            Sometimes(_shared),
            frozenset({Need.FORK}),
        ),
        Property(
            "tail-copied",
            "A shared tail was copied before a write.",
            "table[-1] before != table[same] after a write",
            Sometimes(_copied),
            frozenset({Need.LAZY_FORK}),
        ),
    ),
)
