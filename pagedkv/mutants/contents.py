"""Faults in the pool's contents and in how they are read; every table and list is right."""

from __future__ import annotations

import torch

from pagedkv.mutants.registry import planted
from pagedkv.protocol import Request
from pagedkv.reference import KVCacheManager


def _shown(req: Request, table: list[int]) -> Request:
    """A handle to read by: the same length, another table."""
    handle = Request(req.request_id, req.seq_len)
    handle.block_table = table
    return handle


@planted("contents", 4)
class ReadsAscending(KVCacheManager):
    """Reads the blocks of a table in physical order."""

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        return super().get_physical_cache(_shown(req, sorted(req.block_table)))


@planted("contents", 3)
class ReadsOneRun(KVCacheManager):
    """Reads on from the first block as if the table were one run."""

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        run = range(req.block_table[0], req.block_table[0] + len(req.block_table))
        return super().get_physical_cache(_shown(req, [b % self.num_blocks for b in run]))


@planted("contents", 1)
class ReadsFullBlocksOnly(KVCacheManager):
    """Leaves out the tokens of a last block that is not full."""

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        full = req.seq_len // self.block_size * self.block_size
        return super().get_physical_cache(req)[:full]


@planted("contents", 1)
class ReadsWholeBlocks(KVCacheManager):
    """Reads the last block to its end, whatever the length."""

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        whole = Request(req.request_id, len(req.block_table) * self.block_size)
        whole.block_table = list(req.block_table)
        return super().get_physical_cache(whole)


@planted("contents", 1)
class ReadsAcrossBlocks(KVCacheManager):
    """Gathers the first token of every block, then the second of every block, and so on."""

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        tokens = super().get_physical_cache(req)
        places = [
            block * self.block_size + offset
            for offset in range(self.block_size)
            for block in range(len(req.block_table))
        ]
        return tokens[[place for place in places if place < req.seq_len]]


@planted("contents", 3)
class MakesNewPool(KVCacheManager):
    """Starts with a new pool of zeros after each release, whoever is left."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self.physical_kv_cache = torch.zeros_like(self.physical_kv_cache)


@planted("contents", 3)
class ScrubsOneTooMany(KVCacheManager):
    """Scrubs the blocks that came free, and the one after the last of them."""

    def release_request(self, req: Request) -> None:
        first, last = min(req.block_table, default=0), max(req.block_table, default=-1)
        super().release_request(req)
        self.physical_kv_cache[first : last + 2] = 0


@planted("contents", 3)
class CompactsContentsOnly(KVCacheManager):
    """Moves the contents of the highest block down into a block that came free; the table stays."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        held = [block for _, blocks in self._live.values() for block in blocks]
        if held and max(held) > self._free[0]:
            self.physical_kv_cache[self._free[0]] = self.physical_kv_cache[max(held)]
            self.physical_kv_cache[max(held)] = 0


@planted("contents", 2)
class SlidesAtThirdBlock(KVCacheManager):
    """Drops the contents of the first block when a decode takes the third."""

    def allocate_for_decode(self, req: Request) -> None:
        held = len(req.block_table)
        super().allocate_for_decode(req)
        if len(req.block_table) == held + 1 == 3:
            self.physical_kv_cache[req.block_table[0]] = 0
