"""Calls made to fail inside targets: each planted fault is found, and nothing right is accused."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fragile
import pagedkv
from faults import Tiny, WrongReport
from fragile import (
    Adapter,
    Appends,
    AppendsCounting,
    AppendsFirst,
    Copying,
    CountsFirst,
    Dies,
    Elsewhere,
    Empties,
    FinallyFails,
    FreesHalf,
    Generous,
    Leaks,
    Locks,
    RepairsOnce,
    SaysMemory,
    Swallows,
    Twisty,
)
from pagedkv import KVCacheManager, api, cli
from pagedkv.arrays import ArrayKVCacheManager
from pagedkv.declarations import Declarations
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import UNDER_FAULT, Fault, fault_from_json
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful import campaign as campaigns
from pagedkv.stateful import verdict
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.exploration import INTERRUPTED, Exploration, Limits, Progress
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.injection import Sweep, Terms, sweep
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.points import RETRIES, Injector, modules_of
from pagedkv.stateful.profiles import Scope
from pagedkv.stateful.report import Injection, OneMinimal, Report, Shortest, TargetReport
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.traces import BadTrace, Trace, read_trace, write_trace
from pagedkv.stateful.world import World

POOLS = (Geometry(1, 1), Geometry(1, 2), Geometry(2, 1))


def swept(factory: Any, *pools: Geometry, kept: bool = False, **limits: Any) -> Sweep:
    return sweep(
        lambda geometry: World(factory, geometry, requests=2, keeps_released=kept),
        pools or POOLS,
        Terms(Limits(**limits)),
    )


# ---------------------------------------------------------------- what each is found by


def explored_plainly(factory: Any, *, kept: bool = False) -> Exploration:
    """The same search without failures."""

    def make(geometry: Geometry) -> World:
        return World(factory, geometry, requests=2, keeps_released=kept)

    offers = offered(*make(POOLS[0]).states)
    return explore(make, POOLS, lambda: Judge(PROPERTIES.values(), offers), Limits())[0]


P, D, R = Prefill(0, 1), Decode(0), Release(0)
AGAIN = Misuse(0, "prefill-live")

PLANTED: tuple[tuple[Any, tuple[Command, ...], str, str], ...] = (
    (AppendsFirst, (P, D), "once: self.free.pop(0)", "block_table before [0] != [0, 1] after"),
    (CountsFirst, (P, P), "once: super()", "prefill(0, 1) refused as out of blocks"),
    (RepairsOnce, (P,), "persistent: self.done()", "block_table before [] != [0] after"),
    (FinallyFails, (P, R), "once: self.closed()", "free_blocks before [] != [0] after"),
    (FreesHalf, (P, R), "once: self.freed(block)", "free_blocks before [] != [0] after"),
    (Leaks, (P, P, R), "once: super()", "conservation: free(0) + held(0)"),
    (Swallows, (P,), "once: super()", "granted all the same, but table-cover: "),
    (Empties, (P, AGAIN), "once: self.check(not table)", "block_table before [0] != [] after"),
)


@pytest.mark.parametrize(
    ("factory", "commands", "where", "message"),
    PLANTED,
    ids=[kind.__name__ for kind, *_ in PLANTED],
)
def test_a_planted_fault_is_found_with_its_shortest_history(factory, commands, where, message):
    found = swept(factory).found
    assert found is not None
    assert found.commands == commands
    assert f"{found.fault.mode}: {_place(found.broken.message)}" == where
    assert message in found.broken.message


def _place(message: str) -> str:
    """The source of the call that failed."""
    return message.rpartition("failed at call")[2].partition(": ")[2].rpartition(" at ")[0]


@pytest.mark.parametrize("factory", [kind for kind, *_ in PLANTED])
def test_a_planted_fault_does_not_show_without_a_failure(factory):
    explored = explored_plainly(factory)
    assert (explored.found, explored.stopped) == ({}, None)


def test_the_message_names_the_call_of_how_many_and_its_place():
    found = swept(AppendsFirst, Geometry(2, 1)).found
    assert found is not None
    line = AppendsFirst.allocate_for_decode.__code__.co_firstlineno + 6
    assert found.broken.message == (
        "request 0: block_table before [0] != [0, 1] after; decode(0) ended in: raised "
        "MemoryError: injected failure; failed at call 11 of 11: self.free.pop(0) at "
        f"fragile.py:{line} in AppendsFirst.allocate_for_decode, once"
    )


# ---------------------------------------------------------------- right ones


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("factory", [KVCacheManager, ArrayKVCacheManager])
def test_both_managers_stand_a_failure_of_every_call_in_every_state(factory, kept):
    result = swept(factory, kept=kept)
    assert (result.found, result.stopped) == (None, None)
    counts = result.counts
    assert counts.failures == 2 * counts.points > 1500
    assert (counts.spared, counts.retried, counts.unseen) == (0, 0, 0)
    # None left out: those of the search without failures.
    plainly = explored_plainly(factory, kept=kept)
    assert (counts.states, counts.commands) == (plainly.states, plainly.transitions)


def test_a_manager_that_computes_first_and_then_assigns_passes():
    result = swept(Copying, *POOLS[:2], kept=True)
    assert (result.found, result.stopped) == (None, None)


def test_the_number_of_points_is_exact():
    counts = swept(Copying, Geometry(1, 1), depth=1).counts
    # prefill of 1: check, its entry, parted, its entry, len; of 2, where blocks run out, also the
    # len of the message and the error. Wrong use, decode and release alike: holds, its entry,
    # bool, check, its entry, the error.
    assert counts == Injection(
        states=1,
        commands=4,
        points=5 + 7 + 6 + 6,
        failures=2 * 24,
        places=14,
        inside=frozenset({"fragile"}),
    )


def test_a_manager_that_retries_for_ever_is_ended_and_judged_by_the_state_it_reaches():
    result = swept(Generous, Geometry(1, 1))
    assert (result.found, result.stopped) == (None, None)
    assert result.counts.retried > 0


def test_out_of_blocks_said_for_want_of_memory_is_a_refusal():
    assert swept(SaysMemory, Geometry(1, 1)).found is None


def test_locks_are_given_back_and_with_blocks_left():
    result = swept(Locks, Geometry(1, 1), depth=3)
    assert (result.found, result.stopped) == (None, None)
    assert result.counts.spared > 0


# ---------------------------------------------------------------- the points


def points(call: Callable[[], object], inside: str = "fragile") -> list[str]:
    """What fails at each point of a call, one after the other."""
    injector, found = Injector(frozenset({inside})), list[str]()
    while True:
        with suppress(MemoryError):
            injector.run(call, len(found) + 1)
        if injector.first is None:
            return found
        found.append(str(injector.first).partition(" at ")[0])


def test_every_call_is_a_point_and_so_is_every_entry_but_the_first():
    assert points(Twisty().go) == [
        "sorted([3, 1], key=lambda value: -value)",
        "the entry of Twisty.go.<lambda>",
        "the entry of Twisty.go.<lambda>",
        "self.items()",
        "found.extend(self.items())",
        "the entry of Twisty.items",  # the first item, and then the end
        "abs(-1)",
        "the entry of Twisty.items",
        "dict(found=1)",
        "the entry of Twisty.size",
        "the entry of Twisty.__eq__",
        "len(found)",
        "str(*found[:1])",
    ]


def test_a_comprehension_s_calls_are_points():
    def work() -> list[str]:
        return [str(n) for n in range(2)]

    found = points(work, __name__)
    assert (found[0], found.count("str(n)")) == ("range(2)", 2)


def test_calls_inside_other_modules_are_no_points():
    assert points(Twisty().go, "elsewhere") == []


def handling(times: int) -> Callable[[], list[str]]:
    def work() -> list[str]:
        caught = []
        for _ in range(times):
            try:
                abs(1)
            except MemoryError:
                caught += ["caught"]
        return caught

    return work


@pytest.mark.parametrize(
    ("call", "mode", "caught"), [(2, "once", 1), (2, "persistent", 3), (3, "persistent", 2)]
)
def test_one_call_fails_or_all_from_it_on(call, mode, caught):
    injector = Injector(frozenset({__name__}))
    assert injector.run(handling(3), call, mode) == ["caught"] * caught
    assert (injector.points, injector.failed, injector.lost) == (4, caught, False)


def test_a_persistent_failure_ends():
    injector = Injector(frozenset({__name__}))
    caught = injector.run(handling(3 * RETRIES), 2, "persistent")
    assert caught == ["caught"] * RETRIES
    assert injector.endless


def test_what_is_raised_is_an_error_of_the_given_kind():
    class Own(RuntimeError):
        pass

    injector = Injector(frozenset({__name__}), Own)
    with pytest.raises(Own, match="injected failure") as caught:
        injector.run(handling(1), 1)
    assert type(caught.value).__name__ == "Own"


def test_tracing_and_the_collector_are_as_they_were_after_each_run():
    def mine(_frame: object, _event: str, _arg: object) -> None:
        return None

    before, hook = sys.gettrace(), sys.unraisablehook
    sys.settrace(mine)
    try:
        with pytest.raises(MemoryError):
            Injector(frozenset({__name__})).run(handling(1), 1)
        Injector(frozenset({__name__})).run(handling(1))
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)
    assert (gc.isenabled(), sys.unraisablehook) == (True, hook)


@pytest.mark.parametrize(
    ("manager", "inside"),
    [
        (Copying(1, 1, 1), {"fragile"}),
        (KVCacheManager(1, 1, 1), {"pagedkv.reference"}),
        (Adapter(1, 1, 1), {"fragile"}),
        (WrongReport(1, 1, 1), {"faults", "pagedkv.reference"}),
        (Elsewhere(1, 1, 1), set()),
        (object(), set()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_modules_are_the_target_s_own(manager, inside):
    assert modules_of(manager) == inside


# ---------------------------------------------------------------- the search


def test_a_search_ends_when_its_time_is_over_and_says_so():
    result = swept(Copying, hard_seconds=0.0)
    assert (result.depth, result.stopped) == (0, "its 0.0 s were spent")
    assert not result.covers(1)


def test_an_interrupted_search_keeps_what_it_knows():
    def interrupt(progress: Progress) -> None:
        if progress.depth > 0:
            raise KeyboardInterrupt

    terms = Terms(Limits(), on_progress=interrupt)
    factory: Any = Copying
    result = sweep(lambda geometry: World(factory, geometry), POOLS, terms)
    assert result.stopped == INTERRUPTED
    assert result.counts.states > 0
    assert not result.covers(0)


def test_properties_that_are_broken_anyway_are_not_blamed_on_failures():
    make = partial(World, WrongReport, requests=2)
    assert sweep(make, POOLS, Terms(Limits(depth=2), past={"report-agrees"})).found is None


# ---------------------------------------------------------------- the campaign's part


class Small(Tiny):
    """Exhausted in a second, with all its failures."""

    def scopes(self, declared: Declarations, *, pair: bool) -> tuple[Scope, ...]:
        pools = (Geometry(1, 1), Geometry(2, 1))
        return Scope("fixed", pools, 2), Scope("resume", pools[:1], 1, keeps_released=True)


SMALL = Small("quick", 1.0, 3, 8, 30, True, pair_requests=2, pair_blocks=3, engine_blocks=3)


@pytest.fixture
def alone(monkeypatch):
    """Without random histories, which are another part's business, and what they are due."""
    monkeypatch.setattr(campaigns._Campaign, "_beside", lambda *_: campaigns._Random())
    monkeypatch.setattr(verdict, "FLOOR", 1)


