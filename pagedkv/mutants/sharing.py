"""Faults in forks: the references of shared blocks, and the copy before a write."""

from __future__ import annotations

from typing import Any

from pagedkv.mutants.able import (
    ArrayForking,
    ArrayForkingEagerly,
    Forking,
    ForkingAndTruncating,
    ForkingEagerly,
    Uncounted,
)
from pagedkv.mutants.registry import planted
from pagedkv.protocol import OutOfBlocks, Request
from pagedkv.rows import Int64
from pagedkv.shared_blocks import SharedBlocks
from pagedkv.shared_plan import Plan as ArrayPlan
from pagedkv.shared_plans import Copy, Plan

# ---------------------------------------------------------------- references


@planted("ref-counts", 2, seen="TVM #16666")
class ForksWithoutReference(Forking):
    """Lets a child hold what its parent holds, and counts no reference for it."""

    def _plan_fork(self, req: Request) -> Plan:
        return super()._plan_fork(req)._replace(blocks=self._blocks.copy())


@planted("free-disjoint", 3, seen="TVM #16666, where no counts can be seen")
class ForksUnseenWithoutReference(Uncounted):
    """Counts no reference for a child, and shows nobody its counts."""

    def _plan_fork(self, req: Request) -> Plan:
        return super()._plan_fork(req)._replace(blocks=self._blocks.copy())


@planted("ref-counts", 2)
class ForgetsReferenceOfTail(Forking):
    """Counts a child's references to all blocks but the last."""

    def _plan_fork(self, req: Request) -> Plan:
        plan = super()._plan_fork(req)
        plan.blocks.refs[plan.lease.blocks[-1]] -= 1
        return plan


class _UpToTwo(SharedBlocks):
    def hold(self, block: int) -> None:
        super().hold(block)
        self.refs[block] = min(2, self.refs[block])


@planted("ref-counts", 3)
class CountsUpToTwo(Forking):
    """Counts at most two references: shared or not is all that it knows of a block."""

    pool_kind = _UpToTwo


@planted("free-disjoint", 5)
class CountsUnseenUpToTwo(Uncounted):
    """Counts at most two references, and shows nobody its counts."""

    pool_kind = _UpToTwo


@planted("free-disjoint", 3)
class FreesWithOneHolderLeft(ArrayForking):
    """Frees a block when all holders but one have let it go."""

    def _drop(self, plan: ArrayPlan, blocks: Int64) -> None:
        counts = self._refs[blocks]
        last = blocks[counts == 2][::-1]
        super()._drop(plan, blocks)
        plan.pushed = last if len(last) else plan.pushed


@planted("ref-counts", 3, seen="sglang-jax #982: two paths release one last block")
class DropsTailTwice(Forking):
    """Drops a partly filled tail twice where others hold it too."""

    def release_request(self, req: Request) -> None:
        table = list(req.block_table)
        super().release_request(req)
        if req.seq_len % self.block_size and table[-1] in self._blocks.refs:
            self._blocks.drop([table[-1]])


@planted("free-disjoint", 3)
class FreesWhatTruncateLeavesToOthers(ForkingAndTruncating):
    """Frees the blocks behind a truncation, whoever else holds them."""

    def truncate_request(self, req: Request, seq_len: Any) -> None:
        before = set(req.block_table)
        super().truncate_request(req, seq_len)
        for block in sorted(before - {*req.block_table}):
            if block in self._blocks.refs:
                self._blocks.refs[block] = 1
                self._blocks.drop([block])


@planted("rollback", 2, seen="transformers #46117")
class KeepsReferencesOfRefusedFork(ForkingEagerly):
    """Takes a child's references before it finds no block for the tail, and keeps them."""

    def fork_request(self, req: Request, child: Request) -> None:
        try:
            super().fork_request(req, child)
        except OutOfBlocks:
            for block in req.block_table[:-1]:
                self._blocks.hold(block)
            raise


@planted("rollback", 3)
class DropsBeforeLooking(Forking):
    """Lets a shared tail go before it finds no block to copy it into."""

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except OutOfBlocks:
            if self._blocks.shared(req.block_table[-1]):
                self._blocks.drop([req.block_table[-1]])
            raise


# ---------------------------------------------------------------- tables


@planted("table-unique", 2)
class ForksInReverse(Forking):
    """Gives a child its parent's blocks in reverse: all counts are right."""

    def _plan_fork(self, req: Request) -> Plan:
        plan = super()._plan_fork(req)
        return plan._replace(lease=plan.lease._replace(blocks=plan.lease.blocks[::-1]))


@planted("table-unique", 3)
class ForksTailOfAnother(Forking):
    """Gives a child the last block of another request, and counts that: all sums balance."""

    def _plan_fork(self, req: Request) -> Plan:
        plan = super()._plan_fork(req)
        *first, tail = plan.lease.blocks
        size = len(plan.lease.blocks)
        others = [lease for lease in self._live.values() if lease.handle is not req]
        tails = sorted(lease.blocks[-1] for lease in others if len(lease.blocks) == size)
        if tails:
            plan.blocks.drop([tail])
            plan.blocks.hold(tails[0])
            tail = tails[0]
        return plan._replace(lease=plan.lease._replace(blocks=(*first, tail)))


