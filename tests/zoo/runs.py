"""How many blocks are taken at once, and which belong together."""

from __future__ import annotations

from collections.abc import Iterable

from pagedkv import Declarations, Request, Snapshot
from zoo.animal import Animal, odd
from zoo.keeper import Keeper, short


class BestFit(Keeper):
    """A table is one run of neighbours, from the smallest gap that has room; it grows in place."""

    declares = Declarations(
        refuses_early=True,
        never_reached={"table-scattered": "a table is one run"},
        because={"refuses_early": "there may be room, but not side by side"},
    )

    def stock(self, num_blocks: int) -> None:
        self.used = [False] * num_blocks

    def gaps(self) -> list[range]:
        """The runs of free blocks."""
        gaps, start = list[range](), None
        for block, used in enumerate([*self.used, True]):
            if used and start is not None:
                gaps.append(range(start, block))
                start = None
            elif not used and start is None:
                start = block
        return gaps

    def take(self, count: int, table: list[int]) -> list[int]:
        if table:
            fitting = [gap for gap in self.gaps() if gap.start == table[-1] + 1]
        else:
            fitting = [gap for gap in self.gaps() if len(gap) >= count]
        if not fitting:
            raise short(count, max(map(len, self.gaps()), default=0))
        taken = list(min(fitting, key=len)[:count])
        for block in taken:
            self.used[block] = True
        return taken

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.used[block] = False

    def free(self) -> Iterable[int]:
        return [block for gap in sorted(self.gaps(), key=len) for block in gap]


class Buddy:
    """Chunks of a power of two, split in halves and merged with their buddies again.

    A table is a whole chunk, or several; what a prompt does not fill is room to grow.
    """

    declares = odd(
        "a chunk of a power of two is handed out whole, and only if there is one",
        lookahead=3,
        refuses_early=True,
        max_blocks=8,
    )

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size = block_size
        self.chunks: dict[int, set[int]] = {1: set(), 2: set(), 4: set(), 8: set()}
        self.held: dict[Request, list[range]] = {}
        start = 0
        for size in (8, 4, 2, 1):
            if num_blocks & size:
                self.chunks[size].add(start)
                start += size

    def chunk(self, size: int) -> range:
        """A chunk of exactly `size`, from the smallest that there is; raises if none is left."""
        fitting = [s for s in self.chunks if s >= size and self.chunks[s]]
        if not fitting:
            raise short(size, max((s for s in self.chunks if self.chunks[s]), default=0))
        have = min(fitting)
        start = min(self.chunks[have])
        self.chunks[have].remove(start)
        while have > size:
            have //= 2
            self.chunks[have].add(start + have)
        return range(start, start + size)

    def merge(self, chunk: range) -> None:
        start, size = chunk.start, len(chunk)
        while size < 8 and start ^ size in self.chunks[size]:
            self.chunks[size].remove(start ^ size)
            start, size = min(start, start ^ size), size * 2
        self.chunks[size].add(start)

    def allocate_for_prefill(self, req: Request) -> None:
        if req in self.held or req.block_table:
            raise ValueError("prefill of a request that holds chunks")
        need = -(-req.seq_len // self.block_size)
        if need > 8:
            raise short(need, 8)
        chunk = self.chunk(1 << (need - 1).bit_length())
        self.held[req], req.block_table = [chunk], list(chunk)

    def allocate_for_decode(self, req: Request) -> None:
        self.check(req)
        if req.seq_len == len(req.block_table) * self.block_size:
            chunk = self.chunk(1)
            self.held[req].append(chunk)
            req.block_table = [*req.block_table, *chunk]
        req.seq_len += 1

    def release_request(self, req: Request) -> None:
        self.check(req)
        for chunk in self.held.pop(req):
            self.merge(chunk)
        req.block_table = []

    def check(self, req: Request) -> None:
        if [block for chunk in self.held.get(req, ()) for block in chunk] != req.block_table:
            raise ValueError(f"{req} does not hold its table")
        if not req.block_table:
            raise ValueError(f"{req} holds nothing")

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables={
                req.request_id: tuple(block for chunk in chunks for block in chunk)
                for req, chunks in self.held.items()
            },
            seq_lens={req.request_id: req.seq_len for req in self.held},
            free_blocks=tuple(
                block
                for size, starts in self.chunks.items()
                for start in sorted(starts)
                for block in range(start, start + size)
            ),
        )


