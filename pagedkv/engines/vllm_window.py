"""vLLM's `KVCacheManager` for layers that read a sliding window only, without prefix caching."""

from __future__ import annotations

import torch
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.kv_cache_interface import KVCacheSpec, SlidingWindowSpec

from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.engines.vllm import VllmManager
from pagedkv.protocol import Request

WINDOW = 2


class VllmWindow(VllmManager):
    """`KVCacheManager` with a sliding window of 2 tokens; sizes > 0, else ValueError."""

    declares = Declarations(
        abilities={"append", "window"},
        out_of_blocks=(Returns(None),),
        wrong_use=NOT_TRIED,
        engine=True,
        window=WINDOW,
        null_block=0,
        window_of_first=True,
        drops_behind_window=True,
        because={
            "out_of_blocks": "KVCacheManager.allocate_slots: 'Cannot allocate new blocks'",
            "wrong_use": "KVCacheManager.allocate_slots and free promise nothing about it",
            "engine": "a copy of KVCacheManager takes some 400 microseconds",
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
