"""The `PagedAttentionCache` of transformers 5.8 to 5.12, whose blocks a `BlockManager` keeps.

Here to show faults of those releases again: each call does what their scheduler and `update_batch`
do. Tokens are nobody else's, so that blocks are shared by forks alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.requests import RequestState
from transformers.generation.continuous_batching.scheduler import Scheduler

from pagedkv.adapter import Adapter, plain
from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot


class TransformersBlocks(Adapter[RequestState]):
    """`PagedAttentionCache` with one group of full attention; sizes > 0, else ValueError."""

    declares = Declarations(
        out_of_blocks=(Returns(False),),
        wrong_use=NOT_TRIED,
        abilities=frozenset({"fork"}),
        forks_eagerly=True,
        refuses_early=True,
        evicts_cached=True,
        tables_outside=True,
        lookahead=2,
        engine=True,
        because={
            "out_of_blocks": "Scheduler._allocate_blocks_if_needed returns False",
            "wrong_use": "the docstrings of PagedAttentionCache promise nothing about it",
            "forks_eagerly": "BlockManager.fork_blocks copies what is not complete",
            "refuses_early": "a fork copies the lookahead too",
            "evicts_cached": "BlockManager.has_enough_free_blocks",
            "tables_outside": "CacheAllocator.block_table",
            "lookahead": "_allocate_blocks_if_needed: (tokens - occupancy + 1) // block_size + 1",
            "engine": "its state takes hundreds of microseconds to copy",
        },
    )

    sliding_window: ClassVar[int | None] = None

    def start(self) -> None:
        config = LlamaConfig(
            num_hidden_layers=1,
            num_attention_heads=1,
            hidden_size=8,
            head_dim=8,
            sliding_window=self.sliding_window,
        )
        batching = ContinuousBatchingConfig(
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_batch_tokens=4,
            max_memory_percent=0.5,
        )
        self._cache = new_cache(config, batching)
        self._copies: list[tuple[int, int]] = []
        self._complete = 0  # what the forward pass to come will complete
        self._ids = count()

    def allocate_for_prefill(self, req: Request) -> bool:
        name = next(self._ids)
        state = RequestState(request_id=str(name), initial_tokens=[name] * req.seq_len)
        if not self._allocated(state, req.seq_len):
            return False
        self._process(state, req.seq_len)
        return self.holds(req, state)

    def allocate_for_decode(self, req: Request) -> bool:
        return self.allocate_for_append(req, 1)

    def allocate_for_append(self, req: Request, count: int) -> bool:
        state = self.live[req]
        if not self._allocated(state, count):
            return False
        state.generated_tokens += [next(self._ids)] * count
        self._process(state, count)
        return self.granted(req, count)

    def _allocated(self, state: RequestState, tokens: int) -> bool:
        here: Any = SimpleNamespace(cache=self._cache, active_requests={})
        return bool(Scheduler._allocate_blocks_if_needed(here, state, tokens))

    def _process(self, state: RequestState, tokens: int) -> None:
        """Put so many tokens into the next batch, as ContinuousBatchingIOs does."""
        past, every = state.current_len(), state.initial_tokens + state.generated_tokens
        state.tokens_to_process = every[past:][:tokens]
        state.position_offset += tokens
        self._complete = state.current_len() // self.block_size - past // self.block_size

    def computed(self, req: Request) -> None:
        self._cache.mark_shareable_blocks_as_complete(self.live[req], self._complete)
        self.granted(req)

    def fork_request(self, req: Request, child: Request) -> bool:
        """As `update_batch` forks; releases that can tell how many forks fit are asked first."""
        source, name = self.live[req], str(next(self._ids))
        ask = getattr(self._cache, "compute_max_num_forks", None)
        if ask is not None and ask(source.request_id) < 1:
            return False
        sources, there = self._cache.fork_request(source.request_id, [name])
        self._copies += zip(sources, there, strict=True)
        state = source.fork(name)
        self._process(state, 0)
        return self.holds(child, state)

    def take_copies(self) -> list[tuple[int, int]]:
        copies, self._copies = self._copies, []
        return copies

    def release_request(self, req: Request) -> None:
        self._cache.free_blocks(self.lets_go(req).request_id)

    def table(self, req: Request) -> list[int]:
        (group,) = self._cache.group_cache_managers
        return list(group.block_table[self.live[req].request_id])

    def length(self, req: Request) -> int:
        return int(self.live[req].current_len())

    def snapshot(self) -> Snapshot:
        blocks = self._cache._block_manager
        return Snapshot(
            **self.of_live(),
            free_blocks=blocks._uninit_block_ids,
            cached=blocks._init_block_ids,
            ref_counts={
                b: block.ref_count for b, block in blocks._id_to_block.items() if block.ref_count
            },
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        blocks = self._cache._block_manager
        known = sorted((b, i.ref_count, i.is_complete) for b, i in blocks._id_to_block.items())
        live = self.live_key(names, lambda req: self.live[req].allocated_blocks)
        return plain(blocks._uninit_block_ids, [*blocks._init_block_ids], live, known)


def new_cache(config: LlamaConfig, batching: ContinuousBatchingConfig) -> PagedAttentionCache:
    """The cache of one process without tensor parallelism."""
    alone = SimpleNamespace(tp_size=1, are_kv_heads_tp_ed=lambda: False, tp_on=False)
    return PagedAttentionCache(config, batching, "cpu", alone, tp_plan={}, dtype=torch.float32)
