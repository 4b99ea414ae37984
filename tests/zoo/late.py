"""When blocks that were given back can be handed out again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from pagedkv import Declarations, Request, Snapshot
from zoo.animal import Animal, odd
from zoo.keeper import Keeper, short


class NextCall(Keeper):
    """A copy may still be reading: what a call gives back is free after the next granted call."""

    declares = odd("the step after the release may still read the blocks", late_calls=1)

    def stock(self, num_blocks: int) -> None:
        self.pool, self.waiting = list(range(num_blocks)), list[int]()

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.pool):
            raise short(count, len(self.pool))
        taken, self.pool = self.pool[:count], self.pool[count:]
        return taken

    def give(self, blocks: list[int]) -> None:
        self.pool, self.waiting = self.pool + self.waiting, list(blocks)

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.give([])

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        self.give([])

    def free(self) -> Iterable[int] | None:
        return self.pool

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), pending=dict.fromkeys(self.waiting, 1))


class NextCallUnseen(NextCall):
    """The same, but only the number of free blocks can be seen, and what waits."""

    def free(self) -> None:
        return None

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), num_free=len(self.pool))


class NextCallUncounted(NextCall):
    """The same, and not even that number is told."""

    def free(self) -> None:
        return None


class TwoCalls:
    """A ring of two stages that every call turns, a refused one and wrong use too."""

    declares = odd("three steps are in flight; every call is a step", late_calls=2)

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.size, self.pool = block_size, list(range(num_blocks))
        self.stages: tuple[list[int], list[int]] = ([], [])
        self.rows: dict[int, list[int]] = {}
        self.tokens: dict[int, int] = {}

    def turn(self, blocks: list[int]) -> None:
        self.pool += self.stages[0]
        self.stages = (self.stages[1], blocks)

    def grab(self, count: int) -> list[int]:
        if count > len(self.pool):
            raise short(count, len(self.pool))
        taken = self.pool[:count]
        del self.pool[:count]
        return taken

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            if req.request_id in self.rows:
                raise ValueError("it has a row already")
            self.rows[req.request_id] = self.grab(-(-req.seq_len // self.size))
            self.tokens[req.request_id] = req.seq_len
            req.block_table = self.rows[req.request_id].copy()
        finally:
            self.turn([])

    def allocate_for_decode(self, req: Request) -> None:
        try:
            row = self.row_of(req)
            if req.seq_len % self.size == 0:
                row += self.grab(1)
            self.tokens[req.request_id] = req.seq_len = req.seq_len + 1
            req.block_table = row.copy()
        finally:
            self.turn([])

    def release_request(self, req: Request) -> None:
        blocks: list[int] = []
        try:
            blocks = self.row_of(req)
            del self.rows[req.request_id], self.tokens[req.request_id]
            req.block_table = []
        finally:
            self.turn(blocks)

    def row_of(self, req: Request) -> list[int]:
        if not req.block_table or self.rows.get(req.request_id) != req.block_table:
            raise ValueError("that is not its row")
        return self.rows[req.request_id]

    def snapshot(self) -> Snapshot:
        soon, later = self.stages
        return Snapshot(
            block_tables={r: tuple(row) for r, row in self.rows.items()},
            seq_lens=self.tokens,
            free_blocks=tuple(self.pool),
            num_free=len(self.pool),
            pending={**dict.fromkeys(soon, 1), **dict.fromkeys(later, 2)},
        )


class Pairs(Keeper):
    """Blocks go back in groups of `group`; a group that is not full yet waits."""

    group = 2
    declares = odd("frees are batched in pairs", late_blocks=1)

    def stock(self, num_blocks: int) -> None:
        self.pool, self.batch = list(range(num_blocks)), list[int]()

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.pool):
            raise short(count, len(self.pool))
        return [self.pool.pop() for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        self.batch += blocks
        full = len(self.batch) // self.group * self.group
        self.pool += self.batch[:full]
        self.batch = self.batch[full:]

    def free(self) -> Iterable[int]:
        return self.pool[::-1]

    def snapshot(self) -> Snapshot:
        waits_for = self.group - len(self.batch)
        return replace(super().snapshot(), pending=dict.fromkeys(self.batch, waits_for))


class Triples(Pairs):
    group = 3
    declares = odd("frees are batched in threes", late_blocks=2)


class Evictor(Keeper):
    """What is given back stays cached, and is evicted, oldest first, when nothing else is free."""

    declares = Declarations()

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(num_blocks))
        self.cache: OrderedDict[int, None] = OrderedDict()

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.pool) + len(self.cache):
            raise short(count, len(self.pool) + len(self.cache))
        return [
            self.pool.pop(0) if self.pool else self.cache.popitem(last=False)[0]
            for _ in range(count)
        ]

    def give(self, blocks: list[int]) -> None:
        self.cache.update(dict.fromkeys(blocks))

    def free(self) -> Iterable[int]:
        return self.pool

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), cached=frozenset(self.cache))


ANIMALS = (
    Animal("next call", "Blocks are free again after the next granted call.", NextCall),
    Animal("next call, counted", "The same; of the free list only its length.", NextCallUnseen),
    Animal("next call, unseen", "The same, and no free list is to be seen.", NextCallUncounted),
    Animal("two calls", "Blocks are free two calls later; refused calls count.", TwoCalls),
    Animal("pairs", "Blocks are given back two at a time.", Pairs),
    Animal("triples", "Blocks are given back three at a time.", Triples),
    Animal("evictor", "Blocks given back stay cached and are evicted on demand.", Evictor),
)
