"""smol-vllm's `BlockSpaceManager`, as its scheduler calls it and by itself."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from smol_vllm.block_manager import BlockSpaceManager

from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.protocol import Request, Snapshot

_NOTHING_PROMISED = "BlockSpaceManager has no docstrings; free of an unknown sequence returns"
_COSTS = "its free list is a queue: each of its orders is a state of its own"
SCHEDULED = Declarations(
    out_of_blocks=(Returns(False),),
    wrong_use=NOT_TRIED,
    engine=True,
    because={
        "out_of_blocks": "Scheduler.schedule asks can_allocate first, and preempts until a block "
        "is free for each request that gets an append_token",
        "wrong_use": _NOTHING_PROMISED,
        "engine": _COSTS,
    },
)
ALONE = Declarations(
    out_of_blocks=(
        Raises(ValueError, "Cannot allocate"),
        Raises(ValueError, "No free blocks to append"),
    ),
    wrong_use=NOT_TRIED,
    engine=True,
    because={
        "out_of_blocks": "BlockSpaceManager.allocate and append_token raise it",
        "wrong_use": _NOTHING_PROMISED,
        "engine": _COSTS,
    },
)


class SmolVllm:
    """`BlockSpaceManager` behind the protocol, asked first as `Scheduler.schedule` does.

    asks: False calls it without asking, so that it refuses itself.
    """

    declares = SCHEDULED

    def __init__(
        self, num_blocks: int, block_size: int, head_dim: int, *, asks: bool = True
    ) -> None:
        self.num_blocks, self.block_size, self.head_dim = num_blocks, block_size, head_dim
        self.asks = asks
        self.declares = SCHEDULED if asks else ALONE
        self._engine = BlockSpaceManager(self.num_blocks, self.block_size)

    def allocate_for_prefill(self, req: Request) -> bool:
        if self.asks and not self._engine.can_allocate(req.seq_len):
            return False
        self._engine.allocate(req.request_id, req.seq_len)
        req.block_table = self._engine.get_block_table(req.request_id)
        return True

    def allocate_for_decode(self, req: Request) -> bool:
        full = len(req.block_table) * self.block_size == req.seq_len
        if self.asks and full and self._engine.num_free_blocks() < 1:
            return False
        self._engine.append_token(req.request_id)
        req.seq_len += 1
        req.block_table = self._engine.get_block_table(req.request_id)
        return True

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
        sequences = (
            (names.get(seq, ~seq), tokens, tuple(engine._block_tables[seq]))
            for seq, tokens in engine._tokens_allocated.items()
        )
        return (
            tuple(engine._free_blocks),
            tuple(sorted(engine._ref_count.items())),
            tuple(sorted(sequences)),
        )


def alone(num_blocks: int, block_size: int, head_dim: int) -> SmolVllm:
    """`BlockSpaceManager` by itself: it says that blocks ran out, and nobody asks first."""
    return SmolVllm(num_blocks, block_size, head_dim, asks=False)
