"""mini-infer's paged cache: its `BlockPool` with tables of the pool's block size, and its engine's.

The contents are kept in the pool's own tensors and read back with the pool's own gather.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from mini_infer.cache.block_pool import BlockPool, BlockTable
from mini_infer.scheduler.continuous import Sequence

from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.protocol import Request, Snapshot

_EXHAUSTED = Raises(MemoryError, "Paged KV-Cache pool exhausted")
_COSTS = "the contents are tensors, copied with every state"
_NOTHING_PROMISED = "the docstrings of BlockPool and BlockTable promise nothing"
CACHE = Declarations(
    out_of_blocks=(Returns(False), _EXHAUSTED),
    wrong_use=NOT_TRIED,
    engine=True,
    because={
        "engine": _COSTS,
        "out_of_blocks": "BlockPool.allocate_block raises it; for several blocks num_free is "
        "asked first, as BlockPool.allocate_blocks does",
        "wrong_use": _NOTHING_PROMISED,
    },
)
ANY_SIZE = Declarations(
    out_of_blocks=(Returns(False), _EXHAUSTED),
    wrong_use=NOT_TRIED,
    engine=True,
    because={
        "out_of_blocks": "ContinuousScheduler.schedule asks for two blocks at most; "
        "BlockPool.allocate_block raises it",
        "wrong_use": _NOTHING_PROMISED,
        "engine": _COSTS,
    },
)
ENGINE = replace(
    ANY_SIZE,
    block_sizes=(16,),
    because={
        **ANY_SIZE.because,
        "block_sizes": "Sequence.__init__ makes BlockTable(block_size=16), whatever the pool has: "
        "docs/findings/mini-infer-block-size.md",
    },
)


class MiniInfer:
    """`BlockPool` and `BlockTable` behind the protocol.

    declares: `CACHE`, and a prefill asks first whether its blocks are there; else it asks for what
    `ContinuousScheduler.schedule` asks for, and the tables are those of the engine's `Sequence`.
    """

    declares = CACHE

    def __init__(
        self, num_blocks: int, block_size: int, head_dim: int, declares: Declarations = CACHE
    ) -> None:
        self.num_blocks, self.block_size, self.head_dim = num_blocks, block_size, head_dim
        self.declares, self._as_engine = declares, declares is not CACHE
        sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": self.head_dim}
        cpu = {"device": torch.device("cpu"), "dtype": torch.float32}
        self._pool = BlockPool(self.num_blocks, self.block_size, **sizes, **cpu)
        self._tables: dict[Request, Any] = {}  # of live requests, by the handle's identity

    @property
    def physical_kv_cache(self) -> torch.Tensor:
        keys: torch.Tensor = self._pool.key_caches[0]
        return keys[:, 0]

    def allocate_for_prefill(self, req: Request) -> bool:
        if self._as_engine:
            asked = min(2, (req.seq_len + 15) // 16)
            table = Sequence([0] * req.seq_len, request_id=str(req.request_id)).block_table
        else:
            asked, table = -(-req.seq_len // self.block_size), BlockTable(self.block_size)
        if self._pool.num_free < asked:
            return False
        self._tables[req] = table  # what a call that raises has taken stays with its sequence
        for _ in range(req.seq_len):
            table.append_slot(self._pool)
        req.block_table = list(table.physical_block_ids)
        return True

    def allocate_for_decode(self, req: Request) -> bool:
        table = self._tables[req]
        table.append_slot(self._pool)
        req.seq_len += 1
        req.block_table = list(table.physical_block_ids)
        return True

    def release_request(self, req: Request) -> None:
        self._tables.pop(req).free(self._pool)
        req.block_table = []

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` keys of a live request, gathered as attention does."""
        blocks = self._tables[req].physical_block_ids
        keys: torch.Tensor = self._pool.read_sequence_kv(0, blocks, req.seq_len)[0]
        return keys[0, 0]

    def snapshot(self) -> Snapshot:
        """All that pool and tables keep, live."""
        tables, pool = self._tables, self._pool
        return Snapshot(
            block_tables={req.request_id: t.physical_block_ids for req, t in tables.items()},
            seq_lens={req.request_id: t.num_tokens for req, t in tables.items()},
            free_blocks=reversed(pool.free_list),
            num_free=pool.num_free,
            ref_counts=pool.ref_counts,
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        tables = (
            (names.get(r.request_id, ~r.request_id), t.num_tokens, *t.physical_block_ids)
            for r, t in self._tables.items()
        )
        pool = self._pool
        return tuple(pool.free_list), tuple(pool.ref_counts.items()), tuple(sorted(tables))


def engine(num_blocks: int, block_size: int, head_dim: int) -> MiniInfer:
    """As `InferenceEngine.step` does it: the tables of `Sequence`, filled slot by slot."""
    return MiniInfer(num_blocks, block_size, head_dim, ENGINE)


def any_size(num_blocks: int, block_size: int, head_dim: int) -> MiniInfer:
    """The same with any block size, as `mini-infer --block-size` takes it."""
    return MiniInfer(num_blocks, block_size, head_dim, ANY_SIZE)
