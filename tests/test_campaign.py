"""One target's campaign: what is searched, what is proven, and the verdict that comes of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from builders import declaring
from faults import TINY, Boundary, Fickle, LeakWhenOut, SecondRelease, Unseen, WrongReport
from pagedkv import Declarations, KVCacheManager, OutOfBlocks, Request
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.model import Geometry
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.exploration import Progress
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import FIXED, PROFILES, Profile, fixed_scope
from pagedkv.stateful.report import OneMinimal, Report, Shortest, TargetReport
from pagedkv.stateful.subject import Subject

QUICK = PROFILES["quick"]


def keyed(kind: Any) -> Any:
    """The class with its base's key and copy for its own: it keeps no state beside."""
    kind.state_key, kind.clone = KVCacheManager.state_key, KVCacheManager.clone
    return kind


def run(*factories: Any, profile: Profile = TINY, seconds: float = 5.0, **plan: Any):
    return run_campaign(Subject("target", factories), Plan(profile, seconds, **plan))


def verdicts(report: TargetReport) -> dict[str, str]:
    return {result.id: result.verdict for result in report.properties}


def exit_code(report: TargetReport) -> int:
    return Report((report,)).exit_code


# ---------------------------------------------------------------- right targets


class DeclaresLate(KVCacheManager):
    """What it declares only its managers say: the class has a property."""

    @property
    def declares(self) -> Declarations:
        return declaring(refuses_early=True)


def test_what_only_a_manager_declares_is_known_once_one_was_made():
    fresh = Subject("target", (DeclaresLate,)).probe()
    assert fresh.setting.declared == declaring(refuses_early=True)


@pytest.mark.usefixtures("unmeasured")
def test_a_right_target_passes_and_its_scope_is_exhausted():
    report = run(KVCacheManager, seconds=20.0)
    assert (report.verdict, report.reason, report.counterexamples) == ("passed", None, ())
    assert report.coverage.exhausted
    assert report.coverage.random_steps > 0
    assert set(verdicts(report).values()) == {"passed", "not_applicable"}
    assert list(verdicts(report)) == list(PROPERTIES)
    assert report.coverage.scope.startswith("pools of up to 2 block(s), block sizes 1, 2, 3 req")


@pytest.mark.usefixtures("unmeasured")
def test_two_right_targets_pass_in_lockstep():
    report = run(KVCacheManager, KVCacheManager, seconds=20.0)
    assert (report.verdict, verdicts(report)["lockstep"]) == ("passed", "passed")


def test_each_phase_of_the_search_is_told():
    told: list[tuple[str, Progress]] = []
    plan = Plan(TINY, 1.0)
    run_campaign(Subject("x", (KVCacheManager,)), plan, lambda phase, p: told.append((phase, p)))
    phases = [phase for phase, _ in itertools.groupby(phase for phase, _ in told)]
    assert phases[:2] == ["small pools", "small pools, released handles kept"]


@pytest.mark.usefixtures("unmeasured")
def test_only_the_chosen_properties_are_judged():
    report = run(Boundary, properties=("conservation", "oom-hit"), seconds=6.0)
    assert verdicts(report) == {"conservation": "passed", "oom-hit": "passed"}
    assert report.verdict == "passed"


# ---------------------------------------------------------------- wrong targets


def test_a_wrong_target_is_violated_with_its_shortest_history_proven():
    report = run(Boundary)
    assert (report.verdict, exit_code(report)) == ("violated", 1)
    example = {one.property: one for one in report.counterexamples}["table-cover"]
    assert (example.geometry, example.commands) == (Geometry(1, 1), (Prefill(0, 1), Decode(0)))
    assert isinstance(example.proof, Shortest)
    assert example.proof.states == report.coverage.states
    assert [frame.command for frame in example.frames] == [None, "prefill(0, 1)", "decode(0)"]
    assert example.message.startswith("len(block_table[0]) = 1 != 2")


def test_each_broken_property_has_one_counterexample():
    report = run(LeakWhenOut)
    assert [one.property for one in report.counterexamples] == ["conservation", "rollback"]
    assert {one.commands for one in report.counterexamples} == {(Prefill(0, 2),)}


