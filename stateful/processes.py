"""Each target's campaign in a process of its own, so that a crash costs one target only."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from time import monotonic

from pagedkv.stateful.campaign import Plan, Subject, run_campaign
from pagedkv.stateful.explorer import Progress
from pagedkv.stateful.report import Coverage, TargetReport

GRACE_SECONDS = 60.0
"""How long past its budget a campaign may take before it is ended."""
PROGRESS_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Update:
    """How far one target's campaign is."""

    target: str
    phase: str
    progress: Progress
    elapsed: float


Resolve = Callable[[str], Subject]
"""Makes the subject of a name; called in the child, so it must be a module's own function."""
OnEvent = Callable[[Update | TargetReport], None]


def run_all(
    names: Sequence[str],
    resolve: Resolve,
    plan: Plan,
    on_event: OnEvent,
    workers: int | None = None,
) -> list[TargetReport]:
    """Check the targets, several at once, each in a child; returns reports in the given order.

    A child that dies or hangs gives an unknown verdict that says so. KeyboardInterrupt goes on
    to the children, which end with what they know.
    """
    workers = workers or os.cpu_count() or 1
    waiting = list(enumerate(names))
    running: dict[Connection, _Child] = {}
    reports: dict[int, TargetReport] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                index, name = waiting.pop(0)
                child = _start(index, name, resolve, plan)
                running[child.pipe] = child
            _listen(running, reports, on_event)
    except KeyboardInterrupt:
        for index, name in waiting:
            reports[index] = _lost(name, "interrupted before it began", 0.0)
            on_event(reports[index])
        while running:
            _listen(running, reports, on_event)
    finally:
        for child in running.values():
            child.process.kill()
    return [reports[index] for index in range(len(names))]


def death_of(work: Callable[[str], object], name: str, seconds: float) -> str | None:
    """How a child that does `work(name)` dies or hangs; None if it ends, whatever it raises."""
    process = get_context("spawn").Process(target=_quietly, args=(work, name), daemon=True)
    with _deaf():
        process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return f"its process hung for {seconds:.0f} s"
    return _how(process.exitcode or 0) if (process.exitcode or 0) < 0 else None


def _quietly(work: Callable[[str], object], name: str) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with suppress(BaseException):
        work(name)


@contextmanager
def _deaf() -> Iterator[None]:
    """Let SIGINT pass unheard, and what is started meanwhile too, until it listens itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class _Child:
    index: int
    name: str
    process: SpawnProcess
    pipe: Connection
    started: float
    ends: float


def _start(index: int, name: str, resolve: Resolve, plan: Plan) -> _Child:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, resolve, plan, theirs), daemon=True)
    # A child that is interrupted while it is still importing would only print a traceback.
    with _deaf():
        process.start()
    theirs.close()
    now = monotonic()
    return _Child(index, name, process, ours, now, now + 7 * plan.seconds + GRACE_SECONDS)


def _listen(
    running: dict[Connection, _Child], reports: dict[int, TargetReport], on_event: OnEvent
) -> None:
    """Take what the children say for a moment; a child that is done leaves `running`."""
    for pipe in wait(list(running), timeout=0.5):
        assert isinstance(pipe, Connection)
        child = running[pipe]
        try:
            message: Update | TargetReport = pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):  # an end, be it inside a message
            child.process.join()
            message = _lost(child.name, _death(child), monotonic() - child.started)
        if isinstance(message, TargetReport):
            reports[child.index] = message
            del running[pipe]
        on_event(message)
    for pipe, child in list(running.items()):
        if monotonic() > child.ends:
            child.process.kill()
            del running[pipe]
            took = monotonic() - child.started
            lost = _lost(child.name, f"it hung: no end after {took:.0f} s", took)
            reports[child.index] = lost
            on_event(lost)


def _death(child: _Child) -> str:
    return _how(child.process.exitcode or 0)


def _how(code: int) -> str:
    names = {int(one): one.name for one in signal.Signals}
    how = f"exit code {code}" if code >= 0 else names.get(-code, f"signal {-code}")
    return f"its process died ({how})"


def _lost(name: str, reason: str, seconds: float) -> TargetReport:
    coverage = Coverage(0, 0, 0, exhausted=False, stopped=reason)
    return TargetReport(name, "unknown", reason, (), (), coverage, seconds)


def _work(name: str, resolve: Resolve, plan: Plan, pipe: Connection) -> None:
    """The child: one campaign, its progress and its report through the pipe."""
    os.dup2(2, 1)  # what a target prints must not stand in the report
    started = last = monotonic()

    def tell(phase: str, progress: Progress) -> None:
        nonlocal last
        if (now := monotonic()) - last > PROGRESS_SECONDS:
            last = now
            pipe.send(Update(name, phase, progress, now - started))

    subject = resolve(name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipe.send(run_campaign(subject, plan, tell))
    pipe.close()
