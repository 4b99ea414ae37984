"""Managers without a tensor that fork, swap and group as engines do, and twins with one fault each.

They keep block numbers only: what is in the blocks is copied by whoever runs them, as an engine's
model runner does, from what `take_copies` asks for and from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pagedkv import Declarations, OutOfBlocks, Request, Snapshot
from pagedkv.abilities import AbilityName
from pagedkv.declarations import NOT_TRIED


class Counted:
    """Blocks with reference counts, lowest first; wrong use is not promised anything."""

    abilities: ClassVar[frozenset[AbilityName]] = frozenset()
    declares: ClassVar[Declarations]

    def __init_subclass__(cls) -> None:
        cls.state_key = Counted.state_key  # type: ignore[method-assign]  # trusted in its own class
        why = {"wrong_use": "this module"}
        cls.declares = Declarations(abilities=cls.abilities, wrong_use=NOT_TRIED, because=why)

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.num_host_blocks = num_blocks
        self.free = list(range(num_blocks))
        self.refs: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.lens: dict[int, int] = {}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables=self.tables,
            seq_lens=self.lens,
            free_blocks=self.free,
            ref_counts=self.refs,
        )

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        tables = sorted((names[r], self.lens[r], tuple(t)) for r, t in self.tables.items())
        return (tuple(tables), tuple(self.free), tuple(sorted(self.refs.items())), self.more(names))

    def more(self, names: Mapping[int, int]) -> object:
        """What a subclass has besides."""
        return ()

    def take(self, req: Request, count: int) -> list[int]:
        if count > len(self.free):
            raise OutOfBlocks(req.request_id, count, len(self.free))
        taken, self.free = self.free[:count], self.free[count:]
        self.refs |= dict.fromkeys(taken, 1)
        return taken

    def drop(self, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                del self.refs[block]
                self.give_back(block)

    def give_back(self, block: int) -> None:
        self.free = sorted([*self.free, block])

    def hold(self, req: Request, table: list[int], seq_len: int) -> None:
        self.tables[req.request_id], self.lens[req.request_id] = table, seq_len
        req.block_table, req.seq_len = list(table), seq_len

    def allocate_for_prefill(self, req: Request) -> None:
        self.hold(req, self.take(req, -(-req.seq_len // self.block_size)), req.seq_len)

    def allocate_for_decode(self, req: Request) -> None:
        table = self.tables[req.request_id]
        more = self.take(req, req.seq_len % self.block_size == 0)
        self.hold(req, [*table, *more], req.seq_len + 1)

    def release_request(self, req: Request) -> None:
        self.drop(self.tables.pop(req.request_id))
        del self.lens[req.request_id]
        req.block_table = []


class Forking(Counted):
    """Shares all blocks at a fork; a shared tail is copied at the next write into it."""

    abilities = frozenset({"fork"})

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.copies: list[tuple[int, int]] = []

    def more(self, names: Mapping[int, int]) -> object:
        return tuple(self.copies)

    def fork_request(self, req: Request, child: Request) -> None:
        table = self.tables[req.request_id]
        for block in table:
            self.refs[block] += 1
        self.hold(child, list(table), req.seq_len)

    def allocate_for_decode(self, req: Request) -> None:
        tail = self.tables[req.request_id][-1]
        if req.seq_len % self.block_size and self.refs[tail] > 1:
            (copy,) = self.take(req, 1)
            self.ask_for(tail, copy)
            self.drop([tail])
            self.hold(req, [*self.tables[req.request_id][:-1], copy], req.seq_len)
        super().allocate_for_decode(req)

    def ask_for(self, source: int, there: int) -> None:
        self.copies.append((source, there))

    def take_copies(self) -> list[tuple[int, int]]:
        copies, self.copies = self.copies, []
        return copies


class ForgetsTheCopy(Forking):
    """Takes a block for a shared tail and copies nothing into it."""

    def ask_for(self, source: int, there: int) -> None:
        pass


class CopiesBackwards(Forking):
    """Copies the fresh block over the shared tail."""

    def ask_for(self, source: int, there: int) -> None:
        super().ask_for(there, source)


class WritesThrough(Forking):
    """Writes into a shared tail."""

    def allocate_for_decode(self, req: Request) -> None:
        Counted.allocate_for_decode(self, req)


class CountsOnce(Forking):
    """Counts no reference for the tail of a child, which is free while somebody holds it."""

    def fork_request(self, req: Request, child: Request) -> None:
        super().fork_request(req, child)
        self.refs[child.block_table[-1]] -= 1


class Swapping(Counted):
    """Has a second pool of as many blocks, and keeps which of them a request has there."""

    abilities = frozenset({"swap"})

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.host_free = list(range(num_blocks))
        self.host: dict[int, list[int]] = {}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables=self.tables,
            seq_lens=self.lens,
            free_blocks=self.free,
            swapped=self.host,
            host_free=self.host_free,
        )

    def more(self, names: Mapping[int, int]) -> object:
        host = sorted((names[r], tuple(blocks)) for r, blocks in self.host.items())
        return (tuple(host), tuple(self.host_free))

    def swap_out(self, req: Request) -> None:
        count = len(self.tables[req.request_id])
        if count > len(self.host_free):
            raise OutOfBlocks(req.request_id, count, len(self.host_free))
        self.host[req.request_id], self.host_free = self.host_free[:count], self.host_free[count:]
        Counted.release_request(self, req)

    def swap_in(self, req: Request) -> None:
        self.hold(req, self.take(req, len(self.host[req.request_id])), req.seq_len)
        self.back(self.host.pop(req.request_id))

    def back(self, blocks: list[int]) -> None:
        self.host_free = sorted([*self.host_free, *blocks])

    def release_request(self, req: Request) -> None:
        if req.request_id in self.host:
            self.back(self.host.pop(req.request_id))
        else:
            super().release_request(req)


class MixesUpTheHost(Swapping):
    """Turns the order of what is in the second pool round when another request comes."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.host = {r: blocks[::-1] for r, blocks in self.host.items()}


