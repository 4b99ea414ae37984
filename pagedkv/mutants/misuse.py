"""Faults in what is refused: one for each kind of wrong use, and some for the way it is told."""

from __future__ import annotations

from collections.abc import Mapping

from pagedkv.mutants.bases import called
from pagedkv.mutants.registry import planted
from pagedkv.protocol import Request
from pagedkv.reference import KVCacheManager, Lease


@planted("misuse-refused", 2, seen="sparkinfer #110, told of a prefill")
class TopsUpLiveRequest(KVCacheManager):
    """Takes a second prefill of a live request, whose blocks it has already, for a success."""

    def allocate_for_prefill(self, req: Request) -> None:
        if req.request_id in self._live and self._live[req.request_id].handle is req:
            return
        super().allocate_for_prefill(req)


@planted("misuse-refused", 1)
class DecodesFreshRequest(KVCacheManager):
    """Prefills a request that is decoded before it was."""

    def allocate_for_decode(self, req: Request) -> None:
        if not req.block_table and req.request_id not in self._live:
            self.allocate_for_prefill(req)
        else:
            super().allocate_for_decode(req)


@planted("misuse-refused", 1)
class ReleasesFreshRequest(KVCacheManager):
    """Takes the release of a request that holds nothing for done."""

    def release_request(self, req: Request) -> None:
        if req.block_table or req.request_id in self._live:
            super().release_request(req)


class _KnowsReleased(KVCacheManager):
    """The reference, and the blocks that each request had when it was released."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._had: dict[int, tuple[int, ...]] = {}

    def release_request(self, req: Request) -> None:
        blocks = tuple(req.block_table)
        super().release_request(req)
        self._had[req.request_id] = blocks

    def state_key(self, names: Mapping[int, int]) -> tuple[object, ...]:
        had = sorted((called(r, names), blocks) for r, blocks in self._had.items())
        return (*super().state_key(names), tuple(had))


@planted("misuse-refused", 3)
class RevivesReleased(_KnowsReleased):
    """Lets a released request go on in its old blocks as long as they are free."""

    def allocate_for_decode(self, req: Request) -> None:
        had = self._had.get(req.request_id, ())
        if had and not req.block_table and set(had) <= set(self._free):
            self._free = [block for block in self._free if block not in had]
            self._live[req.request_id] = Lease(req, had)
            req.block_table = list(had)
        super().allocate_for_decode(req)


@planted("misuse-refused", 3, seen="sglang-jax #982: finish and abort both release")
class ReleasesTwice(_KnowsReleased):
    """Frees the blocks of a released request once more when it is released again."""

    def release_request(self, req: Request) -> None:
        if not req.block_table and req.request_id in self._had:
            self._free = sorted([*self._free, *self._had[req.request_id]])
        else:
            super().release_request(req)


class _MendsTables(KVCacheManager):
    """The reference, but a table is first made into what `_mended` takes it for."""

    def release_request(self, req: Request) -> None:
        given = req.block_table
        req.block_table = self._mended(list(given), req)
        try:
            super().release_request(req)
        except ValueError:
            req.block_table = given
            raise

    def _mended(self, table: list[int], req: Request) -> list[int]:
        raise NotImplementedError


@planted("misuse-refused", 2, seen="vLLM #42571, Dynamo #13398: a block twice in one release")
class DropsDuplicates(_MendsTables):
    """Believes a table that names a block twice."""

    def _mended(self, table: list[int], req: Request) -> list[int]:
        return list(dict.fromkeys(table))


@planted("misuse-refused", 2)
class DropsBeyondPool(_MendsTables):
    """Believes a table with a block beyond the pool."""

    def _mended(self, table: list[int], req: Request) -> list[int]:
        return [block for block in table if block < self.num_blocks]


@planted("misuse-refused", 2)
class DropsNegative(_MendsTables):
    """Believes a table that is padded with -1."""

    def _mended(self, table: list[int], req: Request) -> list[int]:
        return [block for block in table if block >= 0]


@planted("misuse-refused", 2)
class DropsFree(_MendsTables):
    """Believes a table with a block that is free."""

    def _mended(self, table: list[int], req: Request) -> list[int]:
        return [block for block in table if block not in self._free]


@planted("misuse-refused", 3)
class DropsForeign(_MendsTables):
    """Believes a table with a block of another request."""

    def _mended(self, table: list[int], req: Request) -> list[int]:
        foreign = {b for h, blocks in self._live.values() if h is not req for b in blocks}
        if req.request_id not in self._live:
            return table
        return [block for block in table if block not in foreign]


@planted("misuse-refused", 2)
class ReleasesByTable(KVCacheManager):
    """Releases whoever has the table that a handle carries."""

    def release_request(self, req: Request) -> None:
        if req.request_id not in self._live:
            for handle, blocks in list(self._live.values()):
                if list(blocks) == req.block_table:
                    super().release_request(handle)
                    return
        super().release_request(req)


@planted("misuse-refused", 1)
class TellsKeyError(KVCacheManager):
    """Looks a request up that was never prefilled, and lets the KeyError out."""

    def release_request(self, req: Request) -> None:
        if not req.block_table:
            self._live[req.request_id]
        super().release_request(req)
