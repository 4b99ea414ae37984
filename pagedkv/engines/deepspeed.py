"""DeepSpeed-FastGen's `DSStateManager`, with its `BlockedAllocator` and sequence descriptors.

The calls are those of `InferenceEngineV2.put` and `maybe_allocate_kv` of its models.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from pagedkv.adapter import Adapter, plain
from pagedkv.declarations import NOT_TRIED, Declarations, Raises
from pagedkv.engines.deepspeed_on_cpu import (
    DtypeEnum,
    PlaceholderSequenceDescriptor,
    manager_configs,
    ragged_manager,
)
from pagedkv.protocol import Owned, Request, Snapshot

DECLARES = Declarations(
    out_of_blocks=(Raises(ValueError, "Not enough free blocks in the KV-cache"),),
    wrong_use=NOT_TRIED,
    engine=True,
    because={
        "out_of_blocks": "BlockedAllocator.allocate raises it",
        "wrong_use": "BlockedAllocator.free refuses free and invalid blocks, but knows no owners",
        "engine": "each call is some ten small tensor operations",
    },
)


class DeepSpeed(Adapter[None]):
    """`DSStateManager` behind the protocol; sizes > 0, else ValueError.

    It tracks at most one sequence for each block, since each live one holds one.
    """

    declares = DECLARES

    def start(self) -> None:
        blocks = self.num_blocks
        cache = manager_configs.KVCacheConfig(
            block_size=self.block_size,
            cache_shape=(1, 1, self.head_dim),
            cache_dtype=DtypeEnum.fp32,
            max_blocks_per_allocation_group=blocks,
        )
        config = manager_configs.DSStateManagerConfig(
            max_tracked_sequences=blocks,
            max_ragged_batch_size=blocks,
            max_ragged_sequence_count=blocks,
            memory_config=manager_configs.MemoryConfig(mode="allocate", size=blocks),
        )
        self._engine = ragged_manager.DSStateManager(config, (cache,))

    def table(self, req: Request) -> list[int]:
        return _on_device(self._engine.get_sequence(req.request_id))

    def allocate_for_prefill(self, req: Request) -> bool:
        self._put(req, req.seq_len)
        return self.granted(req)

    def allocate_for_decode(self, req: Request) -> bool:
        self._put(req, 1)
        return self.granted(req, 1)

    def _put(self, req: Request, tokens: int) -> None:
        known = self._engine.get_sequence(req.request_id) or PlaceholderSequenceDescriptor()
        needed = self.blocks_for(known.seen_tokens + tokens) - known.cur_allocated_blocks
        # Before the sequence is tracked: as with can_schedule, a refusal leaves none behind.
        new = self._engine.allocate_blocks(needed) if needed else None
        sequence = self._engine.get_or_create_sequence(req.request_id)
        if new is not None:
            sequence.extend_kv_cache(new)
        sequence.pre_forward(tokens)

    def computed(self, req: Request) -> None:
        """The forward pass is over."""
        self._engine.get_sequence(req.request_id).post_forward()

    def release_request(self, req: Request) -> None:
        self._engine.flush_sequence(req.request_id)
        req.block_table = []

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live.

        The tables are those of the device; their copies on the host stand in the reverse map. A
        block that the allocator has marked as used is one reference.
        """
        sequences = self._engine.tracked_sequences
        (allocator,) = self._engine._kv_cache._allocators
        links = allocator._blocks.tolist()
        return Snapshot(
            block_tables={uid: _on_device(s) for uid, s in sequences.items()},
            seq_lens={uid: s.seen_tokens + s.in_flight_tokens for uid, s in sequences.items()},
            free_blocks=_chain(int(allocator._head), links),
            num_free=allocator.free_blocks,
            ref_counts={block: 1 for block, link in enumerate(links) if link == -1},
            reverse_map={
                Owned(uid, logical, block)
                for uid, sequence in sequences.items()
                for logical, block in enumerate(_on_host(sequence))
            },
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, sequences called by `names`."""
        engine = self._engine
        allocators = (*engine._kv_cache._allocators, engine._tracking_allocator)
        sequences = [
            plain(names.get(uid, ~uid), s.tracking_id, s.seen_tokens, s.in_flight_tokens)
            + plain(_on_device(s), _on_host(s))
            for uid, s in engine.tracked_sequences.items()
        ]
        return plain(
            [(int(a._head), a._free_blocks, a._blocks) for a in allocators], sorted(sequences)
        )


def _on_device(sequence: Any) -> list[int]:
    ids: list[int] = sequence.all_block_ids().tolist()
    return ids


def _on_host(sequence: Any) -> list[int]:
    ids: list[int] = sequence.kv_cache_ids()[0, : sequence.cur_allocated_blocks].tolist()
    return ids


def _chain(block: int, links: list[int]) -> list[int]:
    """The free list from its head on; where it runs in a circle, one block is there twice."""
    free: list[int] = []
    while 0 <= block < len(links) and len(free) <= len(links):
        free.append(block)
        block = links[block]
    return free
