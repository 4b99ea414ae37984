"""Rings, and requests with several tables: what is due of them, and that each fault shows."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest

from able import NULL, able, after, seen
from builders import declaring, message, step
from pagedkv import Declarations, Request, Snapshot
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.specs.abilities.window import WINDOW, judge_freed, judge_kept
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.contents import judge_contents
from pagedkv.specs.judge import Judge
from pagedkv.specs.lengths import judge_cover
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import HOLDS, Broken, Need, Sometimes
from pagedkv.specs.steps import Grant, NoBlocks
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.profiles import PROFILES
from pagedkv.stateful.swift import SwiftWorld
from pagedkv.stateful.world import World

UNUSED = dict.fromkeys(("prefill", "decode", "release"), "never")
RING = able("append", "window", blocks=6, window=3, null_block=None, ring=True)
"""Blocks of 2 tokens; 3 tokens are read, of a ring of two blocks."""
TWO = able("append", "window", blocks=8, windows=(None, 3))
"""A table that is read wholly, and one of which 3 tokens are read."""


# ---------------------------------------------------------------- declared


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"abilities": {"window"}, "window": 2, "windows": (2,)}, "are both declared"),
        ({"windows": (None, 2)}, "windows = (None, 2) and abilities = []"),
        ({"abilities": {"window"}, "windows": (None, None)}, "are declared together"),
        ({"abilities": {"window"}, "windows": (None, 0)}, "window must be >= 1"),
        ({"ring": True}, "a ring is behind a window"),
        ({"abilities": {"window"}, "window": 2}, "with neither null_block nor ring"),
        ({"abilities": {"window"}, "window": 2, "ring": True, "null_block": 0}, "leaves no entry"),
        ({"abilities": {"fork"}, "windows": (None, None)}, "ring or windows beside fork"),
        ({"lookahead": 1, "windows": (None, None)}, "with a lookahead of 1"),
    ],
)
def test_what_contradicts_itself_is_not_declared(fields, what):
    with pytest.raises(ValueError, match=re.escape(what)):
        declaring(**fields)


def test_without_several_tables_there_is_the_one():
    assert Declarations().each_window == (None,)
    assert RING.declared.each_window == (3,)
    assert TWO.declared.each_window == (None, 3)


def test_pools_are_as_many_times_as_large_as_there_are_tables():
    one = declaring(engine=True)
    two = declaring(engine=True, windows=(None, None))
    quick = PROFILES["quick"]
    largest = [
        max(g.num_blocks for g in quick.scopes(d, pair=False)[0].geometries) for d in (one, two)
    ]
    assert largest == [3, 6]


# ---------------------------------------------------------------- what is due


def test_a_ring_takes_no_more_blocks_than_the_window_needs():
    assert [RING.spans(n) for n in (1, 2, 3, 4, 9)] == [(1,), (1,), (2,), (2,), (2,)]
    assert Prefill(0, 9).expect(after(RING), RING) == Grant(2, 2)
    short = after(RING, Prefill(0, 2))
    assert Decode(0).expect(short, RING) == Grant(1, 1)
    turned = after(RING, Append(0, 2), Decode(0), start=short)
    assert turned.pages == {0: (0, 1)}
    assert Append(0, 2).expect(turned, RING) == Grant(0, 0)


def test_several_tables_need_blocks_each():
    assert TWO.spans(5) == (3, 3)
    five = after(TWO, Prefill(0, 5))
    assert Prefill(0, 5).expect(after(TWO), TWO) == Grant(6, 6)
    assert Decode(0).expect(five, TWO) == Grant(0, 0)  # a block of the window's goes back
    six = after(TWO, Decode(0), start=five)
    assert six.pages == {0: (0, 1, 2, -1, 3, 4)}
    assert Decode(0).expect(six, TWO) == Grant(1, 1)  # two blocks, and another goes back
    assert after(TWO, Decode(0), start=six).pages == {0: (0, 1, 2, 3, -1, -1, 4, 5)}


def test_what_is_read_is_named_table_by_table():
    five = after(TWO, Prefill(0, 5))
    tags = five.live[0]
    assert TWO.readable(tags) == (*tags, *tags[-3:])
    assert TWO.parts((1, 2, 3, 4, 5, 6), 5) == [(1, 2, 3), (4, 5, 6)]


def test_a_position_of_a_ring_lies_at_its_remainder():
    assert [RING.place(3, p) for p in (0, 2, 3, 4, 5)] == [(0, 0), (1, 0), (0, 0), (0, 1), (1, 0)]
    assert TWO.place(3, 5) == (2, 1)


# ---------------------------------------------------------------- what is judged


FIVE = after(TWO, Prefill(0, 5))


def test_the_tables_of_a_request_are_covered_together():
    assert judge_cover(seen(TWO, FIVE, {0: (1, 2, 3, 4, 5, 6)})) is HOLDS
    told = message(judge_cover(seen(TWO, FIVE, {0: (1, 2, 3)})))
    due = "ceil(5 tokens / block_size 2) + ceil(5 tokens / block_size 2)"
    assert told == f"len(block_table[0]) = 3 != 6 = {due}"
    ring = message(judge_cover(seen(RING, after(RING, Prefill(0, 5)), {0: (1, 2, 3)})))
    assert ring.endswith("= 3 != 2 = ceil(min(5, 3) tokens / block_size 2)")


def test_null_entries_stand_in_the_table_of_the_window_only():
    assert judge_kept(seen(TWO, FIVE, {0: (1, 2, 3, NULL, 5, 6)})) is HOLDS
    assert message(judge_kept(seen(TWO, FIVE, {0: (NULL, 2, 3, 4, 5, 6)}))).startswith(
        "block_table[0][0] = -1 is null, but positions 0 .. 1 >= seq_len(5) - window(5)"
    )
    assert message(judge_kept(seen(TWO, FIVE, {0: (1, 2, 3, NULL, NULL, 6)}))).startswith(
        "block_table[0][4] = -1 is null, but positions 2 .. 3 >= seq_len(5) - window(3)"
    )


def test_what_the_window_leaves_behind_goes_back_though_another_table_keeps_it():
    six = after(TWO, Decode(0), start=FIVE)
    was = seen(TWO, FIVE, {0: (1, 2, 3, 4, 5, 6)})
    assert judge_freed(step(Decode(0), was, seen(TWO, six, {0: (1, 2, 3, NULL, 5, 6)}))) is HOLDS
    kept = judge_freed(step(Decode(0), was, seen(TWO, six, {0: (1, 2, 3, 4, 5, 6)})))
    assert message(kept).startswith("decode(0): block_table[0][3] = 4 != -1: the window of 3")


def test_an_entry_is_counted_through_all_tables():
    three = able("append", "window", blocks=9, windows=(None, 3, 1))
    five = after(three, Prefill(0, 5))
    six = after(three, Decode(0), start=five)
    was = seen(three, five, {0: tuple(range(9))})
    wrong = message(judge_kept(seen(three, five, {0: (0, 1, 2, 3, 4, 5, 6, 7, NULL)})))
    assert wrong.startswith("block_table[0][8] = -1 is null")
    late = seen(three, six, {0: (0, 1, 2, NULL, 4, 5, NULL, 7, 8)})
    kept = message(judge_freed(step(Decode(0), was, late)))
    assert kept.startswith("decode(0): block_table[0][7] = 7 != -1: the window of 1")


def test_a_wrong_token_is_said_of_its_table():
    tags = FIVE.live[0]
    tables = {0: (1, 2, 3, NULL, 5, 6)}
    wrong = (*tags, tags[2], tags[2], tags[4])
    judgement = judge_contents(seen(TWO, FIVE, tables, contents={0: wrong}))
    told = "position 3: reads token 2 of request 0 != token 3 of request 0"
    assert judgement == Broken(f"cache of request 0, table 1, {told}", (5,), (0,))
    ring = after(RING, Prefill(0, 5))
    tags = ring.live[0]
    judgement = judge_contents(
        seen(RING, ring, {0: (1, 2)}, contents={0: (tags[2], tags[0], tags[4])})
    )
    assert message(judgement).startswith("cache of request 0, position 3: reads token 0")
    assert isinstance(judgement, Broken)
    assert judgement.blocks == (1,)  # position 3 is at 0 again


def test_the_goal_of_a_ring_is_that_it_turned():
    goal = next(p for p in WINDOW.properties if p.id == "window-turned").expectation
    assert isinstance(goal, Sometimes)
    three, four = after(RING, Prefill(0, 3)), after(RING, Prefill(0, 4))
    empty = seen(RING, after(RING), {})
    assert not goal.reached(step(Prefill(0, 3), empty, seen(RING, three, {0: (1, 2)})))
    turned = seen(RING, four, {0: (1, 2)})
    assert goal.reached(step(Prefill(0, 4), empty, turned))
    assert not goal.reached(step(Decode(0), turned, turned, outcome=NoBlocks("OOM")))


def test_a_ring_is_asked_for_no_null_entries():
    assert Need.RING in offered(seen(RING, after(RING), {}))
    assert Need.NULLS not in offered(seen(RING, after(RING), {}))
    assert Need.NULLS in offered(seen(TWO, after(TWO), {}))


# ---------------------------------------------------------------- what a search finds


def broken(kind: type, *geometries: Geometry) -> dict[str, str]:
    """What an exhaustive search of small pools finds."""

    def made(geometry: Geometry) -> World:
        both = frozenset({"append", "window"})
        return World(kind, geometry, requests=2, abilities=both)  # type: ignore[arg-type]

    can = offered(*made(geometries[0]).states)
    limits = Limits(seconds=60, hard_seconds=60, depth=3)
    found, _ = explore(made, geometries, lambda: Judge(PROPERTIES.values(), can), limits)
    return {name: str(one.violation.broken.message) for name, one in found.found.items()}


def joined(tables: list[list[int]]) -> list[int]:
    return [block for table in tables for block in table]


class Pool:
    """Blocks, and which request has which in each of its tables."""

    declares: ClassVar[Declarations]

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size, self.free = block_size, list(range(num_blocks))
        self.live: dict[int, Request] = {}
        self.tables: dict[int, list[list[int]]] = {}

    def due(self, seq_len: int) -> list[int]:
        """The length of each table."""
        raise NotImplementedError

    def slide(self, req: Request, seq_len: int) -> None:
        """Give back what no token to come will read."""

    def take(self, req: Request, seq_len: int) -> None:
        tables = self.tables.get(req.request_id) or [[] for _ in self.due(1)]
        need = sum(self.due(seq_len)) - sum(map(len, tables))
        if need > len(self.free):
            raise RuntimeError("OOM")
        for table, due in zip(tables, self.due(seq_len), strict=True):
            table.extend(self.free.pop(0) for _ in range(due - len(table)))
        self.tables[req.request_id], self.live[req.request_id] = tables, req
        req.seq_len, req.block_table = seq_len, joined(tables)

    def allocate_for_prefill(self, req: Request) -> None:
        self.take(req, req.seq_len)

    def allocate_for_decode(self, req: Request) -> None:
        self.allocate_for_append(req, 1)

    def allocate_for_append(self, req: Request, count: int) -> None:
        self.slide(req, req.seq_len + 1)
        self.take(req, req.seq_len + count)

    def release_request(self, req: Request) -> None:
        del self.live[req.request_id]
        tables = self.tables.pop(req.request_id)
        self.free += [block for table in tables for block in table if block != NULL]
        req.block_table = []

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables={r: joined(self.tables[r]) for r in self.live},
            seq_lens={r: req.seq_len for r, req in self.live.items()},
            free_blocks=self.free,
        )


class Ring(Pool):
    """A window of 3 tokens in a ring; the tables say where tokens lie."""

    declares = declaring(abilities={"append", "window"}, window=3, ring=True, wrong_use=UNUSED)

    def due(self, seq_len: int) -> list[int]:
        return [-(-min(seq_len, 3) // self.block_size)]


class Told(Ring):
    """It says itself where tokens lie."""

    def take(self, req: Request, seq_len: int) -> None:
        before = req.seq_len if req.request_id in self.live else 0
        super().take(req, seq_len)
        where = getattr(req, "where", [])
        req.where = where + [self.at(p, before, seq_len) for p in range(before, seq_len)]  # type: ignore[attr-defined]

    def at(self, position: int, before: int, seq_len: int) -> int:
        return position % 3

    def slots(self, req: Any) -> list[tuple[int, int, int]]:
        size, (table,) = self.block_size, self.tables[req.request_id]
        return [(0, table[at // size], at % size) for at in req.where]

    def release_request(self, req: Any) -> None:
        super().release_request(req)
        req.where = []


class StartsAtTheFirstStored(Told):
    """Of many tokens the last 3 are stored, from the slot that the first of all would have."""

    def at(self, position: int, before: int, seq_len: int) -> int:
        return (position - max(0, seq_len - before - 3)) % 3


class GrowsOn(Ring):
    def due(self, seq_len: int) -> list[int]:
        return [-(-min(seq_len, 4) // self.block_size)]


class TurnsTooEarly(Ring):
    def due(self, seq_len: int) -> list[int]:
        return [-(-min(seq_len, 2) // self.block_size)]


RINGS = (Geometry(3, 1), Geometry(3, 2), Geometry(4, 1))


@pytest.mark.parametrize("kind", [Ring, Told])
def test_a_right_ring_breaks_nothing(kind):
    assert broken(kind, *RINGS) == {}


def test_a_long_prompt_put_at_the_start_of_the_ring_is_written_over_too_early():
    found = broken(StartsAtTheFirstStored, *RINGS)
    assert set(found) == {"contents"}
    assert found["contents"].startswith("cache of request 0, position")


@pytest.mark.parametrize("kind", [GrowsOn, TurnsTooEarly])
def test_a_ring_of_another_size_is_found(kind):
    assert "tokens / block_size" in broken(kind, *RINGS)["table-cover"]


class Both(Pool):
    """A table that is read wholly, and one behind a window of 1, from one pool."""

    declares = declaring(
        abilities={"append", "window"},
        windows=(None, 1),
        null_block=NULL,
        window_of_first=True,
        drops_behind_window=True,
        wrong_use=UNUSED,
    )

    def due(self, seq_len: int) -> list[int]:
        return [-(-seq_len // self.block_size)] * 2

    def slide(self, req: Request, seq_len: int) -> None:
        table = self.tables[req.request_id][1]
        for i in range((seq_len - 1) // self.block_size):
            if table[i] != NULL:
                self.free.append(table[i])
                table[i] = NULL
        req.block_table = joined(self.tables[req.request_id])

    def slots(self, req: Request) -> list[tuple[int, int, int]]:
        size = self.block_size
        return [
            (which, table[p // size], p % size)
            for which, table in enumerate(self.tables[req.request_id])
            for p in range(min(req.seq_len, len(table) * size))
        ]


class AsksForOne(Both):
    """Looks whether there are blocks for the first table, and takes for both."""

    def take(self, req: Request, seq_len: int) -> None:
        tables = self.tables.get(req.request_id) or [[], []]
        for table, due in zip(tables, self.due(seq_len), strict=True):
            if due - len(table) > len(self.free):
                raise RuntimeError("OOM")
            table.extend(self.free.pop(0) for _ in range(due - len(table)))
        super().take(req, seq_len)


class GivesOneBack(Both):
    def release_request(self, req: Request) -> None:
        self.tables[req.request_id][1] = []
        super().release_request(req)


class SharesAcross(Both):
    """The first block of the second table is that of the first."""

    def take(self, req: Request, seq_len: int) -> None:
        super().take(req, seq_len)
        first, second = self.tables[req.request_id]
        if second[0] != NULL:
            second[0] = first[0]
            req.block_table = first + second


class OneTooMany(Both):
    """A block too many for the first table, and one too few for the second."""

    def due(self, seq_len: int) -> list[int]:
        whole = -(-seq_len // self.block_size)
        return [whole + 1, whole - 1] if whole > 1 else [whole, whole]


class SlidesTheOther(Both):
    def slide(self, req: Request, seq_len: int) -> None:
        tables = self.tables[req.request_id]
        tables.reverse()
        super().slide(req, seq_len)
        tables.reverse()
        req.block_table = joined(tables)


BOTHS = (Geometry(3, 1), Geometry(4, 1), Geometry(4, 2))


def test_two_right_tables_break_nothing():
    assert broken(Both, *BOTHS) == {}


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (AsksForOne, "rollback"),
        (GivesOneBack, "conservation"),
        (SharesAcross, "table-unique"),
        (OneTooMany, "contents"),
        (SlidesTheOther, "window-kept"),
    ],
)
def test_a_fault_between_the_tables_is_found(kind, first):
    assert first in broken(kind, *BOTHS)


def test_without_slots_the_tables_stand_one_behind_the_other():
    class Plain(Both):
        def __getattribute__(self, name: str) -> Any:
            if name == "slots":
                raise AttributeError(name)
            return super().__getattribute__(name)

    assert broken(Plain, *BOTHS) == {}


def test_two_tables_without_a_window_are_filled_without_looking():
    class Pair(Both):
        declares = declaring(windows=(None, None), wrong_use=UNUSED)

        def slide(self, req: Request, seq_len: int) -> None:
            pass

    world = SwiftWorld(Pair, Geometry(8, 2))  # type: ignore[arg-type]
    assert world.hurry([Prefill(0, 3), Decode(0), Decode(0)])
    tags = world.state.model.live[0]
    assert world.read() == {0: (*tags, *tags)}
