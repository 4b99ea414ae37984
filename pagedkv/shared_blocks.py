"""Where the blocks of a pool are that requests share: held, free, cached for reuse, or withheld.

What always holds, as equations over the fields of `SharedBlocks`:

    sorted(free + cached + withheld + list(refs)) == [0, 1, ..., num_blocks - 1]
    free == sorted(free)
    every count in refs >= 1
    a block stands under one key of the index at most, and is held or cached then
    every block of cached stands in the index

A key is the request's extra key and *all* tokens up to the end of the block, so equal keys are
equal content: what a block's rows are depends on everything before them. That makes the index a
radix tree written down as a dict, one entry for each node. Source: Zheng et al., SGLang
(NeurIPS 2024), section 3, RadixAttention; reference counts: Kwon et al., PagedAttention (SOSP
2023), section 4.4.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, Self

Key = tuple[Hashable, tuple[int, ...]]
"""(extra key, the tokens up to the end of the block)."""


class Withheld(NamedTuple):
    """A block that was given back inside a group, and under which key it could be found before."""

    block: int
    key: Key | None


class SharedBlocks:
    """All blocks of one pool, the lowest free one handed out first, then the longest cached.

    free: blocks that nobody holds, ascending. refs: how many tables hold each held block.
    cached: blocks that nobody holds and that can be found again, the next to be evicted first.
    index: the block that holds what a key stands for. withheld: what was given back inside the
    group that is open, in that order; None outside any.
    """

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.refs: dict[int, int] = {}
        self.cached: list[int] = []
        self.index: dict[Key, int] = {}
        self.withheld: list[Withheld] | None = None

    def copy(self) -> Self:
        """The same once more, sharing nothing; changes nothing."""
        twin = object.__new__(type(self))
        twin.free = self.free[:]
        twin.refs = self.refs.copy()
        twin.cached = self.cached[:]
        twin.index = self.index.copy()
        twin.withheld = None if self.withheld is None else self.withheld[:]
        return twin

    @property
    def available(self) -> int:
        """How many blocks `take` could hand out; changes nothing."""
        return len(self.free) + len(self.cached)

    def take(self, count: int) -> list[int]:
        """Hand out `count` <= `available` blocks, each held by one table then. Mutates; 0 is none.

        The free ones go first; then cached ones are evicted, the longest unheld first.
        """
        taken = []
        for _ in range(count):
            block = self.free.pop(0) if self.free else self.evict()
            self.refs[block] = 1
            taken.append(block)
        return taken

    def evict(self) -> int:
        """Let go of the block that has been cached the longest, and of its key. Mutates."""
        block = self.cached.pop(0)
        self.withdraw(block)
        return block

    def hold(self, block: int) -> None:
        """One table more holds `block`, which was held or cached before. Mutates."""
        if block in self.cached:
            self.cached.remove(block)
        self.refs[block] = self.refs.get(block, 0) + 1

    def shared(self, block: int) -> bool:
        """Whether several tables hold `block`; changes nothing."""
        return self.refs.get(block, 0) > 1

    def drop(self, blocks: Iterable[int]) -> None:
        """One table less holds each of `blocks`; those that none holds come back, in this order.

        Mutates. Inside a group they are withheld, and can't be found until it ends.
        """
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                del self.refs[block]
                given = Withheld(block, self.withdraw(block))
                if self.withheld is None:
                    self._come_back(given)
                else:
                    self.withheld.append(given)

    def begin_group(self) -> None:
        """Withhold what comes back from now on. Mutates."""
        self.withheld = []

    def end_group(self) -> None:
        """What was withheld comes back, in the order in which it was given. Mutates."""
        given_back, self.withheld = self.withheld or [], None
        for given in given_back:
            self._come_back(given)

    def _come_back(self, given: Withheld) -> None:
        """Keep the block for reuse under its key, or free it if it has none or that is taken."""
        if given.key is None or given.key in self.index:
            self.free = sorted([*self.free, given.block])
        else:
            self.index[given.key] = given.block
            self.cached.append(given.block)

    def key_of(self, block: int) -> Key | None:
        """The key under which `block` is found; None if there is none. Changes nothing."""
        for key, found in self.index.items():
            if found == block:
                return key
        return None

    def publish(self, block: int, key: Key) -> None:
        """Let `block`, which is held, be found from now on. Mutates.

        Nothing happens where it can be found already, or another block with the same content.
        """
        if key not in self.index and self.key_of(block) is None:
            self.index[key] = block

    def withdraw(self, block: int) -> Key | None:
        """Let `block` not be found any more; returns the key that found it. Mutates."""
        key = self.key_of(block)
        if key is not None:
            del self.index[key]
        return key
