"""Truncate: the last tokens of a request go, as rejected drafts do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command, Handles, Undo
from pagedkv.specs.growth import cut
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import Need, Property, Sometimes
from pagedkv.specs.steps import Expected, Grant, State, Step


@dataclass(frozen=True, slots=True)
class Truncate(Command):
    """A live request keeps its first `tokens` tokens."""

    op: ClassVar[str] = "truncate"
    sizes: ClassVar[tuple[str, ...]] = ("tokens",)
    takes_blocks: ClassVar[bool] = False
    tokens: int

    def enabled(self, model: Model, setting: Setting) -> bool:
        able = "truncate" in setting.declared.abilities
        return able and 0 < self.tokens <= len(model.live.get(self.request, ()))

    def expect(self, model: Model, setting: Setting) -> Expected:
        return Grant(0, 0)

    def prepare(self, handles: Handles, state: State) -> Undo:
        request = handles[self.request]
        tokens = request.tokens
        request.tokens = tokens[: self.tokens]

        def undo() -> None:
            request.tokens = tokens

        return undo

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.truncate_request(handles[self.request], self.tokens)

    def advance(self, model: Model, setting: Setting) -> Model:
        return cut(model, setting, self.request, self.tokens)


EDGES_FROM = 16
"""Tokens from which only lengths at block edges are tried."""


def candidates(model: Model, setting: Setting) -> Iterator[Command]:
    """Every length of every live request, its own too; of long ones, those at block edges.

    Its own is what is kept where all drafts were accepted.
    """
    if "truncate" in setting.active:
        size, ahead = setting.geometry.block_size, setting.declared.lookahead_tokens
        for r, tags in sorted(model.live.items()):
            there = len(tags)
            for tokens in range(1, there + 1):
                edges = {tokens % size, (tokens + ahead) % size}
                if there <= EDGES_FROM or tokens == there or not edges.isdisjoint((0, 1, size - 1)):
                    yield Truncate(r, tokens)


def _gave_back(step: Step) -> bool:
    before = step.before.seen.tables.get(step.command.request, ())
    after = step.after.seen.tables.get(step.command.request, ())
    return isinstance(step.command, Truncate) and len(after) < len(before)


TRUNCATE = Ability(
    id="truncate",
    statement="The last tokens go: rejected drafts.",
    commands=(Truncate,),
    candidates=candidates,
    properties=(
        Property(
            "truncated-blocks",
            "A truncation gave a block back.",
            "truncate(r, n): len(table) shrank",
            Sometimes(_gave_back),
            frozenset({Need.TRUNCATE}),
        ),
    ),
)
