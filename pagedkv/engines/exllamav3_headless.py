"""exllamav3's `Generator` without a model and without its compiled extension.

Its queue, its page table and its cache pages are there; a forward pass computes nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch


class Compiled:
    """Stands for the compiled part, which needs a GPU's toolchain: none of it is there but two."""

    @staticmethod
    def count_match_tensor(a: torch.Tensor, b: torch.Tensor, most: int) -> int:
        """How many of the first `most` tokens are the same, up to the first that is not."""
        length = min(most, b.shape[-1])
        return int((a[0, :length] == b[0, :length]).long().cumprod(0).sum())

    @staticmethod
    def cache_rotate(cache: torch.Tensor, order: torch.Tensor, spare: torch.Tensor) -> None:
        """Copy pages as `order` says, in pairs (to, from); -1 is the spare one."""
        for to, source in order.view(-1, 2).tolist():
            (cache[to] if to >= 0 else spare).copy_(cache[source] if source >= 0 else spare)

    def __getattr__(self, name: str) -> None:
        return None


_stand_in = ModuleType("exllamav3.ext")
_stand_in.exllamav3_ext = Compiled()  # type: ignore[attr-defined]
sys.modules.setdefault("exllamav3.ext", _stand_in)

from exllamav3.constants import PAGE_SIZE  # noqa: E402 - after the stand-in
from exllamav3.generator.generator import Generator  # noqa: E402
from exllamav3.generator.job import Job  # noqa: E402
from exllamav3.generator.pagetable import CachePage, PageTable, is_content_hash  # noqa: E402
from exllamav3.generator.sampler import DefaultSampler  # noqa: E402

__all__ = ["PAGE_SIZE", "Face", "Headless", "Job", "faces", "is_content_hash", "is_whole"]

SAMPLER = DefaultSampler()
"""One for all jobs: making one takes half as long as the rest of a job."""


class Headless(Generator):  # type: ignore[misc]
    """The generator's queue and page table, and no model; the fields are as its own makes them."""

    def __init__(self, pages: int, head_dim: int) -> None:
        self.max_total_tokens, self.max_batch_size = pages * PAGE_SIZE, pages + 1
        self.max_chunk_size, self.max_draft_tokens, self.padded_vocab_size = 2048, 0, 32
        self.ngram_match_min = self.hybrid_draft_tokens = self.job_serial = 0
        self.mtp_draft = self.dflash_draft = False
        self.draft_model = self.recurrent_cache = self.disk_page_cache = self.ngram_corpus = None
        self.model = SimpleNamespace(
            caps={}, loaded_tp=False, output_device="cpu", prefill=_nothing_computed
        )
        self.cache = Pages(self.model, pages, head_dim)
        self.pagetable, self.enable_defrag = PageTable(self, self.cache), True
        self.pending_jobs: list[Any] = []
        self.active_jobs: list[Any] = []

    def start(self, tokens: list[int]) -> Any:
        """A job that has its pages, as `iterate` starts it; None if they are not there.

        It may go on to the end of the page in which its next token falls.
        """
        job = Job(torch.tensor([tokens]), max_rq_tokens=2, sampler=SAMPLER, seed=0)
        job.rng = None  # nothing is sampled, and its 625 numbers would be copied with each state
        self.enqueue(job)
        self.iterate_start_jobs([])
        if job in self.active_jobs:
            return job
        self.cancel(job)
        return None

    def reap_failed_job(self, job: object, error: Exception, results: object) -> None:
        raise error

    def on_queue_drained(self) -> None:
        self.pagetable.defrag()


class Pages:
    """The cache of one layer: what `Cache` and the model are asked for."""

    def __init__(self, model: Any, pages: int, head_dim: int) -> None:
        self.model, self.max_num_tokens = model, pages * PAGE_SIZE
        self.tensor = torch.zeros(pages, PAGE_SIZE, head_dim)

    def get_all_tensors(self) -> list[torch.Tensor]:
        return [self.tensor]

    def copy_page(self, target: Pages, source: int, to: int, tokens: int) -> None:
        """Copy the first tokens of a page, as `CacheLayer_fp16` does."""
        target.tensor[to, :tokens] = self.tensor[source, :tokens]


class Face(NamedTuple):
    """What a page is found by and evicted by."""

    hash: bytes
    parent: bytes | None
    serial: int
    filled: int


def faces(page: CachePage) -> list[Face]:
    """What a page is now, and then what it is again if it is given back unwritten."""
    now = Face(page.phash, page.prev_hash, page.access_serial, page.kv_position)
    if not page.can_revert:
        return [now]
    was = (page.phash_revert, page.prev_hash_revert)
    return [now, Face(*was, page.access_serial_revert, page.kv_position_revert)]


def is_whole(page: CachePage) -> bool:
    """Whether a page is found by its content, as `get_live_page` asks; changes nothing."""
    return bool(page.kv_position == PAGE_SIZE and is_content_hash(page.phash))


def _nothing_computed(**_: object) -> None:
    """The forward pass."""
