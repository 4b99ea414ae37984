"""Faults in what a call that is refused leaves behind."""

from __future__ import annotations

from pagedkv import ledger
from pagedkv.arrays import ArrayKVCacheManager
from pagedkv.mutants.bases import Indexed
from pagedkv.mutants.registry import planted
from pagedkv.protocol import InvalidBlockTable, OutOfBlocks, Request
from pagedkv.reference import KVCacheManager


@planted("rollback", 2, seen="several small engines")
class GrowsWhenOut(KVCacheManager):
    """Counts the token of a decode that found no block."""

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            req.seq_len += 1
            raise


@planted("rollback", 1, seen="kvcached #364, vLLM V0: what was taken before the failure is lost")
class LosesWhatItTook(KVCacheManager):
    """Takes blocks for a prompt until there are none, and does not put them back."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            self._free = []
            raise


@planted("rollback", 1)
class LeavesPartOfTable(KVCacheManager):
    """Leaves the blocks that a refused prompt would have got first in the handle."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            req.block_table = list(self._free)
            raise


@planted("rollback", 1)
class PutsBackInReverse(ArrayKVCacheManager):
    """Pops blocks for a prompt one by one, and pushes them back in the order it got them."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            self._stack()[:] = self._stack()[::-1].copy()
            raise


@planted("rollback", 1, seen="vLLM #24228: the counter is lowered before the check")
class LowersCountFirst(Indexed):
    """Lowers the count of free blocks by what a prompt needs, and only then looks."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            self._num_free -= ledger.blocks_for(req.seq_len, self.block_size)
            raise


@planted("rollback", 1, hidden=None, seen="SGLang #16067: a failed request keeps its slot")
class KeepsSlotOfRefused(ArrayKVCacheManager):
    """Gives a prompt its row before the blocks are counted, and leaves it there."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            self._make_room(1, 1)
            self._num_free_rows -= 1
            row = self._free_rows.item(self._num_free_rows)
            self._rows[req.request_id], self._handles[row] = row, req
            self._counts[row], self._lengths[row] = 0, req.seq_len
            raise


@planted("rollback", 2)
class PreemptsInVain(KVCacheManager):
    """Preempts the newest other request where blocks run out, and refuses nevertheless."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            if self._live:
                self.release_request(list(self._live.values())[-1].handle)
            raise


@planted("rollback", 2)
class AbortsWhenOut(KVCacheManager):
    """Releases a request whose decode finds no block."""

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            self.release_request(req)
            raise


@planted("rollback", 2)
class TakesTokenBack(KVCacheManager):
    """Takes the caller's token back after a refused decode, which the caller does too."""

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            req.tokens.pop()
            raise


@planted("rollback", 2)
class FreesUpToFlaw(KVCacheManager):
    """Frees a forged table block by block, until it comes upon the first that it must not."""

    def release_request(self, req: Request) -> None:
        lease = self._live.get(req.request_id)
        try:
            super().release_request(req)
        except InvalidBlockTable:
            if lease is not None:
                self._free = sorted({*self._free, *lease.blocks})
            raise


@planted("rollback", 3)
class FreesForeignBlock(KVCacheManager):
    """Frees the block of another request that a forged table names, before it refuses."""

    def release_request(self, req: Request) -> None:
        others = {b for h, blocks in self._live.values() if h is not req for b in blocks}
        own = req.request_id in self._live
        try:
            super().release_request(req)
        except InvalidBlockTable:
            if own and req.block_table[-1] in others:
                self._free = sorted([*self._free, req.block_table[-1]])
            raise


@planted("rollback", 2)
class EmptiesTableFirst(KVCacheManager):
    """Empties the table of a live request that is prefilled again, and then refuses."""

    def allocate_for_prefill(self, req: Request) -> None:
        if req.request_id in self._live:
            req.block_table = []
        super().allocate_for_prefill(req)