@planted("table-cover", 2)
class LeavesTailToParent(Forking):
    """Lets a child hold the full blocks of its parent only."""

    def _plan_fork(self, req: Request) -> Plan:
        plan = super()._plan_fork(req)
        if plan.seq_len % self.block_size:
            *full, tail = plan.lease.blocks
            plan.blocks.drop([tail])
            plan = plan._replace(lease=plan.lease._replace(blocks=tuple(full)))
        return plan


@planted("handles-agree", 3, hidden=None, seen="tt-metal #32007: a table handed out by reference")
class LendsTableToChild(Forking):
    """Hands a child the very list that its parent has, and grows tables in place."""

    def fork_request(self, req: Request, child: Request) -> None:
        super().fork_request(req, child)
        child.block_table = req.block_table

    def allocate_for_decode(self, req: Request) -> None:
        table = req.block_table
        super().allocate_for_decode(req)
        table[:] = req.block_table
        req.block_table = table


# ---------------------------------------------------------------- the copy before a write


@planted("contents", 4)
class WritesIntoSharedTail(Forking):
    """Makes sure that there is a block to copy a shared tail into, and writes in place."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        plan = super()._plan_growth(action, req, count)
        if plan.copy is None:
            return plan
        plan.blocks.drop([plan.copy.target])
        plan.blocks.hold(plan.copy.source)
        table = [*plan.lease.blocks]
        table[table.index(plan.copy.target)] = plan.copy.source
        return plan._replace(lease=plan.lease._replace(blocks=tuple(table)), copy=None)


class _NeverShared(SharedBlocks):
    def shared(self, block: int) -> bool:
        return False


@planted("out-of-blocks", 3)
class NeedsNoCopy(Forking):
    """Takes no tail for shared."""

    pool_kind = _NeverShared


class _AlwaysShared(SharedBlocks):
    def shared(self, block: int) -> bool:
        return block in self.refs


@planted("out-of-blocks", 2)
class CopiesItsOwnTail(Forking):
    """Copies a partly filled tail before each write, though nobody else holds it."""

    pool_kind = _AlwaysShared


@planted("contents", 3)
class CopiesTheWrongWay(Forking):
    """Copies the fresh block over the tail that is shared."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        plan = super()._plan_growth(action, req, count)
        if plan.copy is not None:
            plan = plan._replace(copy=Copy(source=plan.copy.target, target=plan.copy.source))
        return plan


@planted("ref-counts", 3, seen="toy allocators")
class KeepsReferenceOfCopied(Forking):
    """Keeps the reference to a shared tail once it has a copy of it."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        plan = super()._plan_growth(action, req, count)
        if plan.copy is not None:
            plan.blocks.hold(plan.copy.source)
        return plan


@planted("contents", 3)
class CopiesOneRowTooFew(Forking):
    """Copies all rows of a shared tail but the last that is written."""

    def _carry_out(self, req: Request, plan: Plan) -> None:
        copy = plan.copy
        super()._carry_out(req, plan._replace(copy=None))
        if copy is not None:
            rows = (plan.seq_len - 2) % self.block_size
            pool = self.physical_kv_cache
            pool[copy.target, :rows] = pool[copy.source, :rows]


@planted("contents", 3)
class CopiesFirstBlock(ArrayForking):
    """Copies the first block of a table where the tail is to be copied."""

    def _grow(self, action: str, req: Request, count: int) -> ArrayPlan:
        plan, pool = super()._grow(action, req, count), self.physical_kv_cache
        copies = [i for i, (target, *_) in enumerate(plan.stores) if target is pool]
        for i in copies:
            _, where, _ = plan.stores[i]
            plan.stores[i] = (pool, where, pool[req.block_table[:1]])
        return plan


@planted("contents", 2)
class ForksEmptyTail(ArrayForkingEagerly):
    """Takes a block for the tail of a child, and copies nothing into it."""

    def _fork(self, req: Request) -> tuple[ArrayPlan, Int64]:
        plan, blocks = super()._fork(req)
        pool = self.physical_kv_cache
        plan.stores = [store for store in plan.stores if store[0] is not pool]
        return plan, blocks


@planted("out-of-blocks", 2)
class ForksFullBlocksToo(Forking):
    """Copies every block for a child, the full ones too."""

    def _plan_fork(self, req: Request) -> Plan:
        plan, blocks = super()._plan_fork(req), self._blocks.copy()
        count = len(plan.lease.blocks)
        if count > blocks.available:
            raise OutOfBlocks(req.request_id, count, blocks.available)
        lease = plan.lease._replace(blocks=tuple(blocks.take(count)))
        return plan._replace(blocks=blocks, lease=lease)

    def fork_request(self, req: Request, child: Request) -> None:
        super().fork_request(req, child)
        pool = self.physical_kv_cache
        pool[child.block_table] = pool[req.block_table]


@planted("out-of-blocks", 2)
class CopiesFullTailAtFork(ForkingEagerly):
    """Takes a block for the tail of a child at an exact multiple of the block size too."""

    def _plan_fork(self, req: Request) -> Plan:
        if not self._blocks.available:
            raise OutOfBlocks(req.request_id, 1, 0)
        return super()._plan_fork(req)
