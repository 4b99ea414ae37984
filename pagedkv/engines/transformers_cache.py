"""transformers' `PagedAttentionCache` as one process makes it, of the smallest models."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace

import torch
from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache

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
