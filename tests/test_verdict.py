"""Verdicts: nothing passes on too little, and each reason is given."""

from __future__ import annotations

from typing import Any

import pytest

from builders import declaring
from pagedkv.specs.properties import (
    HOLDS,
    EveryState,
    EveryStep,
    Need,
    Property,
    Sometimes,
)
from pagedkv.stateful.report import PropertyResult
from pagedkv.stateful.verdict import FLOOR, Evidence, judge_target

ALWAYS = Property("always", "", "", EveryState(lambda _: HOLDS))
STEP = Property("step", "", "", EveryStep(lambda _: HOLDS))
GOAL = Property("goal", "", "", Sometimes(lambda _: True))
NEEDY = Property("needy", "", "", EveryState(lambda _: HOLDS), frozenset({Need.COUNTER}))
ENOUGH = {"always": FLOOR, "step": FLOOR, "goal": 1, "needy": FLOOR}


def evidence(**fields: Any) -> Evidence:
    """Enough of everything, nothing broken."""
    values: dict[str, Any] = {
        "properties": (ALWAYS, STEP, GOAL),
        "offered": frozenset(),
        "declared": declaring(),
        "evaluations": ENOUGH,
        "broken": (),
        "exhausted": True,
        "unfinished": None,
        "expected": {},
    }
    return Evidence(**(values | fields))


def verdict(**fields: Any) -> tuple[str, str | None]:
    return judge_target(evidence(**fields))[:2]


def result(name: str, **fields: Any) -> PropertyResult:
    results = judge_target(evidence(**fields))[2]
    return next(one for one in results if one.id == name)


def told(name: str, **fields: Any) -> tuple[str, str | None]:
    one = result(name, **fields)
    return one.verdict, one.reason


def test_enough_of_everything_passes():
    assert verdict() == ("passed", None)


def test_every_property_has_one_result_in_the_given_order():
    results = judge_target(evidence(properties=(GOAL, STEP, ALWAYS)))[2]
    assert [one.id for one in results] == ["goal", "step", "always"]
    assert [one.evaluations for one in results] == [1, FLOOR, FLOOR]


@pytest.mark.parametrize("name", ["always", "step"])
def test_the_floor_is_what_a_property_must_reach(name):
    assert told(name, evaluations={**ENOUGH, name: FLOOR}) == ("passed", None)
    short = {**ENOUGH, name: FLOOR - 1}
    assert told(name, evaluations=short) == ("unknown", "99 < 100 evaluations")
    assert verdict(evaluations=short) == ("unknown", f"{name}: 99 < 100 evaluations")


def test_what_was_never_judged_is_unknown():
    assert told("always", evaluations={"goal": 1}) == ("unknown", "0 < 100 evaluations")


def test_too_few_evaluations_beside_a_violation_name_what_cut_them_short():
    short = {**ENOUGH, "step": 3}
    verdict_, reason = told("step", evaluations=short, broken={"always"})
    assert verdict_ == "unknown"
    assert reason == "3 < 100 evaluations; every history ends at its first violation"


def test_a_property_whose_needs_are_missing_is_not_applicable_and_does_not_hinder():
    fields: dict[str, Any] = {"properties": (ALWAYS, NEEDY), "evaluations": {"always": FLOOR}}
    assert told("needy", **fields) == ("not_applicable", "needs a counter of free blocks")
    assert verdict(**fields) == ("passed", None)


def test_a_property_whose_needs_are_there_is_judged():
    fields: dict[str, Any] = {"properties": (NEEDY,), "offered": frozenset({Need.COUNTER})}
    assert told("needy", **fields) == ("passed", None)
    assert told("needy", **fields, evaluations={}) == ("unknown", "0 < 100 evaluations")


# ---------------------------------------------------------------- goals

UNREACHED = {"always": FLOOR, "step": FLOOR}


def test_a_goal_needs_to_be_reached_once():
    assert told("goal") == ("passed", None)


