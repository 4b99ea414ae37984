"""Faults in the block tables: too long, too short, somebody else's, out of the pool."""

from __future__ import annotations

import numpy as np

from pagedkv import ledger
from pagedkv.arrays import ArrayKVCacheManager
from pagedkv.mutants.bases import Unlisted
from pagedkv.mutants.registry import planted
from pagedkv.protocol import OutOfBlocks, Request
from pagedkv.reference import KVCacheManager, Lease


def _give(manager: KVCacheManager, req: Request, blocks: list[int]) -> None:
    """Make `blocks` the table of a live request, as the manager and the handle have it."""
    manager._live[req.request_id] = Lease(req, tuple(blocks))
    req.block_table = blocks


@planted("table-cover", 2, seen="nano-vllm, which then forbade block size 1")
class StartsBlockAtRemainderOne(KVCacheManager):
    """Takes a block when the new length leaves a remainder of 1, which at block size 1 is never."""

    def allocate_for_decode(self, req: Request) -> None:
        full = req.block_table and req.seq_len % self.block_size == 0
        if full and (req.seq_len + 1) % self.block_size != 1:
            req.seq_len += 1
        else:
            super().allocate_for_decode(req)


@planted("table-cover", 1)
class OneMoreAtExactMultiple(KVCacheManager):
    """Takes length // block_size + 1 blocks for a prompt, if some are left; the last is unused."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        if len(self._free) > 1 and req.seq_len % self.block_size == 0:
            _give(self, req, [*req.block_table, self._free[0]])
            self._free = self._free[1:]

    def allocate_for_decode(self, req: Request) -> None:
        lease = self._live.get(req.request_id)
        needed = ledger.blocks_for(req.seq_len, self.block_size)
        if lease is None or lease.handle is not req or len(lease.blocks) == needed:
            super().allocate_for_decode(req)
            return
        unused = lease.blocks[-1]
        _give(self, req, list(lease.blocks[:-1]))
        try:
            super().allocate_for_decode(req)
        finally:
            _give(self, req, [*req.block_table, unused])


@planted("table-cover", 2, seen="sparkinfer #110: a live request is given its whole need again")
class AppendsWholeNeed(KVCacheManager):
    """Appends as many blocks as the whole length needs when a decode crosses a block's edge."""

    def allocate_for_decode(self, req: Request) -> None:
        held = len(req.block_table)
        super().allocate_for_decode(req)
        if len(req.block_table) > held > 0:
            extra, self._free = self._free[:held], self._free[held:]
            _give(self, req, [*req.block_table, *extra])


@planted("table-cover", 2, seen="vLLM #10730, SGLang #26972: a row of fixed width is clamped")
class ClampsTables(KVCacheManager):
    """Has tables of two entries, and puts all further blocks into the last."""

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        if len(req.block_table) > 2:
            _give(self, req, [*req.block_table[:1], req.block_table[-1]])


@planted("table-valid", 2)
class GrowsPastPool(Unlisted):
    """Gives a decode the block after the last one of the pool when it takes the last free block."""

    def allocate_for_decode(self, req: Request) -> None:
        held, last = len(req.block_table), len(self._free) == 1
        super().allocate_for_decode(req)
        if last and len(req.block_table) > held:
            _give(self, req, [*req.block_table[:-1], self.num_blocks])


@planted("table-unique", 1)
class MultipliesOneBlock(KVCacheManager):
    """Fills a table with its first block, as `[block] * n` does."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        _give(self, req, req.block_table[:1] * len(req.block_table))


@planted("table-unique", 2)
class SharesWithNeighbour(KVCacheManager):
    """Gives a second request the first block of the other; free and held still sum up."""

    def allocate_for_prefill(self, req: Request) -> None:
        others = [lease.blocks[0] for lease in self._live.values()]
        super().allocate_for_prefill(req)
        if others:
            _give(self, req, [others[0], *req.block_table[1:]])


@planted("out-of-blocks", 2)
class FallsBackToBlockZero(KVCacheManager):
    """Lets a decode that finds no block go on in block 0."""

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            _give(self, req, [*req.block_table, 0])
            req.seq_len += 1


@planted("table-unique", 3, hidden=None)
class SharesThirdRow(ArrayKVCacheManager):
    """Numbers the rows that it adds from one too low, once two are added at a time."""

    def allocate_for_prefill(self, req: Request) -> None:
        rows = len(self._counts)
        super().allocate_for_prefill(req)
        added = len(self._counts) - rows
        if added > 1:
            row = self._rows[req.request_id]
            taken = self._tables[row, : self._counts[row]].copy()
            self._tables[row - 1, : len(taken)] = taken


@planted("others-untouched", 3, hidden=None)
class WidensFirstRowOnly(ArrayKVCacheManager):
    """Copies only the first row into wider tables."""

    def _make_room(self, rows: int, width: int) -> None:
        before = self._tables.shape[1]
        super()._make_room(rows, width)
        if self._tables.shape[1] > before:
            self._tables[1:] = 0


@planted("table-cover", 3, hidden=None)
class KeepsCountOfRow(ArrayKVCacheManager):
    """Never lowers the number of blocks of a row when it is used again."""

    def allocate_for_prefill(self, req: Request) -> None:
        before = self._counts.copy()
        super().allocate_for_prefill(req)
        self._counts = np.maximum(
            self._counts, np.pad(before, (0, len(self._counts) - len(before)))
        )


@planted("others-untouched", 3)
class CompactsOnRelease(KVCacheManager):
    """Moves the highest block of another request into a lower one that came free."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        lowest = self._free[0]
        for handle, blocks in list(self._live.values()):
            high = max(blocks)
            if high > lowest:
                self.physical_kv_cache[lowest] = self.physical_kv_cache[high]
                _give(self, handle, [lowest if b == high else b for b in blocks])
                self._free = sorted([high, *self._free[1:]])
                return


@planted("others-untouched", 4)
class SwapsRestOnRelease(KVCacheManager):
    """Mixes up the first blocks of the two requests that are left."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        if len(self._live) == 2:
            (a, first), (b, second) = self._live.values()
            _give(self, a, [second[0], *first[1:]])
            _give(self, b, [first[0], *second[1:]])


@planted("handle-filled", 2)
class LeavesHandleShort(KVCacheManager):
    """Enters a block that a decode took in its own books only."""

    def allocate_for_decode(self, req: Request) -> None:
        before = req.block_table
        super().allocate_for_decode(req)
        req.block_table = before


@planted("handles-agree", 3, hidden=None, seen="tt-metal #32007, mini-sglang: tables by reference")
class RecyclesLists(KVCacheManager):
    """Keeps the list of a released handle, and fills it in for the next one."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._lists: list[list[int]] = []

    def allocate_for_prefill(self, req: Request) -> None:
        if req.request_id not in self._live:
            req.block_table = []  # it may be that of another request by now
        super().allocate_for_prefill(req)
        if self._lists:
            old = self._lists.pop()
            old[:] = req.block_table
            req.block_table = old

    def release_request(self, req: Request) -> None:
        kept = req.block_table
        super().release_request(req)
        kept.clear()
        req.block_table = kept
        self._lists.append(kept)


@planted("table-cover", 4, hidden=None)
class ResumesAtPromptLength(KVCacheManager):
    """Takes blocks for the prompt of a request that is resumed, not for all of its tokens."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        needed = ledger.blocks_for(req.prompt_len, self.block_size)
        rest = req.block_table[needed:]
        if rest:
            self._free = sorted([*self._free, *rest])
            _give(self, req, req.block_table[:needed])
