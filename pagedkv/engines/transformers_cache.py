"""transformers' `PagedAttentionCache` as one process makes it, and what it keeps.

Each group of layers has free blocks and a ledger of its own, all groups the same free sectors.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from types import SimpleNamespace

import torch
from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from pagedkv.adapter import plain
from pagedkv.twins import twin_of

GROUP = "full_attention"


def new_cache(
    blocks: int,
    block_size: int,
    blocks_per_sector: int,
    shares: bool,
    layers: tuple[str, ...],
    window: int | None,
) -> PagedAttentionCache:
    """A cache as it is when new, of a layer of each kind."""
    return twin_of(_made(blocks, block_size, blocks_per_sector, shares, layers, window))


@lru_cache(maxsize=64)
def _made(
    blocks: int,
    block_size: int,
    blocks_per_sector: int,
    shares: bool,
    layers: tuple[str, ...],
    window: int | None,
) -> PagedAttentionCache:
    """One for each geometry: making it takes milliseconds."""
    # A row of keys and values takes 8 bytes for each of its dimensions, a sector 128 or a multiple.
    dims = 16 if blocks_per_sector == 1 else 16 // blocks_per_sector // block_size
    config = LlamaConfig(
        num_hidden_layers=len(layers),
        num_attention_heads=1,
        hidden_size=dims,
        head_dim=dims,
        vocab_size=4,
        layer_types=list(layers),
        sliding_window=window,
    )
    batching = ContinuousBatchingConfig(
        page_size=block_size,
        num_blocks=blocks // len(layers),  # which are blocks of all layers
        max_batch_tokens=blocks * block_size,
        max_memory_percent=0.5,
        allow_block_sharing=shares,
    )
    alone = SimpleNamespace(tp_size=1, are_kv_heads_tp_ed=lambda: False)
    return PagedAttentionCache(config, batching, "cpu", alone, dtype=torch.float32)


def free_list(cache: PagedAttentionCache, size: int) -> list[int]:
    """All free blocks, in hand-out order; `size` of them make a sector."""
    pool = cache.pool
    return [
        *(b for of in pool._free_blocks for tree in of.trees.values() for b in tree[::-1]),
        *(s * size + i for s in reversed(pool.free_sectors) for i in range(size)),
    ]


def cache_key(cache: PagedAttentionCache) -> Hashable:
    """Everything later answers of the cache depend on but its tables."""
    ledgers = [group.ledger for group in cache.cache_allocators.values()]
    groups = [
        (
            *(len(free), free.trees, sorted(ledger.shared_ref_counts.items())),
            *([*ledger.cached_blocks], sorted(ledger.block_to_hash.items())),
            sorted(ledger.hash_to_block.items()),
        )
        for free, ledger in zip(cache.pool._free_blocks, ledgers, strict=True)
    ]
    return plain(cache.pool.free_sectors, groups)
