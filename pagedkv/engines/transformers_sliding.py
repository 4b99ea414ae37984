"""transformers' `PagedAttentionCache` for layers with a sliding window, alone or beside others.

The blocks of such layers are a ring: position p lies at p % window, so that a new token is written
over the one that the window has left behind, and a request keeps the blocks that it has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pagedkv.adapter import Adapter
from pagedkv.engines.transformers_cache import GROUP
from pagedkv.engines.transformers_paged import DECLARES, TransformersPaged

RING = "sliding_attention"
WINDOW = 3

_RING = "SlidingAttentionCacheAllocator: 'a ring buffer over at most ceil(sliding_window / "
_BECAUSE = {**DECLARES.because, "ring": f"{_RING}tokens_per_page) pages per layer'"}


class TransformersSliding(TransformersPaged):
    """One layer that reads a window of 3 tokens; sizes > 0, else ValueError."""

    layers: ClassVar[tuple[str, ...]] = (RING,)
    window = WINDOW
    declares = replace(
        DECLARES,
        abilities=frozenset({"append", "ask", "window"}),
        window=WINDOW,
        ring=True,
        because={**_BECAUSE, "window": "PreTrainedConfig.sliding_window, chosen here"},
    )
    state_key, clone = TransformersPaged.state_key, Adapter.twin


class TransformersHybrid(TransformersSliding):
    """A layer of full attention beside it, each with blocks of its own in sectors of one block.

    It is not asked: the engine asks without storing only of an empty cache, and blocks that are
    free in a sector of one group are not seen from the other until `try_to_free_sectors`.
    """

    layers = (GROUP, RING)
    declares = replace(
        TransformersSliding.declares,
        abilities=frozenset({"append", "window"}),
        window=None,
        windows=(None, WINDOW),
        pool_multiple=2,
        min_blocks=2,
        because={
            **_BECAUSE,
            "windows": "PreTrainedConfig.layer_types and sliding_window, chosen here",
            "pool_multiple": "ContinuousBatchingConfig.num_blocks counts blocks of all layers",
            "min_blocks": "the same",
        },
    )
    state_key, clone = TransformersPaged.state_key, Adapter.twin
