"""Faults in preemption to a second pool, and in blocks that a group withholds."""

from __future__ import annotations

from collections.abc import Iterable

from pagedkv.mutants.able import (
    ArrayGrouping,
    ArraySwapping,
    ForkingAndSwapping,
    Grouping,
    Swapping,
)
from pagedkv.mutants.registry import planted
from pagedkv.protocol import OutOfBlocks, Request
from pagedkv.rows import Int64
from pagedkv.shared_blocks import SharedBlocks, Withheld
from pagedkv.shared_plan import Held
from pagedkv.shared_plan import Plan as ArrayPlan
from pagedkv.shared_plans import SwapPlan

# ---------------------------------------------------------------- swap: contents


@planted("contents", 3)
class SwapsOutInReverse(Swapping):
    """Moves the blocks of a request out in reverse, and back in their order."""

    def _plan_swap_out(self, req: Request) -> SwapPlan:
        plan = super()._plan_swap_out(req)
        return plan._replace(here=plan.here[::-1])


@planted("contents", 3)
class LeavesLastBlockBehind(Swapping):
    """Moves all blocks of a request out but the contents of the last."""

    def _plan_swap_out(self, req: Request) -> SwapPlan:
        plan = super()._plan_swap_out(req)
        return plan._replace(here=plan.here[:-1], there=plan.there[:-1])


@planted("contents", 3)
class SwapsInNothing(ArraySwapping):
    """Gives a request blocks again, and moves nothing into them."""

    def swap_in(self, req: Request) -> None:
        kept = self.physical_kv_cache.clone()
        super().swap_in(req)
        self.physical_kv_cache[:] = kept


@planted("contents", 5)
class SwapsInFromTheFirst(Swapping):
    """Moves back what is in the first blocks of the second pool."""

    def _plan_swap_in(self, req: Request) -> SwapPlan:
        plan = super()._plan_swap_in(req)
        return plan._replace(there=list(range(len(plan.there))))


@planted("contents", 5)
class ExchangesWithAnother(Swapping):
    """Exchanges the second pool's blocks of two requests that are out: all sums balance."""

    def swap_out(self, req: Request) -> None:
        super().swap_out(req)
        out = [*self._swapped.values()]
        if len(out) == 2 and len(out[0].blocks) == len(out[1].blocks):
            (one, lease), (other, another) = self._swapped.items()
            self._swapped[one] = lease._replace(blocks=another.blocks)
            self._swapped[other] = another._replace(blocks=lease.blocks)


# ---------------------------------------------------------------- swap: blocks


@planted("host-conserved", 3)
class KeepsHostBlocks(Swapping):
    """Keeps the blocks of the second pool when a request has moved back."""

    def _plan_swap_in(self, req: Request) -> SwapPlan:
        return super()._plan_swap_in(req)._replace(host_free=self._host_free[:])


@planted("host-conserved", 3)
class KeepsHostBlocksOfReleased(ArraySwapping):
    """Forgets a request that is released while it is out, and not its blocks."""

    def release_request(self, req: Request) -> None:
        free, there = self._num_host_free, self._is_out(req)
        super().release_request(req)
        if there:
            self._num_host_free = free


@planted("free-valid", 3, seen="LMCache #5005: released once more, and freed again")
class FreesHereWhatIsThere(Swapping):
    """Frees the blocks of a released request in both pools, under the numbers of the second."""

    def release_request(self, req: Request) -> None:
        blocks = self._swapped[req.request_id].blocks if self._is_out(req) else ()
        super().release_request(req)
        self._blocks.free = sorted([*self._blocks.free, *blocks])


@planted("table-cover", 3)
class SwapsInFullBlocks(Swapping):
    """Takes seq_len // block_size blocks for a request that comes back."""

    def _plan_swap_in(self, req: Request) -> SwapPlan:
        plan = super()._plan_swap_in(req)
        full = req.seq_len // self.block_size
        plan.blocks.drop(plan.here[full:])
        lease = plan.lease._replace(blocks=tuple(plan.here[:full]))
        return plan._replace(lease=lease, here=plan.here[:full], there=plan.there[:full])


@planted("out-of-blocks", 3)
class SwapsInWithGrowth(Swapping):
    """Wants one block more for a request that comes back, for its next token."""

    def _plan_swap_in(self, req: Request) -> SwapPlan:
        plan = super()._plan_swap_in(req)
        if not plan.blocks.available:
            raise OutOfBlocks(req.request_id, len(plan.here) + 1, len(plan.here))
        return plan


