"""The block managers of nano-vllm-fork and nano-vllm-npu, with requests that share their prefixes.

`cd docs/findings && pagedkv check nano_vllm_prefix:Sharing`, with one of the two installed.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

from pagedkv import Request, Snapshot

_npu = find_spec("nanovllmnpu")
if _npu is not None:  # the same classes under another name; its `__init__` wants a device
    sys.modules["nanovllmnpu"] = module_from_spec(_npu)
    for name in ("engine", "engine.block_manager", "engine.sequence"):
        sys.modules[f"nanovllm.{name}"] = import_module(f"nanovllmnpu.{name}")
    sys.modules["nanovllm"] = sys.modules["nanovllmnpu"]

from pagedkv.engines.nano_vllm import DECLARES, NanoVllm, Sequence  # noqa: E402

PREFIX = replace(
    DECLARES,
    abilities=frozenset({"prefix"}),
    refuses_early=True,
    publishes_at_once=True,
    keeps_duplicates=True,
    forgets_unheld=_npu is None,
    because={
        **DECLARES.because,
        "refuses_early": "BlockManager.can_allocate counts the blocks that will be found as well",
        "publishes_at_once": "BlockManager.allocate enters a block's hash when it takes it",
        "keeps_duplicates": "BlockManager.may_append enters a hash whatever block has it already",
        **({} if _npu else {"forgets_unheld": "BlockManager.deallocate takes the hash out"}),
    },
)


class Sharing(NanoVllm):
    """`NanoVllm`, but a request's tokens are its own."""

    declares = PREFIX

    def allocate_for_prefill(self, req: Request) -> bool:
        sequence = Sequence([token + _extra(req) for token in req.tokens])
        sequence.block_size = self.block_size
        if not self._engine.can_allocate(sequence):
            return False
        self._engine.allocate(sequence)
        return self.holds(req, sequence)

    def allocate_for_decode(self, req: Request) -> bool:
        sequence = self.live[req]
        if len(sequence) == req.seq_len:  # else the token of a refused call is still there
            sequence.append_token(req.tokens[-1] + _extra(req))
        if not self._engine.can_append(sequence):
            return False
        self._engine.may_append(sequence)
        return self.granted(req, 1)

    def cached_tokens(self, req: Request) -> int:
        found: int = self.live[req].num_cached_tokens
        return found

    def snapshot(self) -> Snapshot:
        """The index has the entries that name a block by its own hash; a free one is cached."""
        seen, engine = super().snapshot(), self._engine
        index = {
            block.hash: block.block_id
            for block in engine.blocks
            if engine.hash_to_block_id.get(block.hash) == block.block_id
        }
        free = seen.free_blocks or ()
        return _with_index(seen, index, [block for block in free if block not in index.values()])

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        engine, live = self._engine, self.live.items()
        return (
            tuple(engine.free_block_ids),
            tuple(sorted((str(h), block) for h, block in engine.hash_to_block_id.items())),
            tuple((b.ref_count, str(b.hash), tuple(b.token_ids)) for b in engine.blocks),
            tuple(
                sorted(
                    (names[r.request_id], len(s), *s.token_ids, s.num_cached_tokens, *s.block_table)
                    for r, s in live
                )
            ),
        )

    clone = NanoVllm.twin


def _extra(req: Request) -> int:
    """The engine knows no extra key: it becomes part of the tokens."""
    return 2 * int(str(req.extra_key or 0))


def _with_index(seen: Snapshot, index: dict[Any, int], free: list[int]) -> Snapshot:
    """The snapshot with what is cached apart from what is free."""
    return Snapshot(
        block_tables=seen.block_tables,
        seq_lens=seen.seq_lens,
        free_blocks=free,
        ref_counts=seen.ref_counts,
        cached=set(index.values()) & {*(seen.free_blocks or ())},
        index=index,
    )
