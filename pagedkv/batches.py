"""Calls for many requests of the array-backed manager at once, each request named by its row.

A batch does what the single calls would do one after another, in its order, and all of it or
nothing: out of blocks or wrong use is told before anything has changed. It costs some numpy calls
over its own rows and blocks, whatever the pool and however many other requests there are.

Index arrays are numpy arrays or torch tensors on the CPU, of any integer type; int64 is used as it
is, without a copy. What comes back is int64, and of the same kind. Rows may have handles: a
`RowHandle` reads the arrays; a plain request in a batch is checked and filled in by itself, as the
single calls do it.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch

from pagedkv.protocol import OutOfBlocks
from pagedkv.rows import (
    INT32_MAX,
    NOBODY,
    NOTHING_LEFT,
    AnyInts,
    Int64,
    RowArrays,
    RowHandle,
    ints,
)
from pagedkv.running import RunningBatch

Ints = TypeVar("Ints", npt.NDArray[Any], torch.Tensor)


class BatchedCalls(RowArrays):
    """`prefill_rows`, `decode_rows`, `release_rows`; `batch` for the same rows again and again."""

    def prefill_rows(self, lengths: Ints) -> Ints:
        """Admit one request of each of these lengths; returns their rows. Mutates the manager.

        No lengths: no rows. Raises OutOfBlocks with what all of them need, ValueError for a
        length below 1, TypeError for anything but integers; nothing has changed then.
        """
        tokens = ints("lengths", lengths)
        if tokens.min(initial=1) < 1:
            raise ValueError(f"each of lengths must be >= 1, got {tokens.min()}")
        counts = -(-tokens // self.block_size)
        longest = int(counts.max(initial=0))
        needed = int(counts.sum()) if longest <= INT32_MAX else sum(counts.tolist())
        left = self._num_free - needed
        if left < 0:
            raise OutOfBlocks(None, needed, self._num_free)
        self._settle()
        self._make_room(len(tokens), longest)
        rows_left = self._num_free_rows - len(tokens)
        rows = self._free_rows[rows_left : self._num_free_rows][::-1].astype(np.int64)
        # Side by side in memory, and of the type that they are written to: a third of the time.
        blocks = self._free[left : self._num_free][::-1].copy()
        entered = blocks.astype(np.int32)
        owners = np.repeat(rows.astype(np.int32), counts)
        entries = self._tables.reshape(-1)
        at = _runs(rows * self._tables.shape[1], counts)
        given = _like(lengths, rows)
        # Only assignments from here on.
        self._num_free_rows = rows_left
        self._num_free = left
        self._left_in = NOTHING_LEFT
        entries[at] = entered
        self._owner[blocks] = owners
        self._counts[rows] = counts
        self._lengths[rows] = tokens
        return given

    def decode_rows(self, rows: Ints) -> Ints:
        """Make room for one more token in each row; returns their slots. Mutates the manager.

        slot = block * block_size + offset. No rows: nothing to do. Raises OutOfBlocks with what
        all of them need, HoldsNothing for a row that is not live, MisuseError for one that stands
        there twice or whose plain request was edited; nothing has changed then.
        """
        batch = self.batch(rows)
        given = _like(rows, batch.slot_mapping)
        batch.decode()
        return given

    def release_rows(self, rows: AnyInts) -> None:
        """Give all blocks of these rows back. Mutates the manager, and the handles they have.

        No rows: nothing to do. Raises as `decode_rows`, OutOfBlocks aside; nothing has changed
        then.
        """
        which = self._live("release", rows)
        self._settle()
        handles = self._handles_of(which)
        for _, handle in handles:
            self._holding("release", handle)
        views = [(h, h.seq_len) for _, h in handles if isinstance(h, RowHandle)]
        plain = [h for _, h in handles if not isinstance(h, RowHandle)]
        named = [(which.item(position), h.request_id) for position, h in handles]
        counts = self._counts[which].astype(np.int64)
        # Each table backwards, so that its first block comes out first.
        last = which * self._tables.shape[1] + counts - 1
        blocks = self._tables.reshape(-1)[_runs_down(last, counts)]
        before, num_free = self._num_free, self._num_free + len(blocks)
        num_rows = self._num_free_rows + len(which)
        # Only assignments from here on.
        self._prepared = None
        self._free[before:num_free] = blocks
        self._num_free = num_free
        self._owner[self._free[before:num_free]] = NOBODY
        self._lengths[which] = 0
        self._free_rows[self._num_free_rows : num_rows] = which
        self._num_free_rows = num_rows
        for row, name in named:
            self._handles[row] = self._given[row] = None
            del self._rows[name]
        for view, length in views:
            view._last_length = length
        for request in plain:
            request.block_table = []

    def batch(self, rows: AnyInts) -> RunningBatch:
        """These rows, looked up once for many decode steps; changes nothing but what it keeps.

        Raises as `decode_rows`.
        """
        return RunningBatch(self, self._live("decode", rows).copy())

    def slot_mapping(self, rows: Ints) -> Ints:
        """The slots of all tokens of these rows, one row after another; changes nothing.

        slot = block * block_size + offset, as kernels want it for a prompt. No rows: no slots.
        Raises as `decode_rows`.
        """
        which = self._live("slot mapping", rows)
        counts = self._counts[which].astype(np.int64)
        blocks = self._tables.reshape(-1)[_runs(which * self._tables.shape[1], counts)]
        tokens = np.full(len(blocks), self.block_size)
        tokens[np.cumsum(counts) - 1] = self._lengths[which] - (counts - 1) * self.block_size
        return _like(rows, _runs(blocks.astype(np.int64) * self.block_size, tokens))


@overload
def _like(given: torch.Tensor, result: Int64) -> torch.Tensor: ...
@overload
def _like(given: npt.NDArray[Any], result: Int64) -> Int64: ...
def _like(given: AnyInts, result: Int64) -> AnyInts:
    """`result` as a tensor if a tensor was given, sharing its memory."""
    return torch.from_numpy(result) if isinstance(given, torch.Tensor) else result


def _runs(first: Int64, lengths: Int64) -> Int64:
    """first[i], first[i] + 1, ...: lengths[i] numbers for each i, one run after another."""
    ends = np.cumsum(lengths)
    runs = np.repeat(first - (ends - lengths), lengths)
    runs += np.arange(len(runs))
    return runs


def _runs_down(last: Int64, lengths: Int64) -> Int64:
    """last[i], last[i] - 1, ...: lengths[i] numbers for each i, one run after another."""
    ends = np.cumsum(lengths)
    runs = np.repeat(last + (ends - lengths), lengths)
    runs -= np.arange(len(runs))
    return runs
