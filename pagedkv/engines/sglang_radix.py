"""SGLang's `RadixCache` with the slot allocator behind it: prefix caching by a radix tree.

A request is driven as the scheduler does it, alone in its batch: match, lock, ask the prefill
budget, take a row and slots, `checkpoint` once the prompt is computed, decode after
`check_decode_capacity`, and in the end what `release_kv_cache` does for a finished request. Each
prefill gets an extra key of its own, so that no request finds what another has computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, SupportsIndex

import torch

from pagedkv.declarations import Returns
from pagedkv.engines.sglang_paged import DECLARES, SGLangPaged, allocator_key
from pagedkv.engines.standing_in import standing_in
from pagedkv.protocol import Request, Snapshot

with standing_in("torchvision", "transforms", "transforms.functional"):
    from sglang.srt.mem_cache import allocation
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey, TreeNode


@dataclass(eq=False)
class Kv:
    """What the caches read and write of the engine's `ReqKvInfo`; no sliding window."""

    req_pool_idx: int | None = None
    cache_protected_len: int = 0
    cache_inserted_len: int = 0
    kv_committed_len: int = 0
    swa_evict_floor: int = 0
    holds_kv = property(lambda self: self.req_pool_idx is not None)

    def get_evicted_seqlen(self, _component: object) -> int:
        return 0

    def swa_dead_lo(self, _page_size: int) -> int:
        return self.cache_protected_len


@dataclass(eq=False)
class Req:
    """What the caches read and write of the engine's `Req`."""

    origin_input_ids: array[int]
    extra_key: str
    full_untruncated_fill_ids: array[int]
    kv: Kv = field(default_factory=Kv)
    lock: Any = None
    last_node: Any = None
    cache_salt: str | None = None
    priority: int | None = None


class SGLangRadix(SGLangPaged):
    """`RadixCache` over the allocator; sizes > 0, else ValueError.

    A finished request leaves its full pages in the tree; they are evicted, the least recently
    used first, when slots are asked for.
    """

    declares = replace(
        DECLARES,
        out_of_blocks=(Returns(False),),
        because={
            **DECLARES.because,
            "out_of_blocks": "PrefillBudget.can_allocate_prefill and check_decode_capacity",
        },
    )

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        # As each live request holds a page, one row more always suffices.
        longest = (self.num_blocks + 1) * self.block_size
        self._rows = ReqToTokenPool(self.num_blocks + 1, longest, "cpu", enable_memory_saver=False)
        self._tree = RadixCache(
            CacheInitParams(False, self._rows, self._allocator, self.block_size)
        )
        self._keys = count()

    def allocate_for_prefill(self, req: Request) -> bool:
        tree, tokens = self._tree, array("q", req.tokens)
        made = Req(tokens, str(next(self._keys)), tokens)
        made.last_node = tree.match_prefix(
            MatchPrefixParams(RadixKey(tokens, made.extra_key))
        ).last_device_node
        made.lock = tree.lock(made.last_node)
        budget = self._allocator.create_prefill_budget(tree)
        if not budget.can_allocate_prefill(
            paged_input=budget.ceil_paged_tokens(len(tokens)),
            extend_input_len=len(tokens),
            max_new_tokens=0,
            chunk_limit=None,
        ):
            tree.unlock(made.lock)
            return False
        self._rows.alloc([made])
        self._live[req] = made
        if self.block_size == 1:
            slots = allocation.alloc_token_slots(tree, len(tokens))
        else:
            prefix, length = torch.tensor([0]), torch.tensor([len(tokens)])
            slots = allocation.alloc_paged_token_slots_extend(
                tree, prefix, prefix, length, length, torch.tensor([-1]), len(tokens)
            )
        self._write(req, slots)
        return True

    def computed(self, req: Request) -> None:
        """After the forward pass of a prompt the scheduler calls `checkpoint_kv_cache`."""
        made = self._live[req]
        if made.kv.kv_committed_len == len(made.origin_input_ids):
            self._tree.checkpoint(made, up_to=made.kv.kv_committed_len)
            req.block_table = self._pages(self._row(req))

    def allocate_for_decode(self, req: Request) -> bool:
        tree, made = self._tree, self._live[req]
        committed = made.kv.kv_committed_len
        needed = self.block_size if committed % self.block_size == 0 else 0
        if not self._allocator.check_decode_capacity(num_tokens=needed, tree_cache=tree):
            return False
        if self.block_size == 1:
            slots = allocation.alloc_token_slots(tree, 1)
        else:
            last = self._rows.req_to_token[made.kv.req_pool_idx, committed - 1 : committed]
            length = torch.tensor([committed + 1])
            slots = allocation.alloc_paged_token_slots_decode(tree, length, length, last)
        self._write(req, slots)
        return True

    def _write(self, req: Request, slots: torch.Tensor) -> None:
        made = self._live[req]
        start, end = made.kv.kv_committed_len, made.kv.kv_committed_len + len(slots)
        self._rows.write((made.kv.req_pool_idx, slice(start, end)), slots.to(torch.int32))
        made.kv.kv_committed_len = req.seq_len = end
        req.block_table = self._pages(self._row(req))

    def release_request(self, req: Request) -> None:
        made, tree = self._live[req], self._tree
        kv = made.kv
        made.full_untruncated_fill_ids = array("q", req.tokens)
        tree.checkpoint(made, up_to=kv.kv_committed_len)
        tree.free_kv_row(kv, [(kv.cache_protected_len, kv.kv_committed_len)])
        tree.unlock(made.lock)
        self._rows.free(made)
        del self._live[req]
        req.block_table = []

    def _row(self, req: Request) -> list[int]:
        kv = self._live[req].kv
        row: list[int] = self._rows.req_to_token[kv.req_pool_idx, : kv.kv_committed_len].tolist()
        return row

    def _nodes(self) -> Iterator[TreeNode]:
        stack = [self._tree.root_node]
        while stack:
            below = list(stack.pop().children.values())
            yield from below
            stack += below

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; cached are the pages of nodes that nobody has locked."""
        unlocked = [node.value.tolist() for node in self._nodes() if not node.lock_ref]
        cached = {page for slots in unlocked for page in self._pages(slots)}
        return replace(super().snapshot(), cached=frozenset(cached))

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents.

        Extra keys only tell requests apart, and of times only the order counts: the policy is LRU.
        """
        live = {made.extra_key: names[req.request_id] for req, made in self._live.items()}
        times = sorted({node.last_access_time for node in self._nodes()})
        nodes = [
            (
                live.get(node.key.extra_key, -1),
                tuple(node.value.tolist()),
                len(node.key),
                node.lock_ref,
                times.index(node.last_access_time),
                node in self._tree.evictable_leaves,
                times.index(node.parent.last_access_time) if node.parent.key else -1,
            )
            for node in self._nodes()
        ]
        rows = [
            (names[req.request_id], *self._row(req), kv.cache_protected_len, kv.req_pool_idx)
            for req, made in self._live.items()
            for kv in (made.kv,)
        ]
        sizes = (self._tree.evictable_size_, self._tree.protected_size_)
        order = tuple(self._rows.free_slots)
        return (
            allocator_key(self._allocator),
            tuple(sorted(rows)),
            tuple(sorted(nodes)),
            sizes,
            order,
        )
