"""transformers' `PagedAttentionCache` where a sector, which is what groups take, has two blocks."""

from __future__ import annotations

from dataclasses import replace

from pagedkv.adapter import Adapter
from pagedkv.engines.transformers_paged import DECLARES, TransformersPaged


class TransformersSectors(TransformersPaged):
    """The same with two blocks in a sector, as groups of few layers or small heads have them."""

    blocks_per_sector = 2
    declares = replace(
        DECLARES,
        block_sizes=(1, 2, 4),
        pool_multiple=2,
        min_blocks=2,
        because={
            **DECLARES.because,
            "block_sizes": "a sector of two blocks is made here of 128 bytes",
            "pool_multiple": "num_sectors_from_config: the pool is made of whole sectors",
            "min_blocks": "num_sectors_from_config: the pool is made of whole sectors",
        },
    )
    state_key, clone = TransformersPaged.state_key, Adapter.twin
