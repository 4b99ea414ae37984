"""What a call of the array-backed manager that shares blocks is about to do, as a value."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from pagedkv.protocol import Request
from pagedkv.rows import Int64

if TYPE_CHECKING:
    from pagedkv.shared_pool import SharedPool

Key = tuple[Hashable, bytes]
"""What a block is found by: the extra key, and a digest of all tokens up to the block's end.

blake2b with 128 bits: no two texts with one digest are known.
"""

NOTHING: Int64 = np.empty(0, dtype=np.int64)


class Held(NamedTuple):
    """What a request holds: its handle, blocks in logical order, and the tokens it found."""

    handle: Request
    blocks: Int64
    found: int


class Plan:
    """What a call is about to do; `SharedPool._commit` does it.

    taken, shared, let_go: blocks that get their first reference, one more, one less. pushed: what
    is put on the free stack above its first `level`. queued, at: blocks that become cached, and
    where; unqueued: cached ones that no longer are. listed, unlisted: what enters and leaves the
    index; cleared: blocks that are published no more. writes: tensor, where, rows.
    The request's part is name, handle, table, seq_len, and what it holds of either pool then.
    """

    def __init__(self, pool: SharedPool) -> None:
        self.taken = self.shared = self.let_go = self.pushed = NOTHING
        self.queued = self.at = self.unqueued = NOTHING
        self.level, self.num_free = pool._num_free, pool._num_free
        self.head, self.tail, self.num_cached = pool._head, pool._tail, pool._num_cached
        self.withheld = pool._withheld
        self.listed: list[tuple[Key, int]] = []
        self.unlisted: list[Key] = []
        self.cleared: list[int] = []
        self.host_pushed = NOTHING
        self.host_level, self.num_host_free = pool._num_host_free, pool._num_host_free
        self.writes: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.handle: Request | None = None
        self.name = self.seq_len = 0
        self.table: list[int] = []
        self.held: Held | None = None
        self.hosted: Held | None = None

    @property
    def available(self) -> int:
        """Blocks that the plan can still take."""
        return self.level + len(self.pushed) + self.num_cached

    def give(
        self,
        handle: Request,
        seq_len: int,
        table: list[int],
        *,
        held: Held | None = None,
        hosted: Held | None = None,
    ) -> None:
        """Let the request hold this from now on, and have this length and table."""
        self.handle, self.name, self.seq_len = handle, handle.request_id, seq_len
        self.table, self.held, self.hosted = table, held, hosted
