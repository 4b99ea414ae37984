"""Faults in who is let in: refused though it fits, granted though it does not, another error."""

from __future__ import annotations

from pagedkv import ledger
from pagedkv.declarations import Declarations
from pagedkv.mutants.bases import KnowsNames
from pagedkv.mutants.registry import planted
from pagedkv.protocol import AlreadyHolding, OutOfBlocks, Request
from pagedkv.reference import KVCacheManager


def _needed(manager: KVCacheManager, req: Request) -> int:
    return ledger.blocks_for(req.seq_len, manager.block_size)


@planted("out-of-blocks", 1, seen="vLLM #39734: what needs exactly what is free is never let in")
class RefusesExactFit(KVCacheManager):
    """Refuses a prompt that would take the last free block."""

    def allocate_for_prefill(self, req: Request) -> None:
        if not req.block_table and _needed(self, req) == len(self._free):
            raise OutOfBlocks(req.request_id, _needed(self, req), len(self._free))
        super().allocate_for_prefill(req)


@planted("out-of-blocks", 2)
class KeepsLastBlockFromDecode(KVCacheManager):
    """Keeps the last block of a larger pool from a decode."""

    def allocate_for_decode(self, req: Request) -> None:
        full = req.block_table and req.seq_len == len(req.block_table) * self.block_size
        if full and self.num_blocks > 1 and len(self._free) == 1:
            raise OutOfBlocks(req.request_id, 1, 0)
        super().allocate_for_decode(req)


@planted("out-of-blocks", 4)
class WantsOneRun(KVCacheManager):
    """Refuses a prompt if the free blocks do not lie side by side."""

    def allocate_for_prefill(self, req: Request) -> None:
        taken = self._free[: _needed(self, req)]
        if not req.block_table and taken and taken[-1] - taken[0] >= len(taken):
            raise OutOfBlocks(req.request_id, len(taken), 0)
        super().allocate_for_prefill(req)


@planted("out-of-blocks", 4)
class TakesBlockZeroForNone(KVCacheManager):
    """Asks `if not block` whether a decode found one, which block 0 is not."""

    def allocate_for_decode(self, req: Request) -> None:
        full = req.block_table and req.seq_len == len(req.block_table) * self.block_size
        if full and self._free and not self._free[0]:
            raise OutOfBlocks(req.request_id, 1, 0)
        super().allocate_for_decode(req)


@planted("out-of-blocks", 3)
class AdmitsTwo(KVCacheManager):
    """Has places for two requests, and calls it out of blocks when a third comes."""

    def allocate_for_prefill(self, req: Request) -> None:
        if not req.block_table and len(self._live) == 2:
            raise OutOfBlocks(req.request_id, _needed(self, req), 0)
        super().allocate_for_prefill(req)


@planted("answered", 2, seen="vLLM #45856, #7470: it fits, says the check, and then it does not")
class CountsRoomInTails(KVCacheManager):
    """Counts free tokens, those in the last blocks of others included, and then runs dry."""

    def allocate_for_prefill(self, req: Request) -> None:
        tails = sum(len(b) * self.block_size - h.seq_len for h, b in self._live.values())
        room = len(self._free) * self.block_size + tails
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            if req.seq_len <= room:
                raise IndexError("pop from empty list") from None
            raise


@planted("answered", 2)
class PopsFromEmptyList(KVCacheManager):
    """Lets a decode take from an empty free list."""

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            raise IndexError("pop from empty list") from None


@planted("answered", 1)
class RefusesLongPrompt(KVCacheManager):
    """Takes a prompt that is longer than the whole pool for wrong use."""

    def allocate_for_prefill(self, req: Request) -> None:
        if req.seq_len > self.num_blocks * self.block_size:
            raise ValueError(f"a prompt of {req.seq_len} tokens is too long")
        super().allocate_for_prefill(req)


@planted("answered", 3, seen="vLLM #44490: a list of what is done that is never drained")
class RemembersDone(KnowsNames):
    """Takes a request that comes with the name of a finished one for the finished one."""

    def allocate_for_prefill(self, req: Request) -> None:
        if req.request_id in self._names:
            raise AlreadyHolding(f"request {req.request_id} is finished")
        super().allocate_for_prefill(req)

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self._names = tuple(sorted({*self._names, req.request_id}))


@planted("lockstep", 1, beside="reference")
class DeclaresWatermark(KVCacheManager):
    """Keeps a block back, as it declares, and is put in the place of a manager that keeps none."""

    declares = Declarations(refuses_early=True, because={"refuses_early": "the class's docstring"})

    def allocate_for_prefill(self, req: Request) -> None:
        if not req.block_table and _needed(self, req) == len(self._free):
            raise OutOfBlocks(req.request_id, _needed(self, req), len(self._free) - 1)
        super().allocate_for_prefill(req)
