"""A target that misbehaves: what it did, after which history, and nothing for any other."""

from __future__ import annotations

import os
import threading
import time

import pytest

from misbehaving import PLAN, Ends, Interrupts, resolve
from pagedkv import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.model import Geometry
from pagedkv.specs.steps import Raised
from pagedkv.stateful import memory, processes
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.journal import CtrlC, Journal, JournaledWorld, Last, last_of
from pagedkv.stateful.processes import run_all
from pagedkv.stateful.pulse import Pulse
from pagedkv.stateful.report import TargetReport
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.world import World


def checked(name: str) -> TargetReport:
    """The report of a target that misbehaves."""
    (report,) = run_all([name], resolve, PLAN, lambda _: None, 1)
    return report


@pytest.mark.usefixtures("children_unmeasured")
def test_a_death_from_outside_accuses_nobody_and_the_run_goes_on_to_the_next_target():
    bad, good = run_all(["killed", "good"], resolve, PLAN, lambda _: None, 1)
    assert (bad.verdict, bad.counterexamples) == ("unknown", ())
    assert "its process died (SIGKILL) in decode(0), after prefill(0, " in str(bad.reason)
    assert good.coverage.states > 0
    assert good.counterexamples == ()


# ---------------------------------------------------------------- the journal


def test_a_journal_says_the_history_and_the_call_that_goes_on(tmp_path):
    path = tmp_path / "journal"
    said = []

    class Reads(KVCacheManager):
        def allocate_for_decode(self, req):
            said.append(last_of(path))
            super().allocate_for_decode(req)

    world = JournaledWorld(Journal(path), Reads, Geometry(2, 1))
    assert last_of(path) == Last(Geometry(2, 1), (), "making")
    world.apply(Prefill(0, 1))
    assert last_of(path) == Last(Geometry(2, 1), (Prefill(0, 1),), "look")
    world.apply(Decode(0))
    (during,) = said
    assert during == Last(Geometry(2, 1), (Prefill(0, 1), Decode(0)), "call")
    assert str(during) == (
        "in decode(0), after prefill(0, 1) in a fresh pool of 2 block(s) of 1 token(s)"
    )


def test_copies_write_their_own_history_into_one_journal(tmp_path):
    path = tmp_path / "journal"
    world = JournaledWorld(Journal(path), KVCacheManager, Geometry(2, 1))
    world.apply(Prefill(0, 1))
    copy = world.clone(Trust("whole", "deep"))
    copy.apply(Decode(0))
    world.apply(Release(0))
    last = last_of(path)
    assert last is not None
    assert last.commands == (Prefill(0, 1), Release(0))
    assert copy.key(Trust("whole", "deep")) is not None
    last = last_of(path)
    assert last is not None
    assert last.commands == (Prefill(0, 1), Decode(0))


def test_a_journaled_world_tells_the_target_s_interrupt_from_the_user_s(tmp_path):
    world = JournaledWorld(Journal(tmp_path / "journal"), Interrupts, Geometry(1, 1))
    world.apply(Prefill(0, 1))
    step = world.apply(Release(0))
    assert step.outcome == Raised("KeyboardInterrupt", "the target's own")

    class Users(KVCacheManager):
        def release_request(self, req):
            raise CtrlC

    world = JournaledWorld(Journal(tmp_path / "journal"), Users, Geometry(1, 1))
    world.apply(Prefill(0, 1))
    with pytest.raises(CtrlC):
        world.apply(Release(0))


def test_an_empty_journal_says_nothing(tmp_path):
    path = tmp_path / "journal"
    path.touch()
    assert last_of(path) is None
    Journal(path)
    assert last_of(path) is None


# ---------------------------------------------------------------- deaths


