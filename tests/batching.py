"""The batched calls of the array-backed manager, behind the calls for single requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import numpy as np
import torch

from pagedkv import ArrayKVCacheManager, OutOfBlocks, Owned, Request
from pagedkv import Snapshot as Seen
from pagedkv.reference import already_holding, copied, fitting_length, misuse


class Batching:
    """Each call as a batch of two where there is room for a second request, else of one.

    The second one is admitted and released again, so that it leaves nothing behind: what came
    last off the free stack is the first to go back.
    """

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.inner = ArrayKVCacheManager(num_blocks, block_size, head_dim)
        self.num_blocks, self.block_size, self.head_dim = num_blocks, block_size, head_dim
        self.rows: dict[int, int] = {}
        self.live: dict[int, Request] = {}

    @property
    def physical_kv_cache(self) -> torch.Tensor:
        return self.inner.physical_kv_cache

    @property
    def free_blocks(self) -> list[int]:
        return self.inner.free_blocks

    def allocate_for_prefill(self, req: Request) -> None:
        live = self.live.get(req.request_id)
        if live is not None or len(req.block_table):
            raise already_holding(req, live)
        try:
            row, beside = self.inner.prefill_rows(np.array([req.seq_len, 1])).tolist()
            self.inner.release_rows(np.array([beside]))
        except OutOfBlocks:
            try:
                (row,) = self.inner.prefill_rows(np.array([req.seq_len])).tolist()
            except OutOfBlocks as error:
                raise OutOfBlocks(req.request_id, error.needed, error.available) from None
        self.rows[req.request_id], self.live[req.request_id] = row, req
        req.block_table = self.inner._table(row)

    def allocate_for_decode(self, req: Request) -> None:
        row = self._row("decode", req)
        fitting_length(req, len(req.block_table), self.block_size, "decode")
        try:
            self.inner.decode_rows(np.array([row]))
        except OutOfBlocks as error:
            raise OutOfBlocks(req.request_id, error.needed, error.available) from None
        req.seq_len += 1
        req.block_table = self.inner._table(row)

    def release_request(self, req: Request) -> None:
        row = self._row("release", req)
        try:
            beside = self.inner.prefill_rows(np.array([1])).tolist()
        except OutOfBlocks:
            beside = []
        self.inner.release_rows(np.array([*beside, row]))
        del self.rows[req.request_id], self.live[req.request_id]
        req.block_table = []

    def allocation_report(self, req: Request) -> dict[str, float]:
        return self.inner.allocation_report(req)

    def get_physical_cache(self, req: Request) -> torch.Tensor:
        return self.inner.get_physical_cache(req)

    def snapshot(self) -> Seen:
        seen = self.inner.snapshot()
        names = {~row: name for name, row in self.rows.items()}
        assert seen.reverse_map is not None
        return replace(
            seen,
            block_tables={names[row]: table for row, table in seen.block_tables.items()},
            seq_lens={names[row]: length for row, length in seen.seq_lens.items()},
            reverse_map=frozenset(
                Owned(names[int(row)], i, block) for row, i, block in seen.reverse_map
            ),
        )

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        return self.inner.state_key({~row: names[name] for name, row in self.rows.items()})

    def clone(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        memo: dict[int, object] = {}
        handles = {name: copied(handle, memo) for name, handle in requests.items()}
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.inner, _ = self.inner.clone({})
        twin.rows = dict(self.rows)
        twin.live = {name: copied(handle, memo) for name, handle in self.live.items()}
        return twin, handles

    def _row(self, action: str, req: Request) -> int:
        """The row of exactly this handle; raises MisuseError unless its table agrees."""
        row = self.rows.get(req.request_id)
        held = None
        if row is not None and self.live[req.request_id] is req:
            held = self.inner._table(row)
            if held == list(req.block_table):
                return row
        raise misuse(action, req, held, self.num_blocks, self._holder)

    def _holder(self, block: int) -> Request | None:
        for name, row in self.rows.items():
            if block in self.inner._table(row):
                return self.live[name]
        return None
