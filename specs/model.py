"""The logical model: what the requests hold if the allocator is right, without any block.

The model is the plain dense cache that paging replaces. Each token carries a tag, a small number
that says whose it is and at which position, so that a misplaced token names its owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite
from typing import TypeVar

from pagedkv.abilities import AbilityName
from pagedkv.declarations import Declarations
from pagedkv.specs import content

GONE = -1
"""A page that the window has left behind."""

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
    active: the declared abilities whose commands are tried.
    host_blocks: the blocks of the second pool.
    varied: what is drawn from is wider than what could be exhausted, and in large pools coarser.
    """

    geometry: Geometry
    declared: Declarations
    usable: frozenset[int]
    requests: int
    keeps_released: bool = False
    active: frozenset[AbilityName] = frozenset()
    host_blocks: int = 0
    varied: bool = False
    by_content: bool = field(init=False, repr=False, compare=False)
    """Whether blocks are shared by what they hold: a tag then says that, and no request."""
    shares: bool = field(init=False, repr=False, compare=False)
    """Whether two tables may name one block."""
    cuts_shared: bool = field(init=False, repr=False, compare=False)
    """Whether a partly filled tail may be a block that others have found whole."""
    tracks_pages: bool = field(init=False, repr=False, compare=False)
    """Whether the number of blocks due depends on more than lengths."""
    names: int = field(init=False, repr=False, compare=False)
    """How many request names there are: where forks are tried, tokens outlive their name.

    Tokens that are known by what they are have no name to outlive.
    """
    capacity: int = field(init=False, repr=False, compare=False)
    """Tokens that fit into the usable blocks."""
    widest: int = field(init=False, repr=False, compare=False)
    """How far back the widest window of a table reads; 0 where there is none."""
    stride: int = field(init=False, repr=False, compare=False)
    """Tags that one request can have.

    A history ends at the first wrong grant, so no request outgrows the pool by more than one
    token; behind a window it may grow for ever, and is stopped.
    """

    def __post_init__(self) -> None:
        # Here and not as properties: they are asked for at every step of every history.
        can, put = self.declared.abilities, object.__setattr__
        put(self, "by_content", "prefix" in can)
        put(self, "shares", self.by_content or "fork" in can)
        put(self, "cuts_shared", self.by_content and "truncate" in can)
        put(self, "tracks_pages", "fork" in can or any(self.declared.each_window))
        outlive = "fork" in self.active and not self.by_content
        put(self, "names", self.requests * 2 if outlive else self.requests)
        put(self, "capacity", len(self.usable) * self.geometry.block_size)
        put(self, "widest", max(window or 0 for window in self.declared.each_window))
        put(self, "stride", self.capacity + self.widest + 2)

    def may_grow(self, seq_len: int) -> bool:
        """Whether a request may grow to so many tokens: with a window it would for ever."""
        return None in self.declared.each_window or seq_len <= self.capacity + self.widest

    def spans(self, seq_len: int) -> tuple[int, ...]:
        """The blocks due in each table of a request of so many tokens."""
        longest = [window if self.declared.ring else None for window in self.declared.each_window]
        return tuple(self.geometry.blocks_for(min(seq_len, most or seq_len)) for most in longest)

    def place(self, window: int | None, position: int) -> tuple[int, int]:
        """Where a table of this window has a position: (index in the table, offset)."""
        turned = position % window if self.declared.ring and window else position
        return divmod(turned, self.geometry.block_size)

    def parts(self, table: tuple[int, ...], seq_len: int) -> list[tuple[int, ...]]:
        """The tables of a request, which stand one behind the other in `table`."""
        if not self.declared.windows:
            return [table]
        entries = iter(table)
        return [tuple(islice(entries, span)) for span in self.spans(seq_len)]

    def blocks_for(self, seq_len: int) -> int:
        """The blocks due in all tables of a request, with what is reserved; 0 for 0 tokens."""
        if self.declared.windows or self.declared.ring:
            return sum(self.spans(seq_len))
        ahead = self.declared.lookahead_tokens if seq_len else 0
        return self.geometry.blocks_for(seq_len + ahead)

    def tag(self, request: int, position: int) -> int:
        """The tag of one token: > 0, and exact in every float format for small pools."""
        return 1 + request * self.stride + position

    @property
    def highest_tag(self) -> int:
        """No tag is higher."""
        if self.by_content:
            return content.highest(len(self.usable) + 1, self.geometry.block_size)
        return self.names * self.stride

    def more(self, request: int, tags: tuple[int, ...], count: int) -> tuple[int, ...]:
        """`tags` and those of `count` more tokens of the request; changes nothing."""
        if self.by_content:
            return content.extended(tags, count, self.geometry.block_size)
        start = len(tags)
        return (*tags, *(self.tag(request, p) for p in range(start, start + count)))

    def readable(self, tags: tuple[int, ...]) -> tuple[int, ...]:
        """Those that the window still reads, of table after table; all without one."""
        each = self.declared.each_window
        if each == (None,):
            return tags
        return tuple(tag for window in each for tag in tags[-(window or 0) :])

    def name_tag(self, value: float) -> str:
        """Words for what a slot holds."""
        if value == POISON:
            return "nothing (a free or unwritten slot)"
        if not isfinite(value) or value < 1 or value != int(value):
            return f"{value} (no token's tag)"
        if self.by_content:
            return content.name(int(value), self.geometry.block_size)
        request, position = divmod(int(value) - 1, self.stride)
        return f"token {position} of request {request}"


@dataclass(frozen=True, slots=True)
class Model:
    """The dense cache: the tags of every live request, and the kept lengths of released ones.

    swapped: the tags of requests that were moved to the second pool. kept: those of released
    ones, where a tag says what a token is. grouping: blocks that come back are withheld.
    pages: the blocks of an allocator that never runs out, by request, numbered as they first
    appear; GONE for one behind the window. Only where `Setting.tracks_pages`.
    """

    live: Mapping[int, tuple[int, ...]]
    released: Mapping[int, int]
    swapped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    kept: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    pages: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    grouping: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        """What two models are the same by."""
        core = (tuple(self.live.items()), tuple(self.released.items()))
        if not (self.swapped or self.kept or self.pages or self.grouping):
            return core
        more = (self.swapped, self.kept, self.pages)
        return (*core, *(tuple(part.items()) for part in more), self.grouping)

    def with_live(self, request: int, tags: tuple[int, ...]) -> Model:
        """The model in which `request` holds `tags`; changes nothing."""
        live = {**self.live, request: tags}
        if request not in self.live:  # In the order of names: how it came about plays no part.
            live = dict(sorted(live.items()))
        kept = _less(self.kept, request)
        return replace(self, live=live, released=_less(self.released, request), kept=kept)

    def with_released(self, request: int) -> Model:
        """The model in which `request` holds nothing and keeps its length; changes nothing."""
        live = _less(self.live, request)
        released = {**self.released, request: len(self.live[request])}
        return replace(self, live=live, released=dict(sorted(released.items())))

    def without_released(self) -> Model:
        """The model that forgets released requests; changes nothing."""
        return replace(self, released={}, kept={}) if self.released else self


_V = TypeVar("_V")


def _less(items: Mapping[int, _V], name: int) -> Mapping[int, _V]:
    return {r: value for r, value in items.items() if r != name} if name in items else items


EMPTY = Model({}, {})