def campaign(factory: Any, **plan: Any) -> TargetReport:
    plan = {"seconds": 20.0, "faults": True, **plan}
    return run_campaign(Subject("target", (factory,)), Plan(SMALL, **plan))


def result_of(report: TargetReport) -> tuple[str, str | None]:
    return next((r.verdict, r.reason) for r in report.properties if r.id == UNDER_FAULT.id)


def test_a_right_target_passes_and_the_figures_are_in_the_report(alone):
    report = campaign(Copying)
    assert (report.verdict, result_of(report)) == ("passed", ("passed", None))
    figures = report.to_json()["injection"]
    assert figures["failures"] == 2 * figures["points"] > 1000
    assert (figures["exhausted"], figures["inside"]) == (True, ["fragile"])


def test_a_violation_is_proven_shortest_and_shows_the_failure_in_its_history(alone):
    report = campaign(AppendsFirst)
    assert report.verdict == "violated"
    (example,) = report.counterexamples
    assert example.property == UNDER_FAULT.id
    assert example.to_json()["fault"] == {"step": 2, "call": 11, "mode": "once"}
    assert isinstance(example.proof, Shortest)
    assert [frame.command for frame in example.frames] == [
        None,
        "prefill(0, 1)",
        "decode(0) [call 11 fails]",
    ]


