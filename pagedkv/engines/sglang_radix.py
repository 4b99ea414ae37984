"""SGLang's `RadixCache` with the slot allocator behind it: prefix caching by a radix tree.

A request is driven as the scheduler does it, alone in its batch: match, lock, ask the prefill
budget, take a row and slots, `checkpoint` once the prompt is computed, decode after
`check_decode_capacity`, and in the end what `release_kv_cache` does for a finished request.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from dataclasses import replace

import torch

from pagedkv.declarations import Returns
from pagedkv.engines.sglang_paged import DECLARES, SGLangPaged, Slots
from pagedkv.engines.sglang_request import Req
from pagedkv.engines.sglang_tree import nodes, tree_key
from pagedkv.engines.standing_in import standing_in
from pagedkv.protocol import Request, Snapshot

with standing_in("torchvision", "transforms", "transforms.functional"):
    from sglang.srt.mem_cache import allocation
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


class SGLangRadix(SGLangPaged):
    """`RadixCache` over the allocator; sizes > 0, else ValueError.

    A finished request leaves its full pages in the tree; they are evicted, the least recently
    used first, when slots are asked for.
    """

    declares = replace(
        DECLARES,
        out_of_blocks=(Returns(False),),
        abilities=frozenset({"append", "prefix"}),
        tables_outside=True,
        evicts_cached=True,
        because={
            **DECLARES.because,
            "out_of_blocks": "PrefillBudget.can_allocate_prefill and check_decode_capacity",
            "tables_outside": "RadixCache.checkpoint re-points the rows of req_to_token",
            "evicts_cached": "check_decode_capacity: 'after evicting reclaimable cache'",
        },
    )

    def start(self) -> None:
        super().start()
        # More rows than requests of at least one token can hold by themselves; pages are shared.
        rows, longest = 4 * self.num_blocks + 4, (self.num_blocks + 1) * self.block_size
        self._rows = ReqToTokenPool(rows, longest, "cpu", enable_memory_saver=False)
        made_of = CacheInitParams(False, self._rows, self._allocator, self.block_size)
        self._tree = RadixCache(made_of)

    def allocate_for_prefill(self, req: Request) -> bool:
        tree, made = self._tree, Req.of(req)
        # The last token of a prompt is never looked up: `_compute_max_prefix_len`.
        key = RadixKey(made.origin_input_ids, made.extra_key, limit=req.seq_len - 1)
        match = tree.match_prefix(MatchPrefixParams(key))
        made.last_node, made.prefix_len = match.last_device_node, match.device_prefix_len
        made.lock = tree.lock(made.last_node)
        budget = self._allocator.create_prefill_budget(tree)
        wanted = req.seq_len - made.prefix_len
        if not budget.can_allocate_prefill(
            paged_input=budget.ceil_paged_tokens(wanted),
            extend_input_len=wanted,
            max_new_tokens=0,
            chunk_limit=None,
        ):
            tree.unlock(made.lock)
            return False
        self._rows.alloc([made])
        self.live[req] = made
        self._grow(req, tree.prefix_device_indices(made))
        made.kv.cache_protected_len = made.prefix_len
        return self._grow(req, self._extend(self.row(req), wanted))

    def computed(self, req: Request) -> None:
        """After the forward pass of a prompt the scheduler calls `checkpoint_kv_cache`."""
        made = self.live[req]
        if made.kv.kv_committed_len == len(made.origin_input_ids):
            self._tree.checkpoint(made, up_to=made.kv.kv_committed_len)
            self.granted(req)

    def allocate_for_append(self, req: Request, count: int) -> object:
        """As for a speculative decode, whose slots are reserved before it is verified."""
        return self._fits(req, count) and super().allocate_for_append(req, count)

    def allocate_for_decode(self, req: Request) -> object:
        return self._fits(req, 1) and super().allocate_for_decode(req)

    def _fits(self, req: Request, count: int) -> bool:
        """Ask as `check_decode_mem` does: for the pages that so many tokens more will begin."""
        held = len(self.row(req))
        pages = self.blocks_for(held + count) - self.blocks_for(held)
        tokens, check = pages * self.block_size, self._allocator.check_decode_capacity
        return bool(check(num_tokens=tokens, tree_cache=self._tree))

    def _alloc(self, count: int) -> Slots:
        return allocation.alloc_token_slots(self._tree, count)

    def _alloc_extend(self, *asked: object) -> Slots:
        return allocation.alloc_paged_token_slots_extend(self._tree, *asked)

    def _alloc_decode(self, *asked: object) -> Slots:
        return allocation.alloc_paged_token_slots_decode(self._tree, *asked)

    def _grow(self, req: Request, slots: Slots) -> bool:
        kv = self.live[req].kv
        start, end = kv.kv_committed_len, kv.kv_committed_len + len(slots)
        self._rows.write((kv.req_pool_idx, slice(start, end)), slots.to(torch.int32))
        kv.kv_committed_len = req.seq_len = end
        return self.granted(req)

    def release_request(self, req: Request) -> None:
        made, tree = self.lets_go(req), self._tree
        kv = made.kv
        made.full_untruncated_fill_ids = array("q", req.tokens)
        tree.checkpoint(made, up_to=kv.kv_committed_len)
        tree.free_kv_row(kv, [(kv.cache_protected_len, kv.kv_committed_len)])
        tree.unlock(made.lock)
        self._rows.free(made)

    def cached_tokens(self, req: Request) -> int:
        return int(self.live[req].prefix_len)

    def row(self, req: Request) -> list[int]:
        kv = self.live[req].kv
        return [*self._rows.req_to_token[kv.req_pool_idx, : kv.kv_committed_len].tolist()]

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; cached are the pages of nodes that nobody has locked."""
        cached, index = set[int](), dict[Hashable, int]()
        for node, path in nodes(self._tree):
            pages = self._pages(node.value.tolist())
            cached.update(pages if not node.lock_ref else ())
            start = len(path) - len(node.key)
            for i, page in enumerate(pages):
                index[node.key.extra_key, path[: start + (i + 1) * self.block_size]] = page
        return replace(super().snapshot(), cached=frozenset(cached), index=index)

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        live = self.live_key(names, self._progress)
        return self._free_key(), tree_key(self._tree), live

    def _progress(self, req: Request) -> Hashable:
        made = self.live[req]
        return *self.row(req), made.kv.cache_protected_len, len(made.origin_input_ids)
