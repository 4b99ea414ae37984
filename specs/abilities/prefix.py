"""Prefix caching: full blocks are found again by content and all that stands before them.

What is judged of it stands in `finding`, `early` and `eviction`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Self

from pagedkv.protocol import Request
from pagedkv.specs.abilities.core import Prefill, found, lengths, put
from pagedkv.specs.abilities.finding import GOALS, PROMISES
from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command, Handles, Undo
from pagedkv.specs.content import ENDS, EXTRAS, has_tags, said_by, tags_of, tokens_saying
from pagedkv.specs.early import COMPUTED
from pagedkv.specs.eviction import EVICTION
from pagedkv.specs.growth import admission, free_name, placed
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.steps import Expected, State


@dataclass(frozen=True, slots=True)
class Admit(Command):
    """A new request with this prompt, and an extra key; 0 is none."""

    op: ClassVar[str] = "admit"
    takes: ClassVar[bool] = True
    begins: ClassVar[bool] = True
    tokens: tuple[int, ...]
    extra: int

    def enabled(self, model: Model, setting: Setting) -> bool:
        taken = self.request in model.live or self.request in model.swapped
        return setting.by_content and not taken and self._fits(setting)

    def _fits(self, setting: Setting) -> bool:
        known = len(self.tokens) > 0 and 0 <= self.extra < EXTRAS
        return known and has_tags(self.tokens, setting.geometry.block_size)

    def tags(self, setting: Setting) -> tuple[int, ...]:
        """The tags of the prompt."""
        return tags_of(self.tokens, self.extra, setting.geometry.block_size)

    def expect(self, model: Model, setting: Setting) -> Expected:
        return admission(setting, len(self.tokens))

    def prepare(self, handles: Handles, state: State) -> Undo:
        extra = self.extra or None
        request = Request(self.request, len(self.tokens), self.tokens, extra_key=extra)
        return put(handles, self.request, request)

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_prefill", ()

    def written(self, manager: Any, before: State, request: Request) -> int:
        return found(manager, before.setting, request)

    def perform(self, manager: Any, handles: Handles) -> object:
        return manager.allocate_for_prefill(handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        return placed(model, setting, self.request, self.tags(setting))

    def simpler(self) -> Iterator[Command]:
        """The prompt without what makes it another than all zeros, or shorter."""
        if any(self.tokens) and self.extra:
            yield replace(self, extra=0)
        if self.extra > 1:
            yield replace(self, extra=1)
        if not any(self.tokens) or not self.extra:
            yield Prefill(self.request, len(self.tokens))
        for p, token in enumerate(self.tokens):
            if token:
                yield replace(self, tokens=(*self.tokens[:p], 0, *self.tokens[p + 1 :]))
        for length in range(1, len(self.tokens)):
            yield replace(self, tokens=self.tokens[:length])
        # What is not the first of its block might be: no command knows how long a block is.
        for last in (p for p, token in enumerate(self.tokens) if token):
            for p in range(last - 1, -1, -1):
                if self.tokens[p]:
                    break
                moved = (*self.tokens[:p], 1, *[0] * (last - p), *self.tokens[last + 1 :])
                yield replace(self, tokens=moved)

    def scaled(self, size: int, smaller: int, *, full: bool) -> Self:
        firsts, end = said_by(self.tokens, size)
        length = len(firsts) * smaller - (0 if full else smaller - 1)
        return replace(self, tokens=tokens_saying(firsts, end, length, smaller))


MOST_BLOCKS = 3
"""Prompts differ in their first so many blocks."""


def candidates(model: Model, setting: Setting) -> Iterator[Command]:
    """Prompts of every length worth trying, of blocks that begin with 0 or 1.

    All zeros without an extra key is what `prefill` gives. With an extra key only the prompts of
    all zeros are tried: what they are told apart from. Where `setting.varied`, also with another
    extra key, and prompts of which the first block, or the second, ends in 1.
    """
    fresh = free_name(model, setting)
    if "prefix" not in setting.active or fresh is None:
        return
    size = setting.geometry.block_size
    for length in lengths(model, setting):
        blocks = setting.geometry.blocks_for(length)
        for bits in product((0, 1), repeat=min(MOST_BLOCKS, blocks)):
            if any(bits):
                firsts = [*bits, *[0] * (blocks - len(bits))]
                yield Admit(fresh, tokens_saying(firsts, 0, length, size), 0)
        if setting.varied and size > 1:
            for end in range(1, min(ENDS, length // size) + 1):
                yield Admit(fresh, tokens_saying([0] * blocks, end, length, size), 0)
        for extra in range(1, EXTRAS if setting.varied else 2):
            yield Admit(fresh, (0,) * length, extra)


PREFIX = Ability(
    id="prefix",
    statement="Full blocks are found again by content and all that stands before them.",
    commands=(Admit,),
    candidates=candidates,
    properties=(*PROMISES, COMPUTED, EVICTION, *GOALS),
)
