"""LMDeploy's `WindowBlockManager`, for models that read a sliding window only.

A sequence's blocks behind the window leave its table, and `num_ignored_history` counts their
tokens; here an entry of null stands for each of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager, WindowBlockManager

from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.engines.lmdeploy import LmdeployManager, Sequence
from pagedkv.protocol import Request

WINDOW_SIZE = 2
NULL = -1

_BECAUSE = {
    "wrong_use": "BaseBlockManager.allocate and free promise nothing about it",
    "engine": "a step is some ten small numpy operations",
    "window": "the kernels: position p reads from p - window_size on (kv_min_loc)",
    "null_block": "chosen here for what SchedulerSequence.num_ignored_history counts",
    "window_of_first": "_num_blocks_to_drop goes by num_history_ids",
}


@dataclass
class WindowSequence(Sequence):
    """What `WindowBlockManager` reads of a `SchedulerSequence`, and writes."""

    num_history_ids: int = 0
    num_ignored_history: int = 0


class LmdeployWindow(LmdeployManager):
    """`WindowBlockManager` asked as its scheduler does; sizes > 0, else ValueError."""

    declares = Declarations(
        abilities={"append", "window"},
        out_of_blocks=(Returns(False),),
        wrong_use=NOT_TRIED,
        engine=True,
        window=WINDOW_SIZE + 1,
        null_block=NULL,
        window_of_first=True,
        refuses_early=True,
        because={
            **_BECAUSE,
            "out_of_blocks": "RecomputeEvictionHelper.try_make_capacity_for gives False",
            "refuses_early": "RecomputeEvictionHelper.try_make_capacity_for compares with the free "
            "blocks; those that allocate will drop are none yet",
        },
    )

    def _made(self) -> DefaultBlockManager:
        return WindowBlockManager(
            self.num_blocks + self._reserved, 0, WINDOW_SIZE, num_gpu_reserved=self._reserved
        )

    def allocate_for_prefill(self, req: Request) -> bool:
        return self._allocate(req, WindowSequence(self.block_size, req.seq_len))

    def allocate_for_decode(self, req: Request) -> bool:
        return self.allocate_for_append(req, 1)

    def allocate_for_append(self, req: Request, count: int) -> bool:
        sequence = self.live[req]
        sequence.num_all_ids = req.seq_len + count  # stays so after a refusal
        return self._allocate(req, sequence)

    def _allocate(self, req: Request, sequence: Sequence) -> bool:
        assert isinstance(sequence, WindowSequence)
        if not self._has_room(sequence):
            return False
        self._engine.allocate(sequence)
        sequence.num_history_ids = sequence.num_all_ids
        self.live[req] = sequence
        req.seq_len, req.block_table = sequence.num_all_ids, self._table(sequence)
        return True

    def _has_room(self, sequence: Sequence) -> bool:
        engine = self._engine
        return bool(engine.get_num_free_gpu_blocks() >= engine.num_required_blocks(sequence))

    def _table(self, sequence: Sequence) -> list[int]:
        assert isinstance(sequence, WindowSequence)
        gone = sequence.num_ignored_history // self.block_size
        return [NULL] * gone + super()._table(sequence)

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`."""
        ignored = sorted(
            (names[r.request_id], s.num_ignored_history)
            for r, s in self.live.items()
            if isinstance(s, WindowSequence)
        )
        return (tuple(ignored), super().state_key(names))


class LmdeployWindowAlone(LmdeployWindow):
    """`WindowBlockManager` asked by its own `can_allocate`; sizes > 0, else ValueError."""

    declares = Declarations(
        abilities={"append", "window"},
        out_of_blocks=(Returns(False),),
        wrong_use=NOT_TRIED,
        engine=True,
        window=WINDOW_SIZE + 1,
        null_block=NULL,
        window_of_first=True,
        because={
            **_BECAUSE,
            "out_of_blocks": "WindowBlockManager.can_allocate: 'Return if physical block can be "
            "allocated for given message'",
        },
    )
    state_key = LmdeployWindow.state_key  # nothing is added to the state

    def _has_room(self, sequence: Sequence) -> bool:
        return bool(self._engine.can_allocate(sequence))
