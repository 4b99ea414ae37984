"""Allocators for injected failure: right ones, and some that only a failing call leads astray."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

from pagedkv import Request
from pagedkv.declarations import Declarations, Raises


class Copying:
    """Right, and stands every failure: it computes all it needs, and then only assigns."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.held: dict[int, list[int]] = {}

    @property
    def free_blocks(self) -> list[int]:
        return self.free

    def allocate_for_prefill(self, req: Request) -> object:
        self.check(not req.block_table and req.request_id not in self.held)
        taken, rest = self.parted(-(-req.seq_len // self.block_size))
        self.held[req.request_id], req.block_table, self.free = taken, taken[:], rest
        return None

    def allocate_for_decode(self, req: Request) -> object:
        self.check(self.holds(req))
        if req.seq_len == len(req.block_table) * self.block_size:
            taken, rest = self.parted(1)
            table = req.block_table + taken
            self.held[req.request_id], req.block_table, self.free = table, table[:], rest
        req.seq_len += 1
        return None

    def release_request(self, req: Request) -> object:
        self.check(self.holds(req))
        free = self.free + req.block_table
        del self.held[req.request_id]
        self.free, req.block_table = free, []
        return None

    def holds(self, req: Request) -> bool:
        return bool(req.block_table) and self.held.get(req.request_id) == req.block_table

    def check(self, right: bool) -> None:
        if not right:
            raise ValueError("wrong use")

    def parted(self, blocks: int) -> tuple[list[int], list[int]]:
        if blocks > len(self.free):
            raise RuntimeError(f"OOM: {blocks} needed, {len(self.free)} available")
        return self.free[:blocks], self.free[blocks:]


# ---------------------------------------------------------------- planted faults


class Appends(Copying):
    """Right, and can take several tokens at once."""

    declares = Declarations(abilities=frozenset({"append"}))

    def allocate_for_append(self, req: Request, count: int) -> object:
        self.check(self.holds(req))
        need = -(-(req.seq_len + count) // self.block_size) - len(req.block_table)
        taken, rest = self.parted(need)
        table = req.block_table + taken
        self.held[req.request_id], req.block_table, self.free = table, table[:], rest
        req.seq_len += count
        return None


class AppendsCounting(Appends):
    """Counts the tokens of an append before the last call in it."""

    def allocate_for_append(self, req: Request, count: int) -> object:
        self.check(self.holds(req))
        need = -(-(req.seq_len + count) // self.block_size) - len(req.block_table)
        taken, rest = self.parted(need)
        req.seq_len += count
        table = list(req.block_table)
        table += taken
        self.held[req.request_id], req.block_table, self.free = table, table[:], rest
        return None


class AppendsFirst(Copying):
    """Puts the block into the table before it is off the free list."""

    def allocate_for_decode(self, req: Request) -> object:
        self.check(self.holds(req))
        if req.seq_len == len(req.block_table) * self.block_size:
            self.parted(1)
            table = [*req.block_table, self.free[0]]
            self.held[req.request_id], req.block_table = table, table[:]
            self.free.pop(0)
        req.seq_len += 1
        return None


class CountsFirst(Copying):
    """Counts what is free by itself, hidden from all, and before the call that may fail."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.count = num_blocks

    def allocate_for_prefill(self, req: Request) -> object:
        self.check(not req.block_table and req.request_id not in self.held)
        need = -(-req.seq_len // self.block_size)
        if need > self.count:
            raise RuntimeError("OOM: by the count")
        self.count -= need
        return super().allocate_for_prefill(req)

    def allocate_for_decode(self, req: Request) -> object:
        super().allocate_for_decode(req)
        self.count = len(self.free)
        return None

    def release_request(self, req: Request) -> object:
        super().release_request(req)
        self.count = len(self.free)
        return None


class RepairsOnce(Copying):
    """Takes the blocks back when something fails, unless that fails too."""

    def allocate_for_prefill(self, req: Request) -> object:
        before = self.free, self.held.copy()
        try:
            super().allocate_for_prefill(req)
            self.done()
        except MemoryError:
            self.back(req, *before)
            raise
        return None

    def done(self) -> None:
        pass

    def back(self, req: Request, free: list[int], held: dict[int, list[int]]) -> None:
        self.free, self.held, req.block_table = free, held, []


class FinallyFails(Copying):
    """Closes in a `finally`, before it is done, with a call that may fail itself."""

    def release_request(self, req: Request) -> object:
        self.check(self.holds(req))
        try:
            self.free = self.free + req.block_table
        finally:
            self.closed()
        del self.held[req.request_id]
        req.block_table = []
        return None

    def closed(self) -> None:
        pass


class FreesHalf(Copying):
    """Gives blocks back one by one, and clears the table last."""

    def release_request(self, req: Request) -> object:
        self.check(self.holds(req))
        for block in req.block_table:
            self.free = [*self.free, block]
            self.freed(block)
        del self.held[req.request_id]
        req.block_table = []
        return None

    def freed(self, block: int) -> None:
        pass


class Leaks(Copying):
    """Loses a block in the first release after a prefill that failed on its way."""

    leaks = False

    def allocate_for_prefill(self, req: Request) -> object:
        try:
            return super().allocate_for_prefill(req)
        except MemoryError:
            self.leaks = True
            raise

    def release_request(self, req: Request) -> object:
        super().release_request(req)
        if self.leaks:
            self.free = self.free[1:]
        return None


class Swallows(Copying):
    """Takes a failure for nothing, and says that all went well."""

    def allocate_for_prefill(self, req: Request) -> object:
        with suppress(MemoryError):
            super().allocate_for_prefill(req)
        return None


class Empties(Copying):
    """Looks at wrong use with the table emptied."""

    def allocate_for_prefill(self, req: Request) -> object:
        table, req.block_table = req.block_table, []
        try:
            self.check(not table)
        except ValueError:
            req.block_table = table
            raise
        return super().allocate_for_prefill(req)


# ---------------------------------------------------------------- right ones of odd kinds


class Generous(Copying):
    """Tries again until it gets its memory."""

    def parted(self, blocks: int) -> tuple[list[int], list[int]]:
        while True:
            try:
                return super().parted(blocks)
            except MemoryError:
                continue


class SaysMemory(Copying):
    """Tells that blocks ran out by a MemoryError."""

    declares = Declarations(
        out_of_blocks=(Raises(MemoryError, ""),), because={"out_of_blocks": "this test"}
    )

    def parted(self, blocks: int) -> tuple[list[int], list[int]]:
        if blocks > len(self.free):
            raise MemoryError
        return self.free[:blocks], self.free[blocks:]


class Locks(Copying):
    """Holds a lock while it works, in both of the ways in which that is written."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.lock = threading.Lock()

    def allocate_for_prefill(self, req: Request) -> object:
        with self.lock:
            return super().allocate_for_prefill(req)

    def release_request(self, req: Request) -> object:
        self.lock.acquire()
        try:
            return super().release_request(req)
        finally:
            self.lock.release()


class Dies(Copying):
    """Ends its process when something fails in a release."""

    def release_request(self, req: Request) -> object:
        try:
            return super().release_request(req)
        except MemoryError:
            if req.block_table:
                os.kill(os.getpid(), signal.SIGKILL)
            raise


class Adapter:
    """Passes calls on to an engine, and gives what it keeps."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.engine = Copying(num_blocks, block_size, head_dim)


class Elsewhere(Copying):
    """Only passes calls on to another process."""

    runs_elsewhere = True


class Twisty:
    """A call of each kind that may fail, for one that looks at the points."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    @property
    def size(self) -> int:
        return 2

    def items(self) -> Iterator[int]:
        yield abs(-1)

    def go(self) -> object:
        found = sorted([3, 1], key=lambda value: -value)
        found.extend(self.items())
        kept = dict(found=1)  # noqa: C408 - a call
        return self == self.size, len(found), kept, str(*found[:1])
