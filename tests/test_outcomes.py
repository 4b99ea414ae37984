"""From a campaign's report to what each test is told: nothing passes that was not shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedkv import api, plugin
from pagedkv.commands import common
from pagedkv.specs.abilities.core import Prefill
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.model import Geometry
from pagedkv.stateful.outcomes import (
    DRIVERS,
    EXPLORER,
    RANDOM,
    Outcome,
    check_ids,
    outcomes_of,
)
from pagedkv.stateful.profiles import PROFILES
from pagedkv.stateful.pytest_plugin import tell
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    PropertyResult,
    Report,
    Shortest,
    TargetReport,
)
from pagedkv.stateful.text import counterexample_text
from pagedkv.suite import Suite, parametrize_with_checks
from pagedkv.suite_campaign import Campaign

QUICK = PROFILES["quick"]
FULL = Coverage(5, 9, 7, exhausted=True, random_steps=300)
STOPPED = replace(FULL, exhausted=False, stopped="fixed: 1 s of processor time")
IDS = check_ids(PROPERTIES.values())
BROKEN = Counterexample(
    "conservation", "A sentence.", "a = b", "1 != 2", Geometry(1, 1), (Prefill(0, 1),), Shortest(3)
)


def report(verdict: Any = "passed", **fields: Any) -> TargetReport:
    """By default all that was judged passed, over everything."""
    results = tuple(PropertyResult(name, "passed", 100) for name in PROPERTIES)
    values: dict[str, Any] = {
        "reason": None,
        "properties": results,
        "counterexamples": (),
        "coverage": FULL,
        "seconds": 1.0,
    }
    return TargetReport("mine:M", verdict, **(values | fields))


def outcomes(of: TargetReport, hints: dict[str, str] | None = None) -> dict[str, Outcome]:
    return outcomes_of(of, QUICK, hints or {}, IDS)


# ---------------------------------------------------------------- outcomes


def test_the_ids_are_the_properties_and_the_drivers():
    assert (*PROPERTIES, *DRIVERS) == IDS
    assert not set(PROPERTIES) & set(DRIVERS)


def test_what_passed_is_passed_for_each_property_and_driver():
    assert set(outcomes(report()).values()) == {Outcome("passed")}


def test_a_counterexample_is_told_with_what_to_do_next():
    results = (PropertyResult("conservation", "violated", 7),)
    of = report("violated", properties=results, counterexamples=(BROKEN,))
    found = outcomes(of, {"conservation": "\n\nNext: this"})["conservation"]
    assert found == Outcome("violated", counterexample_text(BROKEN) + "\n\nNext: this")


def test_each_verdict_keeps_its_reason():
    results = (
        PropertyResult("lockstep", "not_applicable", 0, "needs a second target"),
        PropertyResult("rollback", "unknown", 3, "3 < 100 evaluations"),
    )
    found = outcomes(report("unknown", properties=results))
    assert found["lockstep"] == Outcome("not_applicable", "needs a second target")
    assert found["rollback"] == Outcome("unknown", "3 < 100 evaluations")


def test_a_target_that_could_not_be_driven_leaves_nothing_passed():
    of = report(
        "unknown",
        reason="its process died (SIGSEGV)",
        properties=(),
        coverage=Coverage(0, 0, 0, exhausted=False),
    )
    assert set(outcomes(of).values()) == {Outcome("unknown", "its process died (SIGSEGV)")}


def test_a_property_that_the_report_leaves_out_does_not_pass():
    of = report(properties=(PropertyResult("rollback", "passed", 100),))
    left_out = outcomes(of)["seq-len"]
    assert left_out == Outcome("unknown", "the campaign has no result for it")


def test_one_fault_is_one_failure_unless_it_is_an_expected_one():
    results = (
        PropertyResult("conservation", "violated", 9),
        PropertyResult("rollback", "unknown", 3, "3 < 100 evaluations"),
    )
    found = outcomes(report("violated", properties=results, counterexamples=(BROKEN,)))
    why = "unknown while conservation is violated: 3 < 100 evaluations"
    assert found["conservation"].verdict == "violated"
    assert found["rollback"] == Outcome("not_applicable", why)
    known = (replace(BROKEN, expected=True),)
    found = outcomes(report("unknown", properties=results, counterexamples=known))
    assert found["rollback"].verdict == "unknown"


@pytest.mark.parametrize(
    ("depth", "verdict"), [(QUICK.depth, "passed"), (QUICK.depth - 1, "unknown")]
)
def test_the_explorer_must_reach_the_depth_of_the_profile(depth, verdict):
    assert outcomes(report(coverage=replace(STOPPED, depth=depth)))[EXPLORER].verdict == verdict


def test_an_unknown_target_is_never_shown_by_passed_checks_alone():
    found = outcomes(report("unknown", reason="a second run went on differently"))
    assert found[EXPLORER] == Outcome("unknown", "a second run went on differently")


def test_random_histories_that_never_ran_are_unknown_unless_a_violation_came_first():
    none = replace(FULL, random_steps=0)
    assert outcomes(report(coverage=none))[RANDOM].verdict == "unknown"
    of = report("violated", coverage=none, counterexamples=(BROKEN,))
    assert outcomes(of)[RANDOM].verdict == "not_applicable"


# ---------------------------------------------------------------- what pytest is told


def raised(outcome: Outcome, expected: str | None = None) -> BaseException | None:
    try:
        tell(outcome, expected)
    except BaseException as error:  # noqa: BLE001 - pytest's own are no Exceptions
        return error
    return None


def test_passed_is_silent():
    assert raised(Outcome("passed")) is None


@pytest.mark.parametrize(
    ("outcome", "expected", "kind", "message"),
    [
        (Outcome("violated", "1 != 2"), None, pytest.fail.Exception, "1 != 2"),
        (Outcome("violated", "1 != 2"), "issue 3", pytest.xfail.Exception, "issue 3"),
        (Outcome("unknown", "too few"), None, pytest.fail.Exception, "unknown: too few"),
        (Outcome("unknown", "too few"), "issue 3", pytest.fail.Exception, "unknown: too few"),
        (Outcome("not_applicable", "no map"), None, pytest.skip.Exception, "no map"),
        (
            Outcome("passed"),
            "issue 3",
            pytest.fail.Exception,
            "expected to fail (issue 3), but passed; take it off the expected failures",
        ),
        (
            Outcome("not_applicable", "no map"),
            "issue 3",
            pytest.fail.Exception,
            (
                "expected to fail (issue 3), but is not applicable: no map; take it off the "
                "expected failures"
            ),
        ),
    ],
)
def test_only_a_violation_is_excused_by_being_expected(outcome, expected, kind, message):
    error = raised(outcome, expected)
    assert type(error) is kind
    assert str(error) == message


def test_a_failure_shows_no_frames():
    error = raised(Outcome("violated", "1 != 2"))
    assert isinstance(error, pytest.fail.Exception)
    assert error.pytrace is False


# ---------------------------------------------------------------- the campaign of a run


def campaign(**fields: Any) -> Campaign:
    values: dict[str, Any] = {
        "target": "mine:M",
        "where": "",
        "profile": "quick",
        "seed": None,
        "budget": None,
        "properties": (),
        "isolate": False,
        "faults": False,
        "traces": None,
    }
    return Campaign(**(values | fields))


@pytest.fixture
def reported(monkeypatch):
    """Makes every campaign bring the report that is put here; gives the options of each."""
    monkeypatch.setattr(common, "resolve_all", lambda names, _tolerances, isolate: names)

    def put(of: TargetReport) -> list[api.Options]:
        asked: list[api.Options] = []

        def check_targets(_targets: object, options: api.Options) -> Report:
            asked.append(options)
            return Report((of,))

        monkeypatch.setattr(api, "check_targets", check_targets)
        return asked

    return put


@pytest.mark.parametrize(
    "of",
    [
        report("unknown", reason="stopped at depth 3: interrupted"),
        report("unknown", reason="interrupted before it began: interrupted"),
        report("violated", coverage=replace(FULL, stopped="fixed: interrupted; resume: 1 s")),
    ],
)
def test_an_interrupted_campaign_ends_the_test_run(reported, of):
    reported(of)
    with pytest.raises(KeyboardInterrupt):
        campaign().run()


def test_a_nightly_campaign_tells_the_seed_that_was_drawn(reported):
    asked = reported(report())
    told = campaign(profile="nightly").run()
    assert asked[0].seed is not None
    assert told["summary"].endswith(f"profile nightly, seed {asked[0].seed}")


def test_the_settings_tell_campaigns_apart_and_a_factory_its_test():
    first = campaign()
    others = [
        campaign(target="mine:N"),
        campaign(profile="ci"),
        campaign(seed=1),
        campaign(budget=2.0),
        campaign(properties=("rollback",)),
        campaign(faults=True),
        campaign(target=Geometry, where="test_a.py:test_a"),
        campaign(target=Geometry, where="test_b.py:test_a"),
    ]
    assert campaign().key() == first.key()
    assert len({first.key(), *(other.key() for other in others)}) == len(others) + 1


def test_the_ids_are_those_of_what_is_judged():
    assert campaign(properties=("rollback", "seq-len")).ids() == ("seq-len", "rollback", *DRIVERS)
    judged = [prop.id for prop in api.Options().plan().chosen()]
    assert campaign().ids() == (*judged, *DRIVERS)
    assert campaign(faults=True).ids() == (*PROPERTIES, *DRIVERS)


def test_what_could_not_begin_fails_in_each_check():
    told = campaign().failed("no module")
    assert told["outcomes"] == {name: ["unknown", "no module"] for name in campaign().ids()}
    assert told["summary"] == "mine:M: no module"


def test_a_folder_for_traces_that_can_not_be_made_is_a_failure_of_one_line(reported, tmp_path):
    reported(report())
    file = tmp_path / "traces"
    file.write_text("a file", encoding="utf-8")
    found = campaign(traces=file).run()["outcomes"]
    assert {verdict for verdict, _ in found.values()} == {"unknown"}
    assert "is a file; name a folder" in found["rollback"][1]


# ---------------------------------------------------------------- one campaign for all its tests


class Run:
    """As much of pytest's configuration as a suite asks for: that of a worker of xdist."""

    def __init__(self, base: Path | None) -> None:
        self.stash = pytest.Stash()
        self.workerinput = {"testrunuid": "this"}
        self.base = base

    def getoption(self, _name: str, _default: object = None) -> str | None:
        return None if self.base is None else str(self.base)


