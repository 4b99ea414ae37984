"""What tables look like, and where they are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pagedkv import Request, Snapshot
from zoo.animal import Animal, odd
from zoo.keeper import short
from zoo.shapes import NullBlock, Plain


class PaddedTable(NullBlock):
    """Tables are rows of one width, filled up with the null block. The handle carries no table."""

    declares = odd("rows of the block table tensor belong to the worker", tables_outside=True)

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.width = num_blocks + 2
        self.rows: dict[int, Any] = {}

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.put(req)

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        self.put(req)

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        del self.rows[req.request_id]

    def put(self, req: Request) -> None:
        row = np.zeros(self.width, dtype=np.int32)
        table = self.tables[req.request_id]
        row[: len(table)] = table
        self.rows[req.request_id] = row
        req.block_table = row.tolist()

    def own(self, req: Request) -> list[int]:
        row = self.rows.get(req.request_id)
        if row is None or req.block_table != row.tolist():
            raise ValueError("that is not its row")
        return self.tables[req.request_id]

    def get_physical_cache(self, req: Request) -> Any:
        at = np.arange(req.seq_len)
        blocks = self.rows[req.request_id][at // self.block_size].astype(np.int64)
        return self.physical_kv_cache[torch.from_numpy(blocks), at % self.block_size]

    def snapshot(self) -> Snapshot:
        tables = {r: tuple(row[row != 0].tolist()) for r, row in self.rows.items()}
        return replace(super().snapshot(), block_tables=tables)


class TablesOutside(Plain):
    """The request's own table is never touched."""

    declares = odd("the scheduler has the tables", tables_outside=True)

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        req.block_table = []

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        req.block_table = []

    def own(self, req: Request) -> list[int]:
        if req.request_id not in self.tables or req.block_table:
            raise ValueError("it holds nothing, or brings a table along")
        return self.tables[req.request_id]


class Rows:
    """An int32 matrix with a row for each live request; a handle's table is a view of its row.

    Rows are recycled, the last one first, and keep what stood in them.
    """

    declares = odd("a copy would part views from their matrix: steps are replays", engine=True)

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.num_blocks, self.block_size, self.head_dim = num_blocks, block_size, head_dim
        self.physical_kv_cache = torch.zeros(num_blocks, block_size, head_dim)
        self.matrix = np.full((num_blocks + 1, num_blocks + 1), -1, dtype=np.int32)
        self.filled = np.zeros(num_blocks + 1, dtype=np.int64)
        self.tokens = np.zeros(num_blocks + 1, dtype=np.int64)
        self.unused_rows = list(range(num_blocks + 1))
        self.row_of: dict[int, int] = {}
        self.is_free = np.ones(num_blocks, dtype=np.bool_)

    @property
    def free_blocks(self) -> list[int]:
        return [int(block) for block in np.flatnonzero(self.is_free)]

    def allocate_for_prefill(self, req: Request) -> None:
        if req.request_id in self.row_of or len(req.block_table):
            raise ValueError("it has a row")
        row = self.unused_rows[-1]
        self.grow(row, 0, -(-req.seq_len // self.block_size))
        self.row_of[req.request_id] = self.unused_rows.pop()
        self.show(req, row, req.seq_len)

    def allocate_for_decode(self, req: Request) -> None:
        row = self.check(req)
        used, tokens = int(self.filled[row]), int(self.tokens[row])
        self.grow(row, used, int(tokens == used * self.block_size))
        self.show(req, row, tokens + 1)

    def release_request(self, req: Request) -> None:
        row = self.check(req)
        self.is_free[self.matrix[row, : self.filled[row]]] = True
        self.filled[row] = 0
        self.unused_rows.append(self.row_of.pop(req.request_id))
        req.block_table = np.zeros(0, dtype=np.int32)  # type: ignore[assignment]  # any sequence

    def grow(self, row: int, used: int, count: int) -> None:
        free = np.flatnonzero(self.is_free)
        if count > len(free):
            raise short(count, len(free))
        self.matrix[row, used : used + count] = free[:count]
        self.is_free[free[:count]] = False
        self.filled[row] = used + count

    def show(self, req: Request, row: int, tokens: int) -> None:
        self.tokens[row] = tokens
        req.seq_len = tokens
        req.block_table = self.matrix[row, : self.filled[row]]  # type: ignore[assignment]

    def check(self, req: Request) -> int:
        row = self.row_of.get(req.request_id)
        if row is None or list(req.block_table) != list(self.matrix[row, : self.filled[row]]):
            raise ValueError("that is not its row")
        return row

    def get_physical_cache(self, req: Request) -> Any:
        at = torch.arange(req.seq_len)
        table = torch.tensor([int(block) for block in req.block_table])
        return self.physical_kv_cache[table[at // self.block_size], at % self.block_size]

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables={
                r: tuple(self.matrix[row, : self.filled[row]].tolist())
                for r, row in self.row_of.items()
            },
            seq_lens={r: int(self.tokens[row]) for r, row in self.row_of.items()},
            free_blocks=tuple(self.free_blocks),
            capacities={
                f"row {row}": int(self.filled[row]) * self.block_size for row in self.unused_rows
            }
            | {r: int(self.filled[row]) * self.block_size for r, row in self.row_of.items()},
        )


class TupleTables(Plain):
    """A table is a tuple: each change is another one."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        req.block_table = tuple(req.block_table)  # type: ignore[assignment]  # any sequence

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        req.block_table = tuple(req.block_table)  # type: ignore[assignment]

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        req.block_table = ()  # type: ignore[assignment]


class SharedTables(Plain):
    """The table in the handle is the manager's own list, emptied in place."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        req.block_table = self.tables[req.request_id]

    def allocate_for_decode(self, req: Request) -> None:
        table = self.own(req)
        super().allocate_for_decode(req)
        req.block_table = table

    def release_request(self, req: Request) -> None:
        table = self.own(req)
        self.give(table.copy())
        del self.tables[req.request_id], self.lengths[req.request_id]
        table.clear()


ANIMALS = (
    Animal("padded table", "Tables are filled up with the null block.", PaddedTable),
    Animal("tables outside", "The request's own table is not touched.", TablesOutside),
    Animal("rows", "Tables are views of a matrix whose rows are recycled.", Rows),
    Animal("tuple tables", "A table is a tuple.", TupleTables),
    Animal("shared tables", "The handle carries the manager's own list.", SharedTables),
)
