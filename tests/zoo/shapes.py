"""What ids blocks have, and how much of it all can be seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from pagedkv import Owned, Request, Snapshot
from zoo.animal import Animal, odd
from zoo.keeper import Keeper, short


class Plain(Keeper):
    """A list; what is odd is elsewhere."""

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.pool):
            raise short(count, len(self.pool))
        taken, self.pool = self.pool[:count], self.pool[count:]
        return taken

    def give(self, blocks: list[int]) -> None:
        self.pool = blocks + self.pool

    def free(self) -> Iterable[int] | None:
        return self.pool


class NullBlock(Plain):
    """Block 0 is for padding, in the pool's tensor and never handed out."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.physical_kv_cache = torch.zeros(num_blocks + 1, block_size, head_dim)

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(1, num_blocks + 1))
        self.usable = frozenset(self.pool)

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), reserved=frozenset({0}), blocks=self.usable)


class NullBlocksAbove(Plain):
    """The two blocks above the pool are for padding; there is no tensor."""

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.reserved = frozenset({num_blocks, num_blocks + 1})

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), reserved=self.reserved)


class FromOne(Plain):
    """Blocks are counted from 1, and nothing is reserved."""

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(1, num_blocks + 1))
        self.usable = frozenset(self.pool)

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), blocks=self.usable)


class Spaced(FromOne):
    """Blocks are named by their address, descending."""

    def stock(self, num_blocks: int) -> None:
        self.pool = [4096 + 64 * block for block in reversed(range(num_blocks))]
        self.usable = frozenset(self.pool)


class RoundsUp(FromOne):
    """Pools are even: who asks for three gets four, and the snapshot says so."""

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(num_blocks + num_blocks % 2))
        self.usable = frozenset(self.pool)


class Counted(Plain):
    """Of the free list only its length is told."""

    def free(self) -> None:
        return None

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), num_free=len(self.pool))


class Unseen(Plain):
    """Of the free list nothing is told."""

    def free(self) -> None:
        return None


class Bare:
    """Three calls and nothing else: no free list, no snapshot, no tensor, slots only."""

    __slots__ = ("_left", "_owner", "_size")

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self._size, self._left = block_size, list(range(num_blocks))
        self._owner: dict[int, Request] = {}

    def allocate_for_prefill(self, req: Request) -> None:
        if req.block_table:
            raise ValueError("it has a table")
        self._grow(req, -(-req.seq_len // self._size))

    def allocate_for_decode(self, req: Request) -> None:
        self._check(req)
        self._grow(req, int(req.seq_len % self._size == 0))
        req.seq_len += 1

    def release_request(self, req: Request) -> None:
        self._check(req)
        for block in req.block_table:
            del self._owner[block]
        self._left += req.block_table
        req.block_table = []

    def _grow(self, req: Request, count: int) -> None:
        if count > len(self._left):
            raise short(count, len(self._left))
        for _ in range(count):
            block = self._left.pop()
            self._owner[block] = req
            req.block_table.append(block)

    def _check(self, req: Request) -> None:
        own = [block for block, owner in self._owner.items() if owner is req]
        if not own or sorted(own) != sorted(req.block_table):
            raise ValueError("these are not its blocks")


class Backwards(Plain):
    """Within a block tokens are stored from the end; `slots` says where."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.physical_kv_cache = torch.zeros(num_blocks, block_size, head_dim)

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        size, table = self.block_size, self.tables[req.request_id]
        return [(0, table[p // size], size - 1 - p % size) for p in range(req.seq_len)]

    def get_physical_cache(self, req: Request) -> Any:
        return torch.stack([self.physical_kv_cache[b, offset] for _, b, offset in self.slots(req)])


class Indexed(Plain):
    """Reference counts, a reverse map, capacities, a counter and a report, all kept by hand."""

    def stock(self, num_blocks: int) -> None:
        super().stock(num_blocks)
        self.references = [0] * num_blocks
        self.place: dict[int, tuple[int, int]] = {}
        self.count = num_blocks
        self.room: dict[int | str, int] = {}

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = super().take(count, table)
        for block in taken:
            self.references[block] += 1
        self.count -= count
        return taken

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.references[block] -= 1
            del self.place[block]
        self.count += len(blocks)
        super().give(blocks)

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.index(req)

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        self.index(req)

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        del self.room[req.request_id]

    def index(self, req: Request) -> None:
        self.room[req.request_id] = len(req.block_table) * self.block_size
        self.place.update({b: (req.request_id, i) for i, b in enumerate(req.block_table)})

    def allocation_report(self, req: Request) -> dict[str, float]:
        room = self.room[req.request_id]
        return {
            "logical_tokens": req.seq_len,
            "allocated_tokens": room,
            "unused_tail_tokens": room - req.seq_len,
            "utilization": req.seq_len / room,
        }

    def snapshot(self) -> Snapshot:
        return replace(
            super().snapshot(),
            num_free=self.count,
            ref_counts=dict(enumerate(self.references)),
            reverse_map=frozenset(Owned(r, i, b) for b, (r, i) in self.place.items()),
            capacities=self.room,
        )


class EvenSizes(Plain):
    """Blocks of 2 or 4 tokens, nothing else."""

    declares = odd("the kernel has two block sizes", block_sizes=(2, 4))

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        if block_size not in (2, 4):
            raise ValueError(f"block_size = {block_size} is neither 2 nor 4")
        super().__init__(num_blocks, block_size, head_dim)


class EvenPools(Plain):
    """An even number of blocks."""

    declares = odd("blocks lie on two devices", pool_multiple=2)

    def stock(self, num_blocks: int) -> None:
        if num_blocks % 2:
            raise ValueError(f"num_blocks = {num_blocks} is not even")
        super().stock(num_blocks)


ANIMALS = (
    Animal("null block", "Block 0 is reserved.", NullBlock),
    Animal("null blocks above", "The two highest blocks are reserved.", NullBlocksAbove),
    Animal("from one", "Blocks are counted from 1.", FromOne),
    Animal("spaced", "Block ids are addresses, far apart.", Spaced),
    Animal("rounds up", "Pools are made even.", RoundsUp),
    Animal("counted", "Of the free list only its length is told.", Counted),
    Animal("unseen", "The free list can't be seen.", Unseen),
    Animal("bare", "No snapshot, no free list, no tensor.", Bare),
    Animal("backwards", "Within a block tokens are stored from the end.", Backwards),
    Animal("indexed", "Every index structure that a snapshot has room for.", Indexed),
    Animal("even sizes", "Only blocks of 2 or 4 tokens.", EvenSizes),
    Animal("even pools", "Only an even number of blocks.", EvenPools),
)
