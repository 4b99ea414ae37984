"""Looking at the array-backed manager that shares blocks, copying it, and whose a call is.

Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from operator import index
from typing import Any, Self

import numpy as np
import torch

from pagedkv.ledger import blocks_for
from pagedkv.protocol import HoldsNothing, Request, Snapshot, as_int
from pagedkv.reference import copied, fitting_length, misuse, unreadable
from pagedkv.shared_plan import Held
from pagedkv.shared_pool import SharedPool


class SharedViews(SharedPool):
    """How the arrays are looked at and copied, and which handle has what."""

    @property
    def free_blocks(self) -> list[int]:
        """The free blocks, ascending, cached ones not among them; a fresh list. It sorts."""
        return sorted(self._free[: self._num_free].tolist())

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` rows that the table of `req` names, in table order: a copy.

        With a window only its rows, `[min(seq_len, window), head_dim]`, and only the entries that
        they need are looked at. One gather; changes nothing. Any table will do, one set by hand
        included. Raises InvalidBlockTable for such an entry outside the pool or a table too short
        for `seq_len`, ValueError/TypeError for a `seq_len` that is no length.
        """
        seq_len, size = as_int("seq_len", req.seq_len, minimum=1), self.block_size
        start = 0 if self.window is None else max(0, seq_len - self.window)
        first = start // size
        try:
            table = np.fromiter(map(index, req.block_table[first:]), dtype=np.int64)
            blocks = self.physical_kv_cache.index_select(0, torch.from_numpy(table))
        except (IndexError, OverflowError, TypeError) as error:
            raise unreadable(req, self.num_blocks, size, first) from error
        rows = blocks.flatten(0, 1)
        if first * size + len(rows) < seq_len:
            raise unreadable(req, self.num_blocks, size, first)
        return rows[start - first * size : seq_len - first * size]

    def snapshot(self) -> Snapshot:
        """All there is, as the arrays have it; changes nothing. O(pool).

        A structure of no ability is None. Keys of the index are (extra key, digest).
        """
        on, held, cached = self.abilities, np.flatnonzero(self._refs), self._cached().tolist()
        counts = dict(zip(held.tolist(), self._refs[held].tolist(), strict=True))
        swapped = {name: out.blocks.tolist() for name, out in self._swapped.items()}
        return Snapshot(
            block_tables={name: has.blocks.tolist() for name, has in self._live.items()},
            seq_lens={name: has.handle.seq_len for name, has in self._live.items()},
            free_blocks=self._free[: self._num_free][::-1].tolist(),
            num_free=self._num_free,
            ref_counts=counts if on & {"fork", "prefix"} else None,
            cached=cached,
            eviction_order=cached if "prefix" in on else None,
            index=self._index if "prefix" in on else None,
            withheld=None if self._withheld is None else self._withheld.tolist(),
            swapped=swapped if "swap" in on else None,
            host_free=self._host_free[: self._num_host_free][::-1].tolist()
            if "swap" in on
            else None,
        )

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        """All that can influence later calls, as nested tuples; changes nothing.

        Request r is called `names[r]`, one that is swapped out too. Two managers of one class
        with equal keys, and with handles in the same state, behave alike from here on. What the
        pools contain is not in it. Extra keys stand in it as they are.
        """
        published = np.flatnonzero(self._published).tolist()
        return (
            (self.num_blocks, self.block_size, self.head_dim),
            tuple(self._free[: self._num_free].tolist()),
            tuple(self._cached().tolist()),
            tuple(self._refs.tolist()),
            tuple([(block, self._keys[block]) for block in published]),
            # By the block, and none stands there twice: keys need no order among themselves.
            tuple(sorted([(block, key) for key, block in self._index.items()])),
            None if self._withheld is None else tuple(self._withheld.tolist()),
            _called(self._live, names),
            tuple(self._host_free[: self._num_host_free].tolist()),
            _called(self._swapped, names),
        )

    def clone(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        """Copy the manager, its pools and these handles in one, sharing nothing; changes nothing.

        The copied manager refers to the copied handles, others that it knows included.
        """
        memo: dict[int, Any] = {}
        handles = {name: copied(handle, memo) for name, handle in requests.items()}
        state = dict(self.__dict__)
        for name in ("physical_kv_cache", "host_kv_cache"):
            state[name] = state[name].clone()
        for name in self._ARRAYS:
            state[name] = state[name].copy()
        for name in ("_live", "_swapped"):
            # Blocks are never changed in place, so both may have the same array.
            state[name] = {
                r: has._replace(handle=copied(has.handle, memo)) for r, has in state[name].items()
            }
        for name in state.keys() - self._OWN:
            state[name] = deepcopy(state[name], memo)
        twin = object.__new__(type(self))
        twin.__dict__.update(state)
        return twin, handles

    # ---------------------------------------------------------------- whose call it is

    def _holding(self, action: str, req: Request) -> Held:
        """What exactly this handle holds; raises MisuseError unless its table agrees."""
        held = self._live.get(req.request_id)
        if held is not None and held.handle is req:
            blocks, table = held.blocks.tolist(), req.block_table
            if blocks == (table if type(table) is list else list(table)):
                return held
            raise misuse(action, req, blocks, self.num_blocks, self._holder_for(req))
        if self._is_out(req) and not len(req.block_table):
            raise HoldsNothing(
                f"{action} of request {req.request_id}, which is swapped out; swap it in first"
            )
        raise misuse(action, req, None, self.num_blocks, self._holder_for(req))

    def _covering(self, seq_len: int) -> int:
        """How many blocks a request of `seq_len` tokens holds, with those reserved ahead."""
        return blocks_for(seq_len + self.lookahead, self.block_size)

    def _fitting(self, action: str, held: Held) -> int:
        """The length of a request, which its blocks fit; raises InvalidBlockTable if not."""
        size, ahead = self.block_size, self.lookahead
        return fitting_length(held.handle, len(held.blocks), size, action, ahead)

    def _holder_for(self, req: Request) -> Callable[[int], Request | None]:
        """Who holds a block, `req` first if it is one of them; None if nobody does."""

        def holder(block: int) -> Request | None:
            holders = [held.handle for held in self._live.values() if block in held.blocks]
            return req if req in holders else next(iter(holders), None)

        return holder


def _called(leases: Mapping[int, Held], names: Mapping[int, int]) -> tuple[object, ...]:
    """Leases under other names; no call depends on the order of admission, which the dict has."""
    return tuple(
        sorted(
            [
                (names[name], has.handle.seq_len, tuple(has.blocks.tolist()), has.found)
                for name, has in leases.items()
            ]
        )
    )
