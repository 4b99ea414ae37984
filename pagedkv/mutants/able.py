"""The managers that share blocks with a few abilities each, for faults in what these do."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, SupportsIndex

from pagedkv.protocol import Snapshot
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_blocks import SharedBlocks
from pagedkv.shared_reference import SharedKVCacheManager


class Sharing(SharedKVCacheManager):
    """The reference, with a kind of pool that a subclass can name."""

    pool_kind: ClassVar[type[SharedBlocks]] = SharedBlocks

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._blocks = self.pool_kind(self.num_blocks)


class Appending(Sharing):
    """The reference with append alone."""

    abilities = frozenset({"append"})


class Truncating(Sharing):
    """The reference with truncate alone."""

    abilities = frozenset({"truncate"})


class Reserving(Sharing):
    """The reference with append and truncate, and room for one more token at any time."""

    abilities = frozenset({"append", "truncate"})
    lookahead = 1


class Windowed(Sharing):
    """The reference with append and a window of two tokens."""

    abilities = frozenset({"append", "window"})
    window = 2


class Forking(Sharing):
    """The reference with fork alone."""

    abilities = frozenset({"fork"})


class ForkingEagerly(Forking):
    """The same, with the copy of a tail made at once."""

    forks_eagerly = True


class Uncounted(Forking):
    """The same as forking, of which nobody can see the reference counts."""

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), ref_counts=None)


class Caching(Sharing):
    """The reference with prefix alone."""

    abilities = frozenset({"prefix"})


class CachingAtOnce(Caching):
    """The same, with blocks published by the call that takes them."""

    publishes_at_once = True


class Swapping(Sharing):
    """The reference with swap alone."""

    abilities = frozenset({"swap"})


class ForkingAndSwapping(Sharing):
    """The reference with fork and swap."""

    abilities = frozenset({"fork", "swap"})


class ForkingAndTruncating(Sharing):
    """The reference with fork and truncate."""

    abilities = frozenset({"fork", "truncate"})


class CachingAndTruncating(Sharing):
    """The reference with prefix and truncate."""

    abilities = frozenset({"prefix", "truncate"})


class CachingAtOnceAndTruncating(CachingAndTruncating):
    """The same, with blocks published by the call that takes them."""

    publishes_at_once = True


class Grouping(Sharing):
    """The reference with group alone."""

    abilities = frozenset({"group"})


class CachingAndGrouping(Sharing):
    """The reference with prefix and group."""

    abilities = frozenset({"prefix", "group"})


class Asked(Sharing):
    """The reference, which can be asked about the core."""

    abilities = frozenset({"ask"})


class ArrayAsked(SharedArrayKVCacheManager):
    """The array-backed manager, which can be asked about the core."""

    abilities = frozenset({"ask"})


class AskedToAppend(Sharing):
    """The reference with append, which can be asked."""

    abilities = frozenset({"append", "ask"})


class AskedToFork(Sharing):
    """The reference with fork, which can be asked."""

    abilities = frozenset({"fork", "ask"})


class AskedToSwap(Sharing):
    """The reference with swap, which can be asked."""

    abilities = frozenset({"swap", "ask"})


class AskedToCache(Sharing):
    """The reference with prefix, which can be asked."""

    abilities = frozenset({"prefix", "ask"})


class AskedBehindWindow(Sharing):
    """The reference with a window of two tokens, which can be asked."""

    abilities = frozenset({"append", "ask", "window"})
    window = 2


class ArrayForking(SharedArrayKVCacheManager):
    """The array-backed manager with fork alone."""

    abilities = frozenset({"fork"})


class ArrayForkingEagerly(ArrayForking):
    """The same, with the copy of a tail made at once."""

    forks_eagerly = True


class ArrayCaching(SharedArrayKVCacheManager):
    """The array-backed manager with prefix alone."""

    abilities = frozenset({"prefix"})


class ArrayAppending(SharedArrayKVCacheManager):
    """The array-backed manager with append alone."""

    abilities = frozenset({"append"})


class ArrayReserving(SharedArrayKVCacheManager):
    """The array-backed manager with append and truncate, and room for one more token."""

    abilities = frozenset({"append", "truncate"})
    lookahead = 1


class ArraySwapping(SharedArrayKVCacheManager):
    """The array-backed manager with swap alone."""

    abilities = frozenset({"swap"})


class ArrayGrouping(SharedArrayKVCacheManager):
    """The array-backed manager with group alone."""

    abilities = frozenset({"group"})
