"""What a call of the array-backed manager that shares blocks is about to do, as a value."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
    """What a call is about to do; `SharedPool._commit` does it, and until then nothing is.

    deletes, stores: `del target[where]` of each, then `target[where] = value` of each. level,
    pushed: how much of the free stack stays, and what is put on it. head, tail, num_cached: of the
    queue, afterwards. withheld, host_level, host_pushed: likewise. pinned: blocks that are cached
    no longer. cleared, gone: blocks that are published no longer, and keys that find nothing any
    more. handle, table, seq_len: the handle to fill in.
    """

    def __init__(self, pool: SharedPool) -> None:
        self.deletes: list[tuple[Any, Any]] = []
        self.stores: list[tuple[Any, Any, Any]] = []
        self.level, self.pushed = pool._num_free, NOTHING
        self.head, self.tail, self.num_cached = pool._head, pool._tail, pool._num_cached
        self.withheld = pool._withheld
        self.host_level, self.host_pushed = pool._num_host_free, NOTHING
        self.pinned = NOTHING
        self.cleared: list[int] = []
        self.gone: list[Key] = []
        self.handle: Request | None = None
        self.table: list[int] = []
        self.seq_len = 0

    @property
    def available(self) -> int:
        """Blocks that the plan can still take."""
        return self.level + len(self.pushed) + self.num_cached

    def fill_in(self, handle: Request, seq_len: int, table: list[int]) -> None:
        """Let the handle have this length and table."""
        self.handle, self.seq_len, self.table = handle, seq_len, table
