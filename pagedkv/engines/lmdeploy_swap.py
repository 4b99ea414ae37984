"""LMDeploy's `DefaultBlockManager` with its CPU blocks, which sequences are swapped out to.

`try_swap_out` and `try_swap_in` are public, and LMDeploy's own scheduler of this version calls
neither: it preempts by recompute.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager

from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.engines.lmdeploy import LmdeployManager, Sequence, free
from pagedkv.protocol import Request, Snapshot


class LmdeploySwap(LmdeployManager):
    """`DefaultBlockManager` with as many CPU blocks as others; sizes > 0, else ValueError."""

    declares = Declarations(
        abilities={"append", "ask", "swap"},
        out_of_blocks=(Returns(False),),
        wrong_use=NOT_TRIED,
        engine=True,
        because={
            "out_of_blocks": "BaseBlockManager.can_allocate is asked before allocate; "
            "DefaultBlockManager.try_swap_out and try_swap_in return False",
            "wrong_use": "BaseBlockManager.allocate and free promise nothing about it",
            "engine": "a step is some ten small numpy operations",
        },
    )

    @property
    def num_host_blocks(self) -> int:
        count: int = self._engine.num_cpu_blocks
        return count

    def _made(self) -> DefaultBlockManager:
        return DefaultBlockManager(
            self.num_blocks + self._reserved, self.num_blocks, num_gpu_reserved=self._reserved
        )

    def allocate_for_append(self, req: Request, count: int) -> bool:
        sequence = self.live[req]
        sequence.num_all_ids = req.seq_len + count  # stays so after a refusal
        return self._allocate(req, sequence)

    def can_prefill(self, req: Request) -> bool:
        answer: bool = self._engine.can_allocate(Sequence(self.block_size, req.seq_len))
        return answer

    def can_decode(self, req: Request) -> bool:
        return self.can_append(req, 1)

    def can_append(self, req: Request, count: int) -> bool:
        after = replace(self.live[req], num_all_ids=req.seq_len + count)
        answer: bool = self._engine.can_allocate(after)
        return answer

    def swap_out(self, req: Request) -> bool:
        moved, _ = self._engine.try_swap_out(self.live[req])
        if moved:
            req.block_table = []
        return bool(moved)

    def swap_in(self, req: Request) -> bool:
        sequence = self.live[req]
        moved, _ = self._engine.try_swap_in(sequence)
        if moved:
            req.block_table = self._table(sequence)
        return bool(moved)

    def snapshot(self) -> Snapshot:
        """The same, with what is on the CPU beside it: there a block counts from 0, as it does in
        the maps that the engine makes its copies by.
        """
        engine, seen = self._engine, super().snapshot()
        first = engine.allocator.cpu_mem_offset()
        out = {r.request_id for r, s in self.live.items() if engine.on_device(s, "cpu")}
        return replace(
            seen,
            block_tables={r: t for r, t in seen.block_tables.items() if r not in out},
            seq_lens={r: n for r, n in seen.seq_lens.items() if r not in out},
            ref_counts={b: n for b, n in (seen.ref_counts or {}).items() if b < first},
            swapped={r: tuple(b - first for b in seen.block_tables[r]) for r in out},
            host_free=tuple(b - first for b in free(engine.allocator.get_phy_allocator("cpu"))),
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`."""
        cpu = self._engine.allocator.get_phy_allocator("cpu")
        return (tuple(free(cpu)), super().state_key(names))
