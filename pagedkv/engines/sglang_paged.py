"""SGLang's token-slot allocators, `sglang.srt.mem_cache.allocator`.

As the engine's `_build_token_to_kv_pool_allocator` does, pages of one token get
`TokenToKVPoolAllocator` and larger ones `PagedTokenToKVPoolAllocator`. Slots are asked for as
`alloc_for_extend` and `alloc_for_decode` ask, and given back as `free_kv_row_segments` does, with
one request in the batch. The engine hands out slots and keeps no tables: a request's row of slots
stands here, as `ReqToTokenPool` holds it there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, SupportsIndex, TypeAlias

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot, as_int

DECLARES = Declarations(
    out_of_blocks=(Returns(None),),
    wrong_use=NOT_TRIED,
    abilities=frozenset({"append", "group"}),
    engine=True,
    because={
        "out_of_blocks": "alloc, alloc_extend and alloc_decode return None; common callers raise",
        "wrong_use": "free_page_ids: 'no page twice, no dedup'; free of a free page is not checked",
        "engine": "alloc_extend_naive is some thirty small tensor operations",
    },
)


class SGLangPaged:
    """The allocator of a server that runs prefill and decode together; sizes > 0, else ValueError.

    Freed pages go to the front of the free list, freed slots (pages of one token) to its end.
    """

    declares = DECLARES
    need_sort: ClassVar[bool] = False

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        self._allocator = make_allocator(self.num_blocks, self.block_size, need_sort=self.need_sort)
        self._live: dict[Request, Any] = {}  # the slots of live requests, by identity

    @property
    def free_blocks(self) -> list[int]:
        return sorted(self._allocator.get_all_free_pages().tolist())

    def allocate_for_prefill(self, req: Request) -> object:
        return self._grow(req, extend(self._allocator, 0, req.seq_len, -1))

    def allocate_for_decode(self, req: Request) -> object:
        return self._grow(req, decode(self._allocator, req.seq_len, self._live[req][-1]))

    def allocate_for_append(self, req: Request, count: int) -> object:
        slots = extend(self._allocator, req.seq_len, req.seq_len + count, self._live[req][-1])
        return self._grow(req, slots)

    def _grow(self, req: Request, slots: torch.Tensor | None) -> object:
        if slots is None:
            return None
        row = self._live.setdefault(req, [])
        row += slots.tolist()
        req.seq_len, req.block_table = len(row), self._pages(row)
        return True

    def release_request(self, req: Request) -> None:
        self._allocator.free_segments([(torch.tensor(self._live[req]), 0)])
        del self._live[req]
        req.block_table = []

    def free_group_begin(self) -> None:
        self._allocator.free_group_begin()

    def free_group_end(self) -> None:
        self._allocator.free_group_end()

    def _row(self, req: Request) -> list[int]:
        row: list[int] = self._live[req]
        return row

    def _pages(self, slots: list[int]) -> list[int]:
        return [slot // self.block_size for slot in slots[:: self.block_size]]

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        """Where each position of a live request is: its own slot, whatever its page is called."""
        return [(0, *divmod(slot, self.block_size)) for slot in self._row(req)]

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; page 0 is for padding. Staged pages come last."""
        return Snapshot(
            block_tables={req.request_id: self._pages(self._row(req)) for req in self._live},
            seq_lens={req.request_id: len(self._row(req)) for req in self._live},
            free_blocks=self._allocator.get_all_free_pages().tolist(),
            num_free=self._allocator.available_size() // self.block_size,
            blocks=range(1, self.num_blocks + 1),
            reserved={0},
            withheld=withheld(self._allocator),
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        rows = sorted((names[req.request_id], *self._row(req)) for req in self._live)
        return allocator_key(self._allocator), tuple(rows)


class SGLangSorted(SGLangPaged):
    """The allocator of a disaggregated server: freed pages are staged, and sorted in when short."""

    need_sort = True
    declares = replace(
        DECLARES,
        reorders_free=True,
        because={
            **DECLARES.because,
            "reorders_free": "merge_and_sort_free runs before a call knows that it will say None",
        },
    )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """The same; a class has to say itself that its key leaves nothing out."""
        return super().state_key(names)


Allocator: TypeAlias = Any
"""A `PagedTokenToKVPoolAllocator` or a `TokenToKVPoolAllocator`."""


def make_allocator(num_blocks: int, block_size: int, *, need_sort: bool) -> Allocator:
    """The allocator that the engine takes for this page size, with no cache tensor behind it."""
    common: Any = {"dtype": torch.float16, "device": "cpu", "kvcache": None}
    if block_size == 1:
        return TokenToKVPoolAllocator(num_blocks, need_sort=need_sort, **common)
    size = num_blocks * block_size
    return PagedTokenToKVPoolAllocator(size, block_size, need_sort=need_sort, **common)


def extend(allocator: Allocator, before: int, after: int, last: int) -> torch.Tensor | None:
    """Slots for the tokens from `before` to `after`, as `alloc_for_extend` asks; None is "no".

    last: the slot of the token before them, -1 if there is none.
    """
    slots: torch.Tensor | None
    if isinstance(allocator, TokenToKVPoolAllocator):
        slots = allocator.alloc(after - before)
        return slots
    prefix, length = torch.tensor([before]), torch.tensor([after])
    slots = allocator.alloc_extend(
        prefix, prefix, length, length, torch.tensor([last]), after - before
    )
    return slots


def decode(allocator: Allocator, tokens: int, last: int) -> torch.Tensor | None:
    """The slot of the token after `tokens`, the last of which is in slot `last`; None is "no"."""
    slot: torch.Tensor | None
    if isinstance(allocator, TokenToKVPoolAllocator):
        slot = allocator.alloc(1)
        return slot
    length = torch.tensor([tokens + 1])
    slot = allocator.alloc_decode(length, length, torch.tensor([last]))
    return slot


def withheld(allocator: Allocator) -> list[int] | None:
    """The pages that were freed inside the open group, as they will be freed; None outside any."""
    if allocator.free_group is None:
        return None
    slots = [slot for held in allocator.free_group for slot in held.tolist()]
    pages = [
        page for held in getattr(allocator, "free_page_ids_group", ()) for page in held.tolist()
    ]
    return [slot // allocator.page_size for slot in slots] + pages


def allocator_key(allocator: Allocator) -> Hashable:
    """What the allocator's later answers depend on."""
    staged = getattr(allocator, "staged_pages", [allocator.release_pages])
    return (
        tuple(allocator.free_pages.tolist()),
        tuple(page for pages in staged for page in pages.tolist()),
        allocator.available_size(),
        None if (group := withheld(allocator)) is None else tuple(group),
    )
