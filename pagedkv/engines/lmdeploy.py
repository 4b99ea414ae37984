"""LMDeploy's `DefaultBlockManager`, seen by its physical blocks or by its logical ones.

The manager maps a sequence's blocks twice: the sequence names logical blocks, `phy_map` says where
each lies. Both levels have a free list of their own. As its `Scheduler` does, the adapter counts a
token in before it asks for its block; the sequence stands for `SchedulerSequence`, of which the
manager reads these fields and no others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import SupportsIndex

from lmdeploy.pytorch.block import LogicalTokenBlocks
from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager
from lmdeploy.pytorch.paging.block_manager.base_block_manager import (
    LogicalAllocator,
    PhysicalAllocator,
)

from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot, as_int

DECLARES = Declarations(
    out_of_blocks=(Returns(False),),
    wrong_use=NOT_TRIED,
    engine=True,
    because={
        "out_of_blocks": "BaseBlockManager.can_allocate is asked before allocate",
        "wrong_use": "BaseBlockManager.allocate and free promise nothing about it",
        "engine": "a step is some ten small numpy operations",
    },
)


@dataclass
class Sequence:
    """What `DefaultBlockManager` reads of a `SchedulerSequence`."""

    block_size: int
    num_all_ids: int
    kv_token_limit: None = None
    logical_blocks: LogicalTokenBlocks = field(default_factory=LogicalTokenBlocks)


class LmdeployManager:
    """`DefaultBlockManager` behind the protocol; sizes > 0, else ValueError.

    By its physical blocks it has block 0 reserved on top, as LMDeploy's `config_builder` asks for;
    by its `logical` ones none, so that there are as many of both.
    """

    declares = DECLARES

    def __init__(
        self,
        num_blocks: SupportsIndex,
        block_size: SupportsIndex,
        head_dim: SupportsIndex,
        *,
        logical: bool = False,
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        self._reserved = 0 if logical else 1
        self._engine = self._made()
        self._logical = logical
        self._sequences: dict[Request, Sequence] = {}

    def _made(self) -> DefaultBlockManager:
        return DefaultBlockManager(
            self.num_blocks + self._reserved, 0, num_gpu_reserved=self._reserved
        )

    def allocate_for_prefill(self, req: Request) -> bool:
        return self._allocate(req, Sequence(self.block_size, req.seq_len))

    def allocate_for_decode(self, req: Request) -> bool:
        sequence = self._sequences[req]
        sequence.num_all_ids = req.seq_len + 1  # stays so after a refusal
        return self._allocate(req, sequence)

    def _allocate(self, req: Request, sequence: Sequence) -> bool:
        if not self._engine.can_allocate(sequence):
            return False
        self._engine.allocate(sequence)
        self._sequences[req] = sequence
        req.seq_len, req.block_table = sequence.num_all_ids, self._table(sequence)
        return True

    def release_request(self, req: Request) -> None:
        self._engine.free(self._sequences.pop(req))
        req.block_table = []

    def _table(self, sequence: Sequence) -> list[int]:
        logical = sequence.logical_blocks.get_real_blocks()
        table: list[int] = (
            logical if self._logical else self._engine.get_block_table(sequence)
        ).tolist()
        return table

    def snapshot(self) -> Snapshot:
        """The tables, free list, counter and references of the blocks that are shown, live."""
        allocator, memory = self._engine.allocator, self._engine.allocator._log_mem
        counts = memory.ref_count.tolist()
        places = range(len(counts)) if self._logical else memory.phy_map.tolist()
        references = dict.fromkeys(range(self.num_blocks + self._reserved), 0)
        for block, count in zip(places, counts, strict=True):
            references[block] = references.get(block, 0) + count
        shown = allocator if self._logical else allocator.get_phy_allocator("gpu")
        return Snapshot(
            block_tables={r.request_id: self._table(s) for r, s in self._sequences.items()},
            seq_lens={r.request_id: r.seq_len for r in self._sequences},
            free_blocks=free(shown),
            blocks=range(self._reserved, self.num_blocks + self._reserved),
            num_free=shown.get_num_free_blocks(),
            ref_counts=references,
            reserved=range(self._reserved),
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`."""
        allocator, memory = self._engine.allocator, self._engine.allocator._log_mem
        tables = {names[r.request_id]: s.logical_blocks for r, s in self._sequences.items()}
        return (
            tuple(free(allocator)),
            tuple(free(allocator.get_phy_allocator("gpu"))),
            tuple(memory.ref_count.tolist()),
            tuple(
                (name, *table.get_real_blocks().tolist(), *memory.phy_map[table[:]].tolist())
                for name, table in sorted(tables.items())
            ),
        )


def logical_manager(
    num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
) -> LmdeployManager:
    """`LmdeployManager` by its logical blocks; sizes > 0, else ValueError."""
    return LmdeployManager(num_blocks, block_size, head_dim, logical=True)


def free(allocator: LogicalAllocator | PhysicalAllocator) -> list[int]:
    """The free list, in hand-out order: the end of an array, of the length that is counted."""
    blocks: list[int] = allocator._free_blocks.tolist()
    return blocks[len(blocks) - allocator._free_count :]
