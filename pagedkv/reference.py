"""The obviously right manager: one free list, one lease for each live request.

What always holds, as equations over `_free` (ascending) and the leases in `_live`:

    sorted(_free + blocks of all leases) == [0, 1, ..., num_blocks - 1]
    len(blocks of a lease) == ceil(handle.seq_len / block_size)
    handle.block_table == list(blocks of its lease)

A caller can break the last two by editing a handle; the next call then refuses, and says so.

Every call first computes all it needs and then only assigns, so that a failure on the way leaves
everything as it was. A handle's `block_table` is replaced by a new list, never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from operator import index
from typing import Any, NamedTuple, Self, SupportsIndex

import torch

from pagedkv import ledger
from pagedkv.protocol import (
    AlreadyHolding,
    HoldsNothing,
    InvalidBlockTable,
    MisuseError,
    OutOfBlocks,
    Request,
    Snapshot,
    as_int,
)

Holder = Callable[[int], Request | None]
"""The live request that holds a block of the pool; None if it is free."""


class Lease(NamedTuple):
    """Who got what: the handle, and its blocks in logical order."""

    handle: Request
    blocks: tuple[int, ...]


class KVCacheManager:
    """The reference: lists and loops, the lowest free block first.

    `physical_kv_cache` is the pool, float32 zeros `[num_blocks, block_size, head_dim]`. A
    request is known by its handle: a second handle with the id of a live one is refused.
    Raises ValueError for a value below 1, TypeError for booleans and floats.
    Source: Kwon et al., PagedAttention (SOSP 2023), section 4.3, without sharing.
    """

    # What `clone` knows how to copy; anything a subclass adds is copied deeply.
    _OWN = frozenset(
        {"num_blocks", "block_size", "head_dim", "physical_kv_cache", "_free", "_live"}
    )

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        shape = (self.num_blocks, self.block_size, self.head_dim)
        self.physical_kv_cache = torch.zeros(shape, dtype=torch.float32)
        self._free = list(range(self.num_blocks))
        self._live: dict[int, Lease] = {}

    @property
    def free_blocks(self) -> list[int]:
        """The free physical blocks, ascending, which is the hand-out order; a fresh list."""
        return list(self._free)

    def allocate_for_prefill(self, req: Request) -> None:
        """Take ceil(seq_len / block_size) blocks for `req`, all or nothing. Mutates both.

        Raises OutOfBlocks, AlreadyHolding if `req` holds blocks or another live request has its
        id, or ValueError/TypeError for a `seq_len` that is no length; nothing has changed then.
        """
        lease = self._live.get(req.request_id)
        if lease is not None or len(req.block_table):
            raise already_holding(req, lease and lease.handle)
        needed = ledger.blocks_for(as_int("seq_len", req.seq_len, minimum=1), self.block_size)
        if needed > len(self._free):
            raise OutOfBlocks(req.request_id, needed, len(self._free))
        taken, rest = self._free[:needed], self._free[needed:]
        lease = Lease(req, tuple(taken))
        self._live[req.request_id] = lease
        self._free = rest
        req.block_table = taken

    def allocate_for_decode(self, req: Request) -> None:
        """Make room for one more token: one more block only if the held ones are full.

        Mutates both. Raises OutOfBlocks, HoldsNothing, or InvalidBlockTable if the handle's
        table was edited, or its `seq_len` so that it no longer fits; nothing has changed then.
        """
        blocks = self._blocks_of("decode", req)
        seq_len = fitting_length(req, len(blocks), self.block_size, "decode")
        if seq_len < len(blocks) * self.block_size:
            req.seq_len = seq_len + 1
            return
        if not self._free:
            raise OutOfBlocks(req.request_id, 1, 0)
        block, rest = self._free[0], self._free[1:]
        lease, table = Lease(req, (*blocks, block)), [*blocks, block]
        self._live[req.request_id] = lease
        self._free = rest
        req.block_table = table
        req.seq_len = seq_len + 1

    def release_request(self, req: Request) -> None:
        """Give all blocks of `req` back; the table is emptied, `seq_len` kept. Mutates both.

        Raises HoldsNothing, or InvalidBlockTable if the table is not the one handed out; nothing
        has changed then. `seq_len` is not looked at: the blocks do not depend on it.
        """
        free = sorted([*self._free, *self._blocks_of("release", req)])
        del self._live[req.request_id]
        self._free = free
        req.block_table = []

    def allocation_report(self, req: Request) -> dict[str, float]:
        """How full the blocks of `req` are, read off the handle alone: `ledger.allocation_report`.

        Changes nothing. Raises ValueError where a table set by hand is too short for `seq_len`.
        """
        return ledger.allocation_report(req.seq_len, len(req.block_table), self.block_size)

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` rows that the table of `req` names, in table order: a copy.

        Changes nothing, and writing to the result does not change the pool. Any table will do,
        one set by hand included. Raises InvalidBlockTable for an entry outside the pool or a
        table too short for `seq_len`, ValueError/TypeError for a `seq_len` that is no length.
        """
        seq_len, table = as_int("seq_len", req.seq_len, minimum=1), req.block_table
        fits = len(table) * self.block_size >= seq_len
        if not (fits and all(in_pool(block, self.num_blocks) for block in table)):
            raise unreadable(req, self.num_blocks, self.block_size)
        return torch.cat([self.physical_kv_cache[index(block)] for block in table])[:seq_len]

    def snapshot(self) -> Snapshot:
        """The leases and the free list as they are now, all there is; changes nothing. O(pool)."""
        return Snapshot(
            block_tables={name: lease.blocks for name, lease in self._live.items()},
            seq_lens={name: lease.handle.seq_len for name, lease in self._live.items()},
            free_blocks=tuple(self._free),
        )

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        """All that can influence later calls, as nested tuples of ints; changes nothing.

        Request r is called `names[r]`. Two managers with equal keys, and with handles in the same
        state, behave alike from here on. What the pool contains is not in it.
        """
        live = [
            (names[name], lease.handle.seq_len, lease.blocks) for name, lease in self._live.items()
        ]
        live.sort()  # The order of admission is in the dict, but no call depends on it.
        geometry = (self.num_blocks, self.block_size, self.head_dim)
        return (*geometry, tuple(self._free), tuple(live))

    def clone(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        """Copy the manager, its pool and these handles in one, sharing nothing; changes nothing.

        The copied manager refers to the copied handles, live ones outside `requests` included.
        """
        memo: dict[int, Any] = {}
        handles = {name: copied(handle, memo) for name, handle in requests.items()}
        state = dict(self.__dict__)
        state["physical_kv_cache"] = self.physical_kv_cache.clone()
        state["_free"] = self._free[:]
        state["_live"] = {
            name: Lease(copied(handle, memo), blocks)
            for name, (handle, blocks) in self._live.items()
        }
        for name in state.keys() - self._OWN:
            state[name] = deepcopy(state[name], memo)
        twin = object.__new__(type(self))
        twin.__dict__.update(state)
        return twin, handles

    def _blocks_of(self, action: str, req: Request) -> tuple[int, ...]:
        """The blocks that exactly this handle holds; raises MisuseError unless its table agrees."""
        lease = self._live.get(req.request_id)
        blocks = lease.blocks if lease is not None and lease.handle is req else None
        if blocks is None or list(blocks) != list(req.block_table):
            raise misuse(action, req, blocks, self.num_blocks, self._holder)
        return blocks

    def _holder(self, block: int) -> Request | None:
        """The live request that holds `block`; None if it is free."""
        for handle, blocks in self._live.values():
            if block in blocks:
                return handle
        return None


def copied(handle: Request, memo: dict[int, Any]) -> Request:
    """Return the copy of `handle`, made once per `memo` (by identity, as deepcopy keeps it)."""
    twin = memo.get(id(handle))
    if twin is None:
        if type(handle) is not Request:  # A subclass may keep more than we know of.
            return deepcopy(handle, memo)
        twin = memo[id(handle)] = object.__new__(Request)
        twin.request_id = handle.request_id
        twin.prompt_len = handle.prompt_len
        twin.seq_len = handle.seq_len
        twin.block_table = handle.block_table[:]
        twin.tokens = handle.tokens[:]
        twin.extra_key = handle.extra_key
    return twin


def fitting_length(req: Request, held: int, block_size: int, action: str, ahead: int = 0) -> int:
    """Return `seq_len` as an int if exactly `held` blocks cover it; changes nothing.

    ahead: tokens to come that they cover too. Raises InvalidBlockTable if not,
    ValueError/TypeError for a `seq_len` that is no length.
    """
    seq_len = as_int("seq_len", req.seq_len, minimum=1)
    due = ledger.blocks_for(seq_len + ahead, block_size)
    if due != held:
        raise InvalidBlockTable(
            f"{action} of request {req.request_id}: seq_len = {seq_len} was edited, it needs "
            f"{due} block(s) and the request holds {held}; "
            f"leave seq_len as the manager set it"
        )
    return seq_len


def unreadable(req: Request, num_blocks: int, block_size: int, first: int = 0) -> InvalidBlockTable:
    """Return the error for reading `req`: a table too short, or an entry outside the pool.

    The entries before `first` are not read.
    """
    needed = ledger.blocks_for(req.seq_len, block_size)
    why = f"it is too short, seq_len = {req.seq_len} needs {needed} block(s) of {block_size}"
    if len(req.block_table) >= needed:
        bad = next(block for block in req.block_table[first:] if not in_pool(block, num_blocks))
        why = f"{bad!r} is no block of the pool, 0 .. {num_blocks - 1}"
    return InvalidBlockTable(
        f"reading request {req.request_id} with block_table = {req.block_table}: {why}; "
        f"prefill the request or mend its table"
    )


def in_pool(block: object, num_blocks: int) -> bool:
    """Whether `block` is an integer of the pool; changes nothing."""
    try:
        return 0 <= index(block) < num_blocks  # type: ignore[arg-type]  # any object may stand there
    except TypeError:
        return False


def already_holding(
    req: Request, live: Request | None, action: str = "prefill of"
) -> AlreadyHolding:
    """Return the error for a prefill of `req`; `live` is the live handle with its id, if any."""
    if live is None:
        why = f"which carries the blocks {req.block_table} set by hand; empty its block_table first"
    elif live is not req:
        why = f"whose id a live request with the blocks {live.block_table} has; use another id"
    elif len(req.block_table):
        why = f"which holds the blocks {req.block_table}; release it first"
    else:
        why = "which holds blocks though its block_table was emptied by hand; put the table back"
    return AlreadyHolding(f"{action} request {req.request_id}, {why}")


def misuse(
    action: str, req: Request, held: Sequence[int] | None, num_blocks: int, holder: Holder
) -> MisuseError:
    """Return the error for a decode or release of `req`, whose table is not what it holds.

    `held` are the blocks that this handle was given, None if it was given none.
    """
    table = list(req.block_table)
    if held is None and not table:
        return HoldsNothing(
            f"{action} of request {req.request_id}, which holds no blocks; prefill it first"
        )
    return InvalidBlockTable(
        f"{action} of request {req.request_id} with block_table = {table}: "
        f"{_flaw(req, held, num_blocks, holder)}; leave the table as the manager filled it in"
    )


def _flaw(req: Request, held: Sequence[int] | None, num_blocks: int, holder: Holder) -> str:
    """Name the first thing that is wrong with the table of `req`, in the table's order."""
    seen: set[int] = set()
    for block in req.block_table:
        if not in_pool(block, num_blocks):
            if block in (held or ()):  # it stands for a block that went back
                continue
            return f"{block!r} is no block of the pool, 0 .. {num_blocks - 1}"
        if block in seen:
            return f"block {block} stands there twice"
        seen.add(block)
        owner = holder(block)
        if owner is None:
            return f"block {block} is free"
        if owner is not req:
            return f"block {block} belongs to another request with the id {owner.request_id}"
    return f"it was given {list(held or ())}"
