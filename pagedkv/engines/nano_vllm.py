"""nano-vllm's `BlockManager` (the package nano-vllm-fork), asked and called as its scheduler does.

Its prefix cache is always on. Each engine sequence gets tokens of its own, so that none is hit.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from importlib.util import find_spec, module_from_spec

from pagedkv.adapter import Adapter, plain
from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot


def _without_its_model_runner() -> None:
    """Let the package stand for itself bare: its `__init__` imports GPU kernels."""
    spec = find_spec("nanovllm")
    if "nanovllm" not in sys.modules and spec is not None:
        sys.modules["nanovllm"] = module_from_spec(spec)


_without_its_model_runner()

from nanovllm.engine.block_manager import BlockManager  # noqa: E402
from nanovllm.engine.sequence import Sequence  # noqa: E402

DECLARES = Declarations(
    out_of_blocks=(Returns(False),),
    wrong_use=NOT_TRIED,
    block_sizes=(2, 3, 4, 8, 16, 256),
    engine=True,
    because={
        "out_of_blocks": "Scheduler.schedule asks can_allocate and can_append first",
        "wrong_use": "BlockManager asserts some of what its scheduler never does",
        "block_sizes": "BlockManager.may_append looks for len(seq) % block_size == 1, which no "
        "length has at block size 1; Config takes multiples of 256 only",
        "engine": "its free list is a queue: each of its orders is a state of its own",
    },
)
TOKENS = 1 << 20
"""More than any sequence has: tokens of different sequences never agree."""


class NanoVllm(Adapter[Sequence]):
    """`BlockManager` behind the protocol; sizes > 0, else ValueError."""

    declares = DECLARES

    def start(self) -> None:
        self._engine = BlockManager(self.num_blocks, self.block_size)
        self._admitted = 0

    def table(self, req: Request) -> list[int]:
        blocks: list[int] = self.live[req].block_table
        return blocks

    def length(self, req: Request) -> int:
        """A token that still waits for its slot is not counted."""
        tokens = len(self.live[req])
        return tokens - (tokens > req.seq_len)

    def allocate_for_prefill(self, req: Request) -> bool:
        first = self._admitted * TOKENS
        sequence = Sequence(list(range(first, first + req.seq_len)))
        sequence.block_size = self.block_size  # the engine sets it on the class, for all
        if not self._engine.can_allocate(sequence):
            return False
        self._engine.allocate(sequence)
        self._admitted += 1
        return self.holds(req, sequence)

    def allocate_for_decode(self, req: Request) -> bool:
        sequence = self.live[req]
        if len(sequence) == req.seq_len:  # else the token of a refused call is still there
            sequence.append_token(sequence.last_token + 1)
        if not self._engine.can_append(sequence):
            return False
        self._engine.may_append(sequence)
        return self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        self._engine.deallocate(self.lets_go(req))

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live."""
        engine = self._engine
        return Snapshot(
            **self.of_live(),
            free_blocks=engine.free_block_ids,
            num_free=self.num_blocks - len(engine.used_block_ids),
            ref_counts={block.block_id: block.ref_count for block in engine.blocks},
            cached={b for b in engine.hash_to_block_id.values() if not engine.blocks[b].ref_count},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on; tokens of dead sequences can't be met again."""
        engine = self._engine
        salts = {s.token_ids[0] // TOKENS: names[r.request_id] for r, s in self.live.items()}
        known = {block: key for key, block in engine.hash_to_block_id.items()}
        blocks = [
            (
                block.ref_count,
                block.hash != -1,
                known.get(block.block_id) == block.hash,
                [(salts.get(token // TOKENS), token % TOKENS) for token in block.token_ids],
            )
            for block in engine.blocks
        ]
        return (
            *plain(engine.free_block_ids, engine.used_block_ids, blocks),
            self.live_key(names, lambda req: plain(len(s := self.live[req]), s.num_cached_tokens)),
        )

    clone = Adapter.twin  # a `Sequence` that is pickled or deep-copied loses its tokens
