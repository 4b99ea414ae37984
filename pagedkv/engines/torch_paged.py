"""torch's own paged allocator, `torch.nn.attention.experimental._paged_attention.PagedAttention`.

An engine row stands for a live request. Row and length go in as tensors of shape (1), as the
engine's docstrings ask; nothing else of it is called.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention

from pagedkv.adapter import Adapter, plain, unpadded
from pagedkv.declarations import NOT_TRIED, Declarations, Raises
from pagedkv.protocol import Owned, Request, Snapshot

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


class TorchPagedAttention(Adapter[int]):
    """`PagedAttention` behind the protocol; sizes > 0, else ValueError.

    A request takes the lowest row that no live request has. There is one row more than blocks: as
    each live request holds a block, a prefill always finds a row, be it only to be refused.
    """

    declares = DECLARES

    def start(self) -> None:
        self._engine = PagedAttention(
            self.num_blocks, self.block_size, self.num_blocks + 1, device="cpu"
        )
        # The layout `PagedAttention.assign` writes to: (1, heads, positions, head_dim).
        self._cache = torch.zeros(1, 1, self.num_blocks * self.block_size, self.head_dim)

    @property
    def physical_kv_cache(self) -> torch.Tensor:
        return self._cache.view(self.num_blocks, self.block_size, self.head_dim)

    @property
    def free_blocks(self) -> list[int]:
        return sorted(self._engine.empty_pages)

    def table(self, req: Request) -> list[int]:
        return unpadded(self._engine.page_table[self.live[req]].tolist())

    def allocate_for_prefill(self, req: Request) -> bool:
        row = min(set(range(self.num_blocks + 1)) - set(self.live.values()))
        self._engine.reserve(torch.tensor([row]), torch.tensor([req.seq_len]))
        return self.holds(req, row)

    def allocate_for_decode(self, req: Request) -> bool:
        self._engine.reserve(torch.tensor([self.live[req]]), torch.tensor([req.seq_len + 1]))
        return self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        self._engine.erase(torch.tensor([self.lets_go(req)]))

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        """The `[seq_len, head_dim]` rows of a live request, at the addresses `assign` writes to."""
        position = torch.arange(req.seq_len)
        page = self._engine.page_table[self.live[req], position // self.block_size]
        return self._cache[0, 0, page * self.block_size + position % self.block_size]

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; what rows of no live request keep goes by their name.

        Page-table entries of such rows, which `block_tables` has no place for, stand in the reverse
        map as "page table of row k". A grab of several pages is listed in the table from its last.
        """
        engine, live = self._engine, {row: req.request_id for req, row in self.live.items()}
        reverse_map = {
            Owned(live.get(row, f"row {row}"), logical, page)
            for row, entries in enumerate(engine.physical_to_logical.tolist())
            for page, logical in enumerate(entries)
            if logical != -1
        } | {
            Owned(f"page table of row {row}", logical, page)
            for row, pages in enumerate(engine.page_table.tolist())
            for logical, page in enumerate(unpadded(pages))
            if row not in live
        }
        return Snapshot(
            **self.of_live(),
            free_blocks=reversed(engine.empty_pages),
            reverse_map=reverse_map,
            capacities={
                live.get(row, f"row {row}"): tokens
                for row, tokens in enumerate(engine.capacity.tolist())
                if row in live or tokens
            },
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        engine = self._engine
        return (
            *plain(engine.page_table, engine.physical_to_logical, engine.capacity),
            *plain(engine.empty_pages),
            self.live_key(names, self.live.__getitem__),
        )

    clone = Adapter.twin
