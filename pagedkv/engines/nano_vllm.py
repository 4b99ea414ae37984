"""nano-vllm's `BlockManager` (the package nano-vllm-fork), asked and called as its scheduler does.

Its prefix cache is always on. Each engine sequence gets tokens of its own, so that none is hit.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Hashable, Mapping
from importlib.util import find_spec, module_from_spec
from typing import Any

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


class NanoVllm:
    """`BlockManager` behind the protocol."""

    declares = DECLARES

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.num_blocks, self.block_size, self.head_dim = num_blocks, block_size, head_dim
        self._engine = BlockManager(self.num_blocks, self.block_size)
        self._sequences: dict[Request, Any] = {}  # of live requests, by the handle's identity
        self._admitted = 0

    def allocate_for_prefill(self, req: Request) -> bool:
        first = self._admitted * TOKENS
        sequence = Sequence(list(range(first, first + req.seq_len)))
        sequence.block_size = self.block_size  # the engine sets it on the class, for all
        if not self._engine.can_allocate(sequence):
            return False
        self._engine.allocate(sequence)
        self._admitted += 1
        self._sequences[req] = sequence
        req.block_table = list(sequence.block_table)
        return True

    def allocate_for_decode(self, req: Request) -> bool:
        sequence = self._sequences[req]
        if len(sequence) == req.seq_len:  # else the token of a refused call is still there
            sequence.append_token(sequence.last_token + 1)
        if not self._engine.can_append(sequence):
            return False
        self._engine.may_append(sequence)
        req.seq_len += 1
        req.block_table = list(sequence.block_table)
        return True

    def release_request(self, req: Request) -> None:
        self._engine.deallocate(self._sequences.pop(req))
        req.block_table = []

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; a token that still waits for its slot is not counted."""
        engine = self._engine
        return Snapshot(
            block_tables={req.request_id: s.block_table for req, s in self._sequences.items()},
            seq_lens={
                req.request_id: len(s) - (len(s) > req.seq_len)
                for req, s in self._sequences.items()
            },
            free_blocks=engine.free_block_ids,
            num_free=self.num_blocks - len(engine.used_block_ids),
            ref_counts={block.block_id: block.ref_count for block in engine.blocks},
            cached={b for b in engine.hash_to_block_id.values() if not engine.blocks[b].ref_count},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on; tokens of dead sequences can't be met again."""
        engine = self._engine
        salts = {s.token_ids[0] // TOKENS: names[r.request_id] for r, s in self._sequences.items()}
        known = {block: h for h, block in engine.hash_to_block_id.items()}
        return (
            tuple(engine.free_block_ids),
            tuple(sorted(engine.used_block_ids)),
            tuple(
                (
                    block.ref_count,
                    block.hash != -1,
                    known.get(block.block_id) == block.hash,
                    tuple((salts.get(t // TOKENS), t % TOKENS) for t in block.token_ids),
                )
                for block in engine.blocks
            ),
            tuple(
                sorted(
                    (names[r.request_id], len(s), r.seq_len, s.num_cached_tokens, *s.block_table)
                    for r, s in self._sequences.items()
                )
            ),
        )

    def clone(self, requests: Mapping[int, Request]) -> tuple[NanoVllm, dict[int, Request]]:
        """A copy of the manager and of those handles, sharing nothing with the originals.

        By hand, since a `Sequence` that is pickled or deep-copied loses its tokens.
        """
        twins = {req: copy.copy(req) for req in {*self._sequences, *requests.values()}}
        for twin in twins.values():
            twin.block_table, twin.tokens = list(twin.block_table), list(twin.tokens)
        other, engine = copy.copy(self), copy.copy(self._engine)
        # A block's list of tokens is replaced, never changed.
        engine.blocks = [copy.copy(block) for block in engine.blocks]
        engine.hash_to_block_id = dict(engine.hash_to_block_id)
        engine.free_block_ids = deque(engine.free_block_ids)
        engine.used_block_ids = set(engine.used_block_ids)
        other._engine = engine
        other._sequences = {twins[req]: _twin(s) for req, s in self._sequences.items()}
        return other, {name: twins[req] for name, req in requests.items()}


def _twin(sequence: Any) -> Any:
    twin = object.__new__(Sequence)
    twin.__dict__.update(vars(sequence))
    twin.token_ids, twin.block_table = list(sequence.token_ids), list(sequence.block_table)
    return twin
