"""What a person sees while something runs: bars on a terminal, lines elsewhere and in CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from pagedkv.stateful.report import TargetReport
from pagedkv.terminal import console_on, count, outcome

if TYPE_CHECKING:
    from pagedkv.stateful.processes import Update

PLAIN_SECONDS = 10.0
"""How often progress is a line where there is no terminal."""

Listener = Callable[["Update | TargetReport"], None]


@contextmanager
def progress(
    stream: IO[str],
    names: Sequence[str],
    budget: float | None,
    done: MutableMapping[str, TargetReport],
    *,
    hard: bool = True,
) -> Iterator[Listener]:
    """What to tell of the campaigns: bars on a terminal, lines elsewhere and in CI.

    budget: seconds for each; None if there is no end to wait for. hard: of the clock, and not of
    processor time. Puts each report into `done` as it comes.
    """
    console = console_on(stream)
    live = _live(console)
    with _bars(console, names, budget) if live else _lines(console, budget, hard=hard) as tell:

        def listen(event: Update | TargetReport) -> None:
            if isinstance(event, TargetReport):
                done[event.target] = event
            tell(event)

        yield listen


def _live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")


@contextmanager
def watch(stream: IO[str], name: str) -> Iterator[Callable[[str, int, int], None]]:
    """What to tell of work on one history: (phase, commands done, commands in all or 0)."""
    console = console_on(stream)
    pace = _StepPace()
    with _line(console, name) if _live(console) else _now_and_then(console, name) as put:
        yield lambda phase, done, of: put(pace.words(phase, done, of))


@contextmanager
def _line(console: Console, name: str) -> Iterator[Callable[[str], None]]:
    """One line that changes, gone in the end."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(name)
        yield lambda words: bars.update(task, description=f"{name}: {words}")


@contextmanager
def _now_and_then(console: Console, name: str) -> Iterator[Callable[[str], None]]:
    last = monotonic()

    def put(words: str) -> None:
        nonlocal last
        if monotonic() - last >= PLAIN_SECONDS:
            last = monotonic()
            console.print(f"{name}: {words}")

    yield put


class _StepPace:
    """Words for how far work on a history is; the rate is that of the phase."""

    def __init__(self) -> None:
        self._phase, self._since, self._from = "", 0.0, 0

    def words(self, phase: str, done: int, of: int) -> str:
        kind = phase.partition(",")[0]
        if kind != self._phase or done < self._from:
            self._phase, self._since, self._from = kind, monotonic(), done
        seconds = monotonic() - self._since
        rate = f", {(done - self._from) / seconds:,.0f}/s" if seconds > 1 else ""
        return f"{phase}, {done:,} {f'of {of:,}' if of else 'transitions'}{rate}"


@contextmanager
def _lines(console: Console, budget: float | None, *, hard: bool) -> Iterator[Listener]:
    """One line when a target starts, one now and then, one when it ends."""
    last: dict[str, float] = {}
    pace = _Pace(budget)
    limit = ""
    if budget is not None:
        of = f"at most {budget:.0f} s" if hard else f"about {budget:.0f} s of processor time"
        limit = f", {of}"

    def tell(event: Update | TargetReport) -> None:
        if isinstance(event, TargetReport):
            console.print(f"{event.target}: {outcome(event)}")
        elif event.target not in last:
            last[event.target] = monotonic()
            pace.words(event)
            console.print(f"{event.target}: started{limit}")
        elif monotonic() - last[event.target] >= PLAIN_SECONDS:
            last[event.target] = monotonic()
            console.print(f"{event.target}: {pace.words(event)}")

    yield tell


@contextmanager
def _bars(console: Console, names: Sequence[str], budget: float | None) -> Iterator[Listener]:
    """One bar a target, filled as its budget is spent; gone when all is done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[what]}", markup=False),
    )
    pace = _Pace(budget)
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {
            name: bars.add_task(name, total=budget, what="waiting") for name in names
        }

        def tell(event: Update | TargetReport) -> None:
            task = tasks[event.target]
            if isinstance(event, TargetReport):
                bars.update(task, completed=budget, what=outcome(event))
            else:
                bars.update(task, completed=event.elapsed, what=pace.words(event))

        yield tell


class _Pace:
    """Words for how far campaigns are; the rate is that of the phase, since its first event."""

    def __init__(self, budget: float | None) -> None:
        self._budget = budget
        self._seen: dict[str, tuple[Update, Update]] = {}  # the phase's first event, and the last

    def words(self, event: Update) -> str:
        at = event.progress
        left = ""
        if self._budget is not None:
            seconds = self._budget - event.elapsed
            over = f", past its time, finishing depth {at.depth + 1}"
            left = f", {seconds:.0f} s left" if seconds >= 0.5 else over
        return (
            f"{event.phase}, {count(at.states, 'state')}, "
            f"{count(at.transitions, 'transition')}, depth {at.depth}{self._rate(event)}{left}"
        )

    def _rate(self, event: Update) -> str:
        first, last = self._seen.get(event.target, (event, event))
        done = event.progress.transitions
        if event.phase != first.phase or done < last.progress.transitions:
            first = event  # another phase, or a search that began again
        self._seen[event.target] = (first, event)
        seconds = event.elapsed - first.elapsed
        return f", {(done - first.progress.transitions) / seconds:,.0f}/s" if seconds > 0 else ""