def test_what_shows_only_later_is_not_called_shortest(alone):
    (example,) = campaign(CountsFirst).counterexamples
    assert example.proof == OneMinimal("what the failure left behind shows only later")
    assert (example.fault, len(example.commands)) == (Fault(1, 3, "once"), 2)


@pytest.mark.usefixtures("unmeasured")
def test_an_expected_failure_is_one_whether_calls_fail_or_not(alone):
    expected = {UNDER_FAULT.id: "known"}
    report = campaign(AppendsFirst, expected=expected)
    assert (report.verdict, Report((report,)).exit_code) == ("passed", 0)
    report = campaign(AppendsFirst, expected=expected, faults=False)
    assert report.verdict == "passed"
    assert result_of(report)[0] == "not_applicable"
    report = campaign(Copying, expected=expected)
    assert report.reason is not None
    assert report.reason.startswith("expected to fail, but did not: rollback-under-fault")


def test_a_process_that_dies_costs_this_part_only(alone):
    report = campaign(Dies)
    assert report.verdict == "unknown"
    assert result_of(report) == (
        "unknown",
        "its process died (SIGKILL), in the last of prefill(0, 1), release(0), with call 1 failing",
    )
    assert [r.verdict for r in report.properties if r.id == "conservation"] == ["passed"]


