"""Faults in the order in which cached blocks are evicted."""

from __future__ import annotations

from collections.abc import Iterable

from pagedkv.mutants.able import Caching
from pagedkv.mutants.registry import planted
from pagedkv.shared_blocks import SharedBlocks


class _NewestFirst(SharedBlocks):
    def evict(self) -> int:
        block = self.cached.pop()
        self.withdraw(block)
        return block


@planted("eviction-order", 3)
class EvictsNewestFirst(Caching):
    """Evicts the block that was cached last, which may be a prompt's first."""

    pool_kind = _NewestFirst


class _HeadFirst(SharedBlocks):
    def drop(self, blocks: Iterable[int]) -> None:
        super().drop([*blocks][::-1])


@planted("eviction-order", 2)
class CachesHeadFirst(Caching):
    """Caches the blocks of a released request so that the first logical one is evicted first."""

    pool_kind = _HeadFirst


class _Jumps(SharedBlocks):
    def drop(self, blocks: Iterable[int]) -> None:
        before = self.cached
        self.cached = []
        super().drop(blocks)
        self.cached += before


@planted("eviction-order", 4)
class CachesBeforeOthers(Caching):
    """Lets what was released last be evicted before all that is cached already."""

    pool_kind = _Jumps


class _Lowest(SharedBlocks):
    def evict(self) -> int:
        block = min(self.cached)
        self.cached.remove(block)
        self.withdraw(block)
        return block


@planted("eviction-order", 3)
class EvictsLowestBlock(Caching):
    """Evicts the cached block with the lowest number."""

    pool_kind = _Lowest


class _OneMore(SharedBlocks):
    def take(self, count: int) -> list[int]:
        before = len(self.cached)
        taken = super().take(count)
        if self.cached and len(self.cached) < before:
            self.free.append(self.evict())
        return taken


@planted("eviction-order", 3)
class EvictsOneMore(Caching):
    """Where anything has to be evicted, evicts one block more than that."""

    pool_kind = _OneMore
