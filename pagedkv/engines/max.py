"""Modular MAX's `BlockManager`, with and without its prefix cache.

A request is a `TextContext`, claimed and allocated as `PagedKVCacheManager.alloc` does for the
scheduler. After a forward pass the overlap pipeline puts a placeholder for the next token and steps
the manager, which commits full blocks; the token itself is known at the next decode.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from operator import itemgetter
from typing import ClassVar

import numpy as np
from max.pipelines.context import TextContext, TokenBuffer
from max.pipelines.kv_cache.paged_kv_cache.block_manager import BlockManager
from max.pipelines.kv_cache.paged_kv_cache.block_utils import InsufficientBlocksError
from max.pipelines.modeling.types import RequestID

from pagedkv.adapter import Adapter
from pagedkv.declarations import Declarations, Raises
from pagedkv.protocol import Request, Snapshot

DECLARES = Declarations(
    out_of_blocks=(
        Raises(InsufficientBlocksError, "free blocks from the free block queue"),
        Raises(InsufficientBlocksError, "Insufficient KV pages for a single request"),
    ),
    wrong_use={"release": "never"},
    engine=True,
    because={
        "out_of_blocks": "BlockManager.allocate_new_blocks; the second is for a request that the "
        "whole pool can't hold",
        "wrong_use": "BlockManager.release takes a context and never sees a forged table; claim "
        "and _replica_of raise ValueError for a live and for an unclaimed request",
        "engine": "a context, a claim and an allocation are hundreds of microseconds",
    },
)


class MaxBlockManager(Adapter[TextContext]):
    """`BlockManager` of one replica behind the protocol; sizes > 0, else ValueError."""

    declares = DECLARES
    caching: ClassVar[bool] = False

    def start(self) -> None:
        self._engine = BlockManager(self.num_blocks, self.block_size, self.caching)
        self._pool = self._engine.device_block_pool

    def table(self, req: Request) -> list[int]:
        return list(self._engine.get_req_blocks(self.live[req]))

    def length(self, req: Request) -> int:
        """The tokens that must have a slot: all but a placeholder for the next one."""
        context = self.live[req]
        return len(context.tokens) - int(context._has_pending_future_token())

    def _context(self, req: Request) -> TextContext:
        """The engine's request."""
        tokens = TokenBuffer(np.array(req.tokens, dtype=np.int64))
        return self.live.get(req) or TextContext(
            max_length=1 << 20, tokens=tokens, cache_salt=self._salt(req)
        )

    def _salt(self, _req: Request) -> str | None:
        """A new request has one of its own, so that it shares no block."""
        return str(RequestID().value)

    def _allocate(self, req: Request, context: TextContext) -> None:
        hit = self._engine.reuse_blocks_from_prefix_cache(context)
        try:
            self._engine.allocate_new_blocks(context)
        except InsufficientBlocksError:
            self._engine.rollback_prefix_reuse(context, hit)
            raise

    def allocate_for_prefill(self, req: Request) -> None:
        context = self._context(req)
        self._engine.claim(context)
        try:
            self._allocate(req, context)
        except InsufficientBlocksError:
            self._engine.release(context)  # as the scheduler does before it queues it again
            raise
        self.holds(req, context)

    def allocate_for_decode(self, req: Request) -> None:
        context = self._context(req)
        self._allocate(req, context)
        context.realize_future_token(req.tokens[-1])
        self.granted(req, 1)

    def computed(self, req: Request) -> None:
        """The forward pass is done: full blocks are committed, which may exchange them."""
        context = self.live[req]
        context.update_with_future_token()
        self._engine.step(context)
        self.granted(req)

    def release_request(self, req: Request) -> None:
        self._engine.release(self.lets_go(req))

    @property
    def free_blocks(self) -> list[int]:
        """The engine's set of free blocks, which it keeps beside the queue."""
        return sorted(self._pool.free_blocks)

    def _queue(self) -> Iterator[int]:
        block = self._pool.free_block_queue.free_list_head
        while block is not None:
            yield block.bid
            block = block.next_free_block

    def _label(self, _block: object) -> str | None:
        """What tells the content of a committed block apart: nothing, no other request asks."""
        return ""

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; cached blocks that nobody holds stand in its queue."""
        names = {context.request_id: req.request_id for req, context in self.live.items()}
        return Snapshot(
            block_tables={
                names.get(key, -1): [block.bid for block in blocks]
                for key, blocks in self._engine.req_to_blocks.items()
            },
            seq_lens={req.request_id: self.length(req) for req in self.live},
            free_blocks=self._queue(),
            num_free=self._pool.num_free_blocks,
            ref_counts={block.bid: block.ref_cnt for block in self._pool.pool if block.ref_cnt},
            reserved={self._pool.null_block.bid},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        engine, pool, cache = self._engine, self._pool, self._pool.prefix_cache
        tables, hashes = engine.req_to_blocks, engine.req_to_hashes
        done = engine.req_to_committed_idx
        live = sorted(((names[r.request_id], r) for r in self.live), key=itemgetter(0))
        return (
            (*self._queue(), None, *sorted(pool.free_blocks), None, pool.num_free_blocks),
            tuple(
                (b.ref_cnt, b.block_hash and cache.get(b.block_hash) is b and self._label(b))
                for b in pool.pool
            ),
            (len(engine.req_to_replica), len(tables), len(hashes), len(done), len(cache)),
            *((name, self.length(r), *self.table(r)) for name, r in live),
            *(
                (len(hashes.get(c.request_id, ())), done.get(c.request_id, 0))
                for c in (self.live[r] for _, r in live)
            ),
        )


class CachedMaxBlockManager(MaxBlockManager):
    """The same with its prefix cache on, of contents that never come again."""

    caching = True
    state_key = MaxBlockManager.state_key
