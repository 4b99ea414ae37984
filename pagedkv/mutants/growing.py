"""Faults in growing by many tokens, in taking tokens back, with lookahead, and behind a window."""

from __future__ import annotations

from typing import Any

from pagedkv.configurable import NULL_BLOCK
from pagedkv.ledger import blocks_for
from pagedkv.mutants.able import (
    Appending,
    ArrayAppending,
    ArrayReserving,
    Reserving,
    Truncating,
    Windowed,
)
from pagedkv.mutants.registry import planted
from pagedkv.protocol import OutOfBlocks, Request
from pagedkv.shared_blocks import SharedBlocks
from pagedkv.shared_plan import Plan as ArrayPlan
from pagedkv.shared_plans import Plan, held

# ---------------------------------------------------------------- append


@planted("rollback", 2, seen="kvcached #364: blocks taken before a failure are lost")
class AppendsOneByOne(Appending):
    """Takes blocks for an append one by one, and loses them when there are no more."""

    def allocate_for_append(self, req: Request, count: Any) -> None:
        try:
            super().allocate_for_append(req, count)
        except OutOfBlocks:
            self._blocks.free.clear()
            raise


@planted("rollback", 2)
class AppendsWhatFits(ArrayAppending):
    """Counts the tokens of an append that fit, and then refuses the rest."""

    def allocate_for_append(self, req: Request, count: Any) -> None:
        try:
            super().allocate_for_append(req, count)
        except OutOfBlocks:
            req.seq_len = len(req.block_table) * self.block_size
            raise


@planted("table-cover", 2)
class AppendsOneBlockAtMost(Appending):
    """Takes one block at most for an append, however many tokens it is."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        plan = super()._plan_growth(action, req, count)
        had = len(self._live[req.request_id].blocks)
        plan.blocks.drop(plan.lease.blocks[had + 1 :][::-1])
        return plan._replace(lease=plan.lease._replace(blocks=plan.lease.blocks[: had + 1]))


@planted("out-of-blocks", 2)
class AppendsBeyondEdge(Appending):
    """Wants one block more for an append that ends with a block."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        plan = super()._plan_growth(action, req, count)
        if count > 1 and plan.seq_len % self.block_size == 0 and not plan.blocks.available:
            raise OutOfBlocks(req.request_id, 1, 0)
        return plan


@planted("handle-filled", 2)
class AppendsOneToken(ArrayAppending):
    """Takes the blocks for all tokens of an append, and counts one of them."""

    def _append(self, req: Request, count: Any) -> ArrayPlan:
        plan = super()._append(req, count)
        room = (len(plan.table) - 1) * self.block_size
        plan.seq_len = max(req.seq_len + 1, room + 1)
        return plan


@planted("out-of-blocks", 2)
class ForgetsRoomInTail(Appending):
    """Takes blocks for all tokens of an append, as if there were no room in the tail."""

    def allocate_for_append(self, req: Request, count: Any) -> None:
        needed = blocks_for(count, self.block_size)
        if needed > self._blocks.available:
            raise OutOfBlocks(req.request_id, needed, self._blocks.available)
        super().allocate_for_append(req, count)


# ---------------------------------------------------------------- truncate


@planted("table-cover", 2, seen="SGLang #7112: the tail page of rejected drafts is not returned")
class KeepsBlockAtExactMultiple(Truncating):
    """Keeps one block more of a request that is cut to an exact multiple of the block size."""

    def _plan_truncate(self, req: Request, seq_len: Any) -> Plan:
        return super()._plan_truncate(req, min(seq_len + 1, req.seq_len))._replace(seq_len=seq_len)


@planted("table-cover", 2, seen="TensorRT-LLM: the tail page is returned while it is used")
class ReturnsTailInUse(Truncating):
    """Returns the block of which a truncation leaves a part."""

    def _plan_truncate(self, req: Request, seq_len: Any) -> Plan:
        plan = super()._plan_truncate(req, seq_len)
        if seq_len % self.block_size and seq_len < req.seq_len:
            *full, tail = plan.lease.blocks
            plan.blocks.drop([tail])
            plan = plan._replace(lease=plan.lease._replace(blocks=tuple(full)))
        return plan


@planted("conservation", 2)
class LosesWhatItCuts(Truncating):
    """Cuts a table short, and puts the blocks nowhere."""

    def _plan_truncate(self, req: Request, seq_len: Any) -> Plan:
        plan = super()._plan_truncate(req, seq_len)
        plan.blocks.free = self._blocks.free[:]
        return plan


@planted("contents", 2)
class CutsAtTheHead(Truncating):
    """Returns as many blocks as it should, from the wrong end of the table."""

    def _plan_truncate(self, req: Request, seq_len: Any) -> Plan:
        plan, blocks = super()._plan_truncate(req, seq_len), self._blocks.copy()
        before = self._live[req.request_id].blocks
        cut = len(before) - len(plan.lease.blocks)
        blocks.drop(before[:cut])
        return plan._replace(blocks=blocks, lease=plan.lease._replace(blocks=before[cut:]))


@planted("handle-filled", 2)
class CutsToBlockEdge(Truncating):
    """Keeps the length of the last block that it keeps, full as it was."""

    def _plan_truncate(self, req: Request, seq_len: Any) -> Plan:
        plan = super()._plan_truncate(req, seq_len)
        room = len(plan.lease.blocks) * self.block_size
        return plan._replace(seq_len=min(room, req.seq_len))


