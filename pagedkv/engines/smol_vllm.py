"""smol-vllm's `BlockSpaceManager`, as its scheduler calls it and by itself."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import ClassVar

from smol_vllm.block_manager import BlockSpaceManager

from pagedkv.adapter import Adapter, plain
from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.protocol import Request, Snapshot


class SmolVllm(Adapter[None]):
    """`BlockSpaceManager` behind the protocol, asked first as `Scheduler.schedule` does."""

    asks: ClassVar[bool] = True
    declares = Declarations(
        out_of_blocks=(Returns(False),),
        wrong_use=NOT_TRIED,
        engine=True,
        because={
            "out_of_blocks": "Scheduler.schedule asks can_allocate first, and preempts until a "
            "block is free for each request that gets an append_token",
            "wrong_use": "BlockSpaceManager has no docstrings; free of an unknown sequence returns",
            "engine": "its free list is a queue: each of its orders is a state of its own",
        },
    )

    def start(self) -> None:
        self._engine = BlockSpaceManager(self.num_blocks, self.block_size)

    def table(self, req: Request) -> list[int]:
        blocks: list[int] = self._engine.get_block_table(req.request_id)
        return blocks

    def allocate_for_prefill(self, req: Request) -> bool:
        if self.asks and not self._engine.can_allocate(req.seq_len):
            return False
        self._engine.allocate(req.request_id, req.seq_len)
        return self.granted(req)

    def allocate_for_decode(self, req: Request) -> bool:
        full = len(req.block_table) * self.block_size == req.seq_len
        if self.asks and full and self._engine.num_free_blocks() < 1:
            return False
        self._engine.append_token(req.request_id)
        return self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        self._engine.free(req.request_id)
        req.block_table = []

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; its lengths are `_tokens_allocated`."""
        engine = self._engine
        return Snapshot(
            block_tables=engine._block_tables,
            seq_lens=engine._tokens_allocated,
            free_blocks=engine._free_blocks,
            num_free=engine.num_free_blocks(),
            ref_counts=engine._ref_count,
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, sequences called by `names`."""
        engine = self._engine
        sequences = [
            (names.get(seq, ~seq), tokens, engine._block_tables[seq])
            for seq, tokens in engine._tokens_allocated.items()
        ]
        return plain(engine._free_blocks, sorted(engine._ref_count.items()), sorted(sequences))


class SmolVllmAlone(SmolVllm):
    """`BlockSpaceManager` by itself: it says that blocks ran out, and nobody asks first."""

    asks = False
    state_key = SmolVllm.state_key
    declares = replace(
        SmolVllm.declares,
        out_of_blocks=(
            Raises(ValueError, "Cannot allocate"),
            Raises(ValueError, "No free blocks to append"),
        ),
        because={
            **SmolVllm.declares.because,
            "out_of_blocks": "BlockSpaceManager.allocate and append_token raise it",
        },
    )
