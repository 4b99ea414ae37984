"""Faults in lengths and in what else a handle carries."""

from __future__ import annotations

import numpy as np

from pagedkv.arrays import ArrayKVCacheManager
from pagedkv.mutants.registry import planted
from pagedkv.protocol import Request
from pagedkv.reference import KVCacheManager


@planted("seq-len", 1)
class RoundsPromptUp(KVCacheManager):
    """Counts the whole last block of a prompt as tokens."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        req.seq_len = len(req.block_table) * self.block_size


@planted("seq-len", 2, seen="MinivLLM #87: the last block of an exact multiple holds 0 tokens")
class LastBlockHoldsNothing(KVCacheManager):
    """Works out the length from the blocks and the remainder, which is 0 at an exact multiple."""

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        req.seq_len -= self.block_size * (req.seq_len % self.block_size == 0)


@planted("seq-len", 2)
class StandsStillAtBlockEdge(KVCacheManager):
    """Takes the block of a decode, and forgets its token."""

    def allocate_for_decode(self, req: Request) -> None:
        held = len(req.block_table)
        super().allocate_for_decode(req)
        req.seq_len -= len(req.block_table) > held


@planted("seq-len", 3, hidden=None)
class KeepsLongerLengthOfRow(ArrayKVCacheManager):
    """Never lowers the length of a row, not when it is used again; only an observer asks for it."""

    def allocate_for_prefill(self, req: Request) -> None:
        before = self._lengths.copy()
        super().allocate_for_prefill(req)
        grown = np.pad(before, (0, len(self._lengths) - len(before)))
        self._lengths = np.maximum(self._lengths, grown)

    def release_request(self, req: Request) -> None:
        before = self._lengths.copy()
        super().release_request(req)
        self._lengths = before


@planted("seq-len", 2)
class NotesLengthAtBlockEdgeOnly(ArrayKVCacheManager):
    """Writes the length of a decode into its row only together with a new block."""

    def allocate_for_decode(self, req: Request) -> None:
        held, before = len(req.block_table), self._lengths.copy()
        super().allocate_for_decode(req)
        if len(req.block_table) == held:
            self._lengths = before


@planted("handle-filled", 2)
class ForgetsLengthOnRelease(KVCacheManager):
    """Takes the handle's length back to 0 with its blocks."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        req.seq_len = 0


@planted("handle-filled", 3, hidden=None)
class ReleasesToPrompt(KVCacheManager):
    """Takes a released handle back to its prompt, so that what was generated is not resumed."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        req.seq_len = req.prompt_len


@planted("handle-filled", 2)
class SwallowsToken(KVCacheManager):
    """Takes the token that is decoded off the handle at a block's edge."""

    def allocate_for_decode(self, req: Request) -> None:
        held = len(req.block_table)
        super().allocate_for_decode(req)
        if len(req.block_table) > held:
            req.tokens.pop()


@planted("handle-filled", 2)
class MovesPromptAlong(KVCacheManager):
    """Counts what was generated into the prompt once the blocks are full."""

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        if req.seq_len == len(req.block_table) * self.block_size:
            req.prompt_len = req.seq_len


@planted("others-untouched", 3)
class AppendsToWholeBatch(KVCacheManager):
    """Appends the token of a decode to all other live requests as well."""

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        for handle, _ in self._live.values():
            if handle is not req:
                handle.tokens.append(0)
