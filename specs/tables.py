"""Block-table uniqueness and validity.

for all r, i: table[r][i] in usable
for all b:    references(b) <= 1                  (no sharing is declared)
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
    for r, table in tables.items():
        for i, block in enumerate(table):
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
    """No block stands twice in a table, or in two tables."""
    tables = state.seen.tables
    if not tables:
        return VACUOUS
    entries = [block for table in tables.values() for block in table]
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


PROPERTIES = (
    Property(
        "table-valid",
        "Every block-table entry is a usable block: in range and not reserved.",
        "block_table[r][i] in usable",
        EveryState(judge_valid),
    ),
    Property(
        "table-unique",
        "No block is held twice, neither in one table nor in two.",
        "references(b) <= 1",
        EveryState(judge_unique),
    ),
)
