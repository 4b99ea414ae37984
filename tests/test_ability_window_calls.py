"""What a window's calls give back: when it is due, what a refusal may drop, what counts."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest

from able import able, after, seen
from pagedkv import Declarations, Owned, Request, Snapshot
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.finding import judge_counted
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import HOLDS
from pagedkv.specs.rollback import judge_exact
from pagedkv.specs.steps import NoBlocks, Step
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.world import World

NULL = -1


def declares(**fields: object) -> Declarations:
    declared = {"abilities": {"append", "window"}, "window": 2, "null_block": NULL, **fields}
    because = dict.fromkeys((*declared, "wrong_use"), "as it is made")
    del because["abilities"]
    made: Declarations = Declarations(
        wrong_use=dict.fromkeys(("prefill", "decode", "release"), "never"),
        because=because,
        **declared,  # type: ignore[arg-type]
    )
    return made


class Sliding:
    """A window of 2: blocks go back by the first new token, before a call may be refused."""

    declares: ClassVar[Declarations] = declares(window_of_first=True, drops_behind_window=True)
    extra = 0  # tokens beyond those that go back after a refusal
    by_last = False
    gross = False  # blocks behind the window make no room
    sulks = False  # whoever was refused once is refused again

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size, self.free = block_size, list(range(num_blocks))
        self.live: dict[int, Request] = {}
        self.refused: set[int] = set()

    def allocate_for_prefill(self, req: Request) -> None:
        self.grow(req, [], 0, req.seq_len)
        self.live[req.request_id] = req

    def allocate_for_decode(self, req: Request) -> None:
        self.allocate_for_append(req, 1)

    def allocate_for_append(self, req: Request, count: int) -> None:
        self.grow(req, req.block_table, req.seq_len, count)
        req.seq_len += count

    def grow(self, req: Request, table: list[int], before: int, count: int) -> None:
        need = -(-(before + count) // self.block_size) - len(table)
        if self.gross and need > len(self.free):
            raise RuntimeError("OOM")
        table = self.slide(req, table, before + (count if self.by_last else 1) - 2)
        if need > len(self.free) or (need and req.request_id in self.refused and self.sulks):
            self.refused.add(req.request_id)
            self.slide(req, table, before - 1 + self.extra)
            raise RuntimeError("OOM")
        req.block_table = table + [self.free.pop(0) for _ in range(need)]

    def slide(self, req: Request, table: list[int], tokens: int) -> list[int]:
        left = table[: max(0, tokens) // self.block_size]
        self.free += [block for block in left if block != NULL]
        if left:
            table = [NULL] * len(left) + table[len(left) :]
            req.block_table = table
        return table

    def release_request(self, req: Request) -> None:
        del self.live[req.request_id]
        self.refused.discard(req.request_id)
        self.free += [block for block in req.block_table if block != NULL]
        req.block_table = []

    def snapshot(self) -> Snapshot:
        return Snapshot(
            block_tables={r: req.block_table for r, req in self.live.items()},
            seq_lens={r: req.seq_len for r, req in self.live.items()},
            free_blocks=self.free,
            num_free=len(self.free),
            ref_counts={b: 1 for _, _, b in self.held()},
            reverse_map=self.held(),
            capacities=dict(Counter(r for r, _, _ in self.held() for _ in range(self.block_size))),
        )

    def held(self) -> list[Owned]:
        return [
            Owned(r, i, b)
            for r, req in self.live.items()
            for i, b in enumerate(req.block_table)
            if b != NULL
        ]


def broken(kind: type[Sliding]) -> dict[str, str]:
    """What an exhaustive search of small pools finds."""

    def made(geometry: Geometry) -> World:
        both = frozenset({"append", "window"})
        return World(kind, geometry, requests=2, abilities=both)  # type: ignore[arg-type]

    geometries = (Geometry(2, 1), Geometry(2, 2), Geometry(3, 1))
    can = offered(*made(geometries[0]).states)
    limits = Limits(seconds=60, hard_seconds=60, depth=4)
    found, _ = explore(made, geometries, lambda: Judge(PROPERTIES.values(), can), limits)
    return {name: str(one.violation.broken.message) for name, one in found.found.items()}


def test_what_is_declared_of_a_window_breaks_nothing():
    assert broken(Sliding) == {}


def test_a_refusal_that_drops_blocks_behind_the_window_breaks_rollback_unless_declared():
    class Silent(Sliding):
        declares = declares(window_of_first=True)

    found = broken(Silent)
    assert found["rollback"].endswith("ended in: out of blocks (OOM)")


def test_a_refusal_may_not_drop_what_the_next_token_reads():
    class Greedy(Sliding):
        extra = 1

    assert "is null, but positions" in broken(Greedy)["window-kept"]


def test_room_that_a_refusal_made_is_there_for_the_next_call():
    class Sulking(Sliding):
        sulks = True

    assert "refused as out of blocks: needed(" in broken(Sulking)["out-of-blocks"]


def test_what_the_first_of_many_tokens_reads_stays_only_where_that_is_declared():
    class Undeclared(Sliding):
        declares = declares(drops_behind_window=True)

    assert "left it behind at seq_len" in broken(Undeclared)["window-freed"]


def test_what_goes_back_by_the_last_token_made_room_that_was_not_declared():
    class ByLast(Sliding):
        by_last = True

    assert "granted: needed(" in broken(ByLast)["out-of-blocks"]


@pytest.mark.parametrize("early", [True, False])
def test_who_refuses_early_need_not_count_what_goes_back(early):
    class Gross(Sliding):
        gross = True
        declares = declares(window_of_first=True, **({"refuses_early": True} if early else {}))

    found = broken(Gross)
    assert set(found) == (set() if early else {"out-of-blocks"})


def test_a_call_that_takes_no_block_is_never_refused_early():
    class Never(Sliding):
        declares = declares(window_of_first=True, refuses_early=True, drops_behind_window=True)

        def grow(self, req: Request, table: list[int], before: int, count: int) -> None:
            if before % self.block_size:
                raise RuntimeError("OOM")
            super().grow(req, table, before, count)

    assert set(broken(Never)) == {"out-of-blocks"}


def world(*commands: Command) -> World:
    made = World(Sliding, Geometry(3, 1), requests=2, abilities=frozenset({"append"}))  # type: ignore[arg-type]
    for command in commands:
        made.apply(command)
    return made


def test_a_refused_append_drops_one_block_and_no_more():
    here = world(Prefill(0, 3))
    step = here.apply(Append(0, 4))
    assert isinstance(step.outcome, NoBlocks)
    assert step.after.seen.tables == {0: (NULL, NULL, 2)}
    read = step.after.seen.read()[0]
    assert isinstance(read, tuple)
    assert read[-1] == step.after.model.live[0][-1]
    assert here.apply(Decode(0)).granted
    assert here.state.seen.tables == {0: (NULL, NULL, 2, 0)}


def test_slots_that_a_refusal_gave_back_hold_nothing():
    here = world(Prefill(0, 3), Append(0, 4))
    assert here.pool.read([(0, 0), (1, 0)]) == (-1, -1)
    here.apply(Release(0))
    assert here.state.available == 3


def test_of_two_blocks_with_one_content_the_first_that_is_named_is_found():
    within = able("prefix", blocks=2, size=1, keeps_duplicates=True)
    dense = after(within, Prefill(0, 1), Prefill(1, 1), Release(0))
    tag = float(dense.live[1][0])
    before = seen(within, dense, {1: (1,)}, cached={0}, free_blocks=(), ends={0: tag, 1: tag})
    for first, holds in ((0, True), (1, False)):
        order = {"a": first, "b": 1 - first}
        state = before._replace(seen=before.seen._replace(snapshot=_with_index(before, order)))
        command = Prefill(2, 2)
        step = Step(
            1,
            command,
            command.expect(dense, within),
            NoBlocks("no"),
            state.seen.handles[1],
            state.seen.handles[1],
            state,
            state,
        )
        assert (judge_counted(step) is HOLDS) == holds


def _with_index(state, index):
    shown = state.seen.snapshot
    return Snapshot(
        block_tables=shown.block_tables,
        seq_lens=shown.seq_lens,
        free_blocks=shown.free_blocks,
        cached=shown.cached,
        index=index,
    )


def test_what_a_refusal_dropped_beyond_what_the_next_call_needs_is_not_needed():
    made = World(Sliding, Geometry(4, 1), requests=2, abilities=frozenset({"append"}))  # type: ignore[arg-type]
    made.apply(Prefill(0, 4))
    assert isinstance(made.apply(Append(0, 4)).outcome, NoBlocks)
    made.apply(Prefill(1, 1))
    assert made.state.seen.tables == {0: (NULL, NULL, NULL, 3), 1: (0,)}
    step = made.apply(Decode(0))  # takes one block of the two that are left
    assert step.granted
    assert judge_exact(step) is HOLDS
