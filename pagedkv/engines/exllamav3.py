"""exllamav3's `PageTable`, driven by its own `Generator` and `Job` without a model.

A job reserves its pages when it starts and never grows: with `max_rq_tokens` up to the end of the
page in which its next token falls. Decode goes on to there; then the generator would take the pages
back and queue the job again, which is `release` and `resume` here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

from pagedkv.adapter import Adapter, plain
from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.engines.exllamav3_headless import (
    PAGE_SIZE,
    Face,
    Headless,
    Job,
    faces,
    is_content_hash,
)
from pagedkv.protocol import Request, Snapshot

DECLARES = Declarations(
    out_of_blocks=(Returns(False), Raises(AssertionError, "and cannot be enqueued")),
    wrong_use=NOT_TRIED,
    lookahead=1,
    refuses_early=True,
    block_sizes=(PAGE_SIZE,),
    engine=True,
    never_reached={"table-grown": "a job reserves all its pages when it starts"},
    because={
        "out_of_blocks": "Generator.iterate_start_jobs leaves a job in the queue; "
        "Job.prepare_for_queue asserts that it fits into the whole cache",
        "wrong_use": "the docstrings of Generator.enqueue and cancel promise nothing",
        "lookahead": "Job.prepare_for_queue aligns max_rq_tokens to the page's end, one at least",
        "refuses_early": "Job.receive_sample asks for a requeue once max_rq_tokens are there",
        "block_sizes": "exllamav3.constants.PAGE_SIZE",
        "engine": "a job is a hundred fields and some tensors",
    },
)


class ExLlamaV3PageTable(Adapter[Job]):
    """`PageTable` behind the protocol; sizes > 0 and pages of 256 tokens, else ValueError."""

    declares = DECLARES

    def start(self) -> None:
        if self.block_size != PAGE_SIZE:
            raise ValueError(f"block_size = {self.block_size}; exllamav3's pages have {PAGE_SIZE}")
        self._engine = Headless(self.num_blocks, self.head_dim)

    @property
    def physical_kv_cache(self) -> torch.Tensor:
        return self._engine.cache.tensor

    def table(self, req: Request) -> list[int]:
        return [page.page_index for page in self.live[req].sequences[0].allocated_pages]

    def length(self, req: Request) -> int:
        return len(self.live[req].sequences[0].sequence_ids)

    def _tokens(self, req: Request) -> list[int]:
        """With a first token of its own, so that nothing is shared."""
        return [self._engine.job_serial, *req.tokens[1:]]

    def allocate_for_prefill(self, req: Request) -> bool:
        job = self._engine.start(self._tokens(req))
        return job is not None and self.holds(req, job)

    def allocate_for_decode(self, req: Request) -> bool:
        (sequence,) = self.live[req].sequences
        if sequence.kv_position == len(sequence.allocated_pages) * PAGE_SIZE:
            return False  # where the generator would queue the job again
        sequence.sequence_ids.append(torch.tensor([req.tokens[-1:]]))
        return self.granted(req, 1)

    def computed(self, req: Request) -> None:
        """The forward passes, as `iterate_gen` does them: of a prompt, then of its last token."""
        job = self.live[req]
        self.prefilled(job)
        (sequence,) = job.sequences
        page = sequence.allocated_pages[sequence.kv_position // PAGE_SIZE]
        page.sequence[:, page.kv_position] = sequence.sequence_ids.torch()[0, -1]
        page.kv_position += 1
        page.can_revert = False
        sequence.kv_position += 1
        if sequence.kv_position % PAGE_SIZE == 0:
            job.hash_completed_page(sequence, sequence.kv_position // PAGE_SIZE - 1)
        self.granted(req)

    @staticmethod
    def prefilled(job: Job) -> None:
        """All of a prompt is there but its last token."""
        while not job.is_prefill_done():
            job.prefill([])

    def release_request(self, req: Request) -> None:
        self._engine.cancel(self.lets_go(req))

    def snapshot(self) -> Snapshot:
        """All that the page table keeps, live; an unreferenced page is free, with its old content.

        The order is the one that `build_eviction_order` gives now.
        """
        table = self._engine.pagetable
        return Snapshot(
            **self.of_live(),
            free_blocks=[page.page_index for page in table.build_eviction_order()],
            num_free=table.num_unreferenced_pages(),
            ref_counts={page.page_index: page.ref_count for page in table.all_pages},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        return self.pages_key(names)

    clone = Adapter.twin

    def pages_key(self, names: Mapping[int, int]) -> tuple[Hashable, ...]:
        """The key; of the hashes only which page each of them names, of times only the order."""
        table, pages = self._engine.pagetable, self._engine.pagetable.all_pages
        at = {page.phash: i for i, page in enumerate(pages)}
        every = [faces(page) for page in pages]
        serials = sorted({face.serial for own in every for face in own})

        def shown(face: Face) -> Hashable:
            parent = None if face.parent is None else at.get(face.parent, -1)
            found = self.to_be_found(face.filled)
            return is_content_hash(face.hash), parent, serials.index(face.serial), found

        return plain(
            [
                (
                    *(page.page_index, at[page.phash], page.ref_count),
                    *(page.ref_count and page.kv_position, *map(shown, own)),
                )
                for page, own in zip(pages, every, strict=True)
            ],
            sorted(at.get(key, -1) for key in table.referenced_pages),
            sorted(at.get(key, -1) for key in table.unreferenced_pages),
            min(table.access_serial - table.last_defrag_serial, 8 * table.max_pages),
            self.live_key(names, lambda req: self.live[req].sequences[0].kv_position),
        )

    def to_be_found(self, filled: int) -> int:
        """What the tokens in a page that nobody holds still mean: that it is not empty."""
        return min(filled, 1)