class KeepsTheHostBlocks(Swapping):
    """Forgets the second pool's blocks of a request that comes back."""

    def back(self, blocks: list[int]) -> None:
        pass


class SwapsOverAnother(Swapping):
    """Hands the last block of the second pool out although it is held."""

    def swap_out(self, req: Request) -> None:
        super().swap_out(req)
        if len(self.host) > 1:
            self.host[req.request_id][-1] = next(iter(self.host.values()))[0]


class Grouping(Counted):
    """Withholds what comes back inside a group."""

    abilities = frozenset({"group"})

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.withheld: list[int] | None = None

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables=self.tables,
            seq_lens=self.lens,
            free_blocks=self.free,
            withheld=self.withheld,
        )

    def more(self, names: Mapping[int, int]) -> object:
        return None if self.withheld is None else tuple(self.withheld)

    def give_back(self, block: int) -> None:
        if self.withheld is None:
            super().give_back(block)
        else:
            self.withheld.append(block)

    def free_group_begin(self) -> None:
        self.withheld = []

    def free_group_end(self) -> None:
        back, self.withheld = self.withheld or [], None
        for block in back:
            self.give_back(block)


class EndsWithoutTheFirst(Grouping):
    """Loses the first withheld block when a group ends."""

    def free_group_end(self) -> None:
        self.withheld = (self.withheld or [])[1:]
        super().free_group_end()


class Asking(Counted):
    """Says beforehand whether there are blocks for a decode."""

    abilities = frozenset({"ask"})

    def can_prefill(self, req: Request) -> Any:
        return -(-req.seq_len // self.block_size) <= len(self.free)

    def can_decode(self, req: Request) -> Any:
        return req.seq_len % self.block_size > 0 or bool(self.free)


class AsksTheWrongLength(Asking):
    """Looks one token too far: the new token is in `tokens`, not yet in the length."""

    def can_decode(self, req: Request) -> Any:
        return (req.seq_len + 1) % self.block_size > 0 or bool(self.free)


class Takes(Asking):
    """Takes the block while it is asked."""

    def can_decode(self, req: Request) -> Any:
        granted = super().can_decode(req)
        self.free = self.free[1:]
        return granted


class Raises(Asking):
    """Can't be asked about a request of two blocks."""

    def can_decode(self, req: Request) -> Any:
        return {1: super().can_decode(req)}[len(req.block_table)]
