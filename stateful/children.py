"""The child's side of a campaign in a process of its own: what it runs, and what it tells."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.exploration import INTERRUPTED, Progress
from pagedkv.stateful.journal import CtrlC, Journal, JournaledWorld, Last
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.postmortem import cut
from pagedkv.stateful.pulse import Pulse
from pagedkv.stateful.report import Counterexample, TargetReport
from pagedkv.stateful.subject import Subject

PROGRESS_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Update:
    """How far one target's campaign is."""

    target: str
    phase: str
    progress: Progress
    elapsed: float


@dataclass(frozen=True, slots=True)
class Beat:
    """The campaign runs, and has been in one call for so many seconds."""

    stuck: float


@dataclass(frozen=True, slots=True)
class CutDown:
    """What a fatal history came down to; None if it is not fatal alone."""

    example: Counterexample | None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The target raised KeyboardInterrupt, and the user did not."""


Message = Update | Beat | CutDown | Interrupted | TargetReport
Resolve = Callable[[str], Subject]
"""Makes the subject of a name; called in the child, so it must be a module's own function."""


def campaign(
    name: str, resolve: Resolve, plan: Plan, journal: Path | None, pipe: Connection, out: Connection
) -> None:
    """One campaign, its progress and its report through the pipe; what is printed goes to `out`."""
    _redirect(out)
    teller = _Teller(name, pipe)
    heard = False

    def hear(_signal: int, _frame: object) -> None:
        nonlocal heard
        heard = True
        raise CtrlC

    subject = resolve(name)
    if journal is not None:
        subject = replace(subject, maker=partial(JournaledWorld, Journal(journal)))
    pulse = Pulse(lambda stuck: teller.send(Beat(stuck)))
    pulse.start()
    signal.signal(signal.SIGINT, hear)
    report: TargetReport | None = None
    try:
        report = run_campaign(subject, plan, teller.tell)
    except KeyboardInterrupt:
        if heard:
            raise
    pulse.stop()
    if report is None or (_was_interrupted(report) and not heard):
        teller.send(Interrupted())
    else:
        teller.send(report)
    pipe.close()


class _Teller:
    """What is told to the parent, by two threads: one message at a time."""

    def __init__(self, name: str, pipe: Connection) -> None:
        self._name, self._pipe = name, pipe
        self._started = self._last = monotonic()
        self._alone = threading.Lock()

    def send(self, message: Message) -> None:
        with self._alone:
            self._pipe.send(message)

    def tell(self, phase: str, progress: Progress) -> None:
        if (now := monotonic()) - self._last > PROGRESS_SECONDS:
            self._last = now
            self.send(Update(self._name, phase, progress, now - self._started))


def _was_interrupted(report: TargetReport) -> bool:
    return INTERRUPTED in (report.reason or "") or INTERRUPTED in (report.coverage.stopped or "")


def postmortem(
    name: str,
    resolve: Resolve,
    plan: Plan,
    last: Last,
    code: int,
    pipe: Connection,
    out: Connection,
) -> None:
    """Cut a fatal history down, and send what it came down to."""
    _redirect(out)
    pipe.send(CutDown(cut(resolve(name), plan, last, code)))
    pipe.close()


def _redirect(out: Connection) -> None:
    """Send what the target prints to the parent, which takes it, shows the start and no more."""
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    out.close()
