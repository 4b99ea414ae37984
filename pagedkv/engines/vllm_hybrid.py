"""vLLM's `KVCacheManager` for models with full attention in some layers, a window in the others.

The layers of each kind are a group that has block tables of its own. All groups take their blocks
from one `BlockPool`, and what a call asks for is granted to all of them or to none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vllm.v1.kv_cache_interface import KVCacheSpec
from vllm.v1.request import Request as EngineRequest

from pagedkv.engines.vllm import VllmManager
from pagedkv.engines.vllm_blockpool import DEAD, Label
from pagedkv.engines.vllm_window import WINDOW, VllmWindow
from pagedkv.protocol import Request

_BECAUSE = {
    **VllmWindow.declares.because,
    "windows": "FullAttentionSpec, and SlidingWindowSpec.sliding_window, chosen here",
}


class VllmHybrid(VllmWindow):
    """A group of full attention and one with a window of 2 tokens; sizes > 0, else ValueError."""

    declares = replace(
        VllmWindow.declares,
        window=None,
        windows=(None, WINDOW),
        because={name: why for name, why in _BECAUSE.items() if name != "window"},
    )
    state_key = VllmManager.blocks_key  # all tokens that wait are zeros

    def _specs(self) -> list[KVCacheSpec]:
        return [*VllmManager._specs(self), *super()._specs()]

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        """Where each position of a live request is, in each group, by that group's own table."""
        size = self.block_size
        return [
            (group, table[p // size].block_id, p % size)
            for group, table in enumerate(self._engine.coordinator.get_blocks(str(req.request_id)))
            for p in range(min(req.seq_len, len(table) * size))
        ]


class VllmHybridCached(VllmHybrid):
    """The same with prefix caching, of contents that never come again; sizes > 0, else ValueError.

    What is cached so is kept, ages and is evicted, but is never found.
    """

    caching = True
    state_key = VllmManager.blocks_key  # all tokens that wait are zeros

    def start(self) -> None:
        super().start()
        self._prompts = 0

    def _salt(self, req: Request) -> str | None:
        self._prompts += 1
        return str(self._prompts)

    def _label(self, known: Iterable[tuple[int, EngineRequest]]) -> Label:
        return lambda _key: DEAD
