"""The arrays of the array-backed manager: one row a live request, and what always holds of them.

As equations, with `live` for the rows whose `_lengths[row]` is not 0:

    stack := _free[:_num_free - len(_top)] + _top
    stack + blocks of all live rows == a permutation of 0 .. num_blocks - 1
    blocks of a live row == _tables[row, :_counts[row]]
    _owner[block] == row for each block of a live row that is not in _late, NOBODY for free ones
        that are not in _top
    _counts[row] == ceil(_lengths[row] / block_size), for each live row
    _free_rows[:_num_free_rows] + live rows == a permutation of 0 .. len(_counts) - 1
    _lengths[row] == 0 and _handles[row] is None, for each free row
    _handles[_rows[name]].request_id == name, for each name; all other rows have no handle

Both stacks are popped at their end. Entries beyond a count, and rows that are free, mean nothing.
Bookkeeping takes 12 bytes a block (`_free`, `_owner`), 4 bytes a table entry, and 12 bytes and
two entries of a list or dict a row.

A numpy call costs as much as ten of the blocks that it moves. So a call for one request keeps what
it gives back in `_top`, a list of at most `KEPT` blocks and one table, and leaves the owners of
what it takes for later, which `_late` names; `_settle` writes both into the arrays, before anybody
reads these. It is paid by the calls before it, block by block, whatever the pool.

A row may have a handle or none: a plain `Request`, which the calls fill in, or a `RowHandle`, which
reads the arrays. A row without one is called `~row`, as is the request_id of a `RowHandle`; no
plain request has a negative id.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from pagedkv.protocol import HoldsNothing, MisuseError, Owned, Request, Snapshot, as_int
from pagedkv.reference import misuse

if TYPE_CHECKING:
    from pagedkv.running import RunningBatch

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
AnyInts = npt.NDArray[Any] | torch.Tensor

NOBODY = -1
"""What `_owner` says of a free block; rows count from 0."""

INT32_MAX = 2**31 - 1

FEW = 64
"""Up to so many blocks, plain Python is faster than numpy calls, which cost the same for any."""

KEPT = 256
"""So many blocks may be in `_top` before another table is put there."""

ENTRIES = tuple(Struct(f"{count}i") for count in range(FEW + 1))
"""That many entries of a table, as bytes."""

NOTHING_LEFT: tuple[int, list[int]] = (NOBODY, [])


class RowArrays:
    """The pool and the arrays, how they grow, and what can be read of them.

    Raises ValueError for a value below 1 or a pool of more than 2**31 - 1 tokens, TypeError for
    booleans and floats.
    """

    # What a clone copies; `_prepared` is left behind, and `_settle` empties `_top` and `_late`.
    _ARRAYS = ("_free", "_owner", "_tables", "_lengths", "_counts", "_free_rows")
    _GEOMETRY = ("num_blocks", "block_size", "head_dim", "physical_kv_cache")
    _LATER = ("_top", "_late", "_left_in", "_given", "_prepared")
    _OWN = frozenset(
        (*_ARRAYS, *_GEOMETRY, *_LATER, "_num_free", "_num_free_rows", "_rows", "_handles")
    )

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        if self.num_blocks * self.block_size > INT32_MAX:
            raise ValueError(
                f"num_blocks * block_size = {self.num_blocks} * {self.block_size} does not fit "
                f"the int32 arrays, at most {INT32_MAX}; use a smaller pool or KVCacheManager"
            )
        shape = (self.num_blocks, self.block_size, self.head_dim)
        self.physical_kv_cache = torch.zeros(shape, dtype=torch.float32)
        # int64, as numpy wants an index: a slice of it names blocks without a conversion.
        self._free: Int64 = np.arange(self.num_blocks - 1, -1, -1, dtype=np.int64)
        self._owner: Int32 = np.full(self.num_blocks, NOBODY, dtype=np.int32)
        self._num_free = self.num_blocks
        # One row of one entry: even a tiny pool then goes through growth, where it is checked.
        self._tables: Int32 = np.zeros((1, 1), dtype=np.int32)
        self._lengths: Int32 = np.zeros(1, dtype=np.int32)
        self._counts: Int32 = np.zeros(1, dtype=np.int32)
        self._free_rows: Int32 = np.zeros(1, dtype=np.int32)
        self._num_free_rows = 1
        self._top: list[int] = []
        self._late: dict[int, None] = {}
        self._left_in: tuple[int, list[int]] = NOTHING_LEFT
        self._rows: dict[int, int] = {}
        self._handles: list[Request | None] = [None]
        self._given: list[list[int] | None] = [None]
        # The batch whose own numbers are those of the arrays; any other call sets it to None.
        self._prepared: RunningBatch | None = None

    @property
    def free_blocks(self) -> list[int]:
        """The free physical blocks, ascending; a fresh list. O(pool): it sorts."""
        return sorted(self._stack().tolist())

    @property
    def block_tables_tensor(self) -> torch.Tensor:
        """All block tables as one int32 tensor `[rows, width]`, sharing memory: zero-copy.

        A live row starts with the blocks of its request; what follows them, and rows that no live
        request has, mean nothing. It follows every call until one needs more rows or wider tables
        than `shape` has: then the arrays move and this view goes stale; take it again. For reading
        only.
        """
        return torch.from_numpy(self._tables)

    @property
    def seq_lens_tensor(self) -> torch.Tensor:
        """All lengths as one int32 tensor `[rows]`, 0 for a free row; as `block_tables_tensor`."""
        return torch.from_numpy(self._lengths)

    def row_of(self, req: Request) -> int:
        """The row of a live request, the same until its release; changes nothing.

        Raises HoldsNothing for any other handle.
        """
        row = self._rows.get(req.request_id)
        if row is None or self._handles[row] is not req:
            raise HoldsNothing(f"row of request {req.request_id}, which is not live; prefill it")
        return row

    def handle(self, row: SupportsIndex) -> Request:
        """The handle of a live row: the request that has it, or a `RowHandle`, made once.

        Raises HoldsNothing for a row that is not live, TypeError for what is no integer.
        """
        number = as_int("row", row, minimum=0)
        if number >= len(self._lengths) or not self._lengths[number]:
            raise HoldsNothing(f"handle of row {number}, which is not live; prefill it first")
        handle = self._handles[number]
        if handle is None:
            handle = RowHandle(self, number)
            self._rows[~number] = number
            self._handles[number] = handle
        return handle

    def snapshot(self) -> Snapshot:
        """Tables, lengths, free stack, counter and ownership as the arrays have them. O(pool).

        Changes nothing. `free_blocks` is in hand-out order. `reverse_map` is `_owner`, which
        keeps no logical index: each block is given its place in its owner's table, or the
        table's length where that table does not have it.
        """
        rows = self._names()
        tables = {name: self._table(row) for name, row in rows.items()}
        return Snapshot(
            block_tables=tables,
            seq_lens={name: self._lengths.item(row) for name, row in rows.items()},
            free_blocks=self._stack()[::-1].tolist(),
            num_free=self._num_free,
            reverse_map=self._reverse_map(rows, tables),
        )

    def _names(self) -> Mapping[int, int]:
        """The row of each live request by its name, `~row` where it has no handle."""
        if len(self._rows) + self._num_free_rows == len(self._counts):
            return self._rows
        live = np.flatnonzero(self._lengths).tolist()
        return self._rows | {~row: row for row in live if self._handles[row] is None}

    def _settle(self) -> None:
        """Write into the arrays what calls for single requests have left for later.

        Failing on the way, it can be called again.
        """
        if self._top:
            blocks = np.array(self._top, dtype=np.int64)
            self._free[self._num_free - len(blocks) : self._num_free] = blocks
            self._owner[blocks] = NOBODY
            self._top = []
        if self._late:
            for row in self._late:
                if self._lengths[row]:
                    self._owner[self._tables[row, : self._counts[row]]] = row
            self._late = {}

    def _enter(self, row: int, count: int) -> list[int]:
        """Write the blocks that come out next into the table of a free row; takes none of them."""
        num_free, top = self._num_free, self._top
        left_row, left = self._left_in
        self._left_in = NOTHING_LEFT
        if count > FEW:
            self._settle()
            blocks = self._free[num_free - count : num_free][::-1]
            self._tables[row, :count] = blocks
            many: list[int] = blocks.tolist()
            return many
        table = top[: -count - 1 : -1]
        if len(table) < count:
            table += self._free[num_free - count : num_free - len(top)][::-1].tolist()
        # What went back last comes out first, row and blocks: then they mostly stand there.
        if row != left_row or left[:count] != table:
            tables: Any = self._tables  # a buffer, which its type does not say
            ENTRIES[count].pack_into(tables, row * tables.strides[0], *table)
        return table

    def _stack(self) -> Int64:
        """The free blocks; the last one is handed out first."""
        self._settle()
        return self._free[: self._num_free]

    def _holding(self, action: str, req: Request) -> tuple[int, list[int]]:
        """Row and table of exactly this handle; raises MisuseError unless its table agrees.

        The table is the manager's own, not to be changed or given away.
        """
        row = self._rows.get(req.request_id)
        held = None
        if row is not None and self._handles[row] is req:
            held = self._given[row] or self._table(row)
            table = req.block_table
            if held == (table if type(table) is list else list(table)):
                return row, held
        raise misuse(action, req, held, self.num_blocks, self._holder)

    def _live(self, action: str, rows: AnyInts) -> Int64:
        """`rows` as int64, all different and live; raises MisuseError or TypeError if not."""
        which = ints("rows", rows)
        there = len(self._lengths)
        wrong = which.view(np.uint64) >= there
        if not np.count_nonzero(wrong):
            wrong = self._lengths[which] == 0
        if np.count_nonzero(wrong):
            raise HoldsNothing(
                f"{action} of row {which[wrong][0]}, which is not live; prefill it first"
            )
        # Of those that stand there twice one writes over the other. Only what is written is read.
        places = np.arange(len(which), dtype=np.int32)
        place = np.empty(there, dtype=np.int32)
        place[which] = places
        if np.count_nonzero(place[which] == places) < len(which):
            ordered = np.sort(which)
            raise MisuseError(
                f"{action} of a batch in which row {ordered[1:][ordered[1:] == ordered[:-1]][0]} "
                f"stands twice; name each row once"
            )
        return which

    def _handles_of(self, rows: Int64) -> list[tuple[int, Request]]:
        """Position and handle of those rows that have one."""
        if not self._rows:
            return []
        held = enumerate(map(self._handles.__getitem__, rows.tolist()))
        return [(position, handle) for position, handle in held if handle is not None]

    def _table(self, row: int) -> list[int]:
        count = self._counts.item(row)
        if count <= FEW:
            tables: Any = self._tables  # a buffer, which its type does not say
            return [*ENTRIES[count].unpack_from(tables, row * tables.strides[0])]
        blocks: list[int] = self._tables[row, :count].tolist()
        return blocks

    def _holder(self, block: int) -> Request | None:
        """The live request that holds `block`; None if it is free."""
        self._settle()
        row = self._owner.item(block)
        return None if row == NOBODY else self._handles[row] or RowHandle(self, row)

    def _reverse_map(
        self, rows: Mapping[int, int], tables: Mapping[int, list[int]]
    ) -> frozenset[Owned]:
        """`_owner` as entries; a row that no live request has is named as such."""
        names = {row: name for name, row in rows.items()}
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
        """Double rows or width, or both, until `rows` are free and tables fit `width`."""
        have_rows, have_width = self._tables.shape
        added = 0
        while self._num_free_rows + added < rows:
            added += have_rows + added
        if width > have_width:  # A table is never longer than the pool, so nor is a row.
            width = max(width, min(2 * have_width, self.num_blocks))
        if added or width > have_width:
            width = max(width, have_width)
            tables = np.zeros((have_rows + added, width), dtype=np.int32)
            tables[:have_rows, :have_width] = self._tables
            new = np.arange(have_rows + added - 1, have_rows - 1, -1, dtype=np.int32)
            # Below the free rows there are: those come out first, then the lowest of the new.
            free_rows = np.concatenate((new, self._free_rows))
            lengths, counts = np.pad(self._lengths, (0, added)), np.pad(self._counts, (0, added))
            handles = [*self._handles, *([None] * added)]
            given = [*self._given, *([None] * added)]
            self._tables, self._lengths, self._counts = tables, lengths, counts
            self._free_rows, self._num_free_rows = free_rows, self._num_free_rows + added
            self._handles, self._given = handles, given


class RowHandle(Request):
    """A live row as a handle: `seq_len` and `block_table` are read from the arrays at each look.

    `request_id` is `~row` and `tokens` is empty, for the caller to use. It is made by
    `ArrayKVCacheManager.handle` and good until its row is released: from then on its table is
    empty, its `seq_len` the last one, and it can't be prefilled again.
    """

    def __init__(self, arrays: RowArrays, row: int) -> None:
        # Not super().__init__: it sets the two fields that are read here.
        self.row = row
        self.request_id = ~row
        self.prompt_len = arrays._lengths.item(row)
        self.tokens = []
        self._arrays = arrays
        self._last_length: int | None = None

    @property
    def seq_len(self) -> int:
        """The tokens of the row, or of its last state."""
        if self._last_length is not None:
            return self._last_length
        return self._arrays._lengths.item(self.row)

    @seq_len.setter
    def seq_len(self, _: int) -> None:
        raise AttributeError(f"seq_len of row {self.row} is read from the arrays; don't set it")

    @property
    def block_table(self) -> list[int]:
        """The blocks of the row, a fresh list; empty once it was released."""
        return [] if self._last_length is not None else self._arrays._table(self.row)

    @block_table.setter
    def block_table(self, _: list[int]) -> None:
        raise AttributeError(f"block_table of row {self.row} is read from the arrays; don't set it")


def ints(what: str, values: AnyInts) -> Int64:
    """`values` as int64 `[n]`, without a copy where they are; raises TypeError or ValueError."""
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{what} must have one dimension, got the shape {list(array.shape)}")
    if array.dtype.kind not in "iu" and len(array):  # numpy makes floats of an empty list
        raise TypeError(f"{what} must be integers, got {array.dtype}; convert them")
    return array.astype(np.int64, copy=False)
