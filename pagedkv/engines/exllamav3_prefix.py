"""exllamav3's `PageTable` where jobs find each other's pages, by the hash of what is in them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from pagedkv.adapter import Adapter, plain, told_apart
from pagedkv.engines.exllamav3 import DECLARES, ExLlamaV3PageTable
from pagedkv.engines.exllamav3_headless import PAGE_SIZE, is_content_hash, is_whole
from pagedkv.protocol import Request, Snapshot


class ExLlamaV3Prefix(ExLlamaV3PageTable):
    """The same with jobs that find each other's pages, as they do when their tokens are the same.

    Pages that are not full are matched too; what is found in them counts as computed again.
    """

    declares = replace(DECLARES, abilities=frozenset({"prefix"}))

    def _tokens(self, req: Request) -> list[int]:
        return told_apart(req)

    def cached_tokens(self, req: Request) -> int:
        found: int = self.live[req].cached_pages * PAGE_SIZE
        return found

    def snapshot(self) -> Snapshot:
        """All that the page table keeps, live; the index has the pages that are whole."""
        table, shown = self._engine.pagetable, super().snapshot()
        found = {
            key.hex(): page
            for pages in (table.referenced_pages, table.unreferenced_pages)
            for key, page in pages.items()
            if is_whole(page)
        }
        cached = {page.page_index for page in found.values() if not page.ref_count}
        return replace(
            shown,
            free_blocks=[block for block in shown.free_blocks or () if block not in cached],
            num_free=table.num_unreferenced_pages() - len(cached),
            cached=cached,
            index={key: page.page_index for key, page in found.items()},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on: the same, and all that a prompt is compared with."""
        pages = self._engine.pagetable.all_pages
        hashes = [key for page in pages for key in (page.phash, page.prev_hash)]
        return (
            *self.pages_key(names),
            *plain([key if key and is_content_hash(key) else None for key in hashes]),
            *plain([page.sequence[0, : page.kv_position].numpy().tobytes() for page in pages]),
        )

    clone = Adapter.twin