@planted("free-disjoint", 2)
class ReturnsOneTooMany(Truncating):
    """Frees the last block that stays in the table too, when a truncation frees any."""

    def _plan_truncate(self, req: Request, seq_len: Any) -> Plan:
        plan = super()._plan_truncate(req, seq_len)
        if len(plan.lease.blocks) < len(req.block_table):
            plan.blocks.free = sorted([*plan.blocks.free, plan.lease.blocks[-1]])
        return plan


# ---------------------------------------------------------------- lookahead


@planted("table-cover", 2)
class ReservesAtAdmissionOnly(Reserving):
    """Reserves the blocks of the token to come for a prompt, and never again."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        plan = super()._plan_growth(action, req, count)
        kept = max(len(req.block_table), blocks_for(plan.seq_len, self.block_size))
        plan.blocks.drop(plan.lease.blocks[kept:])
        return plan._replace(lease=plan.lease._replace(blocks=plan.lease.blocks[:kept]))


@planted("table-cover", 2)
class CutsWhatIsReserved(Reserving):
    """Gives back all that the tokens left need not, what is reserved for the next one included."""

    def _plan_truncate(self, req: Request, seq_len: Any) -> Plan:
        plan = super()._plan_truncate(req, seq_len)
        kept = blocks_for(plan.seq_len, self.block_size)
        plan.blocks.drop(plan.lease.blocks[kept:])
        return plan._replace(lease=plan.lease._replace(blocks=plan.lease.blocks[:kept]))


@planted("conservation", 2)
class LosesWhatIsReserved(ArrayReserving):
    """Gives back the blocks of a released request that have a token in them, and no other."""

    def release_request(self, req: Request) -> None:
        reserved = req.block_table[blocks_for(req.seq_len, self.block_size) :]
        super().release_request(req)
        last = self._free[: self._num_free].tolist()
        left = [block for block in last if block not in reserved]
        self._free[: len(left)] = left
        self._num_free = len(left)


@planted("rollback", 2)
class ReservesAfterTaking(Reserving):
    """Takes the blocks of an append, finds none to reserve behind them, refuses, and keeps them."""

    def allocate_for_append(self, req: Request, count: Any) -> None:
        try:
            super().allocate_for_append(req, count)
        except OutOfBlocks:
            needed = blocks_for(req.seq_len + count, self.block_size) - len(req.block_table)
            if needed <= self._blocks.available:
                self._blocks.free = self._blocks.free[needed:]
            raise


# ---------------------------------------------------------------- window


@planted("window-kept", 2)
class SlidesOneBlockTooFar(Windowed):
    """Gives back the block that the window starts in."""

    def _slide(self, blocks: SharedBlocks, table: tuple[int, ...], seq_len: int) -> list[int]:
        behind = min(blocks_for(max(0, seq_len - 2), self.block_size), len(table))
        blocks.drop(held(table[:behind]))
        return [NULL_BLOCK] * behind + list(table[behind:])


@planted("window-freed", 2)
class SlidesWhenItHasTo(Windowed):
    """Keeps the blocks behind the window as long as there are free ones."""

    def _slide(self, blocks: SharedBlocks, table: tuple[int, ...], seq_len: int) -> list[int]:
        needed = blocks_for(seq_len, self.block_size) - len(table)
        if needed <= blocks.available:
            return list(table)
        return super()._slide(blocks, table, seq_len)


@planted("out-of-blocks", 2)
class NeverSlides(Windowed):
    """Keeps every block behind the window."""

    def _slide(self, blocks: SharedBlocks, table: tuple[int, ...], seq_len: int) -> list[int]:
        return list(table)


@planted("out-of-blocks", 2)
class SlidesOneCallLate(Windowed):
    """Gives back what the window of the length before the call leaves behind."""

    def _slide(self, blocks: SharedBlocks, table: tuple[int, ...], seq_len: int) -> list[int]:
        return super()._slide(blocks, table, seq_len - 1)


@planted("out-of-blocks", 2, seen="vLLM #39734: a request that fits is refused")
class CountsBeforeSliding(Windowed):
    """Counts the blocks that a call needs before the window gives any back."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        before = self._lease_of(action, req).blocks
        needed = blocks_for(req.seq_len + count, self.block_size) - len(before)
        if needed > self._blocks.available:
            raise OutOfBlocks(req.request_id, needed, self._blocks.available)
        return super()._plan_growth(action, req, count)


@planted("conservation", 2)
class LosesWhatIsBehind(Windowed):
    """Puts the blocks behind the window nowhere, where there are enough others."""

    def _slide(self, blocks: SharedBlocks, table: tuple[int, ...], seq_len: int) -> list[int]:
        enough = len(blocks.free) > 1
        slid = super()._slide(blocks.copy() if enough else blocks, table, seq_len)
        for block in {*held(table)} - {*slid} if enough else ():
            del blocks.refs[block]
        return slid


@planted("free-valid", 3)
class ReturnsNullAtRelease(Windowed):
    """Frees a null entry with the others of a released table."""

    def release_request(self, req: Request) -> None:
        null = NULL_BLOCK in req.block_table
        super().release_request(req)
        if null:
            self._blocks.free = [NULL_BLOCK, *self._blocks.free]


@planted("rollback", 2)
class SlidesBeforeRefusing(Windowed):
    """Gives back what is behind the window, finds too few blocks, and leaves it so."""

    def allocate_for_append(self, req: Request, count: Any) -> None:
        try:
            super().allocate_for_append(req, count)
        except OutOfBlocks:
            lease, blocks = self._live[req.request_id], self._blocks.copy()
            table = tuple(self._slide(blocks, lease.blocks, req.seq_len + count))
            self._blocks, req.block_table = blocks, list(table)
            self._live[req.request_id] = lease._replace(blocks=table)
            raise
