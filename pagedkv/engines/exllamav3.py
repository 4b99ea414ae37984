"""exllamav3's `PageTable`, driven by its own `Generator` and `Job` without a model.

A job reserves its pages when it starts and never grows: with `max_rq_tokens` up to the end of the
page in which its next token falls. Decode goes on to there; then the generator would take the pages
back and queue the job again, which is `release` and `resume` here.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Hashable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


class _Compiled:
    """Stands for the compiled part, which needs a GPU's toolchain: None of it is there but one."""

    @staticmethod
    def count_match_tensor(a: torch.Tensor, b: torch.Tensor, most: int) -> int:
        """How many of the first `most` tokens are the same, up to the first that is not."""
        length = min(most, b.shape[-1])
        return int((a[0, :length] == b[0, :length]).long().cumprod(0).sum())

    def __getattr__(self, name: str) -> None:
        return None


_stand_in = ModuleType("exllamav3.ext")
_stand_in.exllamav3_ext = _Compiled()  # type: ignore[attr-defined]
sys.modules.setdefault("exllamav3.ext", _stand_in)

from exllamav3.constants import PAGE_SIZE  # noqa: E402 - after the stand-in
from exllamav3.generator.generator import Generator  # noqa: E402
from exllamav3.generator.job import Job  # noqa: E402
from exllamav3.generator.pagetable import CachePage, PageTable, is_content_hash  # noqa: E402
from exllamav3.generator.sampler import DefaultSampler  # noqa: E402

from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns  # noqa: E402
from pagedkv.protocol import Request, Snapshot, as_int  # noqa: E402

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


_SAMPLER = DefaultSampler()
"""One for all jobs: making one takes half as long as the rest of a job."""


class _Headless(Generator):  # type: ignore[misc]
    """The generator's queue and page table, and no model; the fields are as its own makes them."""

    def __init__(self, pages: int) -> None:
        self.max_total_tokens, self.max_batch_size = pages * PAGE_SIZE, pages + 1
        self.max_chunk_size, self.max_draft_tokens, self.padded_vocab_size = 2048, 0, 32
        self.ngram_match_min = self.hybrid_draft_tokens = self.job_serial = 0
        self.mtp_draft = self.dflash_draft = False
        self.draft_model = self.recurrent_cache = self.disk_page_cache = self.ngram_corpus = None
        self.model = SimpleNamespace(
            caps={}, loaded_tp=False, output_device="cpu", prefill=_nothing_computed
        )
        self.cache = SimpleNamespace(
            model=self.model, max_num_tokens=self.max_total_tokens, get_all_tensors=list
        )
        self.pagetable, self.enable_defrag = PageTable(self, self.cache), True
        self.pending_jobs: list[Any] = []
        self.active_jobs: list[Any] = []

    def reap_failed_job(self, job: object, error: Exception, results: object) -> None:
        raise error

    def on_queue_drained(self) -> None:
        self.pagetable.defrag()


def _nothing_computed(**_: object) -> None:
    """The forward pass."""


