"""The obviously right manager with all abilities: each call is a plan that is carried out.

What always holds is said, as equations, at the heads of pagedkv/shared_core.py (tables, handles,
the second pool) and pagedkv/shared_blocks.py (reference counts, free, cached, withheld, index).
The plans are in pagedkv/shared_plans.py; what each call is for is said in pagedkv/abilities.py.

A plan works on copies. Carrying it out is a few statements that only assign and call nothing, so
that a failure on the way leaves everything as it was.
"""

from __future__ import annotations

from typing import SupportsIndex

from pagedkv.protocol import HoldsNothing, MisuseError, Request
from pagedkv.shared_plans import Plan, SharedPlans, held


class SharedKVCacheManager(SharedPlans):
    """The reference for sharing: lists, dicts and loops, the lowest free block first.

    `physical_kv_cache` is the pool, float32 zeros `[num_blocks, block_size, head_dim]`, and
    `host_kv_cache` the second one, `[num_host_blocks, block_size, head_dim]`: as many blocks, or
    none without swap. A request is known by its handle: a second handle with the id of a live or
    swapped one is refused. `configured` switches abilities off; a call of one that is off is a
    MisuseError. Raises ValueError for a value below 1, TypeError for booleans and floats.
    Source: Kwon et al., PagedAttention (SOSP 2023), sections 4.3 to 4.5; Zheng et al., SGLang
    (NeurIPS 2024), section 3, RadixAttention.
    """

    # A search trusts these only where a class has them itself; this one adds no state.
    state_key, clone = SharedPlans.state_key, SharedPlans.clone

    # ---------------------------------------------------------------- the core

    def allocate_for_prefill(self, req: Request) -> None:
        """Take ceil(seq_len / block_size) blocks for `req`, those it finds included. Mutates both.

        With `lookahead` those for so many more tokens too, as every call that grows it.
        Raises OutOfBlocks, AlreadyHolding if `req` holds blocks, is swapped out or another such
        request has its id, MisuseError with prefix if `tokens` are not `seq_len` many, or
        ValueError/TypeError for a `seq_len` that is no length; nothing has changed then.
        """
        self._carry_out(req, self._plan_prefill(req))

    def allocate_for_decode(self, req: Request) -> None:
        """Make room for one more token, as an append of one does. Mutates both.

        One block more at a block boundary, or where others hold the tail too. Raises OutOfBlocks,
        HoldsNothing, or InvalidBlockTable if the handle's table was edited, or its `seq_len` so
        that it no longer fits; nothing has changed then.
        """
        self._carry_out(req, self._plan_growth("decode", req, 1))

    def release_request(self, req: Request) -> None:
        """Give all that `req` holds back, in either pool; `seq_len` is kept. Mutates both.

        Blocks that others hold stay theirs; published ones are cached, the last logical one to be
        evicted first. Raises HoldsNothing, or InvalidBlockTable if the table is not the one handed
        out; nothing has changed then.
        """
        if self._is_out(req):
            host_free = sorted([*self._host_free, *self._out("release", req).blocks])
            del self._swapped[req.request_id]
            self._host_free = host_free
            return
        blocks, lease = self._blocks.copy(), self._lease_of("release", req)
        blocks.drop(held(lease.blocks)[::-1])
        del self._live[req.request_id]
        self._blocks = blocks
        req.block_table = []

    # ---------------------------------------------------------------- append, truncate, fork

    def allocate_for_append(self, req: Request, count: SupportsIndex) -> None:
        """Make room for `count` >= 1 more tokens, all or nothing. Mutates both.

        Raises as a decode, ValueError/TypeError for another `count`; nothing has changed then.
        """
        self._carry_out(req, self._plan_append(req, count))

    def truncate_request(self, req: Request, seq_len: SupportsIndex) -> None:
        """Keep the first `seq_len` tokens, 1 <= seq_len <= req.seq_len. Mutates both.

        The blocks beyond go back as those of a release; the whole length is fine, too. Raises
        HoldsNothing, InvalidBlockTable, ValueError/TypeError for another length; nothing has
        changed then.
        """
        self._carry_out(req, self._plan_truncate(req, seq_len))

    def fork_request(self, req: Request, child: Request) -> None:
        """Let `child`, a fresh handle of the same length, hold what `req` holds. Mutates both.

        Raises OutOfBlocks where the tail is copied at once; HoldsNothing, InvalidBlockTable for
        `req`, AlreadyHolding for `child`; MisuseError where their lengths differ, or with prefix
        their tokens or extra keys; nothing has changed then.
        """
        self._needs("fork", "fork_request")
        self._lease_of("fork", req)
        self._unknown("fork into", child)
        self._alike(req, child)
        blocks, lease, seq_len, copy = self._plan_fork(req)
        self._carry_out(child, Plan(blocks, lease._replace(handle=child), seq_len, copy))

    # ---------------------------------------------------------------- prefix

    def cached_tokens(self, req: Request) -> int:
        """How many tokens its last prefill found; 0 for the child of a fork. Changes nothing.

        Raises HoldsNothing if `req` is not live.
        """
        self._needs("prefix", "cached_tokens")
        lease = self._live.get(req.request_id)
        if lease is None or lease.handle is not req:
            raise HoldsNothing(
                f"cached_tokens of request {req.request_id}, which is not live; prefill it first"
            )
        return lease.cached_tokens

    def computed(self, req: Request) -> None:
        """All tokens of `req` are written: let its full blocks be found. Mutates the manager.

        A second time it does nothing; nor does it for a request that is not live, without prefix,
        and with `publishes_at_once`.
        """
        lease = self._live.get(req.request_id)
        if lease is None or lease.handle is not req or self.publishes_at_once:
            return
        blocks = self._blocks.copy()
        self._publish(blocks, lease, req.seq_len)
        self._blocks = blocks

    # ---------------------------------------------------------------- swap

    def swap_out(self, req: Request) -> None:
        """Move what `req` holds to the second pool; its length is kept. Mutates both.

        The blocks here go back as those of a release. Raises OutOfBlocks where the second pool
        has too few, HoldsNothing, InvalidBlockTable; nothing has changed then.
        """
        blocks, lease, host_free, here, there = self._plan_swap_out(req)
        self.host_kv_cache[there] = self.physical_kv_cache[here]
        self._blocks = blocks
        self._host_free = host_free
        del self._live[req.request_id]
        self._swapped[req.request_id] = lease
        req.block_table = []

    def swap_in(self, req: Request) -> None:
        """Move it back into ceil(seq_len / block_size) fresh blocks. Mutates both.

        Raises OutOfBlocks, HoldsNothing if `req` is not swapped out, or InvalidBlockTable if its
        handle was edited; nothing has changed then.
        """
        blocks, lease, host_free, here, there = self._plan_swap_in(req)
        self.physical_kv_cache[here] = self.host_kv_cache[there]
        self._blocks = blocks
        self._host_free = host_free
        del self._swapped[req.request_id]
        self._live[req.request_id] = lease
        req.block_table = here

    # ---------------------------------------------------------------- group

    def free_group_begin(self) -> None:
        """Withhold the blocks that come back from now on. Raises MisuseError inside a group."""
        self._needs("group", "free_group_begin")
        if self._blocks.withheld is not None:
            raise MisuseError("free_group_begin inside a group; end that one first")
        blocks = self._blocks.copy()
        blocks.begin_group()
        self._blocks = blocks

    def free_group_end(self) -> None:
        """What was withheld comes back, in that order. Raises MisuseError outside a group."""
        self._needs("group", "free_group_end")
        if self._blocks.withheld is None:
            raise MisuseError("free_group_end outside a group; begin one first")
        blocks = self._blocks.copy()
        blocks.end_group()
        self._blocks = blocks

    # ---------------------------------------------------------------- carrying out

    def _carry_out(self, req: Request, plan: Plan) -> None:
        """Put a plan's blocks and lease in place, and fill `req` in. Mutates both."""
        blocks, lease, seq_len, copy = plan
        table = list(lease.blocks)
        if copy is not None:  # Into a block that nobody holds yet.
            self.physical_kv_cache[copy.target] = self.physical_kv_cache[copy.source]
        self._blocks = blocks
        self._live[req.request_id] = lease
        req.block_table = table
        req.seq_len = seq_len


WindowKVCacheManager = SharedKVCacheManager.configured("append", "ask", "group", "window", window=2)
"""The one that reads two tokens back."""
