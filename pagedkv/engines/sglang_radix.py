"""SGLang's `RadixCache` with the slot allocator behind it: prefix caching by a radix tree.

A request is driven as the scheduler does it, alone in its batch: match, lock, ask the prefill
budget, take a row and slots, `checkpoint` once the prompt is computed, decode after
`check_decode_capacity`, and in the end what `release_kv_cache` does for a finished request. Each
prefill gets an extra key of its own, so that no request finds what another has computed.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count
from types import ModuleType
from typing import Any, SupportsIndex

import torch
from transformers.utils import is_torchvision_available

from pagedkv.declarations import Returns
from pagedkv.engines.sglang_paged import DECLARES, allocator_key, make_allocator
from pagedkv.protocol import Request, Snapshot, as_int


class _Nothing(ModuleType):
    """Stands in for a module that is imported but not used here: any name is an empty class."""

    __path__: list[str] = []  # noqa: RUF012 - a module's attribute

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def _torchvision() -> Iterator[None]:
    """Let SGLang's image processors import torchvision where it is not installed."""
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.functional"]
    absent = find_spec("torchvision") is None
    is_torchvision_available()  # remembered as it is
    if absent:
        sys.modules.update({name: _Nothing(name) for name in names})
    try:
        yield
    finally:
        for name in names if absent else ():
            del sys.modules[name]


with _torchvision():
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


class SGLangRadix:
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
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        self._allocator = make_allocator(self.num_blocks, self.block_size, need_sort=False)
        # As each live request holds a page, one row more always suffices.
        rows, longest = self.num_blocks + 1, (self.num_blocks + 1) * self.block_size
        self._rows = ReqToTokenPool(rows, longest, "cpu", enable_memory_saver=False)
        self._tree = RadixCache(
            CacheInitParams(False, self._rows, self._allocator, self.block_size)
        )
        self._live: dict[Request, Req] = {}  # by identity
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
            req.block_table = self._table(made)

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
        req.block_table = self._table(made)

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

    def _slots(self, made: Req) -> list[int]:
        row = self._rows.req_to_token[made.kv.req_pool_idx, : made.kv.kv_committed_len]
        slots: list[int] = row.tolist()
        return slots

    def _table(self, made: Req) -> list[int]:
        return [slot // self.block_size for slot in self._slots(made)[:: self.block_size]]

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        """Where each position of a live request is, by its row."""
        return [(0, *divmod(slot, self.block_size)) for slot in self._slots(self._live[req])]

    def _nodes(self) -> Iterator[TreeNode]:
        stack = [self._tree.root_node]
        while stack:
            below = list(stack.pop().children.values())
            yield from below
            stack += below

    def _pages(self, node: TreeNode) -> list[int]:
        return [slot // self.block_size for slot in node.value[:: self.block_size].tolist()]

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live. Cached are the pages of nodes that nobody has locked."""
        return Snapshot(
            block_tables={req.request_id: self._table(made) for req, made in self._live.items()},
            seq_lens={req.request_id: made.kv.kv_committed_len for req, made in self._live.items()},
            free_blocks=self._allocator.get_all_free_pages().tolist(),
            num_free=self._allocator.available_size() // self.block_size,
            blocks=range(1, self.num_blocks + 1),
            reserved={0},
            cached={
                page for node in self._nodes() if not node.lock_ref for page in self._pages(node)
            },
        )

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
            (names[req.request_id], *self._slots(made), kv.cache_protected_len, kv.req_pool_idx)
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
