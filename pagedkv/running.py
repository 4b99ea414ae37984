"""The rows that run: looked up once, decoded by one token again and again.

A serving engine decodes the same requests at every step, but for those that come and go. What a
step needs of them is kept side by side here, so that it costs a few passes over short arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from pagedkv.protocol import OutOfBlocks, Request
from pagedkv.reference import fitting_length
from pagedkv.rows import Int32, Int64, RowArrays, RowHandle


class Tensors(NamedTuple):
    """The arrays of a `RunningBatch` as tensors that share their memory, for reading only."""

    rows: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor


NONE: Int64 = np.empty(0, dtype=np.int64)
"""No positions."""

ONE: Int64 = np.array(1)
ONE32: Int32 = np.array(1, dtype=np.int32)
"""numpy takes as long to convert a Python number as it takes to add it to a thousand others."""


class RunningBatch:
    """The same rows of one manager, decoded again and again; made by `manager.batch(rows)`.

    `rows` int64 `[n]`, `seq_lens` int32 `[n]` and `slot_mapping` int64 `[n]`, the slots of the
    last tokens, are for reading only and stay where they are in memory: each decode writes over
    them. Any other call may come between two decodes; the numbers are then read anew. A row that
    was released and given to another request is that other request's, as in any index array.

    While `manager._prepared is self`, for each i:

        seq_lens[i] == manager._lengths[rows[i]]
        (_room[i] - _steps) % block_size == manager._counts[rows[i]] * block_size - seq_lens[i]
        _due[r] == the i with _room[i] == r, ascending; None until it is needed
        _longest == max(seq_lens), 0 for no rows
        _width == the width of manager._tables
    """

    _due: dict[int, Int64] | None

    def __init__(self, manager: RowArrays, rows: Int64) -> None:
        self._manager = manager
        self.rows = rows
        # A slice where that is the same: no index array then, and tables without a copy.
        consecutive = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        self._index = slice(rows.item(0), rows.item(-1) + 1) if consecutive else rows
        self.seq_lens = np.empty(len(rows), dtype=np.int32)
        self.slot_mapping = np.empty(len(rows), dtype=np.int64)
        self._size: Int64 = np.array(manager.block_size)
        self.tensors = Tensors(*map(torch.from_numpy, (rows, self.seq_lens, self.slot_mapping)))
        self._read()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def block_tables(self) -> torch.Tensor:
        """The tables of these rows, int32 `[n, width]`; entries after those held mean nothing.

        A view of the manager's arrays where the rows are consecutive, else one gather. For
        reading only, and stale after the next call.
        """
        return torch.from_numpy(self._manager._tables[self._index])

    def decode(self) -> Int64:
        """Make room for one more token in each row; returns `slot_mapping`. Mutates the manager.

        Raises as `decode_rows`, and nothing has changed then.
        """
        manager = self._manager
        if manager._prepared is not self:
            self._read()
        told = self._checked() if self._plain else []
        full = self._full()
        growth = self._growth(full) if len(full) else None
        if growth is not None and told:
            told = _extended(told, full, growth.blocks)
        # Only assignments from here on.
        if growth is not None:
            manager._num_free = growth.left
            growth.entries[growth.at] = growth.entered
            manager._owner[growth.blocks] = growth.owners
            manager._counts[growth.rows] = growth.counts
        self.slot_mapping += ONE
        if growth is not None:
            self.slot_mapping[full] = growth.slots
        self.seq_lens += ONE32
        self._steps += 1
        self._longest += 1
        manager._lengths[self._index] = self.seq_lens
        for request, table, seq_len, position in told:
            if growth is not None:
                manager._given[self.rows[position]] = None
            request.block_table = table
            request.seq_len = seq_len
        return self.slot_mapping

    def _full(self) -> Int64:
        """The positions whose blocks are full."""
        if self._steps == 0:
            return np.flatnonzero(self._room == 0)
        # From the second step on it pays to know them beforehand: each comes every block_size.
        if self._due is None:
            order = np.argsort(self._room, kind="stable")
            room, starts = np.unique(self._room[order], return_index=True)
            self._due = dict(zip(room.tolist(), np.split(order, starts)[1:], strict=True))
        return self._due.get(self._steps % self._manager.block_size, NONE)

    def _growth(self, full: Int64) -> Growth:
        """What a decode takes for the rows at these positions, not yet taken."""
        manager = self._manager
        manager._settle()
        num_free = manager._num_free
        left = num_free - len(full)
        if left < 0:
            raise OutOfBlocks(None, len(full), num_free)
        if self._longest >= manager._tables.shape[1] * manager.block_size:
            manager._make_room(0, self._longest // manager.block_size + 1)
            self._width = np.array(manager._tables.shape[1])
        blocks = manager._free[left:num_free][::-1].copy()
        rows = self.rows[full]
        counts = manager._counts[rows]
        at = rows * self._width
        at += counts
        counts += ONE32
        fields = (
            left,
            blocks,
            blocks * self._size,
            blocks.astype(np.int32),
            rows,
            rows.astype(np.int32),
            counts,
            manager._tables.reshape(-1),
            at,
        )
        return tuple.__new__(Growth, fields)  # a third of what Growth(...) takes

    def _read(self) -> None:
        """Read the numbers of these rows from the arrays; raises HoldsNothing for a free one."""
        manager, rows = self._manager, self.rows
        manager._live("decode", rows)
        lengths, counts = manager._lengths[rows], manager._counts[rows]
        last = manager._tables.reshape(-1)[rows * manager._tables.shape[1] + counts - 1]
        room = counts * manager.block_size - lengths
        self.seq_lens[:] = lengths
        self._room = room
        self._steps, self._due = 0, None
        self._longest = int(lengths.max(initial=0))
        self._width = np.array(manager._tables.shape[1])
        self.slot_mapping[:] = last
        self.slot_mapping *= manager.block_size
        self.slot_mapping += manager.block_size - 1 - room
        handles = manager._handles_of(rows)
        self._plain = [(at, held) for at, held in handles if not isinstance(held, RowHandle)]
        manager._prepared = self

    def _checked(self) -> list[Told]:
        """What the plain requests become while they stay in their blocks; raises MisuseError."""
        told = []
        for position, request in self._plain:
            _, held = self._manager._holding("decode", request)
            longer = fitting_length(request, len(held), self._manager.block_size, "decode") + 1
            told.append(Told(request, held[:], longer, position))
        return told


class Growth(NamedTuple):
    """The blocks that a decode takes, one for each of these rows, and where they go.

    `entered` and `owners` are `blocks` and `rows` of the type that they are written to.
    """

    left: int
    blocks: Int64
    slots: Int64
    entered: Int32
    rows: Int64
    owners: Int32
    counts: Int32
    entries: Int32
    at: Int64


class Told(NamedTuple):
    """A plain request, its position in the batch, and what a decode makes of it."""

    request: Request
    table: list[int]
    seq_len: int
    position: int


def _extended(told: list[Told], full: Int64, blocks: Int64) -> list[Told]:
    """`told`, each with the block that its position gets, if it gets one."""
    new = dict(zip(full.tolist(), blocks.tolist(), strict=True))
    return [
        one._replace(table=[*one.table, new[one.position]]) if one.position in new else one
        for one in told
    ]
