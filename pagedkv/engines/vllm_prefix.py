"""vLLM's `KVCacheManager` with requests that find each other's blocks by their tokens.

vLLM keeps a cached block that nobody holds in the queue of free ones, behind those without
content. Here the first are shown as cached and the others as free.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.request import Request as EngineRequest

from pagedkv.engines.vllm import VllmManager
from pagedkv.engines.vllm_blockpool import Label, Tables, free, ids, show
from pagedkv.protocol import Request, Snapshot


class VllmPrefix(VllmManager):
    """`KVCacheManager` with prefix caching; sizes > 0, else ValueError.

    A handle's extra key is the engine request's salt.
    """

    declares = replace(
        VllmManager.declares,
        abilities=frozenset({"append", "prefix"}),
        publishes_at_once=True,
        keeps_duplicates=True,
        evicts="lru-tail-first",
        because={
            **VllmManager.declares.because,
            "publishes_at_once": "KVCacheManager.allocate_slots calls cache_blocks",
            "keeps_duplicates": "BlockHashToBlockMap: 'We currently don't de-duplicate the blocks'",
            "evicts": "FreeKVCacheBlockQueue: 'The least recent used block is at the front', and "
            "'the one with more hash tokens (the tail of a block chain) is at the front'",
        },
    )
    state_key = VllmManager.blocks_key  # all tokens that wait are zeros

    caching = True

    def _salt(self, req: Request) -> str | None:
        return None if req.extra_key is None else str(req.extra_key)

    def allocate_for_append(self, req: Request, count: int) -> KVCacheBlocks | None:
        return self._extend(req, count)

    def cached_tokens(self, req: Request) -> int:
        return self._found[req]

    def _show(self, pool: BlockPool, tables: Tables, seq_lens: Mapping[int, int]) -> Snapshot:
        queue = ids(free(pool))
        cached = frozenset(b for b in queue if pool.blocks[b].block_hash is not None)
        return replace(
            show(pool, tables, seq_lens),
            free_blocks=tuple(b for b in queue if b not in cached),
            num_free=pool.get_num_free_blocks() - len(cached),
            cached=frozenset(cached),
            eviction_order=tuple(b for b in queue if b in cached),
            index=dict(index(pool)),
        )

    def _label(self, known: Iterable[tuple[int, EngineRequest]]) -> Label:
        return bytes.hex  # Any request may still ask for it.


def index(pool: BlockPool) -> Iterator[tuple[Hashable, int]]:
    """What finds each cached block: the start of its hash; of several, the first is found first."""
    for key, found in pool.cached_block_hash_to_block._cache.items():
        for block in found.values() if isinstance(found, dict) else (found,):
            yield f"{key.hex()[:12]}: {block.block_id}", block.block_id
