"""vLLM's `KVCacheManager`, prefix caching off or on, and its `BlockPool` by itself.

What vLLM's `Scheduler` does around the manager is done here: a sampled token is appended to the
engine's request before its slot is asked for, and waits there after a refusal; the number of
computed tokens is kept. Block 0, the null block, comes on top of the usable ones.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar

import torch

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vllm is imported

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
)
from vllm.v1.request import Request as EngineRequest

from pagedkv.adapter import Adapter
from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.engines.vllm_blockpool import DEAD, Label, Tables, ids, pool_key, show
from pagedkv.protocol import Request, Snapshot

SAMPLING = SamplingParams(max_tokens=1)
LONGEST = 1 << 20  # `max_model_len`: no history is that long, so no request is cut
init_none_hash(sha256)


class VllmManager(Adapter[EngineRequest]):
    """`KVCacheManager` with full attention; sizes > 0, else ValueError.

    With `caching`, each handle has contents of its own, told apart by their salt, so that no
    request hits what another wrote; a resumed one hits what it left behind.
    """

    declares = Declarations(
        out_of_blocks=(Returns(None),),
        wrong_use=NOT_TRIED,
        engine=True,
        because={
            "out_of_blocks": "KVCacheManager.allocate_slots: 'Cannot allocate new blocks'",
            "wrong_use": "KVCacheManager.allocate_slots and free promise nothing about it",
            "engine": "a copy of KVCacheManager takes some 400 microseconds",
        },
    )

    caching: ClassVar[bool] = False

    def start(self) -> None:
        groups = [KVCacheGroupSpec([f"layer {i}"], it) for i, it in enumerate(self._specs())]
        config, size = KVCacheConfig(self.num_blocks + 1, [], groups), self.block_size
        self._engine = KVCacheManager(config, LONGEST, size, size, enable_caching=self.caching)
        self._hasher = get_request_block_hasher(size, sha256) if self.caching else None
        self._contents = 0
        # The newest engine request of every handle that was ever granted blocks.
        self._newest: dict[Request, EngineRequest] = {}
        self._found: dict[Request, int] = {}  # how many of a live request's tokens were hits

    def _specs(self) -> list[KVCacheSpec]:
        """What the layers of each group are like."""
        size, dims = self.block_size, self.head_dim
        return [FullAttentionSpec(size, num_kv_heads=1, head_size=dims, dtype=torch.float32)]

    def _salt(self, req: Request) -> str | None:
        """What keeps the contents of a request apart from all others."""
        known = self._newest.get(req)
        return str(self._contents) if known is None else known.cache_salt

    def allocate_for_prefill(self, req: Request) -> KVCacheBlocks | None:
        request = EngineRequest(
            str(req.request_id),
            req.tokens[: req.seq_len],
            SAMPLING,
            None,
            arrival_time=0.0,
            cache_salt=self._salt(req),
            block_hasher=self._hasher,
        )
        hits, computed, _ = self._engine.get_computed_blocks(request)
        granted = self._engine.allocate_slots(request, req.seq_len - computed, computed, hits)
        if granted is not None:
            self._contents += req not in self._newest
            others = {r: q for r, q in self._newest.items() if r.request_id != req.request_id}
            self._newest, self._found[req] = {**others, req: request}, computed
            request.num_computed_tokens = req.seq_len
            self.holds(req, request)
        return granted

    def allocate_for_decode(self, req: Request) -> KVCacheBlocks | None:
        return self._extend(req, 1)

    def _extend(self, req: Request, count: int) -> KVCacheBlocks | None:
        """Slots for so many more tokens; what was refused its slots before waits already."""
        request = self.live[req]
        request.append_output_token_ids(req.tokens[request.num_tokens :])
        granted = self._engine.allocate_slots(request, count)
        # A refused call may have dropped blocks of a window.
        self.granted(req, 0 if granted is None else count)
        request.num_computed_tokens = req.seq_len
        return granted

    def release_request(self, req: Request) -> None:
        self._engine.free(self.lets_go(req))
        del self._found[req]

    def table(self, req: Request) -> list[int]:
        """Its table of each group, one behind the other."""
        tables = self._engine.get_block_ids(str(req.request_id))
        return [block for table in tables for block in table]

    def length(self, req: Request) -> int:
        return int(self.live[req].num_computed_tokens)

    def snapshot(self) -> Snapshot:
        tables: dict[int, list[KVCacheBlock]] = {}
        for group in self._engine.coordinator.single_type_managers:
            for name, table in group.req_to_blocks.items():
                tables.setdefault(int(name), []).extend(table)
        return self._show(self._engine.block_pool, tables, self.of_live()["seq_lens"])

    def _show(self, pool: BlockPool, tables: Tables, seq_lens: Mapping[int, int]) -> Snapshot:
        return show(pool, tables, seq_lens)

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`."""
        waiting = [
            (names[r.request_id], q.num_tokens, q.num_computed_tokens) for r, q in self.live.items()
        ]
        return (tuple(sorted(waiting)), *self.blocks_key(names))

    def blocks_key(self, names: Mapping[int, int]) -> tuple[Hashable, ...]:
        """The same of the blocks: all, where it means nothing how many tokens wait for slots."""
        tables = [
            sorted(
                (names.get(int(name), -1), group.num_cached_block.get(name, -1), *ids(table))
                for name, table in group.req_to_blocks.items()
            )
            for group in self._engine.coordinator.single_type_managers
        ]
        known = [(names[r.request_id], q) for r, q in self._newest.items() if r.request_id in names]
        return (*map(tuple, tables), *pool_key(self._engine.block_pool, self._label(known)))

    def _label(self, known: Iterable[tuple[int, EngineRequest]]) -> Label:
        """What a hash is called: where it stands in which request, if anywhere."""
        labels = {key: (name, i) for name, q in known for i, key in enumerate(q.block_hashes)}
        return lambda key: labels.get(key, DEAD)


class VllmCached(VllmManager):
    """`VllmManager` with prefix caching; sizes > 0, else ValueError."""

    caching = True
    state_key = VllmManager.state_key
