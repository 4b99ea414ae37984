"""exllamav3's `PageTable` where jobs find each other's pages, by the hash of what is in them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from pagedkv.adapter import Adapter, plain, told_apart
from pagedkv.engines.exllamav3 import DECLARES, ExLlamaV3PageTable
from pagedkv.engines.exllamav3_headless import PAGE_SIZE, faces, is_content_hash, is_whole
from pagedkv.protocol import Request, Snapshot


class ExLlamaV3Prefix(ExLlamaV3PageTable):
    """The same with jobs that find each other's pages, as they do when their tokens are the same.

    Tokens that are found in a page that is not whole are counted as computed again.
    """

    declares = replace(
        DECLARES,
        abilities=frozenset({"prefix"}),
        publishes_at_once=True,
        because={
            **DECLARES.because,
            "publishes_at_once": "PageTable.allocate_pages: add_ref_clear gives a page its hash",
        },
    )

    def _tokens(self, req: Request) -> list[int]:
        return told_apart(req)

    def allocate_for_prefill(self, req: Request) -> bool:
        """With the forward pass of the prompt: what is found is copied just before it."""
        if not super().allocate_for_prefill(req):
            return False
        self.prefilled(self.live[req])
        return self.granted(req)

    def cached_tokens(self, req: Request) -> int:
        found: int = self.live[req].cached_pages * PAGE_SIZE
        return found

    def snapshot(self) -> Snapshot:
        """All that the page table keeps, live; the index has the pages that are whole."""
        table = self._engine.pagetable
        index = {
            key.hex(): page.page_index
            for pages in (table.referenced_pages, table.unreferenced_pages)
            for key, page in pages.items()
            if is_whole(page)
        }
        kept = {page.page_index for page in table.unreferenced_pages.values() if is_whole(page)}
        return replace(_keeping(super().snapshot(), kept), index=index)

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on: the same, and all that a prompt is compared with."""
        pages = self._engine.pagetable.all_pages
        every = [faces(page) for page in pages]
        hashes = [key for own in every for face in own for key in (face.hash, face.parent)]
        filled = [max(face.filled for face in own) for own in every]
        return (
            *self.pages_key(names),
            *plain([key if key and is_content_hash(key) else None for key in hashes]),
            *(
                page.sequence[0, :n].numpy().tobytes()
                for page, n in zip(pages, filled, strict=True)
            ),
        )

    def to_be_found(self, filled: int) -> int:
        """As many tokens of a prompt may be found as are there."""
        return filled

    clone = Adapter.twin


class ExLlamaV3Partly(ExLlamaV3Prefix):
    """The same with what is found in pages that are not whole: its tokens are copied, and count.

    Such pages are kept for reuse too. They are in no index, so that none is shown.
    """

    state_key, clone = ExLlamaV3Prefix.state_key, Adapter.twin

    def cached_tokens(self, req: Request) -> int:
        copied: int = self.live[req].cached_tokens
        return super().cached_tokens(req) + copied

    def snapshot(self) -> Snapshot:
        """All that the page table keeps, live; what holds tokens and is unreferenced is cached."""
        pages = self._engine.pagetable.unreferenced_pages.values()
        kept = {page.page_index for page in pages if page.kv_position}
        return _keeping(ExLlamaV3PageTable.snapshot(self), kept)


def _keeping(shown: Snapshot, kept: set[int]) -> Snapshot:
    """The snapshot in which these unreferenced pages are not free but cached."""
    return replace(
        shown,
        free_blocks=tuple(page for page in shown.free_blocks or () if page not in kept),
        num_free=(shown.num_free or 0) - len(kept),
        cached=frozenset(kept),
    )
