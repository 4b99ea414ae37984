"""The array-backed manager: the reference's behaviour over int32 numpy arrays.

What always holds is said, as equations over the arrays, at the head of pagedkv/rows.py; calls for
many requests at once are in pagedkv/batches.py. A call costs the blocks of its own requests, at C
speed, whatever the size of the pool and the number of live requests.

Every call first computes all it needs and then only assigns, so that a failure on the way leaves
everything as it was; room made for more rows or wider tables may stay, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from operator import index
from typing import Any, Self

import numpy as np
import torch

from pagedkv import ledger
from pagedkv.batches import BatchedCalls
from pagedkv.protocol import MisuseError, OutOfBlocks, Request, as_int
from pagedkv.reference import already_holding, copied, fitting_length, unreadable
from pagedkv.rows import FEW, KEPT, NOBODY, NOTHING_LEFT, RowHandle

__all__ = ["NOBODY", "ArrayKVCacheManager"]

_HUGE = 2**20
"""Floats, 4 MiB, from which numpy asks for huge pages, and torch does not."""


class ArrayKVCacheManager(BatchedCalls):
    """The fast one: outside like `KVCacheManager`, but the last freed block first.

    A fresh pool hands out the lowest block first; blocks that came back are handed out before
    the others, in the order of the table that they came back from. What a call changes and
    raises, and that nothing has changed when it raises, is as said there. `physical_kv_cache` is
    the pool, float32 zeros `[num_blocks, block_size, head_dim]`. Raises ValueError for a value
    below 1 or a pool of more than 2**31 - 1 tokens, TypeError for booleans and floats.
    """

    def allocate_for_prefill(self, req: Request) -> None:
        """Take ceil(seq_len / block_size) blocks for `req`, all or nothing. Mutates both."""
        name, rows = req.request_id, self._rows
        if name in rows or len(req.block_table):
            row = rows.get(name, NOBODY)
            raise already_holding(req, None if row == NOBODY else self._handles[row])
        if name < 0:
            raise MisuseError(
                f"prefill of the handle of row {~name}, which was released; prefill a Request, "
                f"or use prefill_rows"
            )
        seq_len = req.seq_len
        if type(seq_len) is not int or seq_len < 1:
            seq_len = as_int("seq_len", seq_len, minimum=1)
        count, num_free = -(-seq_len // self.block_size), self._num_free
        left = num_free - count
        if left < 0:
            raise OutOfBlocks(name, count, num_free)
        if not self._num_free_rows or count > self._tables.shape[1]:
            self._make_room(1, count)
        rows_left = self._num_free_rows - 1
        row = self._free_rows.item(rows_left)
        table = self._enter(row, count)
        given = table[:] if 2 * left >= self.num_blocks else None
        # Only assignments from here on. Dicts may have to grow, so they come first.
        self._late[row] = None
        rows[name] = row
        self._handles[row] = req
        self._given[row] = given
        self._num_free_rows = rows_left
        self._num_free = left
        del self._top[-count:]
        self._counts[row] = count
        self._lengths[row] = seq_len
        req.block_table = table

    def allocate_for_decode(self, req: Request) -> None:
        """Make room for one more token: one more block if the held are full. Mutates both."""
        row, held = self._holding("decode", req)
        count = len(held)
        longer = fitting_length(req, count, self.block_size, "decode") + 1
        plain = not isinstance(req, RowHandle)
        if longer <= count * self.block_size:
            self._prepared = None
            self._lengths[row] = longer
            if plain:
                req.seq_len = longer
            return
        left = self._num_free - 1
        if left < 0:
            raise OutOfBlocks(req.request_id, 1, 0)
        if count == self._tables.shape[1]:
            self._make_room(0, count + 1)
        top = self._top
        block = top[-1] if top else self._free.item(left)
        table = [*held, block]
        given = table[:] if plain and 2 * left >= self.num_blocks else None
        self._tables[row, count] = block
        # Only assignments from here on.
        self._prepared = None
        self._late[row] = None
        self._num_free = left
        del top[-1:]
        self._counts[row] = count + 1
        self._lengths[row] = longer
        self._given[row] = given
        if plain:
            req.block_table = table
            req.seq_len = longer

    def release_request(self, req: Request) -> None:
        """Give all blocks of `req` back; the table is emptied, `seq_len` kept. Mutates both."""
        row, held = self._holding("release", req)
        count, num_free_rows = len(held), self._num_free_rows
        if count > FEW or len(self._top) > KEPT:
            self._settle()
        after, many = self._num_free + count, None
        if count > FEW:
            many = self._free[self._num_free : after]
            many[:] = self._tables[row, :count][::-1]
        view = req if isinstance(req, RowHandle) else None
        last_length = None if view is None else self._lengths.item(row)
        # Only assignments from here on.
        self._prepared = None
        if many is None:
            self._top += held[::-1]
            self._left_in = (row, held)
        else:
            self._owner[many] = NOBODY
        self._num_free = after
        self._lengths[row] = 0
        self._free_rows[num_free_rows] = row
        self._num_free_rows = num_free_rows + 1
        self._handles[row] = self._given[row] = None
        del self._rows[req.request_id]
        if view is None:
            req.block_table = []
        else:
            view._last_length = last_length

    def allocation_report(self, req: Request) -> dict[str, float]:
        """How full the blocks of `req` are, read off the handle alone: `ledger.allocation_report`.

        Changes nothing. Raises ValueError where a table set by hand is too short for `seq_len`.
        """
        return ledger.allocation_report(req.seq_len, len(req.block_table), self.block_size)

    def get_physical_cache(self, req: Request, out: torch.Tensor | None = None) -> torch.Tensor:
        """The `[seq_len, head_dim]` rows that the table of `req` names, in table order: a copy.

        One gather. Any table will do, one set by hand included; changes nothing but `out`, a
        contiguous `[at least seq_len, head_dim]` tensor of the pool's type: the rows are then put
        at its start, and what is returned shares its memory. Raises ValueError for another `out`.
        """
        seq_len, size = as_int("seq_len", req.seq_len, minimum=1), self.block_size
        pool, needed = self.physical_kv_cache, -(-seq_len // size)
        try:
            table = torch.from_numpy(np.fromiter(map(index, req.block_table), dtype=np.int64))
            if out is None and len(table) * size * self.head_dim < _HUGE:
                # Small reads are many: no second look at the table, which may be longer.
                tokens = pool.index_select(0, table).flatten(0, 1)
                if len(tokens) >= seq_len:
                    return tokens[:seq_len]
        except (IndexError, OverflowError, TypeError) as error:
            raise unreadable(req, self.num_blocks, size) from error
        if len(table) < needed or ((table < 0) | (table >= self.num_blocks)).any():
            raise unreadable(req, self.num_blocks, size)
        if out is None:
            out = _huge((seq_len, self.head_dim), pool)
        self._check_out(out, seq_len)
        whole, rest = divmod(seq_len, size)
        blocks = out[: whole * size].view(whole, size, self.head_dim)
        torch.index_select(pool, 0, table[:whole], out=blocks)
        if rest:
            out[whole * size : seq_len] = pool[int(table[whole]), :rest]
        return out[:seq_len]

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        """All that can influence later calls, as nested tuples of ints; changes nothing.

        Request r is called `names[r]`, where r is `~row` for a row without a handle. Two managers
        with equal keys, and with handles in the same state, behave alike from here on, up to the
        names of rows: no outcome depends on which row a request has, and leaving that out makes
        the states of a small pool six times fewer. What the pool contains is not in it.
        """
        self._settle()
        rows = self._names()
        called = {row: names[name] for name, row in rows.items()}
        owners = tuple([called.get(row, NOBODY) for row in self._owner.tolist()])
        live = [
            (
                called[row],
                self._lengths.item(row),
                tuple(self._tables[row, : self._counts.item(row)].tolist()),
            )
            for row in called
        ]
        live.sort()
        free = tuple(self._stack().tolist())
        return (self.num_blocks, self.block_size, self.head_dim, free, owners, tuple(live))

    def clone(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        """Copy the manager, its pool and these handles in one, sharing nothing; changes nothing.

        The copied manager refers to the copied handles, live ones outside `requests` included.
        """
        self._settle()
        twin = object.__new__(type(self))
        memo: dict[int, Any] = {id(self): twin}
        handles = {name: copied(handle, memo) for name, handle in requests.items()}
        state = dict(self.__dict__)
        state["physical_kv_cache"] = self.physical_kv_cache.clone()
        for name in self._ARRAYS:
            state[name] = state[name].copy()
        state["_rows"] = self._rows.copy()
        state["_handles"] = [held and copied(held, memo) for held in self._handles]
        state["_top"], state["_late"], state["_left_in"] = [], {}, NOTHING_LEFT
        state["_prepared"] = None
        state["_given"] = [held and held[:] for held in self._given]
        for name in state.keys() - self._OWN:
            state[name] = deepcopy(state[name], memo)
        twin.__dict__.update(state)
        return twin, handles

    def _check_out(self, out: torch.Tensor, seq_len: int) -> None:
        pool = self.physical_kv_cache
        right = out.ndim == 2 and len(out) >= seq_len and out.shape[1] == self.head_dim
        if not (right and out.dtype == pool.dtype and out.is_contiguous()):
            raise ValueError(
                f"out is {out.dtype} {list(out.shape)}{'' if out.is_contiguous() else ', strided'};"
                f" give a contiguous {pool.dtype} tensor of at least [{seq_len}, {self.head_dim}]"
            )


def _huge(shape: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
    """An uninitialised tensor in memory of numpy's: it takes a third of the time to fill."""
    size = shape[0] * shape[1] * like.element_size()
    return torch.from_numpy(np.empty(size, dtype=np.uint8)).view(like.dtype).view(shape)