@pytest.fixture
def run_in(monkeypatch):
    """Makes this process a worker, of its own folder or of none."""

    def become(base: Path | None) -> Run:
        run = Run(base)
        monkeypatch.setattr(plugin, "RUNNING", [run])
        return run

    return become


def outcome_of_a_new_suite(**fields: Any) -> Outcome:
    """As another test of the same campaign asks for it."""
    outcome = Suite(campaign(**fields), {}).outcome("rollback")
    assert isinstance(outcome, Outcome)
    return outcome


def test_workers_share_a_campaign_through_the_folder_of_the_run(reported, run_in, tmp_path):
    asked = reported(report())
    for worker in ("gw0", "gw1"):
        run = run_in(tmp_path / worker)
        assert outcome_of_a_new_suite() == Outcome("passed")
        assert outcome_of_a_new_suite() == Outcome("passed")
        told = run.stash.get(plugin.TOLD, [])
        assert len(told) == (1 if worker == "gw0" else 0)  # the line is printed once
    assert len(asked) == 1
    assert outcome_of_a_new_suite(seed=3) == Outcome("passed")
    assert len(asked) == 2


def test_a_worker_that_has_no_folder_runs_its_own(reported, run_in):
    asked = reported(report())
    for _worker in range(2):
        run_in(None)
        assert outcome_of_a_new_suite() == Outcome("passed")
    assert len(asked) == 2


