"""Correct allocators in which declared behaviours meet: their switches say what each does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from builders import declaring
from combined import Combined, Refusal
from pagedkv import OutOfBlocks, Request, SharedKVCacheManager, Snapshot

MAPS = frozenset({"capacities", "free_blocks", "index", "ref_counts", "reverse_map"})


class Prefix(Combined):
    abilities = frozenset({"prefix"})


class Sliding(Combined):
    abilities = frozenset({"append", "window"})
    window = 2


# ---------------------------------------------------------------- cached blocks


class HiddenCounter(Prefix):
    """The counter of a free list that is not seen leaves the cached blocks out."""

    shows = frozenset({"index", "num_free"})


class DropsThenEvicts(Prefix, Sliding):
    """What a refused call drops is cached, and evicted at once."""

    abilities = frozenset({"append", "prefix", "window"})
    refusal = ("drop", "evict")


class LatePrefix(Prefix):
    """A block that can be found is not found while it waits, and is cached then."""

    late_calls = 1


class LatePrefixTicks(LatePrefix):
    refusal: Refusal = ("wait",)


class LateEvicts(LatePrefix):
    """What a refused call evicted, it makes room for: what waited is cached in its place."""

    refusal = ("evict", "wait")


class LatePrefixUnseen(LatePrefixTicks):
    shows = frozenset({"free_blocks"})


class LateUnseenEvicts(LateEvicts):
    shows = frozenset({"free_blocks"})


class LateUnpublished(LatePrefixTicks):
    """Only what can't be found waits; the rest is cached at once."""

    late_published = False


class LateUnpublishedEvicts(LateUnpublished):
    refusal = ("wait", "evict")


class EvictsLate(LateUnpublishedEvicts):
    evicts = "lru-tail-first"
    shows = frozenset({"eviction_order", "free_blocks", "index"})


class DropsInGroup(Prefix, Sliding):
    """What a refused call drops inside a group is withheld, and not found until it ends."""

    abilities = frozenset({"append", "group", "prefix", "window"})
    refusal = ("drop",)


class DropsLatePrefix(Prefix, Sliding):
    """What a refused call drops waits, and is not found meanwhile."""

    abilities = frozenset({"append", "prefix", "window"})
    late_calls = 1
    refusal = ("drop",)


# ---------------------------------------------------------------- late blocks


class GroupLateBlocks(Combined):
    """What a group withheld comes back at its end, and waits from then on."""

    abilities = frozenset({"group"})
    late_blocks = 1


class GroupLateCalls(GroupLateBlocks):
    late_blocks, late_calls = 0, 1


class GroupWaits(GroupLateBlocks):
    """What a group withheld has waited enough; no block comes back inside one."""

    late_withheld = False


class WindowLate(Sliding):
    """What goes back behind the window waits, and makes no room for the call."""

    late_calls = 1


class DropsLateBlocks(Sliding):
    late_blocks = 1
    refusal = ("drop",)


class DropsLateCalls(Sliding):
    late_calls = 1
    refusal = ("drop", "wait")


class HiddenDropsLate(DropsLateCalls):
    """Of the free blocks only the number is seen."""

    abilities = frozenset({"append", "group", "window"})
    late_calls = 2
    late_withheld = False
    shows = MAPS - {"free_blocks"} | {"num_free"}


# ---------------------------------------------------------------- lookahead and forks


class WindowAhead(Sliding):
    """The tables are longer than the tokens, and begin behind the window."""

    lookahead = window = 1


class DropsAhead(WindowAhead):
    refusal = ("drop",)


class WindowForked(Sliding):
    """What one leaves behind its window, the other may still hold."""

    abilities = frozenset({"append", "fork", "window"})


class DropsForked(WindowForked):
    refusal = ("drop",)


class DropsForkedShown(DropsForked):
    abilities = frozenset({"append", "fork", "group", "window"})
    shows = MAPS


class EagerAhead(Combined):
    """A fork takes its own blocks beyond the tokens too."""

    abilities = frozenset({"fork"})
    forks_eagerly = True
    lookahead = 1


class CarefulAhead(Combined):
    abilities = frozenset({"append"})
    judged = True
    lookahead = 1


class CarefulForkAhead(CarefulAhead):
    abilities = frozenset({"fork"})


class CarefulWindowAhead(WindowAhead):
    judged = True


# ---------------------------------------------------------------- what is shown


class Outside(Combined):
    """Tables stand in the snapshot only: wrong use is told by the handle alone."""

    judged = tables_outside = True

    def fill_in(self) -> None:
        for request, req in self.live.items():
            req.seq_len = self.lengths[request]

    def own(self, req: Request) -> int:
        if self.live.get(req.request_id) is not req:
            raise ValueError(f"request {req.request_id} holds nothing")
        return req.request_id


