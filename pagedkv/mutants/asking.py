"""Faults in the answers to whether a call would be granted."""

from __future__ import annotations

from typing import Any

from pagedkv.ledger import blocks_for
from pagedkv.mutants.able import (
    ArrayAsked,
    Asked,
    AskedBehindWindow,
    AskedToAppend,
    AskedToCache,
    AskedToFork,
    AskedToSwap,
)
from pagedkv.mutants.registry import planted
from pagedkv.protocol import Request


@planted("asked-agrees", 1, seen="vLLM #45856: yes, and then it fails")
class AsksForFullBlocks(Asked):
    """Counts the full blocks of a prompt only when it is asked."""

    def can_prefill(self, req: Request) -> bool:
        fits = req.seq_len // self.block_size <= self._blocks.available
        return not req.block_table and fits


@planted("asked-agrees", 1, seen="vLLM #39734: a request that fits is never let in")
class SaysNoToExactFit(Asked):
    """Says no to a prompt that takes every free block."""

    def can_prefill(self, req: Request) -> bool:
        needed = blocks_for(req.seq_len, self.block_size)
        return super().can_prefill(req) and needed < self._blocks.available


@planted("asked-agrees", 2)
class SaysYesInsideBlocks(Asked):
    """Says yes to a decode wherever there is a block, or room in the tail but for one token."""

    def can_decode(self, req: Request) -> bool:
        return bool(self._blocks.available) or req.seq_len % self.block_size != 1


@planted("asked-pure", 1, seen="transformers: asking changes what is free")
class ReordersWhenAsked(ArrayAsked):
    """Turns the free list round before it says yes."""

    def can_prefill(self, req: Request) -> bool:
        answer = super().can_prefill(req)
        if answer:
            self._free[: self._num_free] = self._free[: self._num_free][::-1].copy()
        return answer


@planted("asked-pure", 2)
class GrowsWhenAsked(Asked):
    """Carries a decode out that it is only asked about, and grants it again."""

    def can_decode(self, req: Request) -> bool:
        answer = super().can_decode(req)
        if answer:
            lease = self._live[req.request_id]
            plan = self._plan_growth("decode", req, 1)
            self._blocks = plan.blocks
            self._live[req.request_id] = lease._replace(blocks=plan.lease.blocks)
            req.block_table = list(plan.lease.blocks)
        return answer


@planted("asked-agrees", 2)
class AsksForOneToken(AskedToAppend):
    """Says of an append whether one token would fit."""

    def can_append(self, req: Request, count: Any) -> bool:
        return super().can_append(req, 1)


@planted("asked-agrees", 2)
class AsksForTheCountAlone(AskedToAppend):
    """Says of an append whether its tokens would fit, without the room in the tail."""

    def can_append(self, req: Request, count: Any) -> bool:
        return blocks_for(count, self.block_size) <= self._blocks.available


@planted("asked-agrees", 3)
class AsksWithoutCopy(AskedToFork):
    """Forgets the copy of a shared tail when it is asked about a decode."""

    def can_decode(self, req: Request) -> bool:
        return req.seq_len % self.block_size != 0 or super().can_decode(req)


@planted("asked-agrees", 2)
class AsksForkForBlocks(AskedToFork):
    """Says no to a fork that finds no free block, though it needs none."""

    def can_fork(self, req: Request) -> bool:
        return super().can_fork(req) and self._blocks.available > 0


@planted("asked-agrees", 3)
class AsksForFreeOnly(AskedToCache):
    """Forgets what could be evicted when it is asked about a prompt."""

    def can_prefill(self, req: Request) -> bool:
        found = self._find(req, req.seq_len)
        needed = blocks_for(req.seq_len, self.block_size) - len(found)
        return super().can_prefill(req) and needed <= len(self._blocks.free)


@planted("asked-agrees", 2)
class AsksWithoutFinding(AskedToCache):
    """Wants every block of a prompt when it is asked, those that it would find too."""

    def can_prefill(self, req: Request) -> bool:
        needed = blocks_for(req.seq_len, self.block_size)
        return super().can_prefill(req) and needed <= self._blocks.available


@planted("asked-agrees", 3)
class CountsFoundTwice(AskedToCache):
    """Counts a cached block that a prompt finds as found and as room, when it is asked."""

    def can_prefill(self, req: Request) -> bool:
        found = self._find(req, req.seq_len)
        needed = blocks_for(req.seq_len, self.block_size) - len(found)
        return needed <= self._blocks.available


@planted("asked-pure", 2)
class HoldsWhatItIsAskedAbout(AskedToCache):
    """Pins what a prompt would find when it is asked, and leaves it so."""

    def can_prefill(self, req: Request) -> bool:
        answer = super().can_prefill(req)
        for block in self._find(req, req.seq_len):
            self._blocks.hold(block)
        return answer


@planted("asked-agrees", 4)
class AsksTheOtherPool(AskedToSwap):
    """Says of a swap out whether this pool would have the blocks."""

    def can_swap_out(self, req: Request) -> bool:
        return len(req.block_table) <= self.num_blocks


@planted("asked-agrees", 3)
class AsksForGrowthToo(AskedToSwap):
    """Says no to a swap in that would take every free block."""

    def can_swap_in(self, req: Request) -> bool:
        needed = blocks_for(req.seq_len, self.block_size)
        return super().can_swap_in(req) and needed < self._blocks.available


@planted("asked-agrees", 2)
class AsksWithoutSliding(AskedBehindWindow):
    """Forgets what the window gives back when it is asked."""

    def can_append(self, req: Request, count: Any) -> bool:
        needed = blocks_for(req.seq_len + count, self.block_size) - len(req.block_table)
        return super().can_append(req, count) and needed <= self._blocks.available
