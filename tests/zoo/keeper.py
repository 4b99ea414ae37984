"""What several animals share: the books of who holds what. Where blocks come from is theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from pagedkv import Declarations, Request, Snapshot


class Keeper(ABC):
    """Keeps the tables by request id and checks every call; `take` and `give` keep the blocks."""

    declares: ClassVar[Declarations] = Declarations()

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size = block_size
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.stock(num_blocks)

    @abstractmethod
    def stock(self, num_blocks: int) -> None:
        """Begin with so many free blocks."""

    @abstractmethod
    def take(self, count: int, table: list[int]) -> list[int]:
        """Hand out `count` blocks for the request that holds `table`, or raise; all or nothing."""

    @abstractmethod
    def give(self, blocks: list[int]) -> None:
        """Take blocks back."""

    @abstractmethod
    def free(self) -> Iterable[int] | None:
        """What the next call can hand out, in order."""

    def allocate_for_prefill(self, req: Request) -> object:
        if req.request_id in self.tables or len(req.block_table):
            raise ValueError(f"request {req.request_id} holds blocks")
        blocks = self.take(-(-req.seq_len // self.block_size), [])
        self.tables[req.request_id] = blocks
        self.lengths[req.request_id] = req.seq_len
        req.block_table = list(blocks)
        return None

    def allocate_for_decode(self, req: Request) -> object:
        table = self.own(req)
        if self.lengths[req.request_id] == len(table) * self.block_size:
            table += self.take(1, table)
            req.block_table = list(table)
        self.lengths[req.request_id] += 1
        req.seq_len += 1
        return None

    def release_request(self, req: Request) -> object:
        self.give(self.own(req))
        del self.tables[req.request_id], self.lengths[req.request_id]
        req.block_table = []
        return None

    def own(self, req: Request) -> list[int]:
        """The table of a request that carries the one it was given; raises for any other."""
        table = self.tables.get(req.request_id)
        if table is None or list(req.block_table) != table:
            raise ValueError(f"request {req.request_id} holds {table}, not {req.block_table}")
        return table

    def snapshot(self) -> Snapshot:
        free = self.free()
        return Snapshot(
            block_tables={r: tuple(table) for r, table in self.tables.items()},
            seq_lens=self.lengths,
            free_blocks=None if free is None else tuple(free),
        )


def short(needed: int, available: int) -> RuntimeError:
    """Out of blocks, as the protocol tells it."""
    return RuntimeError(f"OOM: {needed} block(s) needed, {available} available")
