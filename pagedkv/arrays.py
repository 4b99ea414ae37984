"""The array-backed manager: the reference's behaviour over int32 numpy arrays.

What always holds, as equations over the arrays:

    _free[:_num_free] + blocks of all live rows == a permutation of 0 .. num_blocks - 1
    blocks of a live row == _tables[row, :_counts[row]] == those with _owner[block] == row
    _counts[row] == ceil(_lengths[row] / block_size), for each live row
    _free_rows[:_num_free_rows] + live rows == a permutation of 0 .. len(_counts) - 1

Both stacks are popped at their end. Entries beyond a count mean nothing. Bookkeeping takes 8 bytes
a block (`_free`, `_owner`) and 4 bytes a table entry. A call costs the blocks of its own request,
at C speed, whatever the size of the pool and the number of live requests.

Every call first computes all it needs and then only assigns, so that a failure on the way leaves
everything as it was; room made for more rows or wider tables may stay, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from operator import index
from typing import Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from pagedkv import ledger
from pagedkv.protocol import HoldsNothing, OutOfBlocks, Owned, Request, Snapshot, as_int
from pagedkv.reference import already_holding, copied, fitting_length, misuse, unreadable

Int32 = npt.NDArray[np.int32]

NOBODY = -1
"""What `_owner` says of a free block; rows count from 0."""

_INT32_MAX = 2**31 - 1


class ArrayKVCacheManager:
    """The fast one: outside like `KVCacheManager`, but the last freed block first.

    A fresh pool hands out the lowest block first; blocks that came back are handed out before
    the others, in the order of the table that they came back from. What a call changes and
    raises, and that nothing has changed when it raises, is as said there. `physical_kv_cache` is
    the pool, float32 zeros `[num_blocks, block_size, head_dim]`. Raises ValueError for a value
    below 1 or a pool of more than 2**31 - 1 tokens, TypeError for booleans and floats.
    """

    # What `clone` knows how to copy; anything a subclass adds is copied deeply.
    _ARRAYS = ("_free", "_owner", "_tables", "_lengths", "_counts", "_free_rows")
    _GEOMETRY = ("num_blocks", "block_size", "head_dim", "physical_kv_cache")
    _OWN = frozenset((*_ARRAYS, *_GEOMETRY, "_num_free", "_num_free_rows", "_rows", "_handles"))

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        if self.num_blocks * self.block_size > _INT32_MAX:
            raise ValueError(
                f"num_blocks * block_size = {self.num_blocks} * {self.block_size} does not fit "
                f"the int32 arrays, at most {_INT32_MAX}; use a smaller pool or KVCacheManager"
            )
        shape = (self.num_blocks, self.block_size, self.head_dim)
        self.physical_kv_cache = torch.zeros(shape, dtype=torch.float32)
        self._free: Int32 = np.arange(self.num_blocks - 1, -1, -1, dtype=np.int32)
        self._owner: Int32 = np.full(self.num_blocks, NOBODY, dtype=np.int32)
        self._num_free = self.num_blocks
        # One row of one entry: even a tiny pool then goes through growth, where it is checked.
        self._tables: Int32 = np.zeros((1, 1), dtype=np.int32)
        self._lengths: Int32 = np.zeros(1, dtype=np.int32)
        self._counts: Int32 = np.zeros(1, dtype=np.int32)
        self._free_rows: Int32 = np.zeros(1, dtype=np.int32)
        self._num_free_rows = 1
        self._rows: dict[int, int] = {}
        self._handles: list[Request | None] = [None]

    @property
    def free_blocks(self) -> list[int]:
        """The free physical blocks, ascending; a fresh list. O(pool): it sorts."""
        return sorted(self._free[: self._num_free].tolist())

    @property
    def block_tables_tensor(self) -> torch.Tensor:
        """All block tables as one int32 tensor `[rows, width]`, sharing memory: zero-copy.

        Row `row_of(req)` starts with the blocks of `req`; what follows them, and rows that no
        live request has, mean nothing. It follows every call until one needs more rows or wider
        tables than `shape` has: then the arrays move and this view goes stale; take it again.
        For reading only.
        """
        return torch.from_numpy(self._tables)

    def row_of(self, req: Request) -> int:
        """The row of a live request, the same until its release; changes nothing.

        Raises HoldsNothing for any other handle.
        """
        row = self._rows.get(req.request_id)
        if row is None or self._handles[row] is not req:
            raise HoldsNothing(f"row of request {req.request_id}, which is not live; prefill it")
        return row

    def allocate_for_prefill(self, req: Request) -> None:
        """Take ceil(seq_len / block_size) blocks for `req`, all or nothing. Mutates both."""
        row = self._rows.get(req.request_id)
        if row is not None or len(req.block_table):
            raise already_holding(req, None if row is None else self._handles[row])
        seq_len = as_int("seq_len", req.seq_len, minimum=1)
        count = ledger.blocks_for(seq_len, self.block_size)
        left = self._num_free - count
        if left < 0:
            raise OutOfBlocks(req.request_id, count, self._num_free)
        self._make_room(1, count)
        rows_left = self._num_free_rows - 1
        row = self._free_rows.item(rows_left)
        blocks = self._free[left : self._num_free][::-1]
        table, where = blocks.tolist(), blocks.astype(np.intp)
        # Only assignments from here on. The dict may have to grow, so it comes first.
        self._rows[req.request_id] = row
        self._handles[row] = req
        self._num_free_rows = rows_left
        self._num_free = left
        self._tables[row, :count] = blocks
        self._owner[where] = row
        self._counts[row] = count
        self._lengths[row] = seq_len
        req.block_table = table

    def allocate_for_decode(self, req: Request) -> None:
        """Make room for one more token: one more block if the held are full. Mutates both."""
        row, table = self._holding("decode", req)
        count = len(table)
        longer = fitting_length(req, count, self.block_size) + 1
        if longer <= count * self.block_size:
            self._lengths[row] = longer
            req.seq_len = longer
            return
        left = self._num_free - 1
        if left < 0:
            raise OutOfBlocks(req.request_id, 1, 0)
        self._make_room(0, count + 1)
        block = self._free.item(left)
        table.append(block)
        # Only assignments from here on.
        self._num_free = left
        self._tables[row, count] = block
        self._owner[block] = row
        self._counts[row] = count + 1
        self._lengths[row] = longer
        req.block_table = table
        req.seq_len = longer

    def release_request(self, req: Request) -> None:
        """Give all blocks of `req` back; the table is emptied, `seq_len` kept. Mutates both."""
        row, table = self._holding("release", req)
        blocks = self._tables[row, : len(table)]
        where = blocks.astype(np.intp)
        num_free, num_free_rows = self._num_free + len(table), self._num_free_rows
        # Only assignments from here on.
        self._free[self._num_free : num_free] = blocks[::-1]
        self._num_free = num_free
        self._owner[where] = NOBODY
        self._free_rows[num_free_rows] = row
        self._num_free_rows = num_free_rows + 1
        self._handles[row] = None
        del self._rows[req.request_id]
        req.block_table = []

    def allocation_report(self, req: Request) -> dict[str, float]:
        """How full the blocks of `req` are, read off the handle alone: `ledger.allocation_report`.

        Changes nothing. Raises ValueError where a table set by hand is too short for `seq_len`.
        """
        return ledger.allocation_report(req.seq_len, len(req.block_table), self.block_size)

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` rows that the table of `req` names, in table order: a copy.

        One gather. Any table will do, one set by hand included; changes nothing.
        """
        seq_len = as_int("seq_len", req.seq_len, minimum=1)
        try:
            where = torch.from_numpy(np.fromiter(map(index, req.block_table), dtype=np.int64))
            tokens = self.physical_kv_cache.index_select(0, where).flatten(0, 1)
        except (IndexError, OverflowError, TypeError) as error:
            raise unreadable(req, self.num_blocks, self.block_size) from error
        if len(tokens) < seq_len:
            raise unreadable(req, self.num_blocks, self.block_size)
        return tokens[:seq_len]

    def snapshot(self) -> Snapshot:
        """Tables, lengths, free stack, counter and ownership as the arrays have them. O(pool).

        Changes nothing. `free_blocks` is in hand-out order. `reverse_map` is `_owner`, which
        keeps no logical index: each block is given its place in its owner's table, or the
        table's length where that table does not have it.
        """
        tables = {name: self._table(row) for name, row in self._rows.items()}
        return Snapshot(
            block_tables={name: tuple(table) for name, table in tables.items()},
            seq_lens={name: self._lengths.item(row) for name, row in self._rows.items()},
            free_blocks=tuple(self._free[: self._num_free][::-1].tolist()),
            num_free=self._num_free,
            reverse_map=self._reverse_map(tables),
        )

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        """All that can influence later calls, as nested tuples of ints; changes nothing.

        Request r is called `names[r]`. Two managers with equal keys, and with handles in the same
        state, behave alike from here on, up to the names of rows: no outcome depends on which row
        a request has, and leaving that out makes the states of a small pool six times fewer. What
        the pool contains is not in it.
        """
        called = {row: names[name] for name, row in self._rows.items()}
        owners = tuple([called.get(row, NOBODY) for row in self._owner.tolist()])
        live = [
            (called[row], self._lengths.item(row), tuple(self._table(row)))
            for row in self._rows.values()
        ]
        live.sort()
        free = tuple(self._free[: self._num_free].tolist())
        return (self.num_blocks, self.block_size, self.head_dim, free, owners, tuple(live))

    def clone(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        """Copy the manager, its pool and these handles in one, sharing nothing; changes nothing.

        The copied manager refers to the copied handles, live ones outside `requests` included.
        """
        memo: dict[int, Any] = {}
        handles = {name: copied(handle, memo) for name, handle in requests.items()}
        state = dict(self.__dict__)
        state["physical_kv_cache"] = self.physical_kv_cache.clone()
        for name in self._ARRAYS:
            state[name] = state[name].copy()
        state["_rows"] = self._rows.copy()
        state["_handles"] = [held and copied(held, memo) for held in self._handles]
        for name in state.keys() - self._OWN:
            state[name] = deepcopy(state[name], memo)
        twin = object.__new__(type(self))
        twin.__dict__.update(state)
        return twin, handles

    def _table(self, row: int) -> list[int]:
        blocks: list[int] = self._tables[row, : self._counts.item(row)].tolist()
        return blocks

    def _holding(self, action: str, req: Request) -> tuple[int, list[int]]:
        """Row and table of exactly this handle; raises MisuseError unless its table agrees."""
        row = self._rows.get(req.request_id)
        held = None
        if row is not None and self._handles[row] is req:
            held = self._table(row)
            if held == list(req.block_table):
                return row, held
        raise misuse(action, req, held, self.num_blocks, self._holder)

    def _holder(self, block: int) -> Request | None:
        """The live request that holds `block`; None if it is free."""
        row = self._owner.item(block)
        return None if row == NOBODY else self._handles[row]

    def _reverse_map(self, tables: Mapping[int, list[int]]) -> frozenset[Owned]:
        """`_owner` as entries; a row that no live request has is named as such."""
        names = {row: name for name, row in self._rows.items()}
        places = {
            (name, block): i for name, table in tables.items() for i, block in enumerate(table)
        }
        entries = []
        for block, row in enumerate(self._owner.tolist()):
            if row != NOBODY:
                name = names.get(row)
                if name is None:
                    entries.append(Owned(f"row {row}", 0, block))
                else:
                    entries.append(Owned(name, places.get((name, block), len(tables[name])), block))
        return frozenset(entries)

    def _make_room(self, rows: int, width: int) -> None:
        """Double rows or width, or both, until `rows` (0 or 1) are free and tables fit `width`."""
        have_rows, have_width = self._tables.shape
        added = have_rows if self._num_free_rows < rows else 0
        if width > have_width:  # A table is never longer than the pool, so nor is a row.
            width = max(width, min(2 * have_width, self.num_blocks))
        if added or width > have_width:
            width = max(width, have_width)
            tables = np.zeros((have_rows + added, width), dtype=np.int32)
            tables[:have_rows, :have_width] = self._tables
            new = np.arange(have_rows + added - 1, have_rows - 1, -1, dtype=np.int32)
            # The stack of free rows is empty if rows are added, and the lowest comes out first.
            free_rows = np.concatenate((new, self._free_rows))
            lengths, counts = np.pad(self._lengths, (0, added)), np.pad(self._counts, (0, added))
            handles = [*self._handles, *([None] * added)]
            self._tables, self._lengths, self._counts = tables, lengths, counts
            self._free_rows, self._num_free_rows = free_rows, self._num_free_rows + added
            self._handles = handles
