"""Checking from Python: `check` and `assert_holds`, and what they say to bad arguments."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from builders import declaring
from faults import Boundary, WrongReport
from pagedkv import KVCacheManager, __version__, assert_holds, check
from pagedkv.api import Options, check_targets
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.stateful.profiles import PROFILES
from pagedkv.targets import Pair, Target
from projects import ALLOCATORS, LEAK, pytest_in

TINY_POOLS = declaring(block_sizes=(1,), max_blocks=2)


class Small(KVCacheManager):
    declares = TINY_POOLS
    state_key, clone = KVCacheManager.state_key, KVCacheManager.clone  # its own, for speed


class SmallWrong(Boundary):
    declares = TINY_POOLS


BREAKS: list[dict[str, Any]] = [
    {"op": "prefill", "request": 0, "tokens": 1},
    {"op": "decode", "request": 0},
]


PASTED = """
import pagedkv

def test_leak():
    pagedkv.assert_holds(
        "allocators_here:Leaks",
        [{"op": "prefill", "request": 0, "tokens": 1}, {"op": "release", "request": 0}],
        num_blocks=1,
        block_size=1,
    )

def test_fault():
    pagedkv.assert_holds(
        "fragile:AppendsFirst",
        [{"op": "prefill", "request": 0, "tokens": 1}, {"op": "decode", "request": 0}],
        num_blocks=2,
        block_size=1,
        fault={"step": 2, "call": 11, "mode": "once"},
    )
