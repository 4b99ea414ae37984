"""Cases that take turns: what shares the machine with them shares it with all of them.

Each case of a group runs once a round, in a new order each time, so that a slow minute slows them
all. Times are of the CPU, not of the clock. pyperf keeps the values, their statistics and what is
known of the machine: `python -m pyperf stats FILE` reads what `--json` writes.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyperf import Benchmark

Round = Callable[[], float]
"""One round of a case: CPU seconds per operation."""


@dataclass(frozen=True)
class Case:
    """One row of a table: `start` makes what it needs, and returns what runs one round."""

    name: str
    start: Callable[[], Round]
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Rows that are compared with the row `base`; `missing` are lines on rows that can't be."""

    title: str
    unit: str
    base: str
    cases: Sequence[Case]
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """What came out: seconds per operation, one value a round, and the base's in those rounds."""

    case: Case
    values: Sequence[float]
    base: Sequence[float] = field(repr=False)

    @property
    def ratio(self) -> float:
        """How many times the base's median this median is."""
        return median(self.values) / median(self.base)

    @property
    def spread(self) -> float:
        """The distance of the quartiles, as a share of the median."""
        ordered, n = sorted(self.values), len(self.values)
        return (ordered[3 * n // 4] - ordered[n // 4]) / median(ordered)


def timed(operations: int, call: Callable[[], object]) -> float:
    """CPU seconds per operation of one call that does so many."""
    start = process_time()
    call()
    return (process_time() - start) / operations


def measure(group: Group, rounds: int, warmups: int = 2) -> list[Row]:
    """Run all cases in turns; the order of a round is drawn anew each time."""
    runs = [case.start() for case in group.cases]
    values: list[list[float]] = [[] for _ in runs]
    draw, order = random.Random(0), list(range(len(runs)))
    gc.collect()
    gc.disable()
    try:
        for turn in range(warmups + rounds):
            draw.shuffle(order)
            for i in order:
                value = runs[i]()
                if turn >= warmups:
                    values[i].append(value)
            gc.collect()
    finally:
        gc.enable()
    names = [case.name for case in group.cases]
    base = values[names.index(group.base)]
    return [Row(case, own, base) for case, own in zip(group.cases, values, strict=True)]


def table(group: Group, rows: Sequence[Row]) -> str:
    """The rows as text: median, spread of the middle half, and the ratio to the base."""
    width = max(len(row.case.name) for row in rows)
    lines = [f"{group.title} (per {group.unit}; ratio to {group.base!r})"]
    lines += [
        f"  {row.case.name:{width}}  {_time(median(row.values)):>9}  +-{row.spread:4.0%}"
        f"  {row.ratio:10.2f} x  {row.case.note}".rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *(f"  not measured: {line}" for line in group.missing)])


def benchmarks(group: Group, rows: Sequence[Row]) -> list[Benchmark]:
    """The rows as pyperf's benchmarks, with the ratio in their metadata."""
    import pyperf

    return [
        pyperf.Benchmark(
            [
                pyperf.Run(
                    [max(value, 1e-12) for value in row.values],
                    metadata={
                        "name": f"{group.title}: {row.case.name}",
                        "unit": "second",
                        "base": group.base,
                        "ratio": round(row.ratio, 4),
                        "note": row.case.note or "-",
                    },
                )
            ]
        )
        for row in rows
    ]


def _time(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e9:.1f} ns"
