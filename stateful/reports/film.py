"""A counterexample as a film: whose each block is, moment by moment, as plain data.

The SVG picture and the HTML page draw it; nothing is decided there. The first moment is the fresh
pool, the last one is after the command that breaks something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagedkv.stateful.report import Counterexample, Frame
from pagedkv.stateful.reports.cells import Cell, Row, rows_of
from pagedkv.stateful.text import numbers, plain, together


@dataclass(frozen=True, slots=True)
class Holding:
    """One request at one moment: its length, None if unknown, and its block table.

    out: it is swapped out, and its blocks are those of the second pool.
    """

    request: int
    tokens: int | None
    table: tuple[int, ...]
    out: bool = False

    @property
    def length(self) -> str:
        """Its length, or where it is."""
        return "swapped out" if self.out else "?" if self.tokens is None else str(self.tokens)

    @property
    def text(self) -> str:
        """Length and table, as the terminal shows them."""
        return f"{self.length} [{numbers(self.table)}]"


@dataclass(frozen=True, slots=True)
class Moment:
    """One pool after one command: a cell for each row, the requests, the free list.

    free: in hand-out order, None where it can't be seen. changes: what differs from the moment
    before.
    """

    outcome: str
    note: str
    cells: tuple[Cell, ...]
    requests: tuple[Holding, ...]
    free: tuple[int, ...] | None
    changes: tuple[str, ...] = ()

    def holding(self, request: int) -> Holding | None:
        """What this request holds; None if it is not there."""
        return next((held for held in self.requests if held.request == request), None)


@dataclass(frozen=True, slots=True)
class Pool:
    """One target's pool over time. name: None where there is only one.

    requests: all that were ever there. wrong: those that the violation is about.
    """

    name: str | None
    rows: tuple[Row, ...]
    moments: tuple[Moment, ...]
    requests: tuple[int, ...]
    wrong: frozenset[int]


@dataclass(frozen=True, slots=True)
class Film:
    """A history. commands: one for each moment, the first is no command."""

    commands: tuple[str, ...]
    pools: tuple[Pool, ...]

    def to_json(self) -> dict[str, Any]:
        """What a page needs to step through it; changes nothing."""
        return {
            "commands": list(self.commands),
            "pools": [
                {
                    "name": pool.name,
                    "blocks": [row.name for row in pool.rows],
                    "wrong": {
                        "blocks": [i for i, row in enumerate(pool.rows) if row.wrong],
                        "requests": sorted(pool.wrong),
                    },
                    "moments": [_moment_json(moment) for moment in pool.moments],
                }
                for pool in self.pools
            ],
        }


def _moment_json(moment: Moment) -> dict[str, Any]:
    return {
        "outcome": moment.outcome,
        "note": moment.note,
        "cells": [cell.words for cell in moment.cells],
        "requests": [[held.request, held.length, list(held.table)] for held in moment.requests],
        "free": None if moment.free is None else list(moment.free),
        "changes": list(moment.changes),
    }


# ---------------------------------------------------------------- from counterexamples


def film_of(examples: Sequence[Counterexample], target: str) -> Film | None:
    """The film of counterexamples that have one history; None where no pool was seen."""
    first = examples[0]
    if not first.frames:
        return None
    commands = ("a fresh pool", *(plain(frame.command or "") for frame in first.frames[1:]))
    size = first.geometry.block_size
    peers = [frame.peer for frame in first.frames if frame.peer is not None]
    if len(peers) < len(first.frames):
        return Film(commands, (_pool(None, first.frames, together(examples), size),))
    names = target.split("+") if target.count("+") == 1 else ["the first", "the second"]
    about: list[list[Counterexample]] = [[], []]
    for example in examples:
        about[is_of_second(example)].append(example)
    nothing = replace(first, blocks=(), requests=())
    pools = (
        _pool(plain(name), frames, together(broken) if broken else nothing, size)
        for name, frames, broken in zip(names, (first.frames, peers), about, strict=True)
    )
    return Film(commands, tuple(pools))


def is_of_second(example: Counterexample) -> bool:
    """Whether it is the second of two targets that breaks: the judge says so in its message."""
    return example.message.startswith("the second target: ")


def _pool(name: str | None, frames: Sequence[Frame], broken: Counterexample, size: int) -> Pool:
    rows, cells = rows_of(frames, frozenset(broken.blocks), size)
    moments: list[Moment] = []
    for frame, column in zip(frames, cells, strict=True):
        outcome, note = _outcome(frame)
        ids = sorted({*frame.tables, *frame.seq_lens})
        held = [Holding(r, frame.seq_lens.get(r), frame.tables.get(r, ())) for r in ids]
        held += [Holding(r, None, blocks, out=True) for r, blocks in frame.swapped.items()]
        moment = Moment(outcome, note, column, tuple(held), frame.free)
        if moments:
            moment = replace(moment, changes=tuple(_changes(rows, moments[-1], moment)))
        moments.append(moment)
    requests = sorted({held.request for moment in moments for held in moment.requests})
    return Pool(name, rows, tuple(moments), tuple(requests), frozenset(broken.requests))


def _outcome(frame: Frame) -> tuple[str, str]:
    """What came of the command in a few words, and its whole message if there is more to it."""
    if frame.command is None:
        return "", ""
    whole = plain(frame.outcome)
    short = whole.partition(" (")[0].partition(":")[0]
    return short, "" if short == whole else whole


# ---------------------------------------------------------------- what changed


def _changes(rows: Sequence[Row], before: Moment, after: Moment) -> Iterable[str]:
    for row, was, now in zip(rows, before.cells, after.cells, strict=True):
        if was.label != now.label:
            yield f"{row.name}: {was.label} → {now.label}"
    for held in after.requests:
        earlier = before.holding(held.request)
        if earlier is None:
            yield f"r{held.request}: new, {held.text}"
        elif earlier != held:
            yield f"r{held.request}: {earlier.text} → {held.text}"
    for gone in before.requests:
        if after.holding(gone.request) is None:
            yield f"r{gone.request}: gone"
    moved = before.free is not None and after.free is not None
    if (
        moved
        and sorted(before.free or ()) == sorted(after.free or ())
        and before.free != after.free
    ):
        yield "free list: another order"
