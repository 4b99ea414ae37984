"""Faults in what is kept beside the tables, counters, maps, reports, and in looking at them."""

from __future__ import annotations

import numpy as np
import torch

from pagedkv.arrays import NOBODY, ArrayKVCacheManager
from pagedkv.mutants.bases import Indexed
from pagedkv.mutants.registry import planted
from pagedkv.protocol import Request, Snapshot
from pagedkv.reference import KVCacheManager

# ---------------------------------------------------------------- counters and maps


@planted("free-count", 2)
class CountsReleasesNotBlocks(Indexed):
    """Raises its count of free blocks by one for each release, however many come back."""

    def _gave(self, req: Request, blocks: list[int]) -> None:
        super()._gave(req, blocks)
        self._num_free -= len(blocks) - 1


@planted("free-count", 2, seen="vLLM #52707, a need that is not what is taken inflates the count")
class CountsNoGrowth(Indexed):
    """Lowers its count of free blocks for prompts only."""

    def allocate_for_decode(self, req: Request) -> None:
        before = self._num_free
        super().allocate_for_decode(req)
        self._num_free = before


@planted("ref-counts", 2, seen="MinivLLM #84: a fresh block starts at 0 references, and ends at -1")
class GrowsWithoutReference(Indexed):
    """Gives a decode a block that nobody refers to."""

    def allocate_for_decode(self, req: Request) -> None:
        before = list(self._refs)
        super().allocate_for_decode(req)
        self._refs = before


@planted("ref-counts", 3)
class DropsOneReferenceOnly(Indexed):
    """Takes back only the first block's reference where another request is live."""

    def _gave(self, req: Request, blocks: list[int]) -> None:
        super()._gave(req, blocks)
        if self._live:
            for block in blocks[1:]:
                self._refs[block] += 1


@planted("capacities", 2)
class GrowsWithoutRoom(Indexed):
    """Does not record the room of a block that a decode took."""

    def allocate_for_decode(self, req: Request) -> None:
        before = dict(self._rooms)
        super().allocate_for_decode(req)
        self._rooms = before


@planted("capacities", 3)
class KeepsRoomOfReleased(Indexed):
    """Keeps the room of a released request on record as long as another one is live."""

    def _gave(self, req: Request, blocks: list[int]) -> None:
        room = self._rooms[req.request_id]
        super()._gave(req, blocks)
        if self._live:
            self._rooms[req.request_id] = room


@planted("reverse-map", 2, hidden=None)
class KeepsOwnerOfFreed(ArrayKVCacheManager):
    """Leaves the owner of a block that came free as it was, but for the first of a table."""

    def release_request(self, req: Request) -> None:
        self._settle()
        owner, first = self._owner.copy(), req.block_table[:1]
        super().release_request(req)
        self._settle()
        owner[first] = NOBODY
        self._owner = owner


@planted("reverse-map", 2)
class PlacesGrowthFromZero(Indexed):
    """Enters a block that a decode took as the first of its table."""

    def allocate_for_decode(self, req: Request) -> None:
        held = len(req.block_table)
        super().allocate_for_decode(req)
        if len(req.block_table) > held:
            self._places[req.block_table[-1]] = (req.request_id, 0)


@planted("reverse-map", 3)
class MapsOwnersByCount(Indexed):
    """Enters a prompt under the number of the other live requests, which at first is its name."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        for block in req.block_table:
            self._places[block] = (len(self._live) - 1, self._places[block][1])


# ---------------------------------------------------------------- lists and reports


@planted("free-listed", 0)
class ListsBlocksThatAreTrue(KVCacheManager):
    """Leaves block 0 out of free_blocks, as `filter(None, ...)` does."""

    @property
    def free_blocks(self) -> list[int]:
        return list(filter(None, self._free))


@planted("free-listed", 4)
class ListsInHandOutOrder(ArrayKVCacheManager):
    """Gives free_blocks in the order of hand-out, which is ascending until blocks come back."""

    @property
    def free_blocks(self) -> list[int]:
        order: list[int] = self._stack()[::-1].tolist()
        return order


@planted("report-agrees", 1)
class ReportsWholePercent(KVCacheManager):
    """Divides utilization without a remainder."""

    def allocation_report(self, req: Request) -> dict[str, float]:
        report = super().allocation_report(req)
        return {**report, "utilization": report["logical_tokens"] // report["allocated_tokens"]}


@planted("report-agrees", 2, hidden=None)
class ReportsPrompt(KVCacheManager):
    """Reports the prompt's length for that of the request."""

    def allocation_report(self, req: Request) -> dict[str, float]:
        return {**super().allocation_report(req), "logical_tokens": req.prompt_len}


@planted("report-agrees", 1)
class ReportsRemainderAsTail(KVCacheManager):
    """Takes the tokens in the last block for those that would fit, alike in halves of a block."""

    def allocation_report(self, req: Request) -> dict[str, float]:
        tail = req.seq_len % self.block_size
        return {**super().allocation_report(req), "unused_tail_tokens": tail}


# ---------------------------------------------------------------- looking


@planted("reads-pure", 1, hidden=("_scratch",))
class BorrowsScratchBlock(KVCacheManager):
    """Takes a free block to gather into when it is read, and gives it back at the next call."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._scratch: list[int] = []

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        if self._free and not self._scratch:
            self._scratch, self._free = self._free[:1], self._free[1:]
        return super().get_physical_cache(req)

    @property
    def free_blocks(self) -> list[int]:
        return sorted([*self._scratch, *self._free])

    def _give_back(self) -> None:
        self._free, self._scratch = [*self._scratch, *self._free], []

    def allocate_for_prefill(self, req: Request) -> None:
        self._give_back()
        super().allocate_for_prefill(req)

    def allocate_for_decode(self, req: Request) -> None:
        self._give_back()
        super().allocate_for_decode(req)

    def release_request(self, req: Request) -> None:
        self._give_back()
        super().release_request(req)


@planted("reads-pure", 4, seen="transformers: asking whether it fits changes it")
class SortsStackWhenListed(ArrayKVCacheManager):
    """Sorts its stack in place, with its top at the low end, when it lists what is free."""

    @property
    def free_blocks(self) -> list[int]:
        stack = self._stack()
        stack[:] = -np.sort(-stack)
        return super().free_blocks


@planted("reads-pure", 0)
class TurnsWhenLookedAt(KVCacheManager):
    """Moves on in its free list with every snapshot."""

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        self._free = [*self._free[1:], *self._free[:1]]
        return seen
