"""torch's own paged allocator, `torch.nn.attention.experimental._paged_attention.PagedAttention`.

An engine row stands for a live request. Row and length go in as tensors of shape (1), as the
engine's docstrings ask; nothing else of it is called.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import SupportsIndex

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention

from pagedkv.declarations import NOT_TRIED, Declarations, Raises
from pagedkv.protocol import Owned, Request, Snapshot, as_int

DECLARES = Declarations(
    out_of_blocks=(Raises(AssertionError, "pages but there are only"),),
    wrong_use=NOT_TRIED,
    engine=True,
    because={
        "out_of_blocks": "PagedAttention.reserve raises it where len(empty_pages) is too small",
        "wrong_use": "the docstrings of PagedAttention.reserve and erase promise nothing",
        "engine": "reserve and erase are some ten small tensor operations each",
    },
)


class TorchPagedAttention:
    """`PagedAttention` behind the protocol; sizes > 0, else ValueError.

    A request takes the lowest row that no live request has. There is one row more than blocks: as
    each live request holds a block, a prefill always finds a row, be it only to be refused.
    """

    declares = DECLARES

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        self._engine = PagedAttention(
            self.num_blocks, self.block_size, self.num_blocks + 1, device="cpu"
        )
        # The layout `PagedAttention.assign` writes to: (1, heads, positions, head_dim).
        self._cache = torch.zeros(1, 1, self.num_blocks * self.block_size, self.head_dim)
        self._rows: dict[Request, int] = {}  # the handles of live requests, by identity

    @property
    def physical_kv_cache(self) -> torch.Tensor:
        return self._cache.view(self.num_blocks, self.block_size, self.head_dim)

    @property
    def free_blocks(self) -> list[int]:
        return sorted(self._engine.empty_pages)

    def allocate_for_prefill(self, req: Request) -> None:
        row = min(set(range(self.num_blocks + 1)) - set(self._rows.values()))
        self._reserve(req, row, req.seq_len)
        self._rows[req] = row

    def allocate_for_decode(self, req: Request) -> None:
        self._reserve(req, self._rows[req], req.seq_len + 1)
        req.seq_len += 1

    def release_request(self, req: Request) -> None:
        self._engine.erase(torch.tensor([self._rows[req]]))
        del self._rows[req]
        req.block_table = []

    def _reserve(self, req: Request, row: int, seq_len: int) -> None:
        self._engine.reserve(torch.tensor([row]), torch.tensor([seq_len]))
        req.block_table = list(_pages(self._engine.page_table[row].tolist()))

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` rows of a live request, at the addresses `assign` writes to."""
        position = torch.arange(req.seq_len)
        page = self._engine.page_table[self._rows[req], position // self.block_size]
        return self._cache[0, 0, page * self.block_size + position % self.block_size]

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; what rows of no live request keep goes by their name.

        Page-table entries of such rows, which `block_tables` has no place for, stand in the reverse
        map as "page table of row k". A grab of several pages is listed in the table from its last.
        """
        engine, live = self._engine, {row: req.request_id for req, row in self._rows.items()}
        tables = {row: _pages(pages) for row, pages in enumerate(engine.page_table.tolist())}
        reverse_map = {
            Owned(live.get(row, f"row {row}"), logical, page)
            for row, entries in enumerate(engine.physical_to_logical.tolist())
            for page, logical in enumerate(entries)
            if logical != -1
        } | {
            Owned(f"page table of row {row}", logical, page)
            for row, table in tables.items()
            for logical, page in enumerate(table)
            if row not in live
        }
        return Snapshot(
            block_tables={name: tables[row] for row, name in live.items()},
            seq_lens={req.request_id: req.seq_len for req in self._rows},
            free_blocks=tuple(reversed(engine.empty_pages)),
            reverse_map=frozenset(reverse_map),
            capacities={
                live.get(row, f"row {row}"): tokens
                for row, tokens in enumerate(engine.capacity.tolist())
                if row in live or tokens
            },
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        engine = self._engine
        indices = (engine.page_table, engine.physical_to_logical, engine.capacity)
        return (
            *(tuple(index.flatten().tolist()) for index in indices),
            tuple(engine.empty_pages),
            tuple(
                (row, names[req.request_id], req.seq_len, *req.block_table)
                for req, row in sorted(self._rows.items(), key=lambda item: item[1])
            ),
        )

    def clone(
        self, requests: Mapping[int, Request]
    ) -> tuple[TorchPagedAttention, dict[int, Request]]:
        """A copy of the manager and of those handles, sharing nothing with the originals."""
        twins = {req: _twin(req) for req in {*self._rows, *requests.values()}}
        other, other._engine = copy.copy(self), copy.copy(self._engine)
        for name, value in vars(self._engine).items():
            # Not one deepcopy of all: that takes ten times as long for a tensor.
            twin = value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            setattr(other._engine, name, twin)
        other._cache = self._cache.clone()
        other._rows = {twins[req]: row for req, row in self._rows.items()}
        return other, {name: twins[req] for name, req in requests.items()}


def _twin(req: Request) -> Request:
    twin = copy.copy(req)
    twin.block_table, twin.tokens = list(req.block_table), list(req.tokens)
    return twin


def _pages(row: list[int]) -> tuple[int, ...]:
    """A page-table row up to its last entry; -1 is empty, and shows where it is a hole."""
    used = max((i + 1 for i, page in enumerate(row) if page != -1), default=0)
    return tuple(row[:used])
