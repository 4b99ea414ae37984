"""Faults that a call prepares and a later one shows: counters, flags, wear."""

from __future__ import annotations

from pagedkv.arrays import ArrayKVCacheManager
from pagedkv.mutants.registry import planted
from pagedkv.protocol import MisuseError, OutOfBlocks, Request
from pagedkv.reference import KVCacheManager


class _Counting(KVCacheManager):
    """The reference, with a count of its own that nobody sees."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._count = 0

    def _lose_one(self) -> None:
        self._free = self._free[1:]


@planted("conservation", 4, hidden=("_count",))
class LeaksAtSecondRelease(_Counting):
    """Loses a free block at the second release of its life, and never again."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self._count = min(self._count + 1, 3)
        if self._count == 2:
            self._lose_one()


@planted("conservation", 6, hidden=("_count",))
class LeaksAtThirdRelease(_Counting):
    """Loses a free block at every third release."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self._count = (self._count + 1) % 3
        if self._count == 0:
            self._lose_one()


@planted("conservation", 8, hidden=("_count",))
class LeaksAtFourthRelease(_Counting):
    """Loses a free block at every fourth release."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self._count = (self._count + 1) % 4
        if self._count == 0:
            self._lose_one()


@planted("out-of-blocks", 2, hidden=("_count",))
class StaysCautious(_Counting):
    """Keeps one block back for good once it ran out."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            if not req.block_table and self._count and len(self._free) == 1:
                raise OutOfBlocks(req.request_id, 1, 0)
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            self._count = 1
            raise


@planted("conservation", 3, hidden=("_count",))
class LeaksAfterWrongUse(_Counting):
    """Loses a block at the first release after one that it refused."""

    def release_request(self, req: Request) -> None:
        try:
            super().release_request(req)
        except MisuseError:
            self._count = 1
            raise
        if self._count:
            self._count = 0
            self._lose_one()


@planted("out-of-blocks", 5, hidden=("_wear",))
class RetiresWornBlocks(KVCacheManager):
    """Does not hand a block out a third time, though it says that it is free."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._wear = [0] * self.num_blocks

    def allocate_for_prefill(self, req: Request) -> None:
        if not req.block_table and any(self._wear[block] >= 2 for block in self._free):
            raise OutOfBlocks(req.request_id, 1, 0)
        super().allocate_for_prefill(req)
        for block in req.block_table:
            self._wear[block] += 1


@planted("table-unique", 5, hidden=("_hand",))
class TrustsClockHand(KVCacheManager):
    """Gives decodes the blocks of the pool in turn, and does not look any more after one round."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._hand = 0

    def allocate_for_decode(self, req: Request) -> None:
        held = list(req.block_table)
        super().allocate_for_decode(req)
        if len(req.block_table) == len(held):
            return
        self._hand += 1
        if self._hand >= self.num_blocks:
            lease = self._live[req.request_id]
            self._live[req.request_id] = lease._replace(blocks=(*held, held[0]))
            req.block_table = [*held, held[0]]


@planted("seq-len", 5, hidden=("_steps",))
class DriftsEveryFourthDecode(ArrayKVCacheManager):
    """Skips its own note of the length at every fourth decode."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._steps = 0

    def allocate_for_decode(self, req: Request) -> None:
        before = self._lengths.copy()
        super().allocate_for_decode(req)
        self._steps = (self._steps + 1) % 4
        if self._steps == 0:
            self._lengths = before
