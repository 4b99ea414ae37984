"""MAX's `BlockManager` with requests that find each other's blocks by their tokens.

MAX keeps a committed block that nobody holds in the queue of free ones, wherever it was put back.
Here the first are shown as cached and the others as free. A block that is committed a second time
is exchanged for the first one: the table of the request that computed it changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pagedkv.engines.max import DECLARES, MaxBlockManager
from pagedkv.protocol import Request, Snapshot


class MaxPrefix(MaxBlockManager):
    """`BlockManager` with its prefix cache; sizes > 0, else ValueError.

    A handle's extra key is the context's salt.
    """

    declares = replace(DECLARES, abilities=frozenset({"prefix"}))
    state_key = MaxBlockManager.state_key  # all that is added is what a block is found by

    caching = True

    def _salt(self, req: Request) -> str | None:
        return None if req.extra_key is None else str(req.extra_key)

    def _label(self, block: Any) -> str | None:
        """What the block would be found by, which any request may still ask for."""
        found: str | None = block.block_hash and block.block_hash.hex()
        return found

    def cached_tokens(self, req: Request) -> int:
        found: int | None = self.live[req].cached_prefix_length
        return found or 0  # none is written where a prompt of one token is not looked up

    def _cached(self) -> frozenset[int]:
        return frozenset(b for b in self._queue() if self._pool.pool[b].block_hash is not None)

    @property
    def free_blocks(self) -> list[int]:
        """The engine's set of free blocks, less those that are cached."""
        return sorted(self._pool.free_blocks - self._cached())

    def snapshot(self) -> Snapshot:
        """The same, with what the prefix cache finds, and what of it nobody holds."""
        seen, cached = super().snapshot(), self._cached()
        return replace(
            seen,
            free_blocks=tuple(b for b in self._queue() if b not in cached),
            num_free=self._pool.num_free_blocks - len(cached),
            cached=cached,
            index={key.hex(): block.bid for key, block in self._pool.prefix_cache.items()},
        )
