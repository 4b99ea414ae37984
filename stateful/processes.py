"""Each target's campaign in a process of its own, so that a crash costs one target only.

A campaign that dies or hangs runs once more with a journal, which costs nothing in the normal
case and has the history in the end; a death is then cut down in throw-away processes.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from time import monotonic
from typing import Literal

from pagedkv.stateful.children import (
    PROGRESS_SECONDS,
    Beat,
    CutDown,
    Interrupted,
    Message,
    Resolve,
    Update,
    campaign,
    postmortem,
)
from pagedkv.stateful.journal import Last, last_of
from pagedkv.stateful.memory import most, resident, too_much
from pagedkv.stateful.output import Output
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.postmortem import told_of
from pagedkv.stateful.report import Counterexample, Coverage, PropertyResult, TargetReport, Verdict
from pagedkv.stateful.spawning import deaf, death_of, name_of, usable_cores

__all__ = ["PROGRESS_SECONDS", "OnEvent", "Resolve", "Update", "death_of", "run_all"]

HUNG = "it hung"
GRACE_SECONDS = 60.0
"""How long past its budget a campaign may take before it is ended."""
CALL_SECONDS = 30.0
"""How long one call of a target may take before it hangs."""
AGAIN_SECONDS = 10.0
"""The same in a second run of what hung in a first one."""
LOOK_SECONDS = 0.25
OnEvent = Callable[[Update | TargetReport], None]


def run_all(
    names: Sequence[str],
    resolve: Resolve,
    plan: Plan,
    on_event: OnEvent,
    workers: int | None = None,
) -> list[TargetReport]:
    """Check the targets, several at once, each in a child; returns reports in the given order.

    A child that dies or hangs gives a verdict that says so, and after which history.
    KeyboardInterrupt goes on to the children, which end with what they know.
    """
    return _Run(resolve, plan, on_event, workers or usable_cores()).run(names)


Stage = Literal["first", "again", "cut"]


@dataclass(slots=True)
class _Child:
    """One target, in one of its processes. `how` is how one of them ended, `last` after what."""

    index: int
    name: str
    output: Output
    started: float = field(default_factory=monotonic)
    stage: Stage = "first"
    process: SpawnProcess | None = None
    pipe: Connection | None = None
    ends: float = 0.0
    heard: float | None = None
    """When the campaign was last seen to move; None before it began."""
    asked_to_end: bool = False
    how: str = ""
    code: int = 0
    last: Last | None = None

    @property
    def elapsed(self) -> float:
        return monotonic() - self.started

    def stop(self) -> int:
        """End the process, if it has not ended, and take what it printed; its exit code."""
        assert self.process is not None
        assert self.pipe is not None
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.output.take()
        self.output.close()
        return self.process.exitcode or 0


class _Run:
    """One call of `run_all`. Every target is in `_waiting`, `_running` or `_reports`."""

    def __init__(self, resolve: Resolve, plan: Plan, on_event: OnEvent, workers: int) -> None:
        self._resolve, self._plan, self._on_event = resolve, plan, on_event
        self._workers = workers
        self._running: list[_Child] = []
        self._reports: dict[int, TargetReport] = {}
        self._stopping = False

    def run(self, names: Sequence[str]) -> list[TargetReport]:
        waiting = list(enumerate(names))
        with tempfile.TemporaryDirectory(prefix="pagedkv-") as folder:
            self._folder = Path(folder)
            try:
                while waiting or self._running:
                    while waiting and len(self._running) < self._workers:
                        index, name = waiting.pop(0)
                        self._begin(_Child(index, name, Output(name)))
                    self._listen()
            except KeyboardInterrupt:
                self._stopping = True
                for index, name in waiting:
                    never = _Child(index, name, Output(name))
                    self._report(never, _lost(name, "interrupted before it began", 0.0))
                while self._running:
                    self._listen()
            finally:
                for child in self._running:
                    child.stop()
        return [self._reports[index] for index in range(len(names))]

    # ------------------------------------------------------------ starting

    def _begin(self, child: _Child) -> None:
        """Start the process of the child's stage."""
        plan, journal = self._plan, None
        if child.stage == "again":
            # A journal takes time, and the second run must come as far as the first.
            plan, journal = replace(plan, seconds=2 * plan.seconds), self._journal(child)
        context = get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        printed, out = context.Pipe(duplex=False)
        args: tuple[object, ...] = (child.name, self._resolve, plan)
        if child.stage == "cut":
            args = (*args, child.last, child.code, theirs, out)
            process = context.Process(target=postmortem, args=args, daemon=True)
        else:
            args = (*args, journal, theirs, out)
            process = context.Process(target=campaign, args=args, daemon=True)
        # A child that is interrupted while it is still importing would only print a traceback.
        with deaf():
            process.start()
        theirs.close()
        out.close()
        child.process, child.pipe, child.heard = process, ours, None
        child.output.follow(printed)
        child.ends = monotonic() + 7 * plan.seconds + GRACE_SECONDS
        self._running.append(child)

    def _journal(self, child: _Child) -> Path:
        return self._folder / f"journal-{child.index}"

    # ------------------------------------------------------------ listening

    def _listen(self) -> None:
        """Take what the children say for a moment; one that is done leaves `_running`."""
        pipes = {child.pipe: child for child in self._running if child.pipe is not None}
        outputs = [child.output.pipe for child in self._running if child.output.pipe is not None]
        ready = wait([*pipes, *outputs], timeout=LOOK_SECONDS)
        for child in self._running:
            child.output.take()
        for pipe in ready:
            if isinstance(pipe, Connection) and (child_of := pipes.get(pipe)) is not None:
                self._take(child_of, pipe)
        for child in list(self._running):
            if child.stage != "cut" or monotonic() > child.ends:
                self._watch(child)
        self._watch_memory()

    def _take(self, child: _Child, pipe: Connection) -> None:
        try:
            message: Message = pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):  # an end, be it inside a message
            assert child.process is not None
            child.process.join(GRACE_SECONDS)
            code = child.stop()
            self._ended(child, f"its process died ({name_of(code)})", code)
            return
        match message:
            case Beat(stuck):
                child.heard = monotonic() - stuck
            case Update():
                child.heard = monotonic()
                self._on_event(message)
            case Interrupted():
                self._leave(child)
                self._ended(child, KEYBOARD_INTERRUPT)
            case CutDown(example):
                self._leave(child)
                self._report(child, _fatal(child, example))
            case TargetReport():
                self._leave(child)
                self._report(child, _as_known(child, message))

    def _leave(self, child: _Child) -> None:
        """Let a child end that has told all it knows."""
        assert child.process is not None
        child.process.join(LEAVE_SECONDS)
        child.stop()

    def _watch(self, child: _Child) -> None:
        """End a child that hangs, and ask one that takes too long to come to an end."""
        now = monotonic()
        moved = child.heard
        longest = AGAIN_SECONDS if child.how.startswith(HUNG) else CALL_SECONDS
        if moved is not None and now - moved > longest:
            child.stop()
            self._ended(child, f"{HUNG}: no end of one call after {now - moved:.0f} s")
        elif now > child.ends:
            if moved is not None and not child.asked_to_end:
                child.asked_to_end, child.ends = True, now + GRACE_SECONDS
                _interrupt(child)
                return
            child.stop()
            self._ended(child, f"{HUNG}: no end after {child.elapsed:.0f} s")

    def _watch_memory(self) -> None:
        """End the largest child if all of them together hold too much."""
        limit = most()
        held = {child.index: resident(_pid(child)) for child in self._running}
        if limit is None or sum(held.values()) <= limit:
            return
        child = max(self._running, key=lambda child: held[child.index])
        child.stop()
        self._ended(child, too_much(held[child.index]))

    # ------------------------------------------------------------ ends

    def _ended(self, child: _Child, how: str, code: int | None = None) -> None:
        """What comes after an end without a report: another stage, or the report of it.

        code: the exit code, if it ended by itself.
        """
        if child.stage == "first" and not self._stopping:
            self._running.remove(child)
            child.stage, child.how = "again", how
            self._begin(child)
            return
        if child.stage == "again":
            child.last = last_of(self._journal(child))
            if _without_numbers(how) != _without_numbers(child.how):
                how = f"{child.how} in a first run; in a second one, {told_of(child.last, how)}"
                child.last = None
            child.how = how
            if code is not None and child.last is not None and not self._stopping:
                self._running.remove(child)
                child.stage, child.code = "cut", code
                self._begin(child)
                return
        child.how = child.how or how
        self._report(child, _fatal(child, None))

    def _report(self, child: _Child, report: TargetReport) -> None:
        if child in self._running:
            self._running.remove(child)
        self._reports[child.index] = report
        self._on_event(report)


