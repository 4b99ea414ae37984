"""Hugging Face transformers' `PagedAttentionCache`, the block manager of continuous batching.

Each call does what the scheduler's `_process_candidates` does for a batch of one request, and in
the end `finish_request`. One layer of full attention; what the cache is made of is made once for
each geometry, as `PagedAttentionCache` takes milliseconds to make.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.requests import RequestState

from pagedkv.adapter import Adapter
from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot

GROUP = "full_attention"

DECLARES = Declarations(
    out_of_blocks=(Returns(False),),
    wrong_use=NOT_TRIED,
    abilities=frozenset({"append", "ask"}),
    reorders_free=True,
    engine=True,
    meaningless={"created_time": "a clock", "lifespan": "times of it", "_timestamps": "the same"},
    because={
        "out_of_blocks": "can_store_request_tokens: 'Otherwise, this has no side effects'",
        "wrong_use": "the docstrings of PagedAttentionCache promise nothing about it",
        "reorders_free": "Scheduler._try_to_meet_safety_margin calls try_to_free_sectors first",
        "engine": "its hidden state takes hundreds of microseconds to look at",
    },
)


class TransformersPaged(Adapter[RequestState]):
    """`PagedAttentionCache` without block sharing, a sector for each block; sizes > 0."""

    declares = DECLARES
    blocks_per_sector: ClassVar[int] = 1
    shares: ClassVar[bool] = False
    layers: ClassVar[tuple[str, ...]] = (GROUP,)  # of each kind one, which is a group
    window: ClassVar[int | None] = None

    def start(self) -> None:
        self._cache = copied(
            made(
                self.num_blocks,
                self.block_size,
                self.blocks_per_sector,
                self.shares,
                self.layers,
                self.window,
            )
        )
        self._ids = count()
        self._complete: dict[str, int] = {}  # what the forward pass to come will complete
        self._copies: list[tuple[int, int]] = []  # (from, to) in blocks, since they were taken
        self._found: dict[str, int] = {}  # tokens that live requests found, by the engine's ids

    @property
    def _groups(self) -> list[Any]:
        """The allocator of each kind of layers."""
        return list(self._cache.cache_allocators.values())

    def _new(self, req: Request) -> RequestState:
        """A request of the engine; it has no extra keys, so one makes other tokens of them."""
        state = RequestState(request_id=str(next(self._ids)), initial_tokens=contents(req, 0))
        found = self._cache.search_prefix_match(state.request_id, state.initial_tokens)
        state.position_offset = self._found[state.request_id] = found
        return state

    def allocate_for_prefill(self, req: Request) -> bool:
        state = self._new(req)
        if not self._store(state, req.seq_len - state.current_len()):
            # What it found is given up as that of a starved request is.
            self._cache.free_blocks(state.request_id, no_cache=True)
            del self._found[state.request_id]
            return False
        self.live[req] = state
        return self._stored(req, req.seq_len - state.current_len())

    def allocate_for_decode(self, req: Request) -> bool:
        return self.allocate_for_append(req, 1)

    def allocate_for_append(self, req: Request, count: int) -> bool:
        state = self.live[req]
        if not self._store(state, count):
            return False
        state.generated_tokens += contents(req, state.current_len())
        return self._stored(req, count)

    def can_prefill(self, req: Request) -> bool:
        fresh = RequestState(request_id="asks", initial_tokens=contents(req, 0))
        return bool(self._cache.can_store_request_tokens(fresh, req.seq_len, dry_run=True))

    def can_decode(self, req: Request) -> bool:
        return self.can_append(req, 1)

    def can_append(self, req: Request, count: int) -> bool:
        return bool(self._cache.can_store_request_tokens(self.live[req], count, dry_run=True))

    def cached_tokens(self, req: Request) -> int:
        return self._found[self.live[req].request_id]

    def _store(self, state: RequestState, tokens: int) -> bool:
        self._cache.pool.try_to_free_sectors()
        return bool(self._cache.can_store_request_tokens(state, tokens))

    def _stored(self, req: Request, tokens: int) -> bool:
        state = self.live[req]
        self._complete = self._cache.count_new_complete_blocks(state, tokens)
        start = state.current_len()
        state.tokens_to_process = contents(req, start)[:tokens]
        state.position_offset += tokens  # as ContinuousBatchingIOs does for the next batch
        req.seq_len, req.block_table = state.current_len(), self._table(state)
        return True

    def computed(self, req: Request) -> None:
        """After the forward pass `update_batch` calls `mark_complete_blocks`."""
        state = self.live[req]
        self._cache.mark_complete_blocks(state, self._complete)
        self._complete, req.block_table = {}, self._table(state)

    def release_request(self, req: Request) -> None:
        name = self.lets_go(req).request_id
        self._cache.free_blocks(name)
        del self._found[name]

    def table(self, req: Request) -> list[int]:
        return self._table(self.live[req])

    def length(self, req: Request) -> int:
        return int(self.live[req].current_len())

    def _table(self, state: RequestState) -> list[int]:
        """Its table of each group, one behind the other."""
        return [block for group in self._groups for block in group.block_table[state.request_id]]

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        """Where the last batch read and wrote each position, as the engine itself says.

        What is read no more is where nothing is read, in the write trash.
        """
        state, slots = self.live[req], list[tuple[int, int, int]]()
        name, new = state.request_id, len(state.tokens_to_process)
        past = state.current_len() - new
        for i, group in enumerate(self._groups):
            read = group.get_read_indices(name, past, 0)
            rows = [group.write_trash_index] * (past - len(read)) + read
            rows += group.get_write_indices(name, past, new)
            slots += [(i, *divmod(row, group.block_physical_stride)) for row in rows]
        return slots

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live. The blocks of the first two sectors are for padding."""
        groups, pool = self._groups, self._cache.pool
        (size,) = {group.blocks_per_sector for group in groups}  # so ids mean the same in all
        # A count of 1 is implicit, BlockLedger says.
        counts = {b: 1 for group in groups for table in group.block_table.values() for b in table}
        for group in groups:
            counts |= group.ledger.shared_ref_counts
        return Snapshot(
            **self.of_live(),
            free_blocks=[
                *(b for of in pool._free_blocks for tree in of.trees.values() for b in tree[::-1]),
                *(s * size + i for s in reversed(pool.free_sectors) for i in range(size)),
            ],
            num_free=sum(pool.count_free_blocks(group.index) for group in groups)
            + pool.num_free_sectors * size,
            blocks=range(2 * size, 2 * size + groups[0].num_blocks),
            reserved=range(2 * size),
            ref_counts=counts,
            cached={b for group in groups for b in group.ledger.cached_blocks},
            index=groups[0].ledger.hash_to_block if self.shares else None,
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        pool = self._cache.pool
        live = sorted(
            (names[r.request_id], it.current_len(), *self._table(it)) for r, it in self.live.items()
        )
        groups = [
            (
                len(trees),
                tuple((root, *tree) for root, tree in trees.trees.items()),
                tuple(sorted(ledger.shared_ref_counts.items())),
                tuple(ledger.cached_blocks),
                tuple(sorted(ledger.block_to_hash.items())),
                tuple(sorted(ledger.hash_to_block.items())),
            )
            for trees, ledger in zip(
                pool._free_blocks, (group.ledger for group in self._groups), strict=True
            )
        ]
        return (tuple(pool.free_sectors), tuple(live), *groups)

    def clone(
        self, requests: Mapping[int, Request]
    ) -> tuple[TransformersPaged, dict[int, Request]]:
        """A copy of the manager and of those handles; what never changes is shared."""
        twins = {req: copy.copy(req) for req in {*self.live, *requests.values()}}
        for req in twins.values():
            req.block_table, req.tokens = list(req.block_table), list(req.tokens)
        other = copy.copy(self)
        other._cache, other._ids = copied(self._cache), copy.copy(self._ids)
        other._found, other._copies = dict(self._found), list(self._copies)
        other.live = {twins[req]: copy.copy(state) for req, state in self.live.items()}
        for state in other.live.values():
            state.generated_tokens = list(state.generated_tokens)
        return other, {name: twins[req] for name, req in requests.items()}


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
    state_key, clone = TransformersPaged.state_key, TransformersPaged.clone


def contents(req: Request, start: int) -> list[int]:
    """The tokens from `start` on; other ones for each extra key, a number."""
    extra: Any = req.extra_key
    shift = 0 if extra is None else 2 * int(extra)
    return [shift + token for token in req.tokens[start:]]


@lru_cache(maxsize=64)
def made(
    blocks: int,
    block_size: int,
    blocks_per_sector: int,
    shares: bool,
    layers: tuple[str, ...],
    window: int | None,
) -> PagedAttentionCache:
    """A cache as it is when new, to be copied."""
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


def copied(cache: PagedAttentionCache) -> PagedAttentionCache:
    """A cache in the same state that shares with it only what never changes, and the tensor."""
    other = copy.copy(cache)
    other.pool = copy.deepcopy(cache.pool)
    other.cache_allocators = {}
    for name, group in cache.cache_allocators.items():
        twin = other.cache_allocators[name] = copy.copy(group)
        twin.block_table = {r: list(table) for r, table in group.block_table.items()}
        twin.ledger, twin.pool = copy.deepcopy(group.ledger), other.pool
    other.layer_to_allocator = {
        layer: other.cache_allocators[group.layer_type]
        for layer, group in cache.layer_to_allocator.items()
    }
    return other
