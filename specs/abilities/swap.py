"""Swap: a request's blocks move to a second pool by content, and back.

host_free has no duplicates; host_free + blocks of all swapped = the second pool, disjoint
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pagedkv.protocol import Request
from pagedkv.specs.abilities.core import Release
from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command, Handles, Undo, nothing_to_undo
from pagedkv.specs.growth import placed, without_pages
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import (
    HOLDS,
    Broken,
    EveryState,
    Judgement,
    Need,
    Property,
    Sometimes,
)
from pagedkv.specs.show import show
from pagedkv.specs.steps import Expected, Grant, HostGrant, State, Step


@dataclass(frozen=True, slots=True)
class SwapOut(Command):
    """What a live request holds moves to the second pool."""

    op: ClassVar[str] = "swap_out"

    def enabled(self, model: Model, setting: Setting) -> bool:
        return "swap" in setting.declared.abilities and self.request in model.live

    def expect(self, model: Model, setting: Setting) -> Expected:
        need = setting.blocks_for(len(model.live[self.request]))
        return HostGrant(need, need + setting.declared.lookahead)

    def prepare(self, handles: Handles, state: State) -> Undo:
        return nothing_to_undo

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_swap_out", ()

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.swap_out(handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        live = {r: tags for r, tags in model.live.items() if r != self.request}
        swapped = {**model.swapped, self.request: model.live[self.request]}
        there = replace(model, live=live, swapped=dict(sorted(swapped.items())))
        return without_pages(there, self.request)


@dataclass(frozen=True, slots=True)
class SwapIn(Command):
    """What was moved to the second pool moves back."""

    op: ClassVar[str] = "swap_in"

    def enabled(self, model: Model, setting: Setting) -> bool:
        return self.request in model.swapped

    def expect(self, model: Model, setting: Setting) -> Expected:
        need = setting.blocks_for(len(model.swapped[self.request]))
        return Grant(need, need + setting.declared.lookahead)

    def prepare(self, handles: Handles, state: State) -> Undo:
        return nothing_to_undo

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_swap_in", ()

    def written(self, manager: Any, before: State, request: Request) -> int:
        return len(before.model.swapped[self.request])

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.swap_in(handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        swapped = {r: tags for r, tags in model.swapped.items() if r != self.request}
        there = replace(model, swapped=swapped)
        return placed(there, setting, self.request, model.swapped[self.request])


def candidates(model: Model, setting: Setting) -> Iterator[Command]:
    """Out with every live request, in with every swapped one, and its release."""
    if "swap" in setting.active:
        for r in sorted(model.live):
            yield SwapOut(r)
        for r in sorted(model.swapped):
            yield SwapIn(r)
        for r in sorted(model.swapped):
            yield Release(r)


def judge_host(state: State) -> Judgement:
    """Every block of the second pool is free, or held by exactly one swapped request."""
    snapshot = state.seen.snapshot
    swapped, free = snapshot.swapped, snapshot.host_free
    assert swapped is not None, "Need.HOST is checked before"
    assert free is not None, "Need.HOST is checked before"
    if swapped.keys() != state.model.swapped.keys():
        return Broken(
            f"swapped requests {show(set(swapped))} != {show(set(state.model.swapped))}, those "
            f"that the history swapped out"
        )
    for r, tags in state.model.swapped.items():
        need = state.setting.blocks_for(len(tags))
        if not need <= len(swapped[r]) <= need + state.setting.declared.lookahead:
            return Broken(
                f"request {r} holds {len(swapped[r])} != {need} block(s) of the second pool",
                (),
                (r,),
            )
    entries = [*free, *(block for held in swapped.values() for block in held)]
    total = state.setting.host_blocks
    if len(entries) == len(set(entries)) == total:
        return HOLDS
    return Broken(
        f"second pool: free({len(free)}) + swapped({len(entries) - len(free)}) != blocks({total}): "
        f"free {show(free)}, swapped {show(dict(swapped))}"
    )


def _came_back(step: Step) -> bool:
    return isinstance(step.command, SwapIn) and step.granted


SWAP = Ability(
    id="swap",
    statement="Preemption to a second pool, and back.",
    commands=(SwapOut, SwapIn),
    candidates=candidates,
    properties=(
        Property(
            "host-conserved",
            "Every block of the second pool is free or held by one swapped request.",
            "host = host_free + swapped, disjoint",
            EveryState(judge_host),
            frozenset({Need.HOST}),
        ),
        Property(
            "swapped-in",
            "A request came back from the second pool.",
            "swap_in(r) granted",
            Sometimes(_came_back),
            frozenset({Need.SWAP}),
        ),
    ),
)
