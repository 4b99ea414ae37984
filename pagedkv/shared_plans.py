"""What each call of the reference with all abilities comes to, worked out on a copy.

A plan changes nothing and raises what the call raises, so that asking is planning, and a call is
a plan that is carried out. What each call is for is said in pagedkv/abilities.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, SupportsIndex

from pagedkv.configurable import NULL_BLOCK
from pagedkv.ledger import blocks_for
from pagedkv.protocol import MisuseError, OutOfBlocks, Request, as_int
from pagedkv.reference import fitting_length
from pagedkv.shared_blocks import Key, SharedBlocks
from pagedkv.shared_core import SharedCore, SharedLease


class Copy(NamedTuple):
    """The rows of block `source` are to stand in block `target` too."""

    source: int
    target: int


class Plan(NamedTuple):
    """All blocks, the lease and the length after a call, and the rows that it copies."""

    blocks: SharedBlocks
    lease: SharedLease
    seq_len: int
    copy: Copy | None = None


class SwapPlan(NamedTuple):
    """Both pools and the lease after a swap; block `here[i]` is block `there[i]` of the second."""

    blocks: SharedBlocks
    lease: SharedLease
    host_free: list[int]
    here: list[int]
    there: list[int]


class SharedPlans(SharedCore):
    """The plan of each call that may be refused, and the questions that need no more."""

    # ---------------------------------------------------------------- ask

    def can_prefill(self, req: Request) -> bool:
        """Whether `allocate_for_prefill` would be granted; changes nothing."""
        return self._would("can_prefill", lambda: self._plan_prefill(req))

    def can_decode(self, req: Request) -> bool:
        """Whether `allocate_for_decode` would be granted; changes nothing."""
        return self._would("can_decode", lambda: self._plan_growth("decode", req, 1))

    def can_append(self, req: Request, count: SupportsIndex) -> bool:
        """Whether `allocate_for_append` would be granted; changes nothing."""
        return self._would("can_append", lambda: self._plan_append(req, count))

    def can_fork(self, req: Request) -> bool:
        """Whether `fork_request` into a fresh handle would be granted; changes nothing."""
        return self._would("can_fork", lambda: self._plan_fork(req))

    def can_swap_out(self, req: Request) -> bool:
        """Whether `swap_out` would be granted; changes nothing."""
        return self._would("can_swap_out", lambda: self._plan_swap_out(req))

    def can_swap_in(self, req: Request) -> bool:
        """Whether `swap_in` would be granted; changes nothing."""
        return self._would("can_swap_in", lambda: self._plan_swap_in(req))

    def _would(self, call: str, plan: Callable[[], object]) -> bool:
        """Whether there is such a plan; wrong use is a no. Raises MisuseError without ask."""
        self._needs("ask", call)
        try:
            plan()
        except (OutOfBlocks, ValueError, TypeError):
            return False
        return True

    # ---------------------------------------------------------------- plans

    def _plan_prefill(self, req: Request) -> Plan:
        self._unknown("prefill of", req)
        seq_len = as_int("seq_len", req.seq_len, minimum=1)
        found, blocks = self._find(req, seq_len), self._blocks.copy()
        for block in found:  # Before anything is counted or taken, lest that evicts one of them.
            blocks.hold(block)
        needed = self._covering(seq_len) - len(found)
        taken = _take(blocks, req, needed)
        lease = SharedLease(req, (*found, *taken), len(found) * self.block_size)
        if self.publishes_at_once:
            self._publish(blocks, lease, seq_len)
        return Plan(blocks, lease, seq_len)

    def _plan_append(self, req: Request, count: SupportsIndex) -> Plan:
        self._needs("append", "allocate_for_append")
        return self._plan_growth("append", req, as_int("count", count, minimum=1))

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        lease = self._lease_of(action, req)
        seq_len = self._fitting(action, req, lease)
        longer, blocks = seq_len + count, self._blocks.copy()
        table = self._slide(blocks, lease.blocks, longer)
        first, size = seq_len // self.block_size, self.block_size
        written = range(first, min(len(table), blocks_for(longer, size)))
        copied = [logical for logical in written if blocks.shared(table[logical])]
        taken = _take(blocks, req, self._covering(longer) - len(table) + len(copied))
        copy = None
        for logical in written:
            block = table[logical]
            if logical not in copied:
                blocks.withdraw(block)
                continue
            table[logical] = taken.pop(0)
            blocks.drop([block])
            if logical == first and seq_len % size:
                copy = Copy(source=block, target=table[logical])
        lease = lease._replace(blocks=(*table, *taken))
        if self.publishes_at_once:
            self._publish(blocks, lease, longer)
        return Plan(blocks, lease, longer, copy)

    def _plan_truncate(self, req: Request, seq_len: SupportsIndex) -> Plan:
        self._needs("truncate", "truncate_request")
        kept = as_int("seq_len", seq_len, minimum=1)
        lease = self._lease_of("truncate", req)
        there = self._fitting("truncate", req, lease)
        if kept > there:
            raise MisuseError(
                f"truncate of request {req.request_id} to {kept} tokens, and it has {there}; "
                f"give a length of at most that"
            )
        blocks, count = self._blocks.copy(), self._covering(kept)
        blocks.drop(lease.blocks[count:][::-1])
        return Plan(blocks, lease._replace(blocks=lease.blocks[:count]), kept)

    def _plan_fork(self, req: Request) -> Plan:
        """The lease in it is still that of `req`."""
        self._needs("fork", "fork_request")
        lease = self._lease_of("fork", req)
        seq_len = self._fitting("fork", req, lease)
        blocks = self._blocks.copy()
        if self.forks_eagerly and seq_len % self.block_size:
            *shared, tail = lease.blocks
            taken = _take(blocks, req, 1)
            copy = Copy(source=tail, target=taken[0])
        else:
            shared, taken, copy = list(lease.blocks), [], None
        for block in shared:
            blocks.hold(block)
        lease = lease._replace(blocks=(*shared, *taken), cached_tokens=0)
        return Plan(blocks, lease, seq_len, copy)

    def _plan_swap_out(self, req: Request) -> SwapPlan:
        self._needs("swap", "swap_out")
        lease, blocks = self._lease_of("swap_out", req), self._blocks.copy()
        count, room = len(lease.blocks), len(self._host_free)
        if count > room:
            raise OutOfBlocks(req.request_id, count, room)
        there, host_free = self._host_free[:count], self._host_free[count:]
        blocks.drop(lease.blocks[::-1])
        out = lease._replace(blocks=tuple(there))
        return SwapPlan(blocks, out, host_free, list(lease.blocks), there)

    def _plan_swap_in(self, req: Request) -> SwapPlan:
        self._needs("swap", "swap_in")
        out, blocks = self._out("swap_in", req), self._blocks.copy()
        seq_len = self._fitting("swap_in", req, out)
        here = _take(blocks, req, len(out.blocks))
        lease = out._replace(blocks=tuple(here))
        if self.publishes_at_once:
            self._publish(blocks, lease, seq_len)
        host_free = sorted([*self._host_free, *out.blocks])
        return SwapPlan(blocks, lease, host_free, here, list(out.blocks))

    # ---------------------------------------------------------------- steps of a plan

    def _covering(self, seq_len: int) -> int:
        """How many blocks a request of `seq_len` tokens holds, with those reserved ahead."""
        return blocks_for(seq_len + self.lookahead, self.block_size)

    def _fitting(self, action: str, req: Request, lease: SharedLease) -> int:
        """The length of `req`, which its blocks fit; raises InvalidBlockTable if not."""
        return fitting_length(req, len(lease.blocks), self.block_size, action, self.lookahead)

    def _key(self, req: Request, logical: int) -> Key:
        """What the full block `logical` of `req` is found by."""
        return req.extra_key, tuple(req.tokens[: (logical + 1) * self.block_size])

    def _find(self, req: Request, seq_len: int) -> list[int]:
        """The longest chain of leading full blocks that can be found, the last token left out."""
        if "prefix" not in self.abilities:
            return []
        if len(req.tokens) != seq_len:
            raise MisuseError(
                f"prefill of request {req.request_id} with len(tokens) = {len(req.tokens)} != "
                f"{seq_len} = seq_len; give one token id for each position"
            )
        found: list[int] = []
        for logical in range((seq_len - 1) // self.block_size):
            block = self._blocks.index.get(self._key(req, logical))
            if block is None:
                break
            found.append(block)
        return found

    def _publish(self, blocks: SharedBlocks, lease: SharedLease, seq_len: int) -> None:
        """Let the full blocks of a lease be found, as far as their tokens are there."""
        if "prefix" not in self.abilities:
            return
        full = min(seq_len, len(lease.handle.tokens)) // self.block_size
        for logical, block in enumerate(lease.blocks[:full]):
            blocks.publish(block, self._key(lease.handle, logical))

    def _slide(self, blocks: SharedBlocks, table: tuple[int, ...], seq_len: int) -> list[int]:
        """The table once blocks behind the window of `seq_len` tokens have gone back."""
        behind = 0 if self.window is None else max(0, seq_len - self.window) // self.block_size
        blocks.drop(held(table[:behind]))
        return [NULL_BLOCK] * min(behind, len(table)) + list(table[behind:])


def held(table: tuple[int, ...]) -> list[int]:
    """The blocks of a table without the null entries."""
    return [block for block in table if block != NULL_BLOCK]


def _take(blocks: SharedBlocks, req: Request, count: int) -> list[int]:
    """Take `count` blocks for `req`; raises OutOfBlocks if there are not so many."""
    if count > blocks.available:
        raise OutOfBlocks(req.request_id, count, blocks.available)
    return blocks.take(count)
