"""mini-infer's paged cache: its `BlockPool` with tables of the pool's block size, and its engine's.

The contents are kept in the pool's own tensors and read back with the pool's own gather.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import torch
from mini_infer.cache.block_pool import BlockPool, BlockTable
from mini_infer.scheduler.continuous import Sequence

from pagedkv.adapter import Adapter, plain
from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.protocol import Request, Snapshot


class MiniInfer(Adapter[BlockTable]):
    """`BlockPool` and `BlockTable` behind the protocol; sizes > 0, else ValueError.

    A prefill asks first whether its blocks are there.
    """

    declares = Declarations(
        out_of_blocks=(Returns(False), Raises(MemoryError, "Paged KV-Cache pool exhausted")),
        wrong_use=NOT_TRIED,
        engine=True,
        because={
            "out_of_blocks": "BlockPool.allocate_block raises it; for several blocks num_free is "
            "asked first, as BlockPool.allocate_blocks does",
            "wrong_use": "the docstrings of BlockPool and BlockTable promise nothing",
            "engine": "the contents are tensors, copied with every state",
        },
    )

    def start(self) -> None:
        sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": self.head_dim}
        cpu = {"device": torch.device("cpu"), "dtype": torch.float32}
        self._pool = BlockPool(self.num_blocks, self.block_size, **sizes, **cpu)

    @property
    def physical_kv_cache(self) -> torch.Tensor:
        keys: torch.Tensor = self._pool.key_caches[0]
        return keys[:, 0]

    def table(self, req: Request) -> list[int]:
        blocks: list[int] = self.live[req].physical_block_ids
        return blocks

    def length(self, req: Request) -> int:
        tokens: int = self.live[req].num_tokens
        return tokens

    def _asked(self, req: Request) -> tuple[int, BlockTable]:
        """How many free blocks a prefill asks for, and the table that it then fills."""
        return self.blocks_for(req.seq_len), BlockTable(self.block_size)

    def allocate_for_prefill(self, req: Request) -> bool:
        asked, table = self._asked(req)
        if self._pool.num_free < asked:
            return False
        self.live[req] = table  # what a call that raises has taken stays with its sequence
        for _ in range(req.seq_len):
            table.append_slot(self._pool)
        return self.granted(req)

    def allocate_for_decode(self, req: Request) -> bool:
        self.live[req].append_slot(self._pool)
        return self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        self.lets_go(req).free(self._pool)

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` keys of a live request, gathered as attention does."""
        keys: torch.Tensor = self._pool.read_sequence_kv(0, self.table(req), req.seq_len)[0]
        return keys[0, 0]

    def snapshot(self) -> Snapshot:
        """All that pool and tables keep, live."""
        pool = self._pool
        return Snapshot(
            **self.of_live(),
            free_blocks=reversed(pool.free_list),
            num_free=pool.num_free,
            ref_counts=pool.ref_counts,
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        return *plain(self._pool.free_list, self._pool.ref_counts), self.live_key(names)


class AnySize(MiniInfer):
    """As `InferenceEngine.step` does it, with any block size, as `mini-infer --block-size` has it.

    The tables are those of `Sequence`, filled slot by slot.
    """

    state_key = MiniInfer.state_key
    declares = replace(
        MiniInfer.declares,
        because={
            **MiniInfer.declares.because,
            "out_of_blocks": "ContinuousScheduler.schedule asks for two blocks at most; "
            "BlockPool.allocate_block raises it",
        },
    )

    def _asked(self, req: Request) -> tuple[int, BlockTable]:
        sequence = Sequence([0] * req.seq_len, request_id=str(req.request_id))
        return min(2, (req.seq_len + 15) // 16), sequence.block_table


class MiniInferEngine(AnySize):
    """The same with the one block size that the tables of `Sequence` have."""

    state_key = MiniInfer.state_key
    declares = replace(
        AnySize.declares,
        block_sizes=(16,),
        because={
            **AnySize.declares.because,
            "block_sizes": "Sequence.__init__ makes BlockTable(block_size=16), whatever the pool "
            "has: docs/findings/mini-infer-block-size.md",
        },
    )