class NullCounted(Sliding):
    """The null block is one of the pool, and counts the entries that name it."""

    null = 0
    refusal: Refusal = ("drop",)
    window_of_first = True

    def snapshot(self) -> Snapshot:
        nulls = sum(table.count(self.null) for table in self.tables.values())
        return replace(super().snapshot(), ref_counts={**self.refs, self.null: nulls})


class NullCountedNoDrops(NullCounted):
    refusal = ()


class ZeroCounts(Combined):
    """Looking a free block's count up leaves an entry that says 0."""

    abilities = frozenset({"fork"})
    shows = frozenset({"free_blocks", "ref_counts"})

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.refs = defaultdict(int)

    def refuse(self, req: Request | None) -> None:
        super().refuse(req)
        assert sum(self.refs[block] for block in self.free) == 0


class ZeroRoom(Combined):
    """The request that was refused last has an entry that says it has no room."""

    shows = frozenset({"capacities", "free_blocks"})
    refused: frozenset[int] = frozenset()

    def refuse(self, req: Request | None) -> None:
        super().refuse(req)
        self.refused = frozenset() if req is None else frozenset({req.request_id})

    def snapshot(self) -> Snapshot:
        shown = super().snapshot()
        rooms: dict[int | str, int] = dict.fromkeys(self.refused, 0)
        return replace(shown, capacities={**rooms, **(shown.capacities or {})})


class ZeroEvicted(Prefix):
    """A cached block has a count of 0, a free one has none."""

    refusal = ("evict",)

    def snapshot(self) -> Snapshot:
        counts = {**dict.fromkeys(self.cached, 0), **self.refs}
        return replace(super().snapshot(), ref_counts=counts)


class Ring(Sliding):
    """The report counts what the window leaves in the table, and not all tokens."""

    ring = True

    def blocks_for(self, tokens: int) -> int:
        return super().blocks_for(min(tokens, self.window or tokens))

    def allocation_report(self, req: Request) -> dict[str, float]:
        room = len(self.tables[req.request_id]) * self.block_size
        kept = min(req.seq_len, self.window or req.seq_len)
        return {
            "logical_tokens": req.seq_len,
            "allocated_tokens": room,
            "unused_tail_tokens": room - kept,
            "utilization": kept / room,
        }


# ---------------------------------------------------------------- managers with a tensor


Swapping: Any = SharedKVCacheManager.configured("swap")
Windowed: Any = SharedKVCacheManager.configured("append", "window", window=2)


class HostFreeUnseen(Swapping):  # type: ignore[misc]
    """What is swapped out is seen, and not what the second pool has left."""

    hidden = frozenset({"host_free"})

    def snapshot(self) -> Snapshot:
        shown: Snapshot = super().snapshot()
        nothing: Any = dict.fromkeys(self.hidden)
        return replace(shown, **nothing)


class HostUnseen(HostFreeUnseen):
    hidden = frozenset({"host_free", "swapped"})


class DropsTensor(Windowed):  # type: ignore[misc]
    """A table of which a refused call dropped blocks can't be read whole."""

    declares = declaring(
        abilities={"append", "window"},
        window=2,
        null_block=-1,
        window_of_first=True,
        drops_behind_window=True,
    )
    first = 0
    _blocks: Any

    def _slide(self, blocks: Any, table: tuple[int, ...], seq_len: int) -> Any:
        return super()._slide(blocks, table, self.first or seq_len)

    def allocate_for_decode(self, req: Request) -> None:
        self.dropping(req, super().allocate_for_decode, req)

    def allocate_for_append(self, req: Request, count: int) -> None:
        self.dropping(req, super().allocate_for_append, req, count)

    def dropping(self, req: Request, call: Any, *given: Any) -> None:
        self.first = req.seq_len + 1
        try:
            call(*given)
        except OutOfBlocks:
            lease, blocks = self._live[req.request_id], self._blocks.copy()
            table = self._slide(blocks, lease.blocks, self.first)
            self._blocks = blocks
            self._live[req.request_id] = lease._replace(blocks=tuple(table))
            req.block_table = list(table)
            raise
        finally:
            self.first = 0


# ---------------------------------------------------------------- all of them

Kind = Any
"""A class of these, `Combined` or not."""

COMBINATIONS: list[Kind] = [
    *(HiddenCounter, DropsThenEvicts, LatePrefix, LatePrefixTicks, LateEvicts),
    *(LatePrefixUnseen, LateUnseenEvicts, LateUnpublished, LateUnpublishedEvicts, EvictsLate),
    *(DropsInGroup, DropsLatePrefix, GroupLateBlocks, GroupLateCalls, GroupWaits, WindowLate),
    *(DropsLateBlocks, DropsLateCalls, HiddenDropsLate, WindowAhead, DropsAhead, WindowForked),
    *(DropsForked, DropsForkedShown, EagerAhead, CarefulAhead, CarefulForkAhead),
    *(CarefulWindowAhead, Outside, NullCounted, NullCountedNoDrops, ZeroCounts, ZeroRoom),
    *(ZeroEvicted, Ring, HostFreeUnseen, HostUnseen, DropsTensor),
]
