"""The arrays of the array-backed manager that shares blocks, and what always holds of them.

As equations, with `t` for the tables of `_live` without NULL_BLOCK, `cached` for the blocks with
`_place[block] >= 0` and `withheld` for `_withheld`, or nothing where it is None:

    _refs[block] == how many t have the block; no t has it twice
    _free[:_num_free] + cached + withheld + blocks of all t == all of 0 .. num_blocks - 1, once
    _queue[_place[block]] == block, _head <= _place[block] < _tail, for each cached block
    len(cached) == _num_cached
    _published[block] == (_keys[block] is not None) == False for each free block
    _index == {_keys[block]: block} over the published blocks that are not withheld
    cached blocks are published
    _host_free[:_num_host_free] + blocks of all in _swapped == all of 0 .. num_host_blocks - 1

Both stacks are popped at their end. The queue is evicted from its head, and leaves a gap where a
cached block is taken out: an entry counts only while `_place` names it.

Every call first makes a `Plan`, which changes nothing but what nobody can tell (the queue's gaps),
and then commits it, by assignments alone. A table's array is replaced, never changed in place.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from hashlib import blake2b
from typing import SupportsIndex

import numpy as np
import torch

from pagedkv.configurable import NULL_BLOCK
from pagedkv.leasing import Leasing
from pagedkv.protocol import OutOfBlocks, Request, as_int
from pagedkv.rows import Int32, Int64
from pagedkv.shared_plan import NOTHING, Held, Key, Plan

OUT = -1
"""What `_place` says of a block that is not cached."""


class SharedPool(Leasing[Held]):
    """The two pools and their arrays: how blocks are taken, dropped, published and found.

    Raises ValueError for a value below 1, TypeError for booleans and floats.
    """

    # What a clone copies, and what it takes as it is; what else there is, is copied deeply.
    _ARRAYS = ("_refs", "_free", "_queue", "_place", "_published", "_keys", "_index", "_host_free")
    _PLAIN = ("num_blocks", "block_size", "head_dim", "num_host_blocks", "_withheld")
    _COUNTS = ("_num_free", "_num_cached", "_head", "_tail", "_num_host_free")
    _BESIDE = ("physical_kv_cache", "host_kv_cache", "_live", "_swapped")
    _OWN = frozenset((*_ARRAYS, *_PLAIN, *_COUNTS, *_BESIDE))

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
        self._refs: Int32 = np.zeros(self.num_blocks, dtype=np.int32)
        self._free: Int64 = np.arange(self.num_blocks - 1, -1, -1, dtype=np.int64)
        self._num_free = self.num_blocks
        # Twice the pool: half of it at least comes and goes before the gaps have to be closed.
        self._queue: Int64 = np.zeros(2 * self.num_blocks, dtype=np.int64)
        self._place: Int64 = np.full(self.num_blocks, OUT, dtype=np.int64)
        self._head = self._tail = self._num_cached = 0
        self._published = np.zeros(self.num_blocks, dtype=np.bool_)
        self._keys: list[Key | None] = [None] * self.num_blocks
        self._index: dict[Hashable, int] = {}
        self._withheld: Int64 | None = None
        self._host_free: Int64 = np.arange(self.num_host_blocks - 1, -1, -1, dtype=np.int64)
        self._num_host_free = self.num_host_blocks
        self._live: dict[int, Held] = {}
        self._swapped: dict[int, Held] = {}

    def _share(self, plan: Plan, blocks: Int64) -> None:
        """Plan one more reference of each; cached ones among them are pinned so."""
        counts = self._refs[blocks]
        plan.stores.append((self._refs, blocks, counts + 1))
        pinned = blocks[counts == 0]
        if len(pinned):
            plan.stores.append((self._place, pinned, OUT))
            plan.pinned = pinned
            plan.num_cached -= len(pinned)

    def _take(self, plan: Plan, needed: int, request_id: int) -> Int64:
        """Plan to take blocks: the last freed, and when none is free the longest unheld cached.

        What the plan has dropped and shared before is counted. Raises OutOfBlocks.
        """
        if needed > plan.available:
            raise OutOfBlocks(request_id, needed, plan.available)
        # The two parts of the stack: what was there, and what the plan has put on it.
        above = min(needed, len(plan.pushed))
        below = min(needed - above, plan.level)
        stack, base = plan.pushed, plan.level - below
        taken = self._free[base : plan.level][::-1].copy()
        if below < needed:
            late = self._evict(plan, needed - above - below)
            taken = np.concatenate((stack[len(stack) - above :][::-1], taken, late))
        plan.pushed, plan.level = stack[: len(stack) - above], base
        plan.stores.append((self._refs, taken, 1))
        return taken

    def _evict(self, plan: Plan, count: int) -> Int64:
        """Plan to evict the longest unheld blocks, which there are; never what it has pinned."""
        if not count:
            return NOTHING
        start, stop = self._head, self._head
        at = NOTHING
        while len(at) < count and stop < self._tail:
            stop = min(self._tail, start + 2 * (stop - start) + count)
            entries = self._queue[start:stop]
            counts = self._place[entries] == np.arange(start, stop)
            if len(plan.pinned):
                counts &= ~np.isin(entries, plan.pinned)
            at = np.flatnonzero(counts)[:count]
        evicted = self._queue[start + at]
        plan.stores.append((self._place, evicted, OUT))
        plan.head = start + int(at[-1]) + 1
        plan.num_cached -= count
        self._forget(plan, evicted.tolist())
        return evicted

    def _forget(self, plan: Plan, blocks: list[int]) -> None:
        """Plan to publish these no more; they are in the index."""
        self._hide(plan, blocks)
        plan.stores += [(self._keys, block, None) for block in blocks]
        plan.stores.append((self._published, blocks, False))
        plan.cleared += blocks

    def _hide(self, plan: Plan, blocks: list[int]) -> None:
        """Plan that these are not found any more; they are in the index."""
        keys = [key for key in map(self._keys.__getitem__, blocks) if key is not None]
        plan.deletes += [(self._index, key) for key in keys]
        plan.gone += keys

    def _drop(self, plan: Plan, blocks: Int64) -> None:
        """Plan one reference less of each: what nobody holds then is free, cached or withheld.

        Blocks come in logical order and go last first, so that the first is on top of the stack.
        Null entries are none.
        """
        if self.window is not None:
            blocks = blocks[blocks != NULL_BLOCK]
        counts = self._refs[blocks]
        plan.stores.append((self._refs, blocks, counts - 1))
        last = blocks[counts == 1][::-1]
        published = self._published[last]
        if plan.withheld is None:
            plan.pushed = last[~published]
            self._enqueue(plan, last[published])
        else:  # Not to be found there, but its key stays with it.
            plan.withheld = np.concatenate((plan.withheld, last))
            self._hide(plan, last[published].tolist())

    def _enqueue(self, plan: Plan, blocks: Int64) -> None:
        """Plan to keep these for reuse, to be evicted in this order."""
        count = len(blocks)
        if not count:
            return
        if self._tail + count > len(self._queue):
            self._close_gaps()
            plan.head = self._head
        plan.tail = self._tail + count
        plan.stores.append((self._queue, slice(self._tail, plan.tail), blocks))
        plan.stores.append((self._place, blocks, np.arange(self._tail, plan.tail)))
        plan.num_cached += count

    def _close_gaps(self) -> None:
        """Move the cached blocks to the start of the queue; nobody can tell."""
        cached = self._cached()
        count = len(cached)
        places = np.arange(count)
        # Nothing from here on is a call.
        self._queue[:count] = cached
        self._place[cached] = places
        self._head, self._tail = 0, count

    def _cached(self) -> Int64:
        """The cached blocks, the next to be evicted first; changes nothing."""
        entries = self._queue[self._head : self._tail]
        cached: Int64 = entries[self._place[entries] == np.arange(self._head, self._tail)]
        return cached

    def _end_group(self, withheld: Int64) -> Plan:
        """Plan to let them come back, in this order: cached where nothing else has the content."""
        plan, found = Plan(self), dict[Key, int]()
        plan.withheld = None
        for block in withheld[self._published[withheld]].tolist():
            key = self._keys[block]
            if key is None or key in self._index or key in found:
                plan.stores.append((self._keys, block, None))
                plan.cleared.append(block)
            else:
                found[key] = block
                plan.stores.append((self._index, key, block))
        plan.stores.append((self._published, plan.cleared, False))
        cached = np.isin(withheld, [*found.values()])
        plan.pushed = withheld[~cached]
        self._enqueue(plan, withheld[cached])
        return plan

    def _take_host(self, plan: Plan, needed: int, request_id: int) -> Int64:
        """Plan to take blocks of the second pool; raises OutOfBlocks."""
        if needed > plan.host_level:
            raise OutOfBlocks(request_id, needed, plan.host_level)
        base = plan.host_level - needed
        taken = self._host_free[base : plan.host_level][::-1].copy()
        plan.host_level = base
        return taken

    def _prefix_keys(self, req: Request, count: int) -> Iterator[Key]:
        """The keys of the first `count` blocks of a request's tokens; changes nothing."""
        tokens = memoryview(array("q", req.tokens[: count * self.block_size]).tobytes())
        width = 8 * self.block_size
        prefix = blake2b(digest_size=16)
        for start in range(0, count * width, width):
            prefix.update(tokens[start : start + width])
            yield req.extra_key, prefix.digest()

    def _hits(self, req: Request, seq_len: int) -> Int64:
        """The published blocks that a prompt starts with, one token left out; changes nothing."""
        if not self._index:
            return NOTHING
        hits = []
        for key in self._prefix_keys(req, (seq_len - 1) // self.block_size):
            block = self._index.get(key)
            if block is None:
                break
            hits.append(block)
        return np.array(hits, dtype=np.int64)

    def _publish(self, plan: Plan, req: Request, blocks: Int64, seq_len: int) -> None:
        """Plan to publish the full blocks among `blocks`, but for content that is found already."""
        if "prefix" not in self.abilities:
            return
        full = blocks[: min(seq_len, len(req.tokens)) // self.block_size]
        done = self._published[full]
        if plan.cleared:
            done &= ~np.isin(full, plan.cleared)
        if done.all():
            return
        gone = {*plan.gone}
        keys = self._prefix_keys(req, len(full))
        for block, already, key in zip(full.tolist(), done.tolist(), keys, strict=True):
            if not already and (key in gone or key not in self._index):
                plan.stores.append((self._index, key, block))
                plan.stores.append((self._keys, block, key))
                plan.stores.append((self._published, block, True))

    def _commit(self, plan: Plan) -> None:
        """Do what is planned: assignments alone, so that it can't fail on the way."""
        num_free = plan.level + len(plan.pushed)
        num_host_free = plan.host_level + len(plan.host_pushed)
        handle = plan.handle
        # Nothing from here on is a call.
        for target, where in plan.deletes:
            del target[where]
        for target, where, value in plan.stores:
            target[where] = value
        self._free[plan.level : num_free] = plan.pushed
        self._num_free = num_free
        self._head, self._tail, self._num_cached = plan.head, plan.tail, plan.num_cached
        self._withheld = plan.withheld
        self._host_free[plan.host_level : num_host_free] = plan.host_pushed
        self._num_host_free = num_host_free
        if handle is not None:
            handle.block_table = plan.table
            handle.seq_len = plan.seq_len