def test_an_unreached_goal_that_is_declared_is_not_applicable():
    fields: dict[str, Any] = {
        "evaluations": UNREACHED,
        "declared": declaring(never_reached={"goal": "it has one block"}),
        "exhausted": False,
    }
    assert told("goal", **fields) == ("not_applicable", "declared: it has one block")
    assert verdict(**fields) == ("passed", None)


def test_an_unreached_goal_of_an_exhausted_scope_is_not_applicable():
    assert told("goal", evaluations=UNREACHED)[0] == "not_applicable"
    assert verdict(evaluations=UNREACHED) == ("passed", None)


def test_an_unreached_goal_of_anything_less_is_unknown():
    fields: dict[str, Any] = {"evaluations": UNREACHED, "exhausted": False}
    assert told("goal", **fields) == ("unknown", "never reached")
    assert verdict(**fields) == ("unknown", "goal: never reached")


def test_a_violation_may_be_why_a_goal_was_not_reached():
    verdict_, reason = told("goal", evaluations=UNREACHED, broken={"step"})
    assert verdict_ == "unknown"
    assert reason == "never reached; every history ends at its first violation"


def test_a_goal_that_was_reached_passes_though_the_run_did_not_finish():
    assert told("goal", unfinished="interrupted") == ("passed", None)


# ---------------------------------------------------------------- violations


def test_a_broken_property_is_violated_and_so_is_the_target():
    assert told("always", broken={"always"}) == ("violated", None)
    assert verdict(broken={"always"}) == ("violated", None)


def test_violated_beats_unknown():
    fields: dict[str, Any] = {"evaluations": {}, "exhausted": False, "unfinished": "interrupted"}
    assert verdict(**fields) == ("unknown", "interrupted")
    assert verdict(broken={"always"}, **fields) == ("violated", None)


def test_an_expected_failure_stands_as_violated_and_the_target_passes():
    fields: dict[str, Any] = {"broken": {"always"}, "expected": {"always": "bug 7"}}
    assert told("always", **fields) == ("violated", "expected: bug 7")
    assert verdict(**fields) == ("passed", None)


def test_an_expected_failure_excuses_nothing_else():
    fields: dict[str, Any] = {"broken": {"always", "step"}, "expected": {"always": "bug 7"}}
    assert told("step", **fields) == ("violated", None)
    assert verdict(**fields) == ("violated", None)


def test_an_expected_failure_that_does_not_fail_is_violated():
    found, reason = verdict(expected={"always": "bug 7", "step": "bug 8"}, broken={"step"})
    assert found == "violated"
    assert reason is not None
    assert "expected to fail, but did not: always;" in reason


def test_an_expected_failure_does_not_excuse_that_too_little_ran():
    fields: dict[str, Any] = {"broken": {"always"}, "expected": {"always": "bug 7"}}
    short = {**ENOUGH, "step": 1}
    assert verdict(**fields, evaluations=short)[0] == "unknown"
    assert verdict(**fields, unfinished="interrupted") == ("unknown", "interrupted")


def test_an_expected_failure_that_was_not_found_before_the_end_is_unknown():
    fields: dict[str, Any] = {"expected": {"always": "bug 7"}, "exhausted": False}
    assert verdict(**fields, unfinished="interrupted")[0] == "unknown"


def test_an_expected_failure_of_a_property_that_is_not_judged_is_left_alone():
    assert verdict(properties=(STEP, GOAL), expected={"always": "bug 7"}) == ("passed", None)


# ---------------------------------------------------------------- unfinished


def test_what_was_not_finished_is_unknown_with_its_reason():
    assert told("always", unfinished="stopped at depth 2") == ("unknown", "stopped at depth 2")
    assert verdict(unfinished="stopped at depth 2") == ("unknown", "stopped at depth 2")


def test_a_finished_run_passes_without_an_exhausted_scope():
    assert verdict(exhausted=False) == ("passed", None)