"""


# ---------------------------------------------------------------- check


@pytest.mark.usefixtures("unmeasured")
def test_a_right_callable_passes_under_its_module_and_name():
    report = check(Small, budget=60)
    (target,) = report.targets
    assert (report.passed, report.exit_code, target.verdict) == (True, 0, "passed")
    assert target.target == f"{__name__}:Small"
    assert target.coverage.exhausted


def test_a_wrong_callable_is_violated():
    report = check(SmallWrong, budget=30)
    assert (report.passed, report.exit_code) == (False, 1)
    broken = {example.property for example in report.targets[0].counterexamples}
    assert "table-cover" in broken


@pytest.mark.usefixtures("unmeasured")
def test_any_callable_will_do():
    def factory(num_blocks: int, block_size: int, head_dim: int) -> Small:
        return Small(num_blocks, block_size, head_dim)

    report = check(partial(factory), budget=30)
    assert report.targets[0].coverage.states > 0
    assert "partial" in report.targets[0].target


def test_a_target_can_be_named():
    report = check("reference", budget=0.3, properties=("conservation",))
    (target,) = report.targets
    assert target.target == "reference"
    assert [result.id for result in target.properties] == ["conservation"]


@pytest.mark.usefixtures("unmeasured")
def test_expected_failures_are_expected():
    reasons = dict.fromkeys(("table-cover", "out-of-blocks", "contents", "report-agrees"), "issue")
    report = check(SmallWrong, budget=30, expected_failures=reasons)
    assert {example.expected for example in report.targets[0].counterexamples} == {True}
    assert report.exit_code != 1
    assert check(Small, budget=30, expected_failures={"contents": "issue"}).exit_code == 1


@pytest.mark.parametrize(
    ("target", "words"),
    [(42, "not 42"), (None, "not None"), ("nobody", "nobody"), ("no.module:Manager", "no.module")],
)
def test_what_is_no_target_is_a_value_error_that_shows_it(target, words):
    with pytest.raises(ValueError, match=words):
        check(target)


def test_a_callable_that_makes_nothing_is_unknown():
    def factory(num_blocks: int, block_size: int, head_dim: int) -> Any:
        raise OSError("no device")

    report = check(factory)
    assert (report.exit_code, report.targets[0].verdict) == (2, "unknown")
    assert "no device" in str(report.targets[0].reason)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("profile", "fast", "profile 'fast' is none of quick, ci, nightly"),
        ("budget", 0, "budget = 0 must be a number of seconds > 0"),
        ("budget", -1.5, "budget = -1.5"),
        ("budget", float("nan"), "budget = nan"),
        ("properties", ("conservaton",), "'conservaton' is no property; they are"),
        ("expected_failures", {"leaks": "why"}, "'leaks' is no property"),
    ],
)
def test_a_bad_option_is_a_value_error_that_shows_it(field, value, words):
    with pytest.raises(ValueError, match=words):
        Options(**{field: value})
    with pytest.raises(ValueError, match=words):
        check(Small, **{field: value})


def test_options_become_a_plan():
    plan = Options("ci", 7, None, ("contents",), {"rollback": "why"}).plan()
    assert (plan.profile, plan.seconds, plan.hard) == (
        PROFILES["ci"],
        PROFILES["ci"].seconds,
        False,
    )
    assert (plan.seed, plan.expected) == (7, {"rollback": "why"})
    assert [prop.id for prop in plan.chosen()] == ["contents"]


def test_a_given_budget_is_kept_to():
    plan = Options(budget=2.5).plan()
    assert (plan.seconds, plan.hard) == (2.5, True)
    assert [prop.id for prop in plan.chosen()] == list(PROPERTIES)


def test_named_targets_are_checked_in_processes_of_their_own():
    one = Target("reference", KVCacheManager)
    options = Options(budget=0.3, properties=("lockstep",))
    events: list[object] = []
    report = check_targets([Pair(one, one)], options, events.append)
    assert [target.target for target in report.targets] == ["reference+reference"]
    assert report.targets[0] in events


def test_the_report_says_how_it_was_made():
    def made(**options):
        written = check(BornWrong, budget=0.2, **options).to_json()
        return {name: value for name, value in written.items() if name != "targets"}

    quick = {"schema": 1, "pagedkv": __version__, "profile": "quick", "seed": None, "budget": 0.2}
    assert made() == quick
    assert made(seed=7) == {**quick, "seed": 7}
    drawn = made(profile="nightly")
    assert isinstance(drawn["seed"], int)
    assert Options("ci").report([]).budget == 60.0


# ---------------------------------------------------------------- assert_holds


def test_a_pasted_test_shows_its_own_line_and_the_message(tmp_path):
    (tmp_path / "test_pasted.py").write_text(PASTED, encoding="utf-8")
    (tmp_path / "allocators_here.py").write_text(ALLOCATORS, encoding="utf-8")
    shutil.copy(Path(__file__).with_name("fragile.py"), tmp_path)
    run = pytest_in(tmp_path)
    assert run.outcomes() == {
        "test_pasted::test_leak": "failure",
        "test_pasted::test_fault": "failure",
    }
    assert LEAK in run.tests["test_pasted::test_leak"][1]
    assert "rollback-under-fault: " in run.tests["test_pasted::test_fault"][1]
    for _, text in run.tests.values():
        assert "pagedkv.assert_holds(" in text
        assert "raise AssertionError" not in text
        assert text.rstrip().splitlines()[-1].startswith("test_pasted.py:")


def test_a_history_that_holds_returns_nothing():
    history = [*BREAKS, {"op": "release", "request": 0}, {"op": "resume", "request": 0}]
    for target in ("reference", KVCacheManager):
        assert_holds(target, history, num_blocks=2, block_size=1)
    assert_holds(KVCacheManager, [], num_blocks=1, block_size=1, head_dim=3)


def test_a_history_that_breaks_something_says_what_and_where():
    with pytest.raises(AssertionError) as caught:
        assert_holds(Boundary, BREAKS, num_blocks=2, block_size=1)
    message = str(caught.value)
    assert "table-cover: len(block_table[0]) = 1 != 2 = ceil(2 tokens / block_size 1)" in message
    assert message.endswith("after prefill(0, 1), decode(0) in a pool of 2 block(s) of 1 token(s)")


def test_one_property_can_be_judged_alone():
    assert_holds(Boundary, BREAKS, num_blocks=2, block_size=1, property="conservation")
    with pytest.raises(AssertionError, match="table-cover"):
        assert_holds(Boundary, BREAKS, num_blocks=2, block_size=1, property="table-cover")
    with pytest.raises(AssertionError, match="report-agrees"):
        assert_holds(WrongReport, BREAKS, num_blocks=2, block_size=1, property="report-agrees")


class BornWrong(KVCacheManager):
    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self._free = self._free[1:]


def test_a_fresh_pool_that_is_wrong_is_called_that():
    with pytest.raises(AssertionError, match="after a fresh pool in a pool of 2"):
        assert_holds(BornWrong, BREAKS, num_blocks=2, block_size=1)


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ([{"op": "fly", "request": 0}], "op = 'fly'"),
        ([{"op": "prefill", "request": 0}], "prefill has the fields"),
        ([{"op": "decode", "request": -1}], "request = -1"),
        ([{"op": "decode", "request": 0}], r"decode\(0\) makes no sense where it stands"),
        ([*BREAKS, {"op": "decode", "request": 1}], r"decode\(1\) makes no sense"),
        ([*BREAKS, BREAKS[0]], r"prefill\(0, 1\) makes no sense"),
    ],
)
def test_a_history_that_is_none_is_a_value_error(commands, words):
    with pytest.raises(ValueError, match=words):
        assert_holds(KVCacheManager, commands, num_blocks=2, block_size=1)


def test_a_property_or_a_target_that_is_none_is_a_value_error():
    with pytest.raises(ValueError, match="'leaks' is no property"):
        assert_holds(Small, [], num_blocks=1, block_size=1, property="leaks")
    with pytest.raises(ValueError, match="not 42"):
        assert_holds(42, [], num_blocks=1, block_size=1)  # type: ignore[arg-type]


def test_a_pool_that_is_none_is_an_error_that_says_so():
    with pytest.raises(Exception, match="num_blocks must be >= 1, got 0"):
        assert_holds(KVCacheManager, [], num_blocks=0, block_size=1)
