"""An adapter to the first `KVCacheManager` of vLLM's V1 engine: 0.6.4 to 0.7.1, prefix caching on.

Only the allocator of such a release is imported. What else its modules ask for at their top stands
here empty, and a request has just what the allocator reads of one; how the two are driven is
`schedule` in `vllm/v1/core/scheduler.py` of those releases.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pagedkv import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot


def _stand_in(name: str, *attributes: str) -> ModuleType:
    module = ModuleType(name)
    for attribute in attributes:
        setattr(module, attribute, object)
    sys.modules[name] = module
    return module


SPEC = find_spec("vllm")
if SPEC is None:
    raise ModuleNotFoundError("No module named 'vllm'", name="vllm")
# Not the package's own `__init__`, which imports the engine, its models and their kernels.
_stand_in("vllm").__path__ = list(SPEC.submodule_search_locations or ())
_stand_in("vllm.config", "VllmConfig")
_stand_in("vllm.v1.request", "Request", "RequestStatus")
_stand_in("vllm.v1.kv_cache_interface", "KVCacheConfig", "KVCacheSpec", "KVCacheTensor")

from vllm.v1.core.kv_cache_manager import KVCacheManager, hash_request_tokens  # noqa: E402


class Sequence:
    """What `KVCacheManager` reads of a `vllm.v1.request.Request`; each token is its contents' name.

    The hashes are all computed at once, and again when a token comes.
    """

    def __init__(self, request_id: str, contents: int, num_tokens: int) -> None:
        self.request_id, self.contents = request_id, contents
        self.all_token_ids = [contents] * num_tokens
        self.num_computed_tokens = 0
        self.mm_positions: list[object] = []
        self.mm_hashes: list[str] = []
        self.kv_block_hashes: list[Any] = []

    def set_kv_block_hashes(self, value: list[Any]) -> None:
        """Keep the hashes of the full blocks."""
        self.kv_block_hashes = value

    def append_kv_block_hashes(self, block_hash: Any) -> None:
        """Keep the hash of one more full block."""
        self.kv_block_hashes.append(block_hash)


class Manager:
    """`KVCacheManager` without preallocation; a resumed request hits what it left behind."""

    declares = Declarations(
        out_of_blocks=(Returns(None),),
        wrong_use=NOT_TRIED,
        engine=True,
        because={
            "out_of_blocks": "KVCacheManager.allocate_slots: 'Cannot allocate new blocks'",
            "wrong_use": "KVCacheManager promises nothing about it",
            "engine": "a copy of KVCacheManager takes some 400 microseconds",
        },
    )

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.num_blocks, self.block_size, self.head_dim = num_blocks, block_size, head_dim
        self.engine = KVCacheManager(block_size, num_blocks, 1 << 20, num_preallocate_tokens=0)
        self.contents = 0
        self.sequences: dict[Request, Sequence] = {}

    def allocate_for_prefill(self, req: Request) -> object:
        """Admit it, less what is still cached of it; the last token is computed in any case."""
        known = self.sequences.get(req)
        contents = self.contents if known is None else known.contents
        sequence = Sequence(str(req.request_id), contents, req.seq_len)
        hits = self.engine.get_computed_blocks(sequence)
        if isinstance(hits, tuple):  # from 0.7.0 on with their number of tokens
            hits = hits[0]
        if len(hits) * self.block_size == req.seq_len:
            hits.pop()
        computed = len(hits) * self.block_size
        granted = self.engine.allocate_slots(sequence, req.seq_len - computed, hits)
        if granted is not None:
            self.contents += known is None
            others = {r: s for r, s in self.sequences.items() if r.request_id != req.request_id}
            self.sequences = {**others, req: sequence}
            self.grow(req, req.seq_len)
        return granted

    def allocate_for_decode(self, req: Request) -> object:
        """One more slot; the token waits for it after a refusal."""
        sequence = self.sequences[req]
        if len(sequence.all_token_ids) == req.seq_len:
            sequence.all_token_ids.append(sequence.contents)
        granted = self.engine.append_slots(sequence, 1)
        if granted is not None:
            self.grow(req, req.seq_len + 1)
        return granted

    def grow(self, req: Request, seq_len: int) -> None:
        """What the scheduler does after a grant."""
        req.seq_len = self.sequences[req].num_computed_tokens = seq_len
        req.block_table = [b.block_id for b in self.engine.req_to_blocks[str(req.request_id)]]

    def release_request(self, req: Request) -> None:
        """Preempt it."""
        self.engine.free(self.sequences[req])
        self.sequences[req].num_computed_tokens = 0
        req.block_table = []

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live."""
        tables = self.engine.req_to_blocks
        return Snapshot(
            block_tables={int(r): [b.block_id for b in table] for r, table in tables.items()},
            seq_lens={
                r.request_id: s.num_computed_tokens
                for r, s in self.sequences.items()
                if s.num_computed_tokens
            },
            free_blocks=[b.block_id for b in self.engine.free_block_queue.get_all_free_blocks()],
            num_free=self.engine.free_block_queue.num_free_blocks,
            ref_counts={b.block_id: b.ref_cnt for b in self.engine.block_pool},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`."""
        known = [
            (names[r.request_id], s) for r, s in self.sequences.items() if r.request_id in names
        ]
        labels = {
            key: (name, i)
            for name, sequence in known
            for i, key in enumerate(hash_request_tokens(self.block_size, sequence))
        }
        seen, cache = self.snapshot(), self.engine.cached_block_hash_to_block
        blocks = [(b.ref_cnt, b.block_hash) for b in self.engine.block_pool]
        return (
            tuple(sorted((names.get(r, -1), *table) for r, table in seen.block_tables.items())),
            tuple(
                sorted(
                    (name, len(s.all_token_ids), s.num_computed_tokens)
                    for name, s in known
                    if s.num_computed_tokens
                )
            ),
            seen.free_blocks,
            seen.num_free,
            # A hash of no request that is known can't be asked for again.
            tuple((count, key and labels.get(key, "lost")) for count, key in blocks),
            tuple(sorted((labels[key], *found) for key, found in cache.items() if key in labels)),
        )