@planted("free-disjoint", 3)
class SwapsOutUnderOthers(ForkingAndSwapping):
    """Frees the blocks of a request that moves out, whoever else holds them."""

    def swap_out(self, req: Request) -> None:
        blocks = list(req.block_table)
        super().swap_out(req)
        for block in blocks:
            if block in self._blocks.refs:
                self._blocks.refs[block] = 1
                self._blocks.drop([block])


@planted("rollback", 4)
class LeavesBeforeLooking(Swapping):
    """Lets a request's blocks go before it finds no room in the second pool."""

    def swap_out(self, req: Request) -> None:
        try:
            super().swap_out(req)
        except OutOfBlocks:
            self._blocks.drop(self._live[req.request_id].blocks[::-1])
            raise


@planted("conservation", 2)
class HoldsOnBothSides(ArraySwapping):
    """Keeps the blocks of a request that has moved out."""

    def _swap_out(self, req: Request) -> tuple[ArrayPlan, Held, Int64]:
        plan, held, there = super()._swap_out(req)
        plan.pushed = plan.pushed[:0]
        return plan, held, there


# ---------------------------------------------------------------- group


class _NeverWithholds(SharedBlocks):
    def drop(self, blocks: Iterable[int]) -> None:
        withheld, self.withheld = self.withheld, None
        super().drop(blocks)
        self.withheld = withheld


@planted("withheld", 3)
class GivesBackAtOnce(Grouping):
    """Frees blocks at once though a group is open."""

    pool_kind = _NeverWithholds


class _FreesToo(SharedBlocks):
    def drop(self, blocks: Iterable[int]) -> None:
        super().drop(blocks)
        given = [given.block for given in self.withheld or ()]
        self.free = sorted({*self.free, *given})


@planted("conservation", 3)
class WithholdsAndFrees(Grouping):
    """Withholds a block and frees it, too."""

    pool_kind = _FreesToo


class _LosesFirst(SharedBlocks):
    def end_group(self) -> None:
        self.withheld = (self.withheld or [])[1:]
        super().end_group()


@planted("conservation", 4)
class LosesFirstOfGroup(Grouping):
    """Loses the block that came back first when a group ends."""

    pool_kind = _LosesFirst


class _EndsTwice(SharedBlocks):
    def end_group(self) -> None:
        given = self.withheld or []
        super().end_group()
        self.free = sorted([*self.free, *(one.block for one in given)])


@planted("free-valid", 4)
class FreesGroupTwice(Grouping):
    """Frees the blocks of a group twice when it ends."""

    pool_kind = _EndsTwice


class _HandsOutWithheld(SharedBlocks):
    @property
    def available(self) -> int:
        return super().available + len(self.withheld or ())

    def take(self, count: int) -> list[int]:
        while self.withheld and len(self.free) < count:
            self.free.append(self.withheld.pop().block)
        return super().take(count)


@planted("out-of-blocks", 4)
class HandsOutWithheld(Grouping):
    """Hands out withheld blocks when there are no others."""

    pool_kind = _HandsOutWithheld


class _ForgetsFirstRelease(SharedBlocks):
    def drop(self, blocks: Iterable[int]) -> None:
        before = self.withheld
        if before is not None:
            self.withheld = []
        super().drop(blocks)
        if before is not None and not self.withheld:
            self.withheld = before


@planted("conservation", 5)
class KeepsLastReleaseOnly(Grouping):
    """Keeps what the last release in a group gave back, and forgets those before."""

    pool_kind = _ForgetsFirstRelease


@planted("conservation", 4)
class LosesGroupOfMany(ArrayGrouping):
    """Lets one block less come back than a group withheld, where that is more than one."""

    def _end_group(self, withheld: Int64) -> ArrayPlan:
        return super()._end_group(withheld[:1])


class _EndsEmpty(SharedBlocks):
    def end_group(self) -> None:
        given, self.withheld = self.withheld or [], None
        for one in given[:1]:
            self._come_back(Withheld(one.block, None))
        self.refs.update({one.block: 1 for one in given[1:]})


@planted("conservation", 4)
class HoldsRestOfGroup(Grouping):
    """Counts all blocks of a group but the first as held when it ends."""

    pool_kind = _EndsEmpty
