"""State that an observer does not see: clocks, generations, locks, closures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from pagedkv import Declarations, Request
from zoo.animal import Animal
from zoo.keeper import short
from zoo.shapes import Plain


class Clock(Plain):
    """Counts its calls; nothing depends on it, and nothing is said about it."""

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.calls = 0

    def own(self, req: Request) -> list[int]:
        self.calls += 1
        return super().own(req)


class Statistics(Plain):
    """Counts what it handed out, and says that this means nothing."""

    declares = Declarations(meaningless={"handed_out": "a statistic, only ever added to"})

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.handed_out = 0

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = super().take(count, table)
        self.handed_out += count
        return taken


class Generations(Plain):
    """Each block has a generation, and each table those of its blocks: stale tables are told."""

    declares = Declarations(
        meaningless={
            "generation": "only compared with what the tables noted",
            "noted": "only compared with the blocks' generation",
        }
    )

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.generation = [0] * num_blocks
        self.noted: dict[int, list[int]] = {}

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.note(req)

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        self.note(req)

    def note(self, req: Request) -> None:
        self.noted[req.request_id] = [self.generation[block] for block in req.block_table]

    def own(self, req: Request) -> list[int]:
        table = super().own(req)
        if self.noted[req.request_id] != [self.generation[block] for block in table]:
            raise ValueError("the table is stale")
        return table

    def give(self, blocks: list[int]) -> None:
        super().give(blocks)
        for block in blocks:
            self.generation[block] += 1


class Locked(Plain):
    """Every call holds a lock; what numbers its releases can be neither copied nor looked into."""

    declares = Declarations(meaningless={"numbers": "for a log that nothing reads"})

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.lock = threading.Lock()
        self.numbers = (n for n in range(1 << 40))

    def allocate_for_prefill(self, req: Request) -> None:
        with self.lock:
            super().allocate_for_prefill(req)

    def allocate_for_decode(self, req: Request) -> None:
        with self.lock:
            super().allocate_for_decode(req)

    def release_request(self, req: Request) -> None:
        with self.lock:
            super().release_request(req)
            next(self.numbers)


def closures(num_blocks: int, block_size: int, head_dim: int) -> Any:
    """No class at all: three functions over shared variables, which a copy would go on sharing."""
    free, held = list(range(num_blocks)), dict[int, list[int]]()

    def take(count: int) -> list[int]:
        if count > len(free):
            raise short(count, len(free))
        taken = free[:count]
        del free[:count]
        return taken

    def own(req: Request) -> list[int]:
        if req.request_id not in held or held[req.request_id] != req.block_table:
            raise ValueError("these are not its blocks")
        return held[req.request_id]

    def prefill(req: Request) -> None:
        if req.request_id in held or req.block_table:
            raise ValueError("it holds blocks")
        held[req.request_id] = take(-(-req.seq_len // block_size))
        req.block_table = list(held[req.request_id])

    def decode(req: Request) -> None:
        table = own(req)
        if req.seq_len % block_size == 0:
            table.extend(take(1))
        req.block_table, req.seq_len = list(table), req.seq_len + 1

    def release(req: Request) -> None:
        free.extend(own(req))
        del held[req.request_id]
        req.block_table = []

    calls: dict[str, Callable[[Request], None]] = {
        "allocate_for_prefill": prefill,
        "allocate_for_decode": decode,
        "release_request": release,
    }
    return SimpleNamespace(free_blocks=free, **calls)


class Publishes(Plain):
    """Wants to be told that the tokens of the last call were computed before the next one."""

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.published: dict[int, int] = {}

    def computed(self, req: Request) -> None:
        self.published[req.request_id] = req.seq_len

    def own(self, req: Request) -> list[int]:
        table = super().own(req)
        if self.published.get(req.request_id) != req.seq_len:
            raise RuntimeError(f"tokens of request {req.request_id} were never computed")
        return table

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        del self.published[req.request_id]


class MovesItsTensor(Plain):
    """Each release puts a copy in the place of the tensor, as a defragmentation does."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.physical_kv_cache = torch.zeros(num_blocks, block_size, head_dim)

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        self.physical_kv_cache = self.physical_kv_cache.clone()


class Queued(Plain):
    """Numbers its requests as they come, and keeps that number as long as they live."""

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.ticket, self.tickets = 0, dict[int, int]()

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.ticket = (self.ticket + 1) % 4
        self.tickets[req.request_id] = self.ticket

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        del self.tickets[req.request_id]


ANIMALS = (
    Animal("clock", "Counts its calls for ever, undeclared.", Clock),
    Animal("statistics", "Counts for ever, declared as meaningless.", Statistics),
    Animal("generations", "Blocks and tables carry generations.", Generations),
    Animal("locked", "Holds a lock, and a generator, which can't be copied.", Locked),
    Animal("closures", "Three functions that share variables.", closures),
    Animal("publishes", "Needs to be told what was computed.", Publishes),
    Animal("moves its tensor", "Each release makes the tensor anew.", MovesItsTensor),
    Animal("queued", "Gives tickets of its own to requests, round and round.", Queued),
)
