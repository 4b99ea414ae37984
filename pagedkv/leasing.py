"""What both managers with abilities say of handles: whose a call is, and whether it may be made.

Nothing here changes anything.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from pagedkv import ledger
from pagedkv.configurable import NULL_BLOCK, Configurable
from pagedkv.protocol import AlreadyHolding, HoldsNothing, InvalidBlockTable, MisuseError, Request
from pagedkv.reference import already_holding


class Lease(Protocol):
    """What a request has, as far as it is told here."""

    @property
    def handle(self) -> Request:
        """Who has it."""


AnyLease = TypeVar("AnyLease", bound=Lease)


class Leasing(Configurable, Generic[AnyLease]):
    """Who has what, in the pool and in the second one. No id is in both."""

    block_size: int
    _live: dict[int, AnyLease]
    _swapped: dict[int, AnyLease]

    def allocation_report(self, req: Request) -> dict[str, float]:
        """How full the blocks of `req` are, read off the handle alone: `ledger.allocation_report`.

        Null entries are room that is not allocated: `allocated_tokens` counts the blocks held,
        `utilization` is the share of these that holds tokens. Changes nothing. Raises ValueError
        where a table set by hand is too short for `seq_len`.
        """
        report = ledger.allocation_report(req.seq_len, len(req.block_table), self.block_size)
        nulls = 0 if self.window is None else req.block_table.count(NULL_BLOCK)
        if nulls:
            allocated = report["allocated_tokens"] - nulls * self.block_size
            used = allocated - report["unused_tail_tokens"]
            report |= {"allocated_tokens": allocated, "utilization": used / (allocated or 1)}
        return report

    def _unknown(self, action: str, req: Request) -> None:
        """Make sure that `req` and its id are new; raises AlreadyHolding. Changes nothing."""
        held, out = self._live.get(req.request_id), self._swapped.get(req.request_id)
        if held is not None or len(req.block_table):
            raise already_holding(req, None if held is None else held.handle, action)
        if out is not None:
            why = "which is swapped out; swap it in or release it first"
            if out.handle is not req:
                why = "whose id a request that is swapped out has; use another id"
            raise AlreadyHolding(f"{action} request {req.request_id}, {why}")

    def _alike(self, req: Request, child: Request) -> None:
        """Make sure that a fork can't put wrong content under a key; raises MisuseError."""
        who = f"fork of request {req.request_id} into {child.request_id}"
        if child.seq_len != req.seq_len:
            raise MisuseError(
                f"{who}: their lengths are {req.seq_len} and {child.seq_len}; "
                f"make the child with the length of its parent"
            )
        if "prefix" in self.abilities and (
            child.extra_key != req.extra_key or list(child.tokens) != list(req.tokens)
        ):
            raise MisuseError(
                f"{who}: their tokens or extra keys differ, {req.tokens} under {req.extra_key!r} "
                f"and {child.tokens} under {child.extra_key!r}; make the child with its parent's"
            )

    def _out(self, action: str, req: Request) -> AnyLease:
        """What exactly this handle has in the second pool; raises MisuseError otherwise."""
        if not self._is_out(req):
            raise HoldsNothing(f"{action} of request {req.request_id}, which is not swapped out")
        if len(req.block_table):
            raise InvalidBlockTable(
                f"{action} of request {req.request_id} with block_table = {req.block_table}, "
                f"though it is swapped out; leave the table empty"
            )
        return self._swapped[req.request_id]

    def _is_out(self, req: Request) -> bool:
        """Whether exactly this handle is swapped out."""
        out = self._swapped.get(req.request_id)
        return out is not None and out.handle is req
