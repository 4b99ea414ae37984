"""Block-table uniqueness and validity.

for all r, i: table[r][i] in usable               (or null, behind a window)
for all b:    references(b) <= 1                  (or, where sharing is declared:)
              table[r][i] = table[s][j] => i = j, and r and s have the same tokens there
"""

from __future__ import annotations

from collections.abc import Iterable

from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryState, Judgement, Property
from pagedkv.specs.show import show
from pagedkv.specs.steps import State


def owners(state: State, block: int) -> tuple[int, ...]:
    """The requests whose tables name `block`, ascending, once per entry."""
    tables = state.seen.tables
    return tuple(r for r in sorted(tables) for entry in tables[r] if entry == block)


def name_blocks(blocks: Iterable[int]) -> str:
    """Words for some blocks: "block 3", "blocks 1, 2"."""
    ordered = sorted(blocks)
    return f"block{'s' if len(ordered) != 1 else ''} {', '.join(map(str, ordered))}"


def judge_valid(state: State) -> Judgement:
    """Every entry of every table is a usable block."""
    tables = state.seen.tables
    if not tables:
        return VACUOUS
    usable, reserved = state.setting.usable, state.seen.snapshot.reserved
    null = state.setting.declared.null_block
    for r, table in tables.items():
        for i, block in enumerate(table):
            if block == null and null is not None:
                continue
            if block in reserved:
                return Broken(f"block_table[{r}][{i}] = {block} is reserved", (block,), (r,))
            if block not in usable:
                return Broken(
                    f"block_table[{r}][{i}] = {block} is not in the usable blocks {show(usable)}",
                    (block,),
                    (r,),
                )
    return HOLDS


def judge_unique(state: State) -> Judgement:
    """No block stands twice in a table, or in two tables that may not share it."""
    tables = state.seen.tables
    if not tables:
        return VACUOUS
    entries = [block for table in tables.values() for block in table]
    if len(set(entries)) == len(entries):
        return HOLDS
    if state.setting.shares:
        return _judge_shared(state)
    if (null := state.setting.declared.null_block) is not None:
        entries = [block for block in entries if block != null]
        if len(set(entries)) == len(entries):
            return HOLDS
    block = next(b for b in sorted(entries) if entries.count(b) > 1)
    who = owners(state, block)
    names = ", ".join(f"request {r}" for r in who)
    return Broken(
        f"references(block {block}) = {len(who)} > 1: held by {names}",
        (block,),
        tuple(sorted(set(who))),
    )


def _judge_shared(state: State) -> Judgement:
    """Blocks stand in several tables only at one place, and over the same tokens."""
    places: dict[int, tuple[int, int]] = {}
    size, live = state.setting.geometry.block_size, state.model.live
    null = state.setting.declared.null_block
    for r, table in sorted(state.seen.tables.items()):
        for i, block in enumerate(table):
            if block == null:
                continue
            s, j = places.setdefault(block, (r, i))
            if (s, j) == (r, i):
                continue
            first, second = live.get(s, ())[i * size :], live.get(r, ())[i * size :]
            both = min(len(first), len(second), size)
            if i != j or s == r or first[:both] != second[:both]:
                return Broken(
                    f"block_table[{s}][{j}] = {block} = block_table[{r}][{i}], but the tokens "
                    f"there are not the same",
                    (block,),
                    tuple(sorted({r, s})),
                )
    return HOLDS


PROPERTIES = (
    Property(
        "table-valid",
        "Every block-table entry is a usable block: in range and not reserved.",
        "block_table[r][i] in usable",
        EveryState(judge_valid),
    ),
    Property(
        "table-unique",
        "No block is held twice, neither in one table nor in two, unless the same tokens share it.",
        "references(b) <= 1, or table[r][i] = table[s][i] over the same tokens",
        EveryState(judge_unique),
    ),
)
