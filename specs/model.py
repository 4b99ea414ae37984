"""The logical model: what the requests hold if the allocator is right, without any block.

The model is the plain dense cache that paging replaces. Each token carries a tag, a small number
that says whose it is and at which position, so that a misplaced token names its owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from pagedkv.declarations import Declarations

POISON = -1
"""What a slot holds that no live token was written to."""


@dataclass(frozen=True, slots=True, order=True)
class Geometry:
    """The size of a pool. Ordered: fewer blocks first, then smaller blocks, then head_dim."""

    num_blocks: int
    block_size: int
    head_dim: int = 1

    def blocks_for(self, tokens: int) -> int:
        """ceil(tokens / block_size); 0 for 0 tokens."""
        return -(-tokens // self.block_size)

    def __str__(self) -> str:
        return f"{self.num_blocks} block(s) of {self.block_size} token(s)"


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same through a history: the pool, the declarations and the scope.

    usable: the block ids that can be handed out, as the first snapshot says.
    requests: how many request names there are; at most so many are live at once.
    keeps_released: a released request's handle is kept, to be resumed or misused.
    """

    geometry: Geometry
    declared: Declarations
    usable: frozenset[int]
    requests: int
    keeps_released: bool = False

    @property
    def capacity(self) -> int:
        """Tokens that fit into the usable blocks."""
        return len(self.usable) * self.geometry.block_size

    @property
    def stride(self) -> int:
        """Tags that one request can have.

        A history ends at the first wrong grant, so no request outgrows the pool by more than
        one token.
        """
        return self.capacity + 2

    def tag(self, request: int, position: int) -> int:
        """The tag of one token: > 0, and exact in every float format for small pools."""
        return 1 + request * self.stride + position

    def name_tag(self, value: float) -> str:
        """Words for what a slot holds."""
        if value == POISON:
            return "nothing (a free or unwritten slot)"
        if not isfinite(value) or value < 1 or value != int(value):
            return f"{value} (no token's tag)"
        request, position = divmod(int(value) - 1, self.stride)
        return f"token {position} of request {request}"


@dataclass(frozen=True, slots=True)
class Model:
    """The dense cache: the tags of every live request, and the kept lengths of released ones."""

    live: Mapping[int, tuple[int, ...]]
    released: Mapping[int, int]

    def with_live(self, request: int, tags: tuple[int, ...]) -> Model:
        """The model in which `request` holds `tags`; changes nothing."""
        released = self.released
        if request in released:
            released = {r: n for r, n in released.items() if r != request}
        live = {**self.live, request: tags}
        if request not in self.live:  # In the order of names: how it came about plays no part.
            live = dict(sorted(live.items()))
        return Model(live, released)

    def with_released(self, request: int) -> Model:
        """The model in which `request` holds nothing and keeps its length; changes nothing."""
        live = {r: tags for r, tags in self.live.items() if r != request}
        released = {**self.released, request: len(self.live[request])}
        return Model(live, dict(sorted(released.items())))

    def without_released(self) -> Model:
        """The model that forgets released requests; changes nothing."""
        return Model(self.live, {}) if self.released else self


EMPTY = Model({}, {})
