"""transformers' `PagedAttentionCache` where blocks are shared: by their content, and by forks.

What a complete block holds is found again by its hash, and a block that duplicates another is
exchanged for it after the forward pass.
"""

from __future__ import annotations

from dataclasses import replace

from transformers.generation.continuous_batching.requests import RequestState

from pagedkv.adapter import Adapter
from pagedkv.engines.transformers_cache import GROUP
from pagedkv.engines.transformers_paged import DECLARES, TransformersPaged
from pagedkv.protocol import Request


class TransformersSharing(TransformersPaged):
    """The same with block sharing: complete blocks are found again, and stay when unheld."""

    shares = True
    declares = replace(
        DECLARES,
        abilities=frozenset({"append", "prefix"}),
        tables_outside=True,
        evicts_cached=True,
        because={
            **DECLARES.because,
            "tables_outside": "mark_complete_blocks re-points entries when the call is long over",
            "evicts_cached": "OffloadingManager.offload_requests: 'we evict all cached blocks'",
        },
    )
    state_key, clone = TransformersPaged.state_key, Adapter.twin

    def _store(self, state: RequestState, tokens: int) -> bool:
        """`prepare_next_batch` tries again for as long as offload_requests evicts something."""
        return super()._store(state, tokens) or (
            self._cache.evict_cached_blocks() and self._store(state, tokens)
        )


class TransformersForking(TransformersSharing):
    """The same with forks, as requests with `num_children` have them."""

    declares = replace(
        TransformersSharing.declares,
        abilities=frozenset({"append", "prefix", "fork"}),
        forks_eagerly=True,
        refuses_early=True,
        because={
            **TransformersSharing.declares.because,
            "forks_eagerly": "CacheAllocator.fork_blocks: 'others are backed by fresh blocks'",
            "refuses_early": "prepare_fork_request counts no cached blocks, and evicts none",
        },
    )
    state_key, clone = TransformersPaged.state_key, Adapter.twin

    def fork_request(self, req: Request, child: Request) -> bool:
        """As `update_batch` forks; the child that did not fit would be prefilled later."""
        source, name = self.live[req], str(next(self._ids))
        self._cache.pool.try_to_free_sectors()
        copies: dict[str, tuple[list[int], list[int]]] = {GROUP: ([], [])}
        if not self._cache.prepare_fork_request(source, [name], copies):
            return False
        self._copies += zip(*copies[GROUP], strict=True)
        state, self._found[child] = source.fork(name), 0
        self._process(child, state, 0)
        return self.holds(child, state)

    def take_copies(self) -> list[tuple[int, int]]:
        """What `perform_cache_copy` would copy now; they are forgotten."""
        copies, self._copies = self._copies, []
        return copies