class Slabs(Keeper):
    """Two levels: slabs of two blocks, and a free list in each; the fullest slab first."""

    def stock(self, num_blocks: int) -> None:
        blocks = range(num_blocks)
        self.slabs = [list(blocks[i : i + 2]) for i in range(0, num_blocks, 2)]

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = list(self.free())[:count]
        if count > len(taken):
            raise short(count, len(taken))
        for block in taken:
            self.slabs[block // 2].remove(block)
        return taken

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.slabs[block // 2].append(block)

    def free(self) -> Iterable[int]:
        return [block for slab in sorted(self.slabs, key=len) for block in slab]


class Arenas(Keeper):
    """Each request has arenas of two blocks for itself, filled before the next one is taken."""

    declares = odd(
        "a request takes two neighbours at once, and the second may wait for its tokens",
        lookahead=1,
    )

    def stock(self, num_blocks: int) -> None:
        self.arenas = list(range(num_blocks // 2))
        self.left_over = [num_blocks - 1] if num_blocks % 2 else []

    def take(self, count: int, table: list[int]) -> list[int]:
        arenas = -(-count // 2)
        if not table and count == 1 and self.left_over:
            return [self.left_over.pop()]
        if arenas > len(self.arenas):
            raise short(arenas * 2, len(self.arenas) * 2)
        taken, self.arenas = self.arenas[:arenas], self.arenas[arenas:]
        return [block for arena in taken for block in (2 * arena, 2 * arena + 1)]

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            if block % 2:
                self.arenas.append(block // 2)
            elif block + 1 not in blocks:
                self.left_over.append(block)

    def free(self) -> Iterable[int]:
        return [*self.left_over, *(b for a in self.arenas for b in (2 * a, 2 * a + 1))]


class Lookahead(Keeper):
    """One block more than is needed, whenever there is one to spare."""

    declares = odd("a spare block hides the wait at a block's edge", lookahead=1)

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.pool):
            raise short(count, len(self.pool))
        taken, self.pool = self.pool[: count + 1], self.pool[count + 1 :]
        return taken

    def give(self, blocks: list[int]) -> None:
        self.pool = blocks + self.pool

    def free(self) -> Iterable[int]:
        return self.pool


class Doubling(Lookahead):
    """A table grows like a vector, to twice its size, as far as there are blocks."""

    declares = odd("growth is geometric", lookahead=3)

    def take(self, count: int, table: list[int]) -> list[int]:
        if count > len(self.pool):
            raise short(count, len(self.pool))
        wanted = max(count, min(len(table), 4))
        taken, self.pool = self.pool[:wanted], self.pool[wanted:]
        return taken


class Watermark(Keeper):
    """Prompts leave one block over, so that the requests that run can go on."""

    declares = odd("admission keeps a watermark of one block", refuses_early=True)

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        left = len(self.pool) - (0 if table else 1)
        if count > left:
            raise short(count, left)
        taken, self.pool = self.pool[:count], self.pool[count:]
        return taken

    def give(self, blocks: list[int]) -> None:
        self.pool += blocks

    def free(self) -> Iterable[int]:
        return self.pool


ANIMALS = (
    Animal("best fit", "Contiguous runs only, from the smallest gap, growing in place.", BestFit),
    Animal("buddy", "Chunks of a power of two, split and merged.", Buddy),
    Animal("slabs", "Two levels: the fullest slab of two blocks first.", Slabs),
    Animal("arenas", "Each request takes two neighbours at a time.", Arenas),
    Animal("lookahead", "A table may have one block more than its tokens need.", Lookahead),
    Animal("doubling", "A table grows to twice its size.", Doubling),
    Animal("watermark", "Prompts leave one block over.", Watermark),
)