def test_without_the_plugin_each_suite_runs_its_own(reported, monkeypatch):
    monkeypatch.setattr(plugin, "RUNNING", [])
    asked = reported(report())
    suite = Suite(campaign(), {})
    assert [suite.outcome(name) for name in suite.checks()] == [Outcome("passed")] * len(IDS)
    assert len(asked) == 1


def test_what_processes_died_over_fails_and_says_so(run_in, tmp_path):
    run = run_in(tmp_path / "gw0")
    folder = tmp_path / "pagedkv-this"
    folder.mkdir()
    (folder / f"{campaign().key()}.attempts").write_text("[11, 22]", encoding="utf-8")
    told = outcome_of_a_new_suite()
    assert told == Outcome("unknown", f"the campaign came to no end: {DIED}")
    assert run.stash[plugin.TOLD] == [f"mine:M: the campaign came to no end: {DIED}"]


DIED = "processes 11 and 22 died over it"


def test_a_factory_is_checked_in_this_process():
    made: list[object] = []

    def factory(num_blocks: int, block_size: int, head_dim: int) -> Any:
        made.append(num_blocks)
        raise ValueError("this target can't be made")

    told = campaign(target=factory, where="here", budget=1.0).run()
    assert made
    assert told["outcomes"]["rollback"][0] == "unknown"
    assert "this target can't be made" in told["outcomes"]["rollback"][1]
    assert told["summary"].startswith("test_outcomes:test_a_factory_is_checked_in_this_process")


def test_a_test_function_becomes_one_test_a_check(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugin, "RUNNING", [])

    @parametrize_with_checks("mine:M", properties=["rollback"], expected_failures={"rollback": "x"})
    def test_mine(check):
        check()

    (mark,) = test_mine.pytestmark  # type: ignore[attr-defined]
    assert mark.name == "parametrize"
    assert mark.kwargs == {"ids": ["rollback", *DRIVERS]}
    assert [check.expected for check in mark.args[1]] == ["x", None, None]
