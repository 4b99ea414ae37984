"""Correct managers of further kinds, for faults in what the two of the package do not keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pagedkv.declarations import Declarations
from pagedkv.protocol import Owned, Request, Snapshot
from pagedkv.reference import KVCacheManager


class Indexed(KVCacheManager):
    """The reference, with all that engines keep beside the tables.

    `_num_free` counts, `_refs[block]` are references, `_rooms[r]` tokens that the blocks of r have
    room for, `_places[block]` is (r, logical block).
    """

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._num_free = self.num_blocks
        self._refs = [0] * self.num_blocks
        self._rooms: dict[int, int] = {}
        self._places: dict[int, tuple[int, int]] = {}

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self._took(req, 0)

    def allocate_for_decode(self, req: Request) -> None:
        held = len(req.block_table)
        super().allocate_for_decode(req)
        self._took(req, held)

    def release_request(self, req: Request) -> None:
        blocks = list(req.block_table)
        super().release_request(req)
        self._gave(req, blocks)

    def _took(self, req: Request, held: int) -> None:
        """Enter the blocks that `req` holds beyond the first `held`."""
        for logical, block in list(enumerate(req.block_table))[held:]:
            self._num_free -= 1
            self._refs[block] += 1
            self._places[block] = (req.request_id, logical)
        self._rooms[req.request_id] = len(req.block_table) * self.block_size

    def _gave(self, req: Request, blocks: list[int]) -> None:
        """Strike out the blocks that `req` gave back."""
        self._num_free += len(blocks)
        for block in blocks:
            self._refs[block] -= 1
            del self._places[block]
        del self._rooms[req.request_id]

    def snapshot(self) -> Snapshot:
        return replace(
            super().snapshot(),
            num_free=self._num_free,
            ref_counts=dict(enumerate(self._refs)),
            capacities=dict[int | str, int](self._rooms.items()),
            reverse_map=frozenset(Owned(r, i, b) for b, (r, i) in self._places.items()),
        )

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        rooms = sorted((called(r, names), room) for r, room in self._rooms.items())
        places = sorted((b, called(r, names), i) for b, (r, i) in self._places.items())
        kept = (self._num_free, tuple(self._refs), tuple(rooms), tuple(places))
        return (*super().state_key(names), kept)


def called(request: int, names: Mapping[int, int]) -> int:
    """What a request is called, also one that no handle is left of."""
    return names.get(request, -1 - request)


class Unlisted(KVCacheManager):
    """The reference, of which nobody can see what is free."""

    free_blocks = None  # type: ignore[assignment]  # what an engine without a list has

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), free_blocks=None)


class Padded(KVCacheManager):
    """The reference, with one more block, 0, that is only there to pad with."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks + 1, block_size, head_dim)
        self._free = self._free[1:]

    def snapshot(self) -> Snapshot:
        usable = frozenset(range(1, self.num_blocks))
        return replace(super().snapshot(), blocks=usable, reserved=frozenset({0}))


class KnowsNames(KVCacheManager):
    """The reference, and `_names`, ids of requests."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._names: tuple[int, ...] = ()

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        return (*super().state_key(names), tuple(called(r, names) for r in self._names))


class Late(KVCacheManager):
    """The reference, but what a call gives back waits until the next granted one is over."""

    declares = Declarations(late_calls=1, because={"late_calls": "the class's docstring"})

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._waiting: tuple[int, ...] = ()

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self._pass()

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        self._pass()

    def release_request(self, req: Request) -> None:
        free, blocks = self._free, tuple(req.block_table)
        super().release_request(req)
        self._free = free
        self._pass()
        self._waiting = blocks

    def _pass(self) -> None:
        """Let a call be over."""
        self._free, self._waiting = sorted([*self._free, *self._waiting]), ()

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), pending=dict.fromkeys(self._waiting, 1))

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        return (*super().state_key(names), self._waiting)
