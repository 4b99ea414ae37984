"""The array-backed manager with all abilities: `SharedKVCacheManager` over numpy arrays.

What always holds is said, as equations, at the head of pagedkv/shared_pool.py. A call costs the
blocks of its own request, at C speed, whatever the size of the pool; where blocks are published,
evicted or found, one look into a dict each besides.

Every call makes a plan and commits it, in assignments alone, so that a failure on the way leaves
everything as it was; `can_...` makes the same plan and throws it away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import SupportsIndex

import numpy as np

from pagedkv.configurable import NULL_BLOCK
from pagedkv.ledger import blocks_for
from pagedkv.protocol import HoldsNothing, MisuseError, OutOfBlocks, Request, as_int
from pagedkv.reference import fitting_length
from pagedkv.rows import Int64
from pagedkv.shared_plan import NOTHING, Held, Plan
from pagedkv.shared_views import SharedViews


class SharedArrayKVCacheManager(SharedViews):
    """The fast one: outside like `SharedKVCacheManager`, but the last freed block first.

    A fresh pool hands out the lowest block first; of a request that gave its blocks back, the
    first logical block comes first. What a call changes and raises, and that nothing has changed
    when it raises, is as said there. `physical_kv_cache` is the pool, float32 zeros
    `[num_blocks, block_size, head_dim]`, `host_kv_cache` the second one, with as many blocks, or
    none without swap. `configured` switches abilities off. Raises ValueError for a value below 1,
    TypeError for booleans and floats.
    """

    # A search trusts these only where a class has them itself; this one adds no state.
    state_key, clone = SharedViews.state_key, SharedViews.clone

    # ---------------------------------------------------------------- the core

    def allocate_for_prefill(self, req: Request) -> None:
        """Take ceil(seq_len / block_size) blocks for `req`, those found included. Mutates both."""
        self._commit(self._prefill(req))

    def allocate_for_decode(self, req: Request) -> None:
        """Make room for one more token. Mutates both."""
        self._commit(self._grow("decode", req, 1))

    def release_request(self, req: Request) -> None:
        """Give all that `req` holds back, in either pool; `seq_len` is kept. Mutates both."""
        plan = Plan(self)
        if self._is_out(req):
            plan.host_pushed = self._out("release", req).blocks[::-1]
            plan.deletes.append((self._swapped, req.request_id))
        else:
            self._drop(plan, self._holding("release", req).blocks)
            plan.deletes.append((self._live, req.request_id))
        plan.fill_in(req, req.seq_len, [])
        self._commit(plan)

    # ---------------------------------------------------------------- append, truncate, fork

    def allocate_for_append(self, req: Request, count: SupportsIndex) -> None:
        """Make room for `count` >= 1 more tokens, all or nothing. Mutates both."""
        self._commit(self._append(req, count))

    def truncate_request(self, req: Request, seq_len: SupportsIndex) -> None:
        """Keep the first `seq_len` tokens, 1 <= seq_len <= req.seq_len. Mutates both."""
        self._needs("truncate", "truncate_request")
        kept = as_int("seq_len", seq_len, minimum=1)
        held = self._holding("truncate", req)
        there = self._fitting("truncate", held)
        if kept > there:
            raise MisuseError(
                f"truncate of request {req.request_id} to {kept} tokens, and it has {there}; "
                f"give a length of at most that"
            )
        full = self._covering(kept)
        plan = Plan(self)
        self._drop(plan, held.blocks[full:])
        blocks = held.blocks[:full].copy()  # A view would keep the longer table.
        self._hold(plan, held._replace(blocks=blocks), kept, blocks.tolist())
        self._commit(plan)

    def fork_request(self, req: Request, child: Request) -> None:
        """Let `child`, a fresh handle of the same length, hold what `req` holds. Mutates both."""
        self._needs("fork", "fork_request")
        self._holding("fork", req)
        self._unknown("fork into", child)
        self._alike(req, child)
        plan, blocks = self._fork(req)
        self._hold(plan, Held(child, blocks, 0), child.seq_len, blocks.tolist())
        self._commit(plan)

    # ---------------------------------------------------------------- prefix

    def cached_tokens(self, req: Request) -> int:
        """How many tokens its last prefill found; 0 for the child of a fork. Changes nothing."""
        self._needs("prefix", "cached_tokens")
        held = self._live.get(req.request_id)
        if held is None or held.handle is not req:
            raise HoldsNothing(
                f"cached_tokens of request {req.request_id}, which is not live; prefill it first"
            )
        return held.found

    def computed(self, req: Request) -> None:
        """All tokens of `req` are written: let its full blocks be found. Mutates the manager.

        Does nothing for a request that is not live, a second time, and without prefix or with
        `publishes_at_once`.
        """
        held = self._live.get(req.request_id)
        if self.publishes_at_once or held is None or held.handle is not req:
            return
        plan = Plan(self)
        self._publish(plan, req, held.blocks, req.seq_len)
        if plan.stores:
            self._commit(plan)

    # ---------------------------------------------------------------- swap

    def swap_out(self, req: Request) -> None:
        """Move what `req` holds to the second pool; its length is kept. Mutates both."""
        plan, held, there = self._swap_out(req)
        plan.deletes.append((self._live, req.request_id))
        plan.stores.append((self._swapped, req.request_id, held._replace(blocks=there)))
        plan.stores.append((self.host_kv_cache, there, self.physical_kv_cache[held.blocks]))
        plan.fill_in(req, req.seq_len, [])
        self._commit(plan)

    def swap_in(self, req: Request) -> None:
        """Move it back into fresh blocks, ceil(seq_len / block_size) of them. Mutates both."""
        plan, held, here = self._swap_in(req)
        plan.deletes.append((self._swapped, req.request_id))
        plan.stores.append((self.physical_kv_cache, here, self.host_kv_cache[held.blocks]))
        self._hold(plan, held._replace(blocks=here), req.seq_len, here.tolist())
        if self.publishes_at_once:
            self._publish(plan, req, here, req.seq_len)
        self._commit(plan)

    # ---------------------------------------------------------------- ask

    def can_prefill(self, req: Request) -> bool:
        """Whether `allocate_for_prefill` would be granted; changes nothing."""
        return self._would("can_prefill", lambda: self._prefill(req))

    def can_decode(self, req: Request) -> bool:
        """Whether `allocate_for_decode` would be granted; changes nothing."""
        return self._would("can_decode", lambda: self._grow("decode", req, 1))

    def can_append(self, req: Request, count: SupportsIndex) -> bool:
        """Whether `allocate_for_append` would be granted; changes nothing."""
        return self._would("can_append", lambda: self._append(req, count))

    def can_fork(self, req: Request) -> bool:
        """Whether `fork_request` into a fresh handle would be granted; changes nothing."""
        return self._would("can_fork", lambda: self._fork(req))

    def can_swap_out(self, req: Request) -> bool:
        """Whether `swap_out` would be granted; changes nothing."""
        return self._would("can_swap_out", lambda: self._swap_out(req))

    def can_swap_in(self, req: Request) -> bool:
        """Whether `swap_in` would be granted; changes nothing."""
        return self._would("can_swap_in", lambda: self._swap_in(req))

    def _would(self, call: str, plan: Callable[[], object]) -> bool:
        """Whether the call with this plan would be granted; wrong use is a no."""
        self._needs("ask", call)
        try:
            plan()
        except (OutOfBlocks, TypeError, ValueError):
            return False
        return True

    # ---------------------------------------------------------------- group

    def free_group_begin(self) -> None:
        """Withhold the blocks that come back from now on. Mutates; MisuseError inside a group."""
        self._needs("group", "free_group_begin")
        if self._withheld is not None:
            raise MisuseError("free_group_begin inside a group; end that one first")
        self._withheld = NOTHING

    def free_group_end(self) -> None:
        """The withheld blocks are free, or cached where published. Mutates.

        They come back in the order in which they were given; content that is found by now in
        another block is not cached again. Raises MisuseError outside a group.
        """
        self._needs("group", "free_group_end")
        if self._withheld is None:
            raise MisuseError("free_group_end outside a group; begin one first")
        self._commit(self._end_group(self._withheld))

    # ---------------------------------------------------------------- what a call comes to

    def _prefill(self, req: Request) -> Plan:
        self._unknown("prefill of", req)
        seq_len = as_int("seq_len", req.seq_len, minimum=1)
        hits = NOTHING
        if "prefix" in self.abilities:
            if len(req.tokens) != seq_len:
                raise MisuseError(
                    f"prefill of request {req.request_id} with {len(req.tokens)} tokens and "
                    f"seq_len = {seq_len}; give one token id for each position"
                )
            hits = self._hits(req, seq_len)
        plan, size = Plan(self), self.block_size
        if len(hits):
            self._share(plan, hits)
        fresh = self._take(plan, self._covering(seq_len) - len(hits), req.request_id)
        blocks = np.concatenate((hits, fresh)) if len(hits) else fresh
        self._hold(plan, Held(req, blocks, len(hits) * size), seq_len, blocks.tolist())
        if self.publishes_at_once:
            self._publish(plan, req, blocks, seq_len)
        return plan

    def _append(self, req: Request, count: SupportsIndex) -> Plan:
        self._needs("append", "allocate_for_append")
        return self._grow("append", req, as_int("count", count, minimum=1))

    def _grow(self, action: str, req: Request, count: int) -> Plan:
        # The last entry is never null: the last token stands there, and no window leaves it behind.
        held, size = self._holding(action, req), self.block_size
        blocks, had = held.blocks, len(held.blocks)
        ahead = self.lookahead
        seq_len = fitting_length(req, had, size, action, ahead)
        longer = seq_len + count
        plan, copied = Plan(self), NOTHING
        if seq_len < had * size:
            copied = self._before_write(plan, blocks, seq_len, longer)
        if self.window is not None:
            blocks = self._behind(plan, blocks, longer - self.window)
        needed = len(copied) + blocks_for(longer + ahead, size) - had
        if needed:
            taken = self._take(plan, needed, req.request_id)
            if len(copied):
                blocks = self._copy(plan, blocks, copied, taken, seq_len)
                taken = taken[len(copied) :]
            blocks = np.concatenate((blocks, taken))
        table = req.block_table if blocks is held.blocks else blocks.tolist()
        self._hold(plan, held._replace(blocks=blocks), longer, table)
        if self.publishes_at_once:
            self._publish(plan, req, blocks, longer)
        return plan

    def _hold(self, plan: Plan, held: Held, seq_len: int, table: list[int]) -> None:
        """Plan that a live request holds this, has this length and shows this table."""
        plan.stores.append((self._live, held.handle.request_id, held))
        plan.fill_in(held.handle, seq_len, table)

    def _before_write(self, plan: Plan, blocks: Int64, seq_len: int, longer: int) -> Int64:
        """Which of the blocks held that tokens go into several hold, so that they are copied.

        Plan that the others are not found. They are the tail alone unless there is lookahead.
        """
        if not self.lookahead:
            tail = blocks.item(-1)
            if self._refs.item(tail) == 1 and not self._published.item(tail):
                return NOTHING  # Nearly always, so at once.
        first = seq_len // self.block_size
        written = blocks[first : blocks_for(longer, self.block_size)]
        shared = self._refs[written] > 1
        if len(own := written[self._published[written] & ~shared]):
            self._forget(plan, own.tolist())
        return first + np.flatnonzero(shared)

    def _copy(self, plan: Plan, blocks: Int64, where: Int64, taken: Int64, seq_len: int) -> Int64:
        """The table with taken blocks in these places; plan the copy of what is written there."""
        copied, (first, offset) = blocks[where], divmod(seq_len, self.block_size)
        plan.stores.append((self._refs, copied, self._refs[copied] - 1))
        if offset and where[0] == first:
            pool = self.physical_kv_cache
            plan.stores.append((pool, taken[:1], pool[copied[:1]]))
        blocks = blocks.copy()
        blocks[where] = taken[: len(where)]
        return blocks

    def _behind(self, plan: Plan, blocks: Int64, start: int) -> Int64:
        """Plan to give back what lies wholly before position `start`; the table without it."""
        behind = min(max(0, start) // self.block_size, len(blocks))
        if not behind or blocks[behind - 1] == NULL_BLOCK:
            return blocks
        self._drop(plan, blocks[:behind])
        blocks = blocks.copy()
        blocks[:behind] = NULL_BLOCK
        return blocks

    def _fork(self, req: Request) -> tuple[Plan, Int64]:
        """What a child of `req` holds, and the plan that leads there."""
        self._needs("fork", "fork_request")
        held = self._holding("fork", req)
        blocks, size = held.blocks, self.block_size
        seq_len = self._fitting("fork", held)
        plan = Plan(self)
        if not self.forks_eagerly or seq_len % size == 0:
            self._share(plan, blocks)
            return plan, blocks
        self._share(plan, blocks[:-1])
        copy, pool = self._take(plan, 1, req.request_id), self.physical_kv_cache
        plan.stores.append((pool, copy, pool[blocks[-1:]]))
        return plan, np.concatenate((blocks[:-1], copy))

    def _swap_out(self, req: Request) -> tuple[Plan, Held, Int64]:
        """The plan, what goes, and the blocks of the second pool where it goes."""
        self._needs("swap", "swap_out")
        held = self._holding("swap_out", req)
        plan = Plan(self)
        there = self._take_host(plan, len(held.blocks), req.request_id)
        self._drop(plan, held.blocks)
        return plan, held, there

    def _swap_in(self, req: Request) -> tuple[Plan, Held, Int64]:
        """The plan, what comes, and the blocks where it comes."""
        self._needs("swap", "swap_in")
        held = self._out("swap_in", req)
        self._fitting("swap_in", held)
        plan = Plan(self)
        here = self._take(plan, len(held.blocks), req.request_id)
        plan.host_pushed = held.blocks[::-1]
        return plan, held, here


WindowArrayKVCacheManager = SharedArrayKVCacheManager.configured(
    "append", "ask", "group", "window", window=2
)
"""The one that reads two tokens back."""
