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
from typing import Any, ClassVar, TypeAlias

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from pagedkv.adapter import Adapter, plain
from pagedkv.declarations import NOT_TRIED, Declarations, Returns
from pagedkv.protocol import Request, Snapshot

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


Slots: TypeAlias = Any
"""A tensor of slots, or None: there are too few."""


class SGLangPaged(Adapter[Any]):
    """The allocator of a server that runs prefill and decode together; sizes > 0, else ValueError.

    Freed pages go to the front of the free list, freed slots (pages of one token) to its end.
    """

    declares = DECLARES
    need_sort: ClassVar[bool] = False

    def start(self) -> None:
        """The allocator that the engine takes for this page size, with no tensor behind it."""
        common: Any = {"dtype": torch.float16, "device": "cpu", "kvcache": None}
        slots, sort = self.num_blocks * self.block_size, self.need_sort
        self._allocator: Any = (
            TokenToKVPoolAllocator(slots, need_sort=sort, **common)
            if self.block_size == 1
            else PagedTokenToKVPoolAllocator(slots, self.block_size, need_sort=sort, **common)
        )

    @property
    def free_blocks(self) -> list[int]:
        return sorted(self._allocator.get_all_free_pages().tolist())

    def row(self, req: Request) -> list[int]:
        """The slots of a live request."""
        slots: list[int] = self.live[req]
        return slots

    def table(self, req: Request) -> list[int]:
        return self._pages(self.row(req))

    def length(self, req: Request) -> int:
        return len(self.row(req))

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        """Where each position of a live request is: its own slot, whatever its page is called."""
        return [(0, *divmod(slot, self.block_size)) for slot in self.row(req)]

    def allocate_for_prefill(self, req: Request) -> object:
        slots = self._extend([], req.seq_len)
        return None if slots is None else self.holds(req, slots.tolist())

    def allocate_for_append(self, req: Request, count: int) -> object:
        return self._grow(req, self._extend(self.row(req), count))

    def allocate_for_decode(self, req: Request) -> object:
        if self.block_size == 1:
            return self._grow(req, self._alloc(1))
        length, last = torch.tensor([req.seq_len + 1]), torch.tensor(self.row(req)[-1:])
        return self._grow(req, self._alloc_decode(length, length, last))

    def _extend(self, row: list[int], count: int) -> Slots:
        """So many slots more behind those of a row, as `alloc_for_extend` asks."""
        if self.block_size == 1:
            return self._alloc(count)
        before, after = torch.tensor([len(row)]), torch.tensor([len(row) + count])
        last = torch.tensor(row[-1:] or [-1])
        return self._alloc_extend(before, before, after, after, last, count)

    def _alloc(self, count: int) -> Slots:
        return self._allocator.alloc(count)

    def _alloc_extend(self, *asked: object) -> Slots:
        return self._allocator.alloc_extend(*asked)

    def _alloc_decode(self, *asked: object) -> Slots:
        return self._allocator.alloc_decode(*asked)

    def _grow(self, req: Request, slots: Slots) -> object:
        if slots is None:
            return None
        self.live[req] += slots.tolist()
        return self.granted(req, len(slots))

    def release_request(self, req: Request) -> None:
        self._allocator.free_segments([(torch.tensor(self.lets_go(req)), 0)])

    def free_group_begin(self) -> None:
        self._allocator.free_group_begin()

    def free_group_end(self) -> None:
        self._allocator.free_group_end()

    def _pages(self, slots: list[int]) -> list[int]:
        return [slot // self.block_size for slot in slots[:: self.block_size]]

    def _withheld(self) -> list[int] | None:
        """The pages that were freed inside the open group, as they will be; None outside any."""
        slots = self._allocator.free_group
        if slots is None:
            return None
        pages = self._allocator.free_page_ids_group if self.block_size > 1 else []
        held = [slot // self.block_size for freed in slots for slot in freed.tolist()]
        return held + [page for freed in pages for page in freed.tolist()]

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; page 0 is for padding. Staged pages come last."""
        return Snapshot(
            **self.of_live(),
            free_blocks=self._allocator.get_all_free_pages().tolist(),
            num_free=self._allocator.available_size() // self.block_size,
            blocks=range(1, self.num_blocks + 1),
            reserved={0},
            withheld=self._withheld(),
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        return self._free_key(), self.live_key(names, lambda req: tuple(self.row(req)))

    def _free_key(self) -> Hashable:
        """What the allocator's later answers depend on."""
        allocator = self._allocator
        staged = getattr(allocator, "staged_pages", [allocator.release_pages])
        later = [page for pages in staged for page in pages.tolist()]
        return plain(allocator.free_pages, later, allocator.available_size(), self._withheld())


class SGLangSorted(SGLangPaged):
    """The allocator of a disaggregated server: freed pages are staged, and sorted in when short."""

    need_sort = True
    state_key = SGLangPaged.state_key
    declares = replace(
        DECLARES,
        reorders_free=True,
        because={
            **DECLARES.because,
            "reorders_free": "merge_and_sort_free runs before a call knows that it will say None",
        },
    )
