"""vLLM's `BlockPool` by itself, and how what a pool keeps is shown, for its managers too."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vllm is imported

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, get_block_hash

from pagedkv.adapter import Adapter
from pagedkv.declarations import NOT_TRIED, Declarations, Raises
from pagedkv.protocol import Request, Snapshot

DEAD = (-1, -1)
Tables = Mapping[int, Iterable[KVCacheBlock]]
Label = Callable[[BlockHash], tuple[int, int] | str]


class VllmBlockPool(Adapter[list[KVCacheBlock]]):
    """`BlockPool` by itself, its caller keeping the tables; sizes > 0, else ValueError."""

    declares = Declarations(
        out_of_blocks=(Raises(ValueError, "free blocks from the pool"),),
        wrong_use=NOT_TRIED,
        engine=True,
        because={
            "out_of_blocks": "BlockPool.get_new_blocks: 'Cannot get ... free blocks from the pool'",
            "wrong_use": "BlockPool.free_blocks promises nothing about it",
            "engine": "a copy of BlockPool takes some 100 microseconds",
        },
    )

    def start(self) -> None:
        self._engine = BlockPool(self.num_blocks + 1, True, self.block_size)

    def table(self, req: Request) -> tuple[int, ...]:
        return ids(self.live[req])

    def allocate_for_prefill(self, req: Request) -> None:
        self._take(req, [], req.seq_len)

    def allocate_for_decode(self, req: Request) -> None:
        self._take(req, self.live[req], req.seq_len + 1)

    def _take(self, req: Request, held: list[KVCacheBlock], seq_len: int) -> None:
        need = self.blocks_for(seq_len) - len(held)
        # As in SingleTypeKVCacheManager.allocate_new_blocks, which asks for none only never.
        taken = self._engine.get_new_blocks(need) if need > 0 else []
        req.seq_len = seq_len
        self.holds(req, held + taken)

    def release_request(self, req: Request) -> None:
        self._engine.free_blocks(reversed(self.lets_go(req)))

    def snapshot(self) -> Snapshot:
        tables = {req.request_id: table for req, table in self.live.items()}
        return show(self._engine, tables, {req.request_id: req.seq_len for req in self.live})

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`."""
        tables = sorted((names[r.request_id], *self.table(r)) for r in self.live)
        return (tuple(tables), *pool_key(self._engine, lambda _key: DEAD))


def ids(blocks: Iterable[KVCacheBlock]) -> tuple[int, ...]:
    """The ids of some blocks."""
    return tuple([block.block_id for block in blocks])


def free(pool: BlockPool) -> Iterator[KVCacheBlock]:
    """The free queue, in hand-out order; a ring in it ends after twice the pool."""
    block = pool.free_block_queue.fake_free_list_head.next_free_block
    for _ in range(2 * len(pool.blocks)):
        if block is None or block is pool.free_block_queue.fake_free_list_tail:
            return
        yield block
        block = block.next_free_block


def show(pool: BlockPool, tables: Tables, seq_lens: Mapping[int, int]) -> Snapshot:
    """All that the pool keeps, live, with these tables.

    But for the null block's references: BlockPool, 'The ref_cnt of null_block is not maintained'.
    """
    return Snapshot(
        block_tables={name: ids(table) for name, table in tables.items()},
        seq_lens=seq_lens,
        free_blocks=ids(free(pool)),
        blocks=[block.block_id for block in pool.blocks if not block.is_null],
        num_free=pool.get_num_free_blocks(),
        ref_counts={b.block_id: b.ref_cnt for b in pool.blocks if not b.is_null},
        reserved=[block.block_id for block in pool.blocks if block.is_null],
    )


def pool_key(pool: BlockPool, label_of: Label) -> tuple[Hashable, ...]:
    """Everything later answers of the pool depend on, hashes called as `label_of` says.

    Of a hash that is DEAD, which can't be asked for again, only that its block has one matters.
    """

    def label(key: bytes | None) -> tuple[int, int] | str | None:
        return None if key is None else label_of(get_block_hash(key))

    cache = pool.cached_block_hash_to_block._cache
    return (
        ids(free(pool)),
        pool.get_num_free_blocks(),
        tuple([(-1 if b.is_null else b.ref_cnt, label(b.block_hash)) for b in pool.blocks]),
        tuple(
            sorted(
                (label(key), *(tuple(found) if isinstance(found, dict) else ids([found])))
                for key, found in cache.items()
            )
        ),
    )
