"""How a call says that blocks ran out, or that it was used wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pagedkv import NOT_TRIED, Declarations, Raises, Request, Returns, Snapshot
from zoo.animal import Animal, odd
from zoo.keeper import Keeper


class Owners:
    """Each block knows its owner and its place; tables and free list are read off that.

    `no` and `wrong` say that blocks ran out, and that a call was used wrongly.
    """

    declares: ClassVar[Declarations] = Declarations()
    yes: ClassVar[object] = True

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.size = block_size
        self.owner: list[tuple[int, int] | None] = [None] * num_blocks
        self.tokens: dict[int, int] = {}

    def no(self, needed: int) -> object:
        raise RuntimeError(f"OOM: {needed} needed, {len(self.free_blocks)} available")

    def wrong(self, what: str) -> object:
        raise ValueError(what)

    @property
    def free_blocks(self) -> list[int]:
        return [block for block, owner in enumerate(self.owner) if owner is None]

    def table(self, request: int) -> list[int]:
        places = [(o[1], block) for block, o in enumerate(self.owner) if o and o[0] == request]
        return [block for _, block in sorted(places)]

    def claim(self, request: int, count: int) -> bool:
        at, free = len(self.table(request)), self.free_blocks
        if count > len(free):
            return False
        for i, block in enumerate(free[:count]):
            self.owner[block] = (request, at + i)
        return True

    def allocate_for_prefill(self, req: Request) -> object:
        if req.request_id in self.tokens or req.block_table:
            return self.wrong("prefill of a live request")
        need = -(-req.seq_len // self.size)
        if not self.claim(req.request_id, need):
            return self.no(need)
        self.tokens[req.request_id] = req.seq_len
        req.block_table = self.table(req.request_id)
        return self.yes

    def allocate_for_decode(self, req: Request) -> object:
        if req.request_id not in self.tokens or req.block_table != self.table(req.request_id):
            return self.wrong("decode without blocks")
        need = -(-(req.seq_len + 1) // self.size) - len(req.block_table)
        if not self.claim(req.request_id, need):
            return self.no(need)
        self.tokens[req.request_id] += 1
        req.seq_len += 1
        req.block_table = self.table(req.request_id)
        return self.yes

    def release_request(self, req: Request) -> object:
        if req.request_id not in self.tokens or req.block_table != self.table(req.request_id):
            return self.wrong("release of what it does not hold")
        del self.tokens[req.request_id]
        for block in req.block_table:
            self.owner[block] = None
        req.block_table = []
        return self.yes

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables={r: tuple(self.table(r)) for r in self.tokens},
            seq_lens=self.tokens,
            free_blocks=tuple(self.free_blocks),
        )


class SaysNone(Owners):
    declares = odd("None means out of blocks", out_of_blocks=(Returns(None),))

    def no(self, needed: int) -> object:
        return None


class SaysFalse(Owners):
    declares = odd("the result says whether it was done", out_of_blocks=(Returns(False),))

    def no(self, needed: int) -> object:
        return False


class SaysMinusOne(Owners):
    """0 is success, as in C."""

    declares = odd("-1 means out of blocks", out_of_blocks=(Returns(-1),))
    yes = 0

    def no(self, needed: int) -> object:
        return -1


class OutOfMemory(Owners):
    declares = odd(
        "the pool is told from the machine by its message",
        out_of_blocks=(Raises(MemoryError, "KV cache"),),
    )

    def no(self, needed: int) -> object:
        raise MemoryError(f"KV cache: {needed} more block(s)")


class PoolExhausted(Exception):
    """There are not enough blocks."""


class OwnException(Owners):
    declares = odd("an exception of its own", out_of_blocks=(Raises(PoolExhausted, ""),))

    def no(self, needed: int) -> object:
        raise PoolExhausted


class OneException(Owners):
    """A ValueError says both; what tells them apart is the message."""

    declares = odd(
        "one exception for all", out_of_blocks=(Raises(ValueError, "not enough free blocks"),)
    )

    def no(self, needed: int) -> object:
        raise ValueError(f"not enough free blocks for {needed}")


class TwoWays(Owners):
    """A prompt that does not fit is turned down, a decode that does not is an error."""

    declares = odd(
        "admission answers, decoding raises",
        out_of_blocks=(Returns(None), Raises(AssertionError, "no block left")),
    )

    def no(self, needed: int) -> object:
        return None

    def allocate_for_decode(self, req: Request) -> object:
        done = super().allocate_for_decode(req)
        if done is None:
            raise AssertionError("no block left")
        return done


class Silent(Owners):
    """Wrong use is passed over."""

    declares = odd(
        "wrong use has no effect", wrong_use=dict.fromkeys(("prefill", "decode", "release"), "noop")
    )

    def wrong(self, what: str) -> object:
        return None


class OnlyNo(Silent):
    """There is one "no", to wrong use as when blocks ran out."""

    declares = odd(
        "False: nothing was done",
        out_of_blocks=(Returns(False),),
        wrong_use=dict.fromkeys(("prefill", "decode", "release"), "noop"),
    )

    def no(self, needed: int) -> object:
        return False

    def wrong(self, what: str) -> object:
        return False


class FreesTwice(Owners):
    """Releasing what is released already has no effect; all other wrong use is an error."""

    declares = odd("release can be repeated", wrong_use={"release": "noop"})

    def release_request(self, req: Request) -> object:
        if req.request_id not in self.tokens or req.block_table != self.table(req.request_id):
            return None
        return super().release_request(req)


class Trusting(Keeper):
    """Wrong use does anything: it is the caller's to avoid."""

    declares = odd("callers are trusted", wrong_use=NOT_TRIED)

    def stock(self, num_blocks: int) -> None:
        self.pool = list(range(num_blocks))

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = [self.pool.pop(0) for _ in range(min(count, len(self.pool)))]
        if len(taken) < count:
            self.pool[:0] = taken
            raise RuntimeError("OOM")
        return taken

    def give(self, blocks: list[int]) -> None:
        self.pool += blocks

    def free(self) -> Iterable[int]:
        return self.pool

    def own(self, req: Request) -> list[int]:
        return self.tables[req.request_id]


