"""A target that dies, hangs or leaves costs its own verdict, and nobody else's."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import pytest

from faults import TINY
from misbehaving import exit_c
from pagedkv import KVCacheManager, Request
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.stateful import processes
from pagedkv.stateful.output import SHOWN
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.processes import Update, run_all
from pagedkv.stateful.report import Report, TargetReport
from pagedkv.stateful.subject import Subject

PLAN = Plan(TINY, 1.0, expected={})


class Exits(KVCacheManager):
    def allocate_for_decode(self, req: Request) -> None:
        sys.exit("the target wants to leave")


class Dies(KVCacheManager):
    def allocate_for_decode(self, req: Request) -> None:
        exit_c(7)


class Crashes(KVCacheManager):
    def allocate_for_decode(self, req: Request) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Unnamed(KVCacheManager):
    """Dies by a signal that has no name of its own."""

    def allocate_for_decode(self, req: Request) -> None:
        os.kill(os.getpid(), signal.SIGRTMIN + 3)


class Stammers(KVCacheManager):
    """Dies in the middle of a message to the parent."""

    def allocate_for_decode(self, req: Request) -> None:
        for pipe in gc.get_objects():
            if isinstance(pipe, Connection) and pipe.writable and not pipe.closed:
                os.write(pipe.fileno(), b"\0\0\1\0half a message")
        exit_c(7)


class Hangs(KVCacheManager):
    def allocate_for_decode(self, req: Request) -> None:
        time.sleep(600)


class Prints(KVCacheManager):
    def allocate_for_prefill(self, req: Request) -> None:
        print("all work and no play " * 200)  # noqa: T201 - that is its fault
        super().allocate_for_prefill(req)


TARGETS = {
    "exits": Exits,
    "dies": Dies,
    "crashes": Crashes,
    "unnamed": Unnamed,
    "stammers": Stammers,
    "hangs": Hangs,
    "prints": Prints,
}


def resolve(name: str) -> Subject:
    """Called in the child."""
    return Subject(name, (TARGETS[name],))


def checked(names: Sequence[str], workers: int = 2) -> tuple[list[TargetReport], list[object]]:
    events: list[object] = []
    return run_all(names, resolve, PLAN, events.append, workers), events


@pytest.mark.usefixtures("unmeasured")
def test_a_target_that_dies_costs_no_other_and_reports_stand_in_the_given_order():
    names = ["dies", "exits", "crashes", "unnamed", "stammers"]
    reports, events = checked(names)
    assert [report.target for report in reports] == names
    dies, exits, crashes, unnamed, stammers = reports
    assert [unnamed.verdict, stammers.verdict] == ["unknown", "unknown"]
    assert "its process died" in str(unnamed.reason)
    assert "its process died" in str(stammers.reason)
    assert str(dies.reason).startswith("its process died (exit code 7) in decode(")
    assert str(crashes.reason).startswith("its process died (SIGSEGV) in decode(")
    assert exits.verdict == "violated"
    answered = next(one for one in exits.counterexamples if one.property == "answered")
    assert answered.commands == (Prefill(0, 1), Decode(0))
    assert "SystemExit: the target wants to leave" in answered.message
    assert Report(tuple(reports)).exit_code == 1
    told = [event for event in events if isinstance(event, TargetReport)]
    assert sorted(told, key=lambda report: names.index(report.target)) == reports
    assert {event.target for event in events if isinstance(event, Update)} <= set(names)


@pytest.mark.usefixtures("children_unmeasured")
def test_a_target_that_prints_without_end_is_checked_all_the_same(capfd):
    (report,), _ = checked(["prints"])
    assert report.coverage.states > 0
    assert "died" not in str(report.reason)
    err = capfd.readouterr().err  # stdout is the report's
    assert "all work and no play" in err
    assert "[prints prints more than 16,384 bytes: the rest is not shown]" in err
    assert len(err) < 2 * SHOWN


@pytest.mark.usefixtures("children_unmeasured")
def test_a_target_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(processes, "CALL_SECONDS", 4.0)
    (report,) = run_all(["hangs"], resolve, PLAN, lambda _: None, 1)
    assert report.verdict == "unknown"
    assert str(report.reason).startswith("it hung: no end of one call after ")


def test_ctrl_c_leaves_what_has_not_begun_undone():
    reports: list[TargetReport] = []

    def on_event(event: object) -> None:
        if isinstance(event, TargetReport):
            reports.append(event)
        if len(reports) == 1:
            raise KeyboardInterrupt

    done = run_all(["dies", "exits", "crashes"], resolve, PLAN, _once(on_event), 1)
    assert [report.target for report in done] == ["dies", "exits", "crashes"]
    assert str(done[0].reason).startswith("its process died (exit code 7)")
    assert [report.reason for report in done[1:]] == ["interrupted before it began"] * 2


def _once(on_event):
    """Pass the first KeyboardInterrupt on, and no other."""
    raised = False

    def listen(event: object) -> None:
        nonlocal raised
        try:
            on_event(event)
        except KeyboardInterrupt:
            if not raised:
                raised = True
                raise

    return listen


def test_no_target_is_no_report():
    assert checked([]) == ([], [])
