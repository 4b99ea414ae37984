"""Faults in what goes onto the free list, and what comes off it."""

from __future__ import annotations

from dataclasses import replace

from pagedkv.arrays import ArrayKVCacheManager
from pagedkv.mutants.bases import KnowsNames, Late, Padded
from pagedkv.mutants.registry import planted
from pagedkv.protocol import MisuseError, OutOfBlocks, Request, Snapshot
from pagedkv.reference import KVCacheManager


@planted("conservation", 0)
class ForgetsBlockZero(KVCacheManager):
    """Counts the blocks of a fresh pool from 1."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._free = list(range(1, self.num_blocks))


@planted("free-valid", 0)
class CountsOneBlockTooMany(KVCacheManager):
    """Puts the number after the last block onto the fresh free list."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._free = list(range(self.num_blocks + 1))


@planted("conservation", 2)
class ForgetsLastBlock(KVCacheManager):
    """Gives back all blocks of a longer table but the last."""

    def release_request(self, req: Request) -> None:
        last = req.block_table[-1] if len(req.block_table) > 1 else None
        super().release_request(req)
        self._free = [block for block in self._free if block != last]


@planted("conservation", 2)
class FreesFullBlocksOnly(KVCacheManager):
    """Works out from the length how many blocks to give back, and rounds down."""

    def release_request(self, req: Request) -> None:
        partial = req.block_table[req.seq_len // self.block_size :]
        super().release_request(req)
        self._free = [block for block in self._free if block not in partial]


@planted("conservation", 2, seen="MinivLLM #87: a full last block counts as empty")
class LosesBlockOfExactMultiple(KVCacheManager):
    """Takes the last block for empty, and so for not taken, where the length fills it exactly."""

    def release_request(self, req: Request) -> None:
        empty = req.block_table[-1:] if req.seq_len % self.block_size == 0 else []
        super().release_request(req)
        self._free = [block for block in self._free if block not in empty]


@planted("conservation", 2)
class MergesIntoFullPoolOnly(KVCacheManager):
    """Merges what comes back into the free list `if free`, which the list of a full pool is not."""

    def release_request(self, req: Request) -> None:
        was_empty = not self._free
        super().release_request(req)
        if was_empty:
            self._free = []


@planted("free-valid", 3, seen="vLLM #42571, Dynamo #13398: queued twice by one release")
class FreesTwiceBesideOthers(KVCacheManager):
    """Queues the first block twice when another request is still live."""

    def release_request(self, req: Request) -> None:
        first = req.block_table[:1]
        super().release_request(req)
        if self._live:
            self._free = sorted([*self._free, *first])


@planted("free-disjoint", 2)
class LeavesGrownBlockFree(KVCacheManager):
    """Hands a block to a decode, and leaves it on the free list."""

    def allocate_for_decode(self, req: Request) -> None:
        before = self._free
        super().allocate_for_decode(req)
        self._free = before


class _ShowsMore(KVCacheManager):
    """The reference, with `_stale` blocks that its free list shows and that are passed over."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._stale: tuple[int, ...] = ()

    @property
    def free_blocks(self) -> list[int]:
        return sorted([*self._free, *self._stale])

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), free_blocks=tuple(self.free_blocks))


@planted("free-disjoint", 2, hidden=("_stale",))
class PassesOverTaken(_ShowsMore):
    """Leaves what decodes took on the free list until it is given back, and passes over it."""

    def allocate_for_decode(self, req: Request) -> None:
        held = len(req.block_table)
        super().allocate_for_decode(req)
        self._stale = (*self._stale, *req.block_table[held:])

    def release_request(self, req: Request) -> None:
        blocks = list(req.block_table)
        super().release_request(req)
        self._stale = tuple(block for block in self._stale if block not in blocks)


@planted("free-valid", 2, hidden=("_stale",), seen="vLLM #42571, Dynamo #13398, made harmless")
class PassesOverDuplicate(_ShowsMore):
    """Queues what came back last twice, and passes over the second entry."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self._stale = tuple(block for block in self._stale if block in self._free)

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        self._stale = tuple(block for block in self._stale if block in self._free)

    def release_request(self, req: Request) -> None:
        blocks = tuple(req.block_table)
        super().release_request(req)
        self._stale = blocks[:1]


@planted("pending", 4)
class WaitsForBlockEdge(Late):
    """Lets no time pass for blocks given back while a decode takes no block."""

    def allocate_for_decode(self, req: Request) -> None:
        free, waiting, held = self._free, self._waiting, len(req.block_table)
        super().allocate_for_decode(req)
        if len(req.block_table) == held:
            self._free, self._waiting = free, waiting


@planted("pending", 3)
class HandsOutWaiting(Late):
    """Hands blocks out that still wait where there are no others."""

    def allocate_for_prefill(self, req: Request) -> None:
        free, waiting = self._free, self._waiting
        if not free:
            self._pass()
        try:
            super().allocate_for_prefill(req)
        except (MisuseError, OutOfBlocks):
            self._free, self._waiting = free, waiting
            raise


@planted("free-valid", 2, seen="SGLang #38519, and a fork of vLLM: the padding block is freed")
class FreesPadding(Padded):
    """Gives the padding block back together with a table that ends in mid-block."""

    def release_request(self, req: Request) -> None:
        padded = req.seq_len % self.block_size != 0
        super().release_request(req)
        if padded:
            self._free = [*self._free, 0]


@planted("conservation", 2)
class OverwritesTopOfStack(ArrayKVCacheManager):
    """Pushes what comes back one place too low where something is on the stack already."""

    def release_request(self, req: Request) -> None:
        pushed = len(req.block_table)
        super().release_request(req)
        if self._num_free > pushed:
            stack = self._stack()
            stack[-pushed - 1 : -1] = stack[-pushed:].copy()


@planted("free-disjoint", 4)
class TakesLowestDropsFirst(KVCacheManager):
    """Gives a decode the lowest free block, and strikes out the first, as if in ascending order."""

    def allocate_for_decode(self, req: Request) -> None:
        before = self._free
        if before:
            self._free = [min(before), *before[1:]]
        try:
            super().allocate_for_decode(req)
        finally:
            if len(self._free) == len(before):
                self._free = before

    def release_request(self, req: Request) -> None:
        before, blocks = self._free, list(req.block_table)
        super().release_request(req)
        self._free = [*before, *blocks]

    @property
    def free_blocks(self) -> list[int]:
        return sorted(self._free)


@planted("free-disjoint", 5, seen="SGLang #36135: what a group is to free is looked up late")
class LooksUpLate(KnowsNames):
    """Frees what the names in a group of two releases hold, some of them by then once more."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self._names = (*self._names, req.request_id)
        if len(self._names) == 2:
            again = [b for r in self._names if r in self._live for b in self._live[r].blocks]
            self._free = sorted([*self._free, *again])
            self._names = ()


@planted("free-disjoint", 5, hidden=("_users",))
class ResetsWhenNobodyIsLeft(KnowsNames):
    """Frees the whole pool when its count of requests is zero, but counts each id only once."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._users = 0

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        if req.request_id not in self._names:
            self._names = tuple(sorted((*self._names, req.request_id)))
            self._users += 1

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self._users -= 1
        if self._users == 0:
            self._free = list(range(self.num_blocks))
