"""The blocks of a pool as rows of cells: whose each block is, in words.

All that is said of a block is shown, whether or not it fits together; what is wrong with it is
the properties' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pagedkv.stateful.report import Frame
from pagedkv.stateful.text import WIDE

Kind = Literal["held", "reserved", "cached", "free", "nobody", "absent"]
MOST_ROWS = 48
"""Of a pool that falls into more runs of blocks only so many are shown."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One block, or neighbours of one fate, at one moment.

    label: whose it is, in a word. words: the same as a sentence's end. filled: how much of the
    block has tokens, from 0 to 1; None where that can't be told.
    """

    kind: Kind
    label: str
    words: str
    owners: tuple[int, ...] = ()
    filled: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A block, or neighbours of one fate. wrong: the last moment's cell is what is broken."""

    name: str
    wrong: bool


def rows_of(
    frames: Sequence[Frame], marked: frozenset[int], size: int
) -> tuple[tuple[Row, ...], list[tuple[Cell, ...]]]:
    """The rows, and for each frame one cell a row."""
    blocks = sorted({block for frame in frames for block in frame.owners} | marked)
    fates = {
        block: tuple(_cell(frame, frames[0], block, size) for frame in frames) for block in blocks
    }
    runs = [[block] for block in blocks]
    if len(blocks) > WIDE:
        runs = _runs(blocks, lambda block: (block in marked, _labels(fates[block])))
    shown, hidden = _most_telling(runs, marked, fates)
    rows = [Row(_name(run), not marked.isdisjoint(run)) for run in shown]
    columns = [[_of_run(fates[run[0]][i], run) for run in shown] for i in range(len(frames))]
    if hidden:
        rows.append(Row(f"{hidden} more", wrong=False))
        more = Cell("absent", "...", "not shown here")
        for column in columns:
            column.append(more)
    return tuple(rows), [tuple(column) for column in columns]


def _labels(fate: Sequence[Cell]) -> tuple[tuple[Kind, str], ...]:
    return tuple((cell.kind, cell.label) for cell in fate)


def _runs(blocks: Iterable[int], fate: Callable[[int], object]) -> list[list[int]]:
    """The blocks, neighbours of one fate together."""
    runs: list[list[int]] = []
    last: object = None
    for block in blocks:
        now = fate(block)
        if runs and now == last and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
        last = now
    return runs


def _most_telling(
    runs: list[list[int]], marked: frozenset[int], fates: dict[int, tuple[Cell, ...]]
) -> tuple[list[list[int]], int]:
    """At most `MOST_ROWS` of the runs, in their order, and how many blocks are in none of them.

    What is broken comes first, then what changed last.
    """
    if len(runs) <= MOST_ROWS:
        return runs, 0

    def telling(i: int) -> tuple[bool, int]:
        labels = _labels(fates[runs[i][0]])
        changed = (j for j in range(len(labels) - 1, 0, -1) if labels[j] != labels[j - 1])
        return (marked.isdisjoint(runs[i]), -next(changed, 0))

    kept = set(sorted(range(len(runs)), key=telling)[:MOST_ROWS])
    shown = [run for i, run in enumerate(runs) if i in kept]
    return shown, sum(len(run) for i, run in enumerate(runs) if i not in kept)


def _name(run: Sequence[int]) -> str:
    return f"block {run[0]}" if len(run) == 1 else f"{run[0]}..{run[-1]}"


def _of_run(cell: Cell, run: Sequence[int]) -> Cell:
    """The cell of several blocks: which part of a table each is differs."""
    return cell if len(run) == 1 else replace(cell, words=_who(cell.owners, cell), filled=None)


def _who(owners: Sequence[int], cell: Cell) -> str:
    return f"held by {' and '.join(f'r{r}' for r in owners)}" if owners else cell.words


def _cell(frame: Frame, fresh: Frame, block: int, size: int) -> Cell:
    """Whose the block is: all that is said of it, whether or not it fits together."""
    owners, free = frame.owners.get(block, ()), frame.free
    if block not in fresh.owners and not owners:
        return Cell("absent", "-", "does not exist")
    listed = 0 if free is None else free.count(block)
    labels = [f"r{r}" for r in owners]
    words = [_place(frame, r, block) for r in dict.fromkeys(owners)]
    kind: Kind = "held" if owners else "nobody"
    if block in frame.reserved:
        kind = kind if owners else "reserved"
        labels.append("reserved")
        words.append("reserved")
    if block in frame.cached:
        kind = kind if labels else "cached"
        labels.append("cached")
        words.append("kept for reuse")
    if block in frame.withheld:
        kind = kind if labels else "cached"
        labels.append("withheld")
        words.append("withheld until the group ends")
    if listed:
        kind = kind if labels else "free"
        labels.append("free" if listed == 1 else f"free x{listed}")
        words.append("on the free list" + ("" if listed == 1 else f" {listed} times"))
    if not labels and free is None:
        return Cell("free", "free", "held by nobody; the free list can't be seen")
    if not labels:
        return Cell("nobody", "nobody", "belongs to nobody")
    return Cell(
        kind, "+".join(labels), "; ".join(words), owners, _filled(frame, owners, block, size)
    )


def _place(frame: Frame, request: int, block: int) -> str:
    """Where the block stands in the request's table."""
    places = [str(i) for i, entry in enumerate(frame.tables.get(request, ())) if entry == block]
    return f"held by r{request} at {', '.join(places)} of its table"


def _filled(frame: Frame, owners: Sequence[int], block: int, size: int) -> float | None:
    """How full the block is; None unless one table names it, which covers every token."""
    if len(owners) != 1:
        return None
    (owner,) = owners
    tokens, table = frame.seq_lens.get(owner), frame.tables.get(owner, ())
    if tokens is None or len(table) * size < tokens:
        return None
    return min(max(tokens - table.index(block) * size, 0), size) / size