LEAVE_SECONDS = 10.0


def _pid(child: _Child) -> int:
    assert child.process is not None
    assert child.process.pid is not None
    return child.process.pid


def _interrupt(child: _Child) -> None:
    """Ask it to end with what it knows."""
    with suppress(OSError):
        os.kill(_pid(child), signal.SIGINT)


def _without_numbers(how: str) -> str:
    """Two hangs took different times, and are one kind of end."""
    return re.sub(r"[\d.]+ (s|GiB)", "", how)


def _lost(name: str, reason: str, seconds: float) -> TargetReport:
    coverage = Coverage(0, 0, 0, exhausted=False, stopped=reason)
    return TargetReport(name, "unknown", reason, (), (), coverage, seconds)


def _fatal(child: _Child, example: Counterexample | None) -> TargetReport:
    """The report of a target whose process ended; a history that is fatal alone is a violation."""
    lost = _lost(child.name, told_of(child.last, child.how), child.elapsed)
    if example is None:
        return lost
    result = PropertyResult(example.property, "violated", 1)
    verdict: Verdict = "unknown" if example.expected else "violated"
    return replace(lost, verdict=verdict, properties=(result,), counterexamples=(example,))


def _as_known(child: _Child, report: TargetReport) -> TargetReport:
    """The report in the light of what is known from outside."""
    reason = report.reason
    if child.asked_to_end:
        reason = (
            f"too slow: no end after {child.elapsed:.0f} s, though it went from call to call; "
            f"give it more with --budget"
        )
    if child.stage == "again" and child.how != KEYBOARD_INTERRUPT:
        reason = f"{child.how} in a first run, and not in a second one, with a journal"
    if reason == report.reason:
        return report
    verdict: Verdict = "violated" if report.verdict == "violated" else "unknown"
    return replace(report, verdict=verdict, reason=reason)


KEYBOARD_INTERRUPT = "it raised KeyboardInterrupt"