@pytest.mark.usefixtures("children_unmeasured")
def test_an_exit_is_cut_down_to_a_history_that_is_fatal_alone():
    report = checked("dies")
    assert report.verdict == "violated"
    assert str(report.reason).startswith("its process died (exit code 7) in decode(")
    (example,) = report.counterexamples
    assert example.property == "answered"
    assert example.commands in (
        (Prefill(0, 2), Decode(0)),
        (Prefill(0, 1), Decode(0), Decode(0)),
    )
    assert example.message == (
        "decode(0): its process died (exit code 7); a grant or out-of-blocks was due"
    )


@pytest.mark.usefixtures("children_unmeasured")
def test_a_death_that_does_not_come_again_is_told_as_that(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDKV_TEST_MARK", str(tmp_path / "mark"))
    report = checked("dies-once")
    assert report.verdict == "unknown"
    assert report.reason == (
        "its process died (exit code 7) in a first run, and not in a second one, with a journal"
    )


# ---------------------------------------------------------------- hangs, memory, output


@pytest.mark.usefixtures("unmeasured")
def test_a_hanging_call_is_noticed_long_before_the_budget_is_over(monkeypatch):
    monkeypatch.setattr(processes, "CALL_SECONDS", 4.0)
    report = checked("hangs")
    assert report.verdict == "unknown"
    assert str(report.reason).startswith("it hung: no end of one call after ")
    assert " in release(0), after prefill(0, " in str(report.reason)


def test_the_pulse_of_a_stuck_call_tells_for_how_long_and_that_of_a_slow_one_does_not():
    told: list[float] = []
    enough = threading.Event()

    def tell(stuck: float) -> None:
        told.append(stuck)
        if stuck > 0.2:
            enough.set()

    class Slow(KVCacheManager):
        def allocate_for_decode(self, req):
            time.sleep(0.03)
            super().allocate_for_decode(req)

    class Stuck(KVCacheManager):
        def release_request(self, req):
            enough.wait(30)
            super().release_request(req)

    pulse = Pulse(tell, beat=0.05)
    pulse.start()
    world = World(Slow, Geometry(20, 1))
    world.apply(Prefill(0, 1))
    for _ in range(10):
        world.apply(Decode(0))
    slow = list(told)
    world = World(Stuck, Geometry(1, 1))
    world.apply(Prefill(0, 1))
    world.apply(Release(0))
    pulse.stop()
    assert slow
    assert enough.is_set()
    assert max(told) > 0.2


@pytest.mark.usefixtures("children_unmeasured")
def test_a_target_that_takes_all_memory_is_ended(monkeypatch):
    floor = 1 << 30
    monkeypatch.setattr(processes, "most", lambda: floor)
    report = checked("eats")
    assert report.verdict == "unknown"
    assert "GiB of memory" in str(report.reason)
    assert " in release(0), after prefill(0, " in str(report.reason)


def test_memory_is_measured_and_a_process_within_its_share_is_left_alone():
    assert memory.resident(os.getpid()) > 1 << 20
    assert memory.resident(2**22 + 1) == 0
    memory.check_memory(os.getpid())


# ---------------------------------------------------------------- what is an answer like any other


@pytest.mark.usefixtures("children_unmeasured")
def test_a_target_s_own_keyboard_interrupt_is_not_the_user_s():
    report = checked("interrupts")
    assert report.verdict == "violated"
    answered = {example.property: example for example in report.counterexamples}["answered"]
    assert answered.commands == (Prefill(0, 1), Release(0))
    assert "raised KeyboardInterrupt: the target's own" in answered.message


def test_what_no_except_exception_catches_is_an_answer():
    world = World(Ends, Geometry(1, 1))
    world.apply(Prefill(0, 1))
    assert world.apply(Release(0)).outcome == Raised("BaseException", "not an Exception")


@pytest.mark.parametrize("name", ["mutates", "retokens"])
def test_a_target_that_changes_what_it_was_given_is_found_out(name):
    report = run_campaign(resolve(name), PLAN)
    assert report.verdict == "violated"
    assert any("request" in example.message for example in report.counterexamples)
