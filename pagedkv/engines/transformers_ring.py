"""The `PagedAttentionCache` of transformers 5.8 to 5.16 for layers with a sliding window.

Here to show a fault of those releases again, whose blocks a `BlockManager` keeps: where a ring of
blocks was read from and written to.
"""

from __future__ import annotations

from dataclasses import replace

from pagedkv.engines.transformers_blocks import TransformersBlocks
from pagedkv.protocol import Request, Snapshot

WINDOW = 5


class TransformersRing(TransformersBlocks):
    """`PagedAttentionCache` with one group of a window of 5 tokens; sizes > 0, else ValueError."""

    sliding_window = WINDOW
    declares = replace(
        TransformersBlocks.declares,
        abilities=frozenset({"append", "window"}),
        forks_eagerly=False,
        refuses_early=False,
        evicts_cached=False,
        block_sizes=(4,),
        window=WINDOW,
        ring=True,
        because={
            **{
                name: TransformersBlocks.declares.because[name]
                for name in ("out_of_blocks", "wrong_use", "tables_outside", "lookahead", "engine")
            },
            "block_sizes": "PagedAttentionCache of 5.16: 'Block size must be at least 4'",
            "window": "PreTrainedConfig.sliding_window, chosen here",
            "ring": "SlidingAttentionCacheAllocator: 'we only allocate up to the point where we "
            "can fit an entire sliding window'",
        },
    )
    state_key = TransformersBlocks.state_key  # nothing is added to the state

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        """Where the last batch read and wrote each position, as the engine itself says.

        What is read no more is put into the padding, the two blocks behind the last.
        """
        state, (group,) = self.live[req], self._cache.group_cache_managers
        name, new = state.request_id, len(state.tokens_to_process)
        past = state.current_len() - new
        read = group.get_read_indices(name, past, 0)
        rows = [self.num_blocks * self.block_size] * (past - len(read)) + read
        rows += group.get_write_indices(name, past, new)
        return [(0, *divmod(row, self.block_size)) for row in rows]

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live: two blocks for padding, no references to blocks."""
        padding = {self.num_blocks, self.num_blocks + 1}
        return replace(super().snapshot(), reserved=frozenset(padding), ref_counts=None)
