"""What the reference with all abilities keeps, and how it is looked at; no call here moves it.

What always holds, as equations over `_blocks` (pagedkv/shared_blocks.py says more of it), the
leases in `_live` and those that are out in `_swapped`:

    _blocks.refs[b] == |{(r, i) : _live[r].blocks[i] == b}|, for every held block b
    len(_live[r].blocks) == ceil((handle.seq_len + lookahead) / block_size), null entries included
    handle.block_table == list(_live[r].blocks), and [] for one that is swapped out
    sorted(_host_free + blocks of all in _swapped) == [0, 1, ..., num_host_blocks - 1]
    no id is in both _live and _swapped

A caller can break the second and third by editing a handle; the next call then refuses.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy
from operator import index
from typing import Any, NamedTuple, Self, SupportsIndex

import torch

from pagedkv.leasing import Leasing
from pagedkv.protocol import HoldsNothing, Request, Snapshot, as_int
from pagedkv.reference import copied, in_pool, misuse, unreadable
from pagedkv.shared_blocks import SharedBlocks


class SharedLease(NamedTuple):
    """Who got what: the handle, its blocks in logical order, and what its prefill found.

    The blocks of a lease that is swapped out are those of the second pool.
    """

    handle: Request
    blocks: tuple[int, ...]
    cached_tokens: int


class SharedCore(Leasing[SharedLease]):
    """The state of `SharedKVCacheManager`, its copies and its views."""

    # What `clone` knows how to copy; anything a subclass adds is copied deeply.
    _OWN = frozenset(
        {"num_blocks", "block_size", "head_dim", "num_host_blocks", "physical_kv_cache"}
        | {"host_kv_cache", "_blocks", "_live", "_host_free", "_swapped"}
    )

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        self.num_host_blocks = self.num_blocks if "swap" in self.abilities else 0
        rows = (self.block_size, self.head_dim)
        self.physical_kv_cache = torch.zeros((self.num_blocks, *rows), dtype=torch.float32)
        self.host_kv_cache = torch.zeros((self.num_host_blocks, *rows), dtype=torch.float32)
        self._blocks = SharedBlocks(self.num_blocks)
        self._live: dict[int, SharedLease] = {}
        self._host_free = list(range(self.num_host_blocks))
        self._swapped: dict[int, SharedLease] = {}

    @property
    def free_blocks(self) -> list[int]:
        """The free blocks, ascending, cached ones not among them; a fresh list."""
        return list(self._blocks.free)

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` rows that the table of `req` names, in table order: a copy.

        With a window only its rows, `[min(seq_len, window), head_dim]`, and only the entries that
        they need are looked at. Changes nothing. Any table will do, one set by hand included.
        Raises InvalidBlockTable for such an entry outside the pool or a table too short for
        `seq_len`, ValueError/TypeError for a `seq_len` that is no length.
        """
        seq_len, table = as_int("seq_len", req.seq_len, minimum=1), req.block_table
        start = 0 if self.window is None else max(0, seq_len - self.window)
        first = start // self.block_size
        fits = len(table) * self.block_size >= seq_len
        if not (fits and all(in_pool(block, self.num_blocks) for block in table[first:])):
            raise unreadable(req, self.num_blocks, self.block_size, first)
        rows = torch.cat([self.physical_kv_cache[index(block)] for block in table[first:]])
        return rows[start - first * self.block_size : seq_len - first * self.block_size]

    def snapshot(self) -> Snapshot:
        """All there is, as it is now; changes nothing. A structure of no ability is None."""
        blocks, on = self._blocks, self.abilities
        withheld = blocks.withheld
        return Snapshot(
            block_tables={name: lease.blocks for name, lease in self._live.items()},
            seq_lens={name: lease.handle.seq_len for name, lease in self._live.items()},
            free_blocks=blocks.free,
            ref_counts=blocks.refs if on & {"fork", "prefix"} else None,
            cached=blocks.cached,
            eviction_order=blocks.cached if "prefix" in on else None,
            index=dict[Hashable, int](blocks.index.items()) if "prefix" in on else None,
            withheld=None if withheld is None else [given.block for given in withheld],
            swapped={name: lease.blocks for name, lease in self._swapped.items()}
            if "swap" in on
            else None,
            host_free=self._host_free if "swap" in on else None,
        )

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        """All that can influence later calls, as nested tuples; changes nothing.

        Request r is called `names[r]`, one that is swapped out too. Two managers of one class
        with equal keys, and with handles in the same state, behave alike from here on. What the
        pools contain is not in it. Extra keys stand in it as they are.
        """
        blocks = self._blocks
        withheld = blocks.withheld
        return (
            (self.num_blocks, self.block_size, self.head_dim),
            tuple(blocks.free),
            tuple(blocks.cached),
            tuple(sorted(blocks.refs.items())),
            # By the block, and none stands there twice: keys need no order among themselves.
            tuple(sorted((block, key) for key, block in blocks.index.items())),
            None if withheld is None else tuple(tuple(given) for given in withheld),
            _called(self._live, names),
            tuple(self._host_free),
            _called(self._swapped, names),
        )

    def clone(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        """Copy the manager, its pools and these handles in one, sharing nothing; changes nothing.

        The copied manager refers to the copied handles, others that it knows included.
        """
        memo: dict[int, Any] = {}
        handles = {name: copied(handle, memo) for name, handle in requests.items()}
        state = dict(self.__dict__)
        state["physical_kv_cache"] = self.physical_kv_cache.clone()
        state["host_kv_cache"] = self.host_kv_cache.clone()
        state["_blocks"] = self._blocks.copy()
        state["_host_free"] = self._host_free[:]
        for leases in ("_live", "_swapped"):
            state[leases] = {
                name: lease._replace(handle=copied(lease.handle, memo))
                for name, lease in state[leases].items()
            }
        for name in state.keys() - self._OWN:
            state[name] = deepcopy(state[name], memo)
        twin = object.__new__(type(self))
        twin.__dict__.update(state)
        return twin, handles

    def _lease_of(self, action: str, req: Request) -> SharedLease:
        """What exactly this handle holds; raises MisuseError unless its table agrees."""
        lease = self._live.get(req.request_id)
        if lease is not None and lease.handle is req and list(req.block_table) == [*lease.blocks]:
            return lease
        if self._is_out(req) and not len(req.block_table):
            raise HoldsNothing(
                f"{action} of request {req.request_id}, which is swapped out; swap it in first"
            )
        held = None if lease is None or lease.handle is not req else lease.blocks
        raise misuse(action, req, held, self.num_blocks, lambda block: self._holder(block, req))

    def _holder(self, block: int, asking: Request) -> Request | None:
        """A live request that holds `block`, `asking` if it is one; None if nobody does."""
        holders = [lease.handle for lease in self._live.values() if block in lease.blocks]
        return asking if asking in holders else next(iter(holders), None)


def _called(leases: Mapping[int, SharedLease], names: Mapping[int, int]) -> tuple[object, ...]:
    """Leases under other names, sorted: no call depends on the order of admission."""
    return tuple(
        sorted(
            (names[name], lease.handle.seq_len, lease.blocks, lease.cached_tokens)
            for name, lease in leases.items()
        )
    )
