"""Hugging Face transformers' `PagedAttentionCache`, the block manager of continuous batching.

Each call does what the scheduler's `_process_candidates` does for a batch of one request, and in
the end `finish_request`. One layer of full attention.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import count
from typing import Any, ClassVar

from transformers.generation.continuous_batching.requests import RequestState

from pagedkv.adapter import Adapter, told_apart
from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.engines.transformers_cache import GROUP, cache_key, free_list, new_cache
from pagedkv.protocol import Request, Snapshot

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
        sizes = self.num_blocks, self.block_size, self.blocks_per_sector
        self._cache = new_cache(*sizes, self.shares, self.layers, self.window)
        self._ids = count()
        self._found: dict[Request, int] = {}  # tokens that live requests found
        self._complete: dict[str, int] = {}  # what the forward pass to come will complete
        self._copies: list[tuple[int, int]] = []  # (from, to) in blocks, since they were taken

    @property
    def _groups(self) -> list[Any]:
        """The allocator of each kind of layers."""
        return list(self._cache.cache_allocators.values())

    def allocate_for_prefill(self, req: Request) -> bool:
        state = RequestState(request_id=str(next(self._ids)), initial_tokens=told_apart(req))
        found = self._cache.search_prefix_match(state.request_id, state.initial_tokens)
        state.position_offset = found
        if not self._store(state, req.seq_len - found):
            # What it found is given up as that of a starved request is.
            self._cache.free_blocks(state.request_id, no_cache=True)
            return False
        self._found[req] = found
        self._process(req, state, req.seq_len - found)
        return self.holds(req, state)

    def allocate_for_decode(self, req: Request) -> bool:
        return self.allocate_for_append(req, 1)

    def allocate_for_append(self, req: Request, count: int) -> bool:
        state = self.live[req]
        if not self._store(state, count):
            return False
        state.generated_tokens += told_apart(req)[state.current_len() :]
        self._process(req, state, count)
        return self.granted(req, count)

    def can_prefill(self, req: Request) -> bool:
        fresh = RequestState(request_id="asks", initial_tokens=told_apart(req))
        return bool(self._cache.can_store_request_tokens(fresh, req.seq_len, dry_run=True))

    def can_decode(self, req: Request) -> bool:
        return self.can_append(req, 1)

    def can_append(self, req: Request, count: int) -> bool:
        return bool(self._cache.can_store_request_tokens(self.live[req], count, dry_run=True))

    def cached_tokens(self, req: Request) -> int:
        return self._found[req]

    def _store(self, state: RequestState, tokens: int) -> bool:
        self._cache.pool.try_to_free_sectors()
        return bool(self._cache.can_store_request_tokens(state, tokens))

    def _process(self, req: Request, state: RequestState, tokens: int) -> None:
        """Put so many tokens into the next batch, as ContinuousBatchingIOs does."""
        self._complete = self._cache.count_new_complete_blocks(state, tokens)
        state.tokens_to_process = told_apart(req)[state.current_len() :][:tokens]
        state.position_offset += tokens

    def computed(self, req: Request) -> None:
        """After the forward pass `update_batch` calls `mark_complete_blocks`."""
        self._cache.mark_complete_blocks(self.live[req], self._complete)
        self._complete = {}
        self.granted(req)

    def release_request(self, req: Request) -> None:
        self._cache.free_blocks(self.lets_go(req).request_id)
        del self._found[req]

    def table(self, req: Request) -> list[int]:
        """Its table of each group, one behind the other."""
        name = self.live[req].request_id
        return [block for group in self._groups for block in group.block_table[name]]

    def length(self, req: Request) -> int:
        return int(self.live[req].current_len())

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
            free_blocks=free_list(self._cache, size),
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
        return self.live_key(names), cache_key(self._cache)

    clone = Adapter.twin