class WrongTwice(WrongReport, SecondRelease):
    """A redundant fault in every live state, and another one behind it."""


def test_a_redundant_fault_hides_no_other():
    report = run(WrongTwice)
    examples = {one.property: len(one.commands) for one in report.counterexamples}
    assert examples == {"report-agrees": 1, "conservation": 4}


@keyed
class LargeOnly(KVCacheManager):
    """Loses a block in pools that no exhaustive search reaches."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            if self.num_blocks > 6:
                self._free = self._free[1:]
            raise


def test_a_fault_outside_the_scope_is_cut_down_and_said_not_to_be_proven():
    report = run(LargeOnly, profile=replace(TINY, examples=60), seconds=40.0)
    example = report.counterexamples[0]
    assert (example.geometry, len(example.commands)) == (Geometry(7, 1), 1)
    assert isinstance(example.proof, OneMinimal)
    assert "does not show in the small scope" in example.proof.reason


def test_each_property_that_a_random_history_breaks_has_its_counterexample():
    report = run(LargeOnly, profile=replace(TINY, examples=60), seconds=40.0)
    assert {one.property for one in report.counterexamples} == {"conservation", "rollback"}


# ---------------------------------------------------------------- expected failures


@pytest.mark.usefixtures("unmeasured")
def test_an_expected_failure_passes_and_is_shown():
    report = run(keyed(WrongReport), seconds=20.0, expected={"report-agrees": "issue 9"})
    assert (report.verdict, exit_code(report)) == ("passed", 0)
    assert [one.expected for one in report.counterexamples] == [True]
    assert verdicts(report)["report-agrees"] == "violated"


def test_a_failure_beside_the_expected_one_is_violated():
    report = run(WrongTwice, expected={"report-agrees": "issue 9"})
    assert (report.verdict, exit_code(report)) == ("violated", 1)


@pytest.mark.usefixtures("unmeasured")
def test_an_expected_failure_that_passes_is_violated():
    report = run(KVCacheManager, expected={"report-agrees": "issue 9"})
    assert (report.verdict, exit_code(report)) == ("violated", 1)
    assert "expected to fail, but did not: report-agrees" in str(report.reason)


# ---------------------------------------------------------------- engines


class Engine(KVCacheManager):
    """Loses a block in the third prefill of its life. A step of it is said to cost much."""

    declares = declaring(engine=True, block_sizes=(1,))

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.prefills = 0

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.prefills += 1
        if self.prefills == 3:
            self._free = self._free[1:]


@pytest.mark.usefixtures("unmeasured")
def test_engines_are_searched_in_a_smaller_scope_and_the_proof_is_over_the_fixed_one():
    main, _ = QUICK.scopes(Engine.declares, pair=False)
    assert main.geometries == (Geometry(1, 1), Geometry(2, 1), Geometry(3, 1))
    report = run(Engine, profile=QUICK, seconds=20.0, properties=("conservation",))
    (example,) = report.counterexamples
    assert (example.geometry, example.commands) == (
        Geometry(4, 1),
        (Prefill(0, 1), Prefill(1, 1), Prefill(2, 1)),
    )
    assert isinstance(example.proof, Shortest)


def test_scopes_are_cut_to_what_a_target_can_have():
    main, kept = QUICK.scopes(declaring(block_sizes=(16, 32), max_blocks=2), pair=False)
    assert main.geometries == kept.geometries == (Geometry(1, 16), Geometry(2, 16))
    assert fixed_scope(declaring(max_blocks=1)).geometries == FIXED[:3]


def test_lockstep_has_as_many_requests_as_its_profile_says():
    assert QUICK.scopes(declaring(), pair=True)[0].requests == 2
    assert PROFILES["ci"].scopes(declaring(), pair=True)[0].requests == 3
    assert QUICK.scopes(declaring(), pair=False)[0].requests == 3


# ---------------------------------------------------------------- what can't be finished


def test_a_target_that_can_not_be_made_is_unknown():
    def factory(num_blocks: int, block_size: int, head_dim: int) -> Any:
        raise OSError("no device")

    report = run(factory)
    assert (report.verdict, exit_code(report), report.properties) == ("unknown", 2, ())
    assert "OSError: no device" in str(report.reason)


def test_a_spent_budget_is_unknown_and_says_how_far_it_came():
    deep = replace(QUICK, depth=50)
    report = run(KVCacheManager, profile=deep, seconds=0.5, hard=True)
    assert (report.verdict, exit_code(report)) == ("unknown", 2)
    assert str(report.reason).startswith("stopped at depth")
    assert not report.coverage.exhausted
    assert report.seconds < 5


@pytest.mark.parametrize("depth", [0, 9])
def test_a_target_that_is_not_deterministic_is_unknown_however_deep_that_shows(depth):
    report = run(Fickle, profile=replace(TINY, depth=depth), seconds=3.0)
    assert report.verdict == "unknown"
    assert "not deterministic" in str(report.reason)


def test_what_the_search_found_to_vary_is_not_driven_at_random():
    made = itertools.count()

    class Worn(KVCacheManager):
        """Of the managers that are made after the first sixty every third loses a block."""

        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            super().__init__(num_blocks, block_size, head_dim)
            number = next(made)
            self.loses = number > 60 and number % 3 == 0

        def allocate_for_prefill(self, req: Request) -> None:
            super().allocate_for_prefill(req)
            if self.loses:
                self._free = self._free[1:]

    report = run(Worn)
    assert report.verdict == "unknown"
    assert str(report.reason).startswith("not deterministic: ")
    assert report.counterexamples == ()
    assert report.coverage.random_steps == 0


@keyed
class Interrupted(WrongReport):
    """Somebody presses Ctrl-C in a pool of so many blocks."""

    pools = frozenset({2})

    def allocate_for_prefill(self, req: Request) -> None:
        if self.num_blocks in self.pools and req.seq_len == self.num_blocks:
            raise KeyboardInterrupt
        super().allocate_for_prefill(req)


@keyed
class InterruptedLate(Interrupted):
    """The same once the random histories have begun."""

    pools = frozenset(range(3, 9))


def test_ctrl_c_is_unknown_unless_something_was_found():
    assert run(Interrupted, properties=("conservation",)).verdict == "unknown"
    report = run(Interrupted)
    assert (report.verdict, report.counterexamples[0].commands) == ("violated", (Prefill(0, 1),))


@pytest.mark.parametrize("chosen", [(), ("conservation",)])
def test_ctrl_c_during_random_histories_keeps_what_was_found(chosen):
    try:
        report = run(InterruptedLate, properties=chosen)
    except KeyboardInterrupt:
        pytest.fail("all of it is lost")
    assert report.verdict == ("unknown" if chosen else "violated")
    assert report.coverage.states > 0


@keyed
class OnlySmall(WrongReport):
    """Can't be made as large as random histories want it, and does not declare that."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        if num_blocks > 3:
            raise ValueError("too many blocks")
        super().__init__(num_blocks, block_size, head_dim)


def test_a_target_that_can_not_be_made_larger_keeps_what_was_found():
    report = run(OnlySmall)
    assert (report.verdict, report.counterexamples[0].commands) == ("violated", (Prefill(0, 1),))


class Drifts(SecondRelease):
    """Its second refused release loses a block; the counter is declared to mean nothing."""

    declares = declaring(meaningless={"releases": "a statistic"})


@pytest.mark.usefixtures("unmeasured")
def test_a_field_that_was_declared_meaningless_and_is_not_hides_nothing():
    report = run(Drifts, properties=("conservation",), seconds=20.0)
    assert report.verdict == "violated"
    assert report.counterexamples[0].commands == (
        Prefill(0, 1),
        Release(0),
        Prefill(0, 1),
        Release(0),
    )
    assert report.coverage.doubts


def test_what_can_not_be_seen_is_said_once_for_all_scopes():
    report = run(Unseen, properties=("seq-len",), seconds=1.0)
    assert report.coverage.doubts == (
        "the whole state of the target can't be seen: `generator` is a generator",
        "copying failed: `generator` is a generator",
    )