class ExLlamaV3PageTable:
    """`PageTable` behind the protocol; sizes > 0 and pages of 256 tokens, else ValueError."""

    declares = DECLARES

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        if block_size != PAGE_SIZE:
            raise ValueError(f"block_size = {block_size}; exllamav3's pages have {PAGE_SIZE}")
        self._engine = _Headless(self.num_blocks)
        self._live: dict[Request, Any] = {}  # jobs, by the identity of the handle

    def allocate_for_prefill(self, req: Request) -> bool:
        engine = self._engine
        # A first token of its own: nothing is shared.
        tokens = torch.tensor([[engine.job_serial, *req.tokens[1:]]])
        job = Job(tokens, max_rq_tokens=2, sampler=_SAMPLER, seed=0)
        job.rng = None  # nothing is sampled, and its 625 numbers would be copied with each state
        engine.enqueue(job)
        engine.iterate_start_jobs([])
        if job in engine.pending_jobs:
            engine.cancel(job)
            return False
        self._live[req] = job
        req.block_table = _pages(job)
        return True

    def allocate_for_decode(self, req: Request) -> bool:
        (sequence,) = self._live[req].sequences
        if sequence.kv_position == len(sequence.allocated_pages) * PAGE_SIZE:
            return False  # where the generator would queue the job again
        sequence.sequence_ids.append(torch.tensor([req.tokens[-1:]]))
        req.seq_len += 1
        return True

    def computed(self, req: Request) -> None:
        """A forward pass: the prompt but its last token, then that one as `iterate_gen` does."""
        job = self._live[req]
        (sequence,) = job.sequences
        while sequence.kv_position < len(sequence.sequence_ids) - 1:
            job.prefill([])
        page = sequence.allocated_pages[sequence.kv_position // PAGE_SIZE]
        page.sequence[:, page.kv_position] = sequence.sequence_ids.torch()[0, -1]
        page.kv_position += 1
        page.can_revert = False
        sequence.kv_position += 1
        if sequence.kv_position % PAGE_SIZE == 0:
            job.hash_completed_page(sequence, sequence.kv_position // PAGE_SIZE - 1)
        req.block_table = _pages(job)

    def release_request(self, req: Request) -> None:
        self._engine.cancel(self._live.pop(req))
        req.block_table = []

    def snapshot(self) -> Snapshot:
        """All that the page table keeps, live; an unreferenced page is free, with its old content.

        The order is the one that `build_eviction_order` gives now.
        """
        table = self._engine.pagetable
        return Snapshot(
            block_tables={req.request_id: _pages(job) for req, job in self._live.items()},
            seq_lens={
                req.request_id: len(job.sequences[0].sequence_ids)
                for req, job in self._live.items()
            },
            free_blocks=[page.page_index for page in table.build_eviction_order()],
            num_free=table.num_unreferenced_pages(),
            ref_counts={page.page_index: page.ref_count for page in table.all_pages},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`; not the contents."""
        table = self._engine.pagetable
        pages = table.all_pages
        serials = sorted({s for p in pages for s in (p.access_serial, p.access_serial_revert)})
        at = {page.phash: i for i, page in enumerate(pages)}

        def face(page: CachePage) -> Hashable:
            reverts = (
                is_content_hash(page.phash_revert),
                at.get(page.prev_hash_revert, page.prev_hash_revert and -1),
                serials.index(page.access_serial_revert),
                page.kv_position_revert,
            )
            return (
                (page.page_index, page.ref_count, page.kv_position, is_content_hash(page.phash)),
                at.get(page.prev_hash, page.prev_hash and -1),
                serials.index(page.access_serial),
                table.referenced_pages.get(page.phash) is page,
                table.unreferenced_pages.get(page.phash) is page,
                reverts if page.can_revert else None,
            )

        return (
            tuple(face(page) for page in pages),
            (len(table.referenced_pages), len(table.unreferenced_pages)),
            min(table.access_serial - table.last_defrag_serial, 8 * table.max_pages),
            tuple(
                sorted(
                    (names[req.request_id], req.seq_len, job.sequences[0].kv_position, *_pages(job))
                    for req, job in self._live.items()
                )
            ),
        )

    def clone(
        self, requests: Mapping[int, Request]
    ) -> tuple[ExLlamaV3PageTable, dict[int, Request]]:
        """A copy of the manager and of those handles; what no call changes is shared."""
        twins = {req: _twin(req) for req in {*self._live, *requests.values()}}
        other, engine, old = copy.copy(self), copy.copy(self._engine), self._engine.pagetable
        table = engine.pagetable = copy.copy(old)
        table.generator, table.metrics = engine, dict(old.metrics)
        pages = {id(page): copy.copy(page) for page in old.all_pages}
        for page in pages.values():
            page.pagetable, page.sequence, page.children = table, page.sequence.clone(), []
        table.all_pages = [*pages.values()]
        table.referenced_pages = {h: pages[id(p)] for h, p in old.referenced_pages.items()}
        table.unreferenced_pages = {h: pages[id(p)] for h, p in old.unreferenced_pages.items()}
        jobs = {job: copy.copy(job) for job in self._live.values()}
        for job in jobs.values():
            (sequence,) = job.sequences = [copy.copy(job.sequences[0])]
            job.generator, job.pagetable = engine, table
            sequence.sequence_ids = sequence.sequence_ids.clone()
            sequence.allocated_pages = [pages[id(page)] for page in sequence.allocated_pages]
        engine.active_jobs = [jobs[job] for job in self._engine.active_jobs]
        engine.pending_jobs = []
        other._engine, other._live = engine, {twins[r]: jobs[j] for r, j in self._live.items()}
        return other, {name: twins[req] for name, req in requests.items()}


def _twin(req: Request) -> Request:
    twin = copy.copy(req)
    twin.block_table, twin.tokens = list(req.block_table), list(req.tokens)
    return twin


def _pages(job: Any) -> list[int]:
    return [page.page_index for s in job.sequences for page in s.allocated_pages]