class TakesAndPutsBack(Trusting):
    """Takes one by one; what does not suffice is put back at the end, the last one first."""

    declares = odd(
        "a refusal puts back what it took",
        reorders_free=True,
        wrong_use=NOT_TRIED,
    )

    def take(self, count: int, table: list[int]) -> list[int]:
        taken = [self.pool.pop(0) for _ in range(min(count, len(self.pool)))]
        if len(taken) < count:
            self.pool += reversed(taken)
            raise RuntimeError("OOM")
        return taken


class OnceOnly(Owners):
    """A request lives once: its handle is spent when it is released."""

    declares = odd("a preempted request comes back as a new one", resumes=False)

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.spent: list[Request] = []

    def allocate_for_prefill(self, req: Request) -> object:
        if any(req is old for old in self.spent):
            return self.wrong("this request is over")
        return super().allocate_for_prefill(req)

    def release_request(self, req: Request) -> object:
        done = super().release_request(req)
        self.spent = [*self.spent[-3:], req]
        return done


ANIMALS = (
    Animal("says None", "None: out of blocks.", SaysNone),
    Animal("says False", "True: done; False: out of blocks.", SaysFalse),
    Animal("says -1", "0: done; -1: out of blocks.", SaysMinusOne),
    Animal("out of memory", "A MemoryError with a message of its own.", OutOfMemory),
    Animal("own exception", "An exception of its own, without a message.", OwnException),
    Animal("one exception", "ValueError for all; the message tells.", OneException),
    Animal("two ways", "Prompts are turned down with None, decodes with an error.", TwoWays),
    Animal("silent", "Wrong use has no effect.", Silent),
    Animal("only no", "False, for wrong use as for out of blocks.", OnlyNo),
    Animal("frees twice", "Release can be repeated.", FreesTwice),
    Animal("trusting", "Wrong use does anything.", Trusting),
    Animal("takes and puts back", "A refusal turns the free list.", TakesAndPutsBack),
    Animal("once only", "A released request never comes back.", OnceOnly),
)
