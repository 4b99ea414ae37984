"""LMDeploy's `DefaultBlockManager`, seen by its physical blocks or by its logical ones.

The manager maps a sequence's blocks twice: the sequence names logical blocks, `phy_map` says where
each lies. Both levels have a free list of their own. As its `Scheduler` does, the adapter counts a
token in before it asks for its block; the sequence stands for `SchedulerSequence`, of which the
manager reads these fields and no others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from lmdeploy.pytorch.block import LogicalTokenBlocks
from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager
from lmdeploy.pytorch.paging.block_manager.base_block_manager import (
    LogicalAllocator,
    PhysicalAllocator,
)

from pagedkv.adapter import Adapter
from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot

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


class LmdeployManager(Adapter[Sequence]):
    """`DefaultBlockManager` behind the protocol; sizes > 0, else ValueError.

    By its physical blocks it has block 0 reserved on top, as LMDeploy's `config_builder` asks for;
    by its `logical` ones none, so that there are as many of both.
    """

    declares = DECLARES
    logical: ClassVar[bool] = False

    def start(self) -> None:
        self._reserved = 0 if self.logical else 1
        self._engine = self._made()

    def _made(self) -> DefaultBlockManager:
        return DefaultBlockManager(
            self.num_blocks + self._reserved, 0, num_gpu_reserved=self._reserved
        )

    def allocate_for_prefill(self, req: Request) -> bool:
        return self._allocate(req, Sequence(self.block_size, req.seq_len))

    def allocate_for_decode(self, req: Request) -> bool:
        sequence = self.live[req]
        sequence.num_all_ids = req.seq_len + 1  # stays so after a refusal
        return self._allocate(req, sequence)

    def _allocate(self, req: Request, sequence: Sequence) -> bool:
        if not self._engine.can_allocate(sequence):
            return False
        self._engine.allocate(sequence)
        req.seq_len = sequence.num_all_ids
        return self.holds(req, sequence)

    def release_request(self, req: Request) -> None:
        self._engine.free(self.lets_go(req))

    def table(self, req: Request) -> list[int]:
        return self._table(self.live[req])

    def _table(self, sequence: Sequence) -> list[int]:
        logical = sequence.logical_blocks.get_real_blocks()
        table: list[int] = (
            logical if self.logical else self._engine.get_block_table(sequence)
        ).tolist()
        return table

    def snapshot(self) -> Snapshot:
        """The tables, free list, counter and references of the blocks that are shown, live."""
        allocator, memory = self._engine.allocator, self._engine.allocator._log_mem
        counts = memory.ref_count.tolist()
        places = range(len(counts)) if self.logical else memory.phy_map.tolist()
        references = dict.fromkeys(range(self.num_blocks + self._reserved), 0)
        for block, count in zip(places, counts, strict=True):
            references[block] = references.get(block, 0) + count
        shown = allocator if self.logical else allocator.get_phy_allocator("gpu")
        return Snapshot(
            **self.of_live(),
            free_blocks=free(shown),
            blocks=range(self._reserved, self.num_blocks + self._reserved),
            num_free=shown.get_num_free_blocks(),
            ref_counts=references,
            reserved=range(self._reserved),
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`."""
        allocator, memory = self._engine.allocator, self._engine.allocator._log_mem
        tables = {names[r.request_id]: s.logical_blocks for r, s in self.live.items()}
        return (
            tuple(free(allocator)),
            tuple(free(allocator.get_phy_allocator("gpu"))),
            tuple(memory.ref_count.tolist()),
            tuple(
                (name, *table.get_real_blocks().tolist(), *memory.phy_map[table[:]].tolist())
                for name, table in sorted(tables.items())
            ),
        )


class LmdeployLogical(LmdeployManager):
    """`LmdeployManager` by its logical blocks; sizes > 0, else ValueError."""

    logical = True
    state_key = LmdeployManager.state_key


def free(allocator: LogicalAllocator | PhysicalAllocator) -> list[int]:
    """The free list, in hand-out order: the end of an array, of the length that is counted."""
    blocks: list[int] = allocator._free_blocks.tolist()
    return blocks[len(blocks) - allocator._free_count :]
