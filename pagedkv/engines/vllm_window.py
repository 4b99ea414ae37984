"""vLLM's `KVCacheManager` for layers that read a sliding window only, without prefix caching."""

from __future__ import annotations

from dataclasses import replace

import torch
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.kv_cache_interface import KVCacheSpec, SlidingWindowSpec

from pagedkv.engines.vllm import VllmManager
from pagedkv.protocol import Request

WINDOW = 2


class VllmWindow(VllmManager):
    """`KVCacheManager` with a sliding window of 2 tokens; sizes > 0, else ValueError."""

    declares = replace(
        VllmManager.declares,
        abilities=frozenset({"append", "window"}),
        window=WINDOW,
        null_block=0,
        window_of_first=True,
        drops_behind_window=True,
        because={
            **VllmManager.declares.because,
            "window": "SlidingWindowSpec.sliding_window, chosen here",
            "null_block": "SingleTypeKVCacheManager._remove_blocks_in_range: BlockPool.null_block",
            "window_of_first": "SlidingWindowManager.get_num_skipped_tokens: 'sliding window for "
            "next token'",
            "drops_behind_window": "KVCacheManager.allocate_slots: 'We can do this even if we "
            "cannot schedule this request due to insufficient free blocks'",
        },
    )
    state_key = VllmManager.blocks_key  # all tokens that wait are zeros

    def _specs(self) -> list[KVCacheSpec]:
        return [
            SlidingWindowSpec(
                block_size=self.block_size,
                num_kv_heads=1,
                head_size=self.head_dim,
                dtype=torch.float32,
                sliding_window=WINDOW,
            )
        ]

    def allocate_for_append(self, req: Request, count: int) -> KVCacheBlocks | None:
        return self._extend(req, count)
