"""Append: many tokens at once, all or nothing over several blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pagedkv.specs.abilities.core import lengths
from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command, Handles, Undo
from pagedkv.specs.growth import dead, demand, grown
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import Need, Property, Sometimes
from pagedkv.specs.steps import Expected, State, Step


@dataclass(frozen=True, slots=True)
class Append(Command):
    """Room for `tokens` more tokens of a live request."""

    op: ClassVar[str] = "append"
    sizes: ClassVar[tuple[str, ...]] = ("tokens",)
    tokens: int

    def enabled(self, model: Model, setting: Setting) -> bool:
        tags = model.live.get(self.request)
        able = "append" in setting.declared.abilities and tags is not None
        return able and setting.may_grow(len(tags or ()) + self.tokens)

    def expect(self, model: Model, setting: Setting) -> Expected:
        return demand(model, setting, self.request, len(model.live[self.request]) + self.tokens)

    def prepare(self, handles: Handles, state: State) -> Undo:
        request, count = handles[self.request], self.tokens
        tokens = request.tokens
        tokens.extend([0] * count)

        def undo() -> None:
            del tokens[-count:]
            request.tokens = tokens

        return undo

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_append", (self.tokens,)

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.allocate_for_append(handles[self.request], self.tokens)

    def advance(self, model: Model, setting: Setting) -> Model:
        return grown(model, setting, self.request, self.tokens)


def candidates(model: Model, setting: Setting) -> Iterator[Command]:
    """Every number of tokens that fits behind a live request, one more, and one beyond the pool."""
    if "append" in setting.active:
        size = setting.geometry.block_size
        for r in sorted(model.live):
            room = -len(model.live[r]) % size
            # What goes back behind a window makes room for more.
            gone = len(dead(model, setting, r, len(model.live[r]) + 1)) * size
            more = lengths(model, setting)
            counts = {*range(1, room + 2), *(room + n for n in more)}
            counts |= {room + gone + n for n in more}
            for tokens in sorted(counts):
                if (append := Append(r, tokens)).enabled(model, setting):
                    yield append


def _several(step: Step) -> bool:
    before = step.before.seen.tables.get(step.command.request, ())
    after = step.after.seen.tables.get(step.command.request, ())
    return isinstance(step.command, Append) and step.granted and len(after) - len(before) > 1


APPEND = Ability(
    id="append",
    statement="Many tokens at once: chunked prefill, multi-token decode.",
    commands=(Append,),
    candidates=candidates,
    properties=(
        Property(
            "appended-blocks",
            "An append took several blocks.",
            "append(r, n): len(table) grew by 2 or more",
            Sometimes(_several),
            frozenset({Need.APPEND}),
        ),
    ),
)