def test_a_target_that_can_not_be_sent_is_tried_here(alone):
    class Local(Copying):
        pass

    report = campaign(Local)
    assert report.verdict == "passed"
    assert report.injection is not None
    assert report.injection.points > 500


class Apart(Small):
    """Also a scope of its own for append, as `Profile.scopes` gives it."""

    def scopes(self, declared: Declarations, *, pair: bool) -> tuple[Scope, ...]:
        append = Scope("append", (Geometry(2, 1),), 1, abilities=frozenset({"append"}))
        return (*super().scopes(declared, pair=pair), append)


APART = Apart("quick", 1.0, 3, 8, 30, True, pair_requests=2, pair_blocks=3, engine_blocks=3)


@pytest.mark.parametrize(("kind", "found"), [(Appends, False), (AppendsCounting, True)])
def test_calls_fail_in_the_scopes_of_abilities_too(alone, kind, found):
    report = run_campaign(Subject("target", (kind,)), Plan(APART, seconds=20.0, faults=True))
    assert result_of(report)[0] == ("violated" if found else "passed")
    assert report.injection is not None
    assert "append" in report.injection.scope
    histories = [[str(command) for command in e.commands] for e in report.counterexamples]
    assert histories == [["prefill(0, 1)", "append(0, 1)"]] * found


def test_a_target_without_calls_that_can_fail_is_unknown(alone):
    report = campaign(Elsewhere)
    assert (report.verdict, result_of(report)) == (
        "unknown",
        ("unknown", "no call inside the target can be made to fail (it has no code here)"),
    )


def test_choosing_the_property_turns_failures_on():
    assert api.Options(properties=(UNDER_FAULT.id,)).plan().faults
    assert not api.Options().plan().faults
    with pytest.raises(ValueError, match="leave out isolate"):
        api.Options(faults=True, isolate=True)


# ---------------------------------------------------------------- again, by hand

HISTORY = [{"op": "prefill", "request": 0, "tokens": 1}, {"op": "decode", "request": 0}]
FAULT = {"step": 2, "call": 11, "mode": "once"}


def test_a_history_with_its_failure_can_be_asserted():
    stands: Any = partial(pagedkv.assert_holds, commands=HISTORY, num_blocks=2, block_size=1)
    with pytest.raises(AssertionError, match="rollback-under-fault: request 0: block_table"):
        stands(AppendsFirst, fault=FAULT, property=UNDER_FAULT.id)
    stands(Copying, fault=FAULT)
    stands(AppendsFirst, fault={**FAULT, "call": 99})


@pytest.mark.parametrize(
    "fault", [None, {}, {**FAULT, "step": 0}, {**FAULT, "call": True}, {**FAULT, "mode": "twice"}]
)
def test_a_malformed_fault_is_refused(fault, tmp_path):
    with pytest.raises(ValueError, match=r"fault|step|call|mode"):
        fault_from_json(fault)


def test_a_trace_keeps_its_fault(tmp_path):
    fault = Fault(1, 2, "persistent")
    trace = Trace("t", Geometry(1, 1), (Prefill(0, 1),), UNDER_FAULT.id, fault=fault)
    write_trace(tmp_path / "t.jsonl", trace)
    assert read_trace(tmp_path / "t.jsonl") == trace
    text = (tmp_path / "t.jsonl").read_text().replace("persistent", "twice")
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(BadTrace, match="mode = 'twice' is none of once, persistent"):
        read_trace(tmp_path / "t.jsonl")


def test_it_is_found_written_and_run_again_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(Path(fragile.__file__).parent)
    options = ("--budget", "6", "--traces", str(tmp_path), "--json", str(tmp_path / "out.json"))
    assert cli.main(["check", "fragile:RepairsOnce", "--faults", *options]) == 1
    out, _ = capsys.readouterr()
    assert "  calls made to fail: " in out
    assert 'fault={"step": 1, "call": 10, "mode": "persistent"},' in out
    (target,) = json.loads((tmp_path / "out.json").read_text())["targets"]
    assert [e["property"] for e in target["counterexamples"]] == [UNDER_FAULT.id]
    (trace,) = tmp_path.glob("*.jsonl")
    assert cli.main(["replay", str(trace)]) == 1
    assert "FAILED: fragile:RepairsOnce breaks rollback-under-fault" in capsys.readouterr()[0]
    assert cli.main(["replay", str(trace), "--target", "fragile:Copying"]) == 0
    assert cli.main(["shrink", str(trace)]) == 2
    assert cli.main(["check", "fragile:Copying", "--faults", "--isolate"]) == 2
    capsys.readouterr()
    assert cli.main(["check", "exec:./driver", "--faults"]) == 2
    assert "exec:./driver runs in a process of its own" in capsys.readouterr().err
