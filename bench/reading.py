"""`get_physical_cache` beside a plain copy of as many contiguous bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from bench.harness import Case, Group, Round, timed
from pagedkv import ArrayKVCacheManager, Request

SIZE, DIM = 16, 1024
"""A block is 64 KiB: what one layer keeps of 16 tokens, 8 heads of 128, keys or values, float32."""


def reading(largest: int = 2**26) -> Iterator[Group]:
    """From 1 KiB on, contiguous and scattered tables, into fresh memory and into the same."""
    sizes = [n for n in (2**10, 2**16, 2**20, 2**24, 2**26, 2**28, 2**30) if n <= largest]
    for total in sizes:
        size, dim = (SIZE, DIM) if total >= 2**16 else (4, 16)
        tokens = total // (4 * dim)
        pool = _Pool(tokens, size, dim)
        cases = [
            Case("plain copy, fresh", partial(pool.copy, fresh=True)),
            Case("plain copy, out=", partial(pool.copy, fresh=False)),
            *(
                Case(f"{kind}, {how}", partial(pool.read, kind, how == "fresh"))
                for kind in ("contiguous", "scattered")
                for how in ("fresh", "out=")
            ),
        ]
        title = f"Reconstruction of {total / 2**20:g} MiB in blocks of {4 * size * dim:,} bytes"
        yield Group(title, "read", "plain copy, out=", cases)


class _Pool:
    """A pool of twice the blocks that are read, made when it is first used."""

    def __init__(self, tokens: int, size: int, dim: int) -> None:
        self.tokens, self.size, self.dim = tokens, size, dim
        self.held: ArrayKVCacheManager | None = None

    @property
    def manager(self) -> ArrayKVCacheManager:
        if self.held is None:
            self.held = ArrayKVCacheManager(2 * self.tokens // self.size, self.size, self.dim)
            self.held.physical_kv_cache.fill_(1)
        return self.held

    def copy(self, fresh: bool) -> Round:
        source = self.manager.physical_kv_cache.view(-1, self.dim)[: self.tokens]
        out = torch.empty_like(source)
        work = source.clone if fresh else lambda: out.copy_(source)
        return self._repeated(work)

    def read(self, kind: str, fresh: bool) -> Round:
        manager = self.manager
        request = Request(0, 1)
        request.seq_len = self.tokens
        blocks = np.arange(manager.num_blocks)
        if kind == "scattered":
            blocks = np.random.default_rng(0).permutation(blocks)
        request.block_table = blocks[: self.tokens // self.size].tolist()
        out = None if fresh else torch.empty(self.tokens, self.dim)
        return self._repeated(lambda: manager.get_physical_cache(request, out=out))

    def _repeated(self, work: object) -> Round:
        times = max(1, 2**22 // (4 * self.tokens * self.dim))
        times = min(times, 500)

        def many() -> None:
            for _ in range(times):
                work()  # type: ignore[operator]  # either a method or a lambda

        return lambda: timed(times, many)
