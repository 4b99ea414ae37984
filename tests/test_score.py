"""`pagedkv score`, what it is made of, and the campaign that stops at the first violation."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace

import pytest

from faults import TINY, KeepsLast, SecondRelease
from jobs import NotThere, job
from pagedkv import KVCacheManager, OutOfBlocks, cli, mutants, scoring
from pagedkv.api import Options
from pagedkv.mutants import Mutant
from pagedkv.scoring import plan_of
from pagedkv.specs.abilities.core import Prefill, Release
from pagedkv.specs.model import Geometry
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.crew import Lost, run_jobs
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import Profile, Scope
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    OneMinimal,
    Proof,
    Shortest,
    TargetReport,
    Verdict,
)
from pagedkv.stateful.score import Planted, Run, run_of, summary_of
from pagedkv.stateful.spawning import usable_cores
from pagedkv.stateful.subject import Subject

# ---------------------------------------------------------------- the command


@pytest.fixture
def known(monkeypatch):
    """Makes these the only mutants there are."""

    def make(*chosen: Mutant) -> None:
        by_name = {mutant.name: mutant for mutant in chosen}
        monkeypatch.setattr(mutants, "mutants", lambda: by_name)

    return make


def test_found_at_the_optimum_exits_with_0(tmp_path, capsys):
    file = tmp_path / "score.json"
    arguments = ["score", "forgets-block-zero", "forgets-last-block", "--seeds", "2"]
    assert cli.main([*arguments, "--json", str(file)]) == 0
    heading, *rows, summed = filter(None, capsys.readouterr().out.splitlines())
    assert heading.split() == ["mutant", "found", "by", "steps", "optimum", "proof", "seconds"]
    assert [row.split()[:-1] for row in rows] == [
        ["forgets-block-zero", "2", "of", "2", "conservation", "0", "0", "shortest"],
        ["forgets-last-block", "2", "of", "2", "conservation", "2", "2", "shortest"],
    ]
    assert summed.startswith("found 4 of 4 (2 mutants, 2 seeds), 4 at their optimum; median ")

    written = json.loads(file.read_text())
    assert written["schema"] == 1
    assert written["summary"] | {"median_seconds": 0, "max_seconds": 0} == {
        "runs": 4,
        "found": 4,
        "at_optimum": 4,
        "median_seconds": 0,
        "max_seconds": 0,
    }
    _, second = written["mutants"]
    assert second["name"] == "forgets-last-block"
    assert second["breaks"] == "conservation"
    assert second["optimum"] == 2
    assert second["target"] == "pagedkv.mutants.free_list:ForgetsLastBlock"
    assert [run["seed"] for run in second["runs"]] == [0, 1]
    run = second["runs"][0]
    assert run["found"]
    assert run["at_optimum"]
    assert (run["num_blocks"], run["block_size"], run["steps"]) == (2, 1, 2)
    assert run["commands"] == [Prefill(0, 2).to_json(), Release(0).to_json()]


def test_another_length_than_the_optimum_exits_with_1_and_says_what_was_due(known, capsys):
    mutant = mutants.mutants()["forgets-last-block"]
    known(replace(mutant, optimum=1))
    assert cli.main(["score"]) == 1
    out = capsys.readouterr().out
    assert "forgets-last-block: conservation in 1 command(s) was due" in out
    assert "found 1 of 1, 0 at their optimum" in out


def test_an_unknown_name_is_one_line_with_the_nearest(capsys):
    assert cli.main(["score", "forgets-last-blok"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    start = "Error: 'forgets-last-blok' is no mutant; did you mean forgets-last-block"
    assert err.startswith(start)
    assert len(err.splitlines()) == 1


def test_a_name_like_no_other_is_told_how_many_there_are(known, capsys):
    known(*list(mutants.mutants().values())[:3])
    assert cli.main(["score", "zzz"]) == 2
    says = "Error: 'zzz' is no mutant; `pagedkv score --list` shows all 3\n"
    assert capsys.readouterr().err == says


def test_they_are_listed_with_what_they_break_and_nothing_is_run(capsys, monkeypatch):
    monkeypatch.setattr(scoring, "score_all", None)
    assert cli.main(["score", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(mutants.mutants())
    for line, mutant in zip(lines, mutants.mutants().values(), strict=True):
        assert line.split(maxsplit=2) == [mutant.name, mutant.breaks, mutant.statement]
    assert cli.main(["score", "--list", "forgets-last-block"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("forgets-last-block  conservation  ")


def test_the_plan_is_that_of_check_up_to_the_first_violation():
    assert plan_of(7) == replace(Options(seed=7).plan(), until="first")


# ---------------------------------------------------------------- scores

FAULT = Planted("name", "module:Class", "conservation", 2)
POOL = Geometry(2, 1)
PROVEN = Shortest(9)
SHORT, LONG = (Prefill(0, 2), Release(0)), (Prefill(0, 1), Release(0), Prefill(0, 1))


def example(prop: str, commands=SHORT, proof: Proof = PROVEN) -> Counterexample:
    return Counterexample(prop, "", "", "", POOL, commands, proof)


def report(*examples: Counterexample, reason: str | None = None) -> TargetReport:
    verdict: Verdict = "violated" if examples else "unknown"
    coverage = Coverage(1, 1, 1, exhausted=False)
    return TargetReport("name", verdict, reason, (), examples, coverage, 1.5)


def test_the_property_that_is_due_is_shown_among_the_shortest():
    run = run_of(FAULT, 3, report(example("answered"), example("conservation")))
    assert run.by == ("conservation", "answered")
    assert (run.found, run.at_optimum) == (True, True)
    assert (run.seed, run.steps, run.proof, run.seconds) == (3, 2, "shortest", 1.5)


@pytest.mark.parametrize(
    "found",
    [
        (example("answered"),),
        (example("conservation", LONG),),
        (example("conservation", LONG), example("answered")),
        (example("conservation", proof=OneMinimal("no time")),),
    ],
    ids=["another property", "too long", "another is shorter", "no proof"],
)
def test_found_but_not_at_the_optimum(found):
    run = run_of(FAULT, None, report(*found))
    assert (run.found, run.at_optimum) == (True, False)


def test_nothing_found_has_the_reason():
    run = run_of(FAULT, None, report(reason="it varies"))
    assert (run.found, run.at_optimum, run.reason) == (False, False, "it varies")


def runs(*seconds: float) -> list[Run]:
    found = run_of(FAULT, None, report(example("conservation")))
    return [replace(found, seconds=taken) for taken in seconds]


def test_a_summary_counts_and_measures():
    summary = summary_of([*runs(1.0, 2.0, 9.0), run_of(FAULT, None, report())])
    assert (summary.runs, summary.found, summary.at_optimum) == (4, 3, 3)
    assert (summary.median_seconds, summary.max_seconds) == (1.75, 9.0)
    assert not summary.all_at_optimum
    assert summary_of(runs(1.0)).all_at_optimum


def test_no_run_at_all_is_no_success():
    assert not summary_of([]).all_at_optimum


# ---------------------------------------------------------------- the crew


def test_children_are_used_again_and_ends_are_in_order():
    ended: list[int] = []
    names = ["a", "b", "c", "d"]
    ends = run_jobs(job, names, seconds=30, workers=1, on_end=ended.append)
    assert [end[0] for end in ends if not isinstance(end, Lost)] == names
    assert len({end[1] for end in ends if not isinstance(end, Lost)}) == 1
    assert ended == [0, 1, 2, 3]


def test_there_are_as_many_children_as_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores() == 1
    ends = run_jobs(job, ["a", "b", "c"], seconds=30)
    assert len({end[1] for end in ends if not isinstance(end, Lost)}) == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_a_job_that_kills_its_child_costs_itself_only():
    died, one, left, other = run_jobs(job, ["die", "one", "leave", "other"], seconds=30, workers=1)
    assert isinstance(died, Lost)
    assert died.reason == "its process died (SIGKILL)"
    assert isinstance(left, Lost)
    assert left.reason == "its process died (exit code 3)"
    assert [end[0] for end in (one, other) if not isinstance(end, Lost)] == ["one", "other"]


def test_a_job_that_hangs_is_lost():
    hung, after = run_jobs(job, ["hang", "after"], seconds=2, workers=1)
    assert isinstance(hung, Lost)
    assert hung.reason.startswith("it hung: no end after ")
    assert hung.seconds > 2
    assert not isinstance(after, Lost)
    assert after[0] == "after"


def test_a_child_that_can_not_begin_is_an_error_and_no_endless_hiring():
    with pytest.raises(RuntimeError, match=r"could not begin: its process died \(exit code 4\)"):
        run_jobs(NotThere(), ["one"], seconds=30)


def test_no_jobs_take_no_children():
    assert run_jobs(job, [], seconds=1) == []


# ---------------------------------------------------------------- up to the first violation


def campaign(factory, until, **fields):
    plan = Plan(TINY, 60.0, until=until, **fields)
    return run_campaign(Subject("target", (factory,)), plan)


def shown(of: TargetReport):
    return [(e.property, e.geometry, e.commands, e.proof.name) for e in of.counterexamples]


class LosesResumed(KVCacheManager):
    """Loses a block when a released handle comes back."""

    def allocate_for_prefill(self, req):
        resumed = req.block_table == [] and getattr(req, "was_live", False)
        super().allocate_for_prefill(req)
        if resumed:
            self._free = self._free[1:]

    def release_request(self, req):
        super().release_request(req)
        req.was_live = True


class SeveralLater(KeepsLast):
    """Loses a block in two commands, and refuses another way in three."""

    def allocate_for_prefill(self, req):
        if len(self._live) == 1 and req.request_id not in self._live:
            raise KeyError("only one at a time")
        super().allocate_for_prefill(req)


class OneLife(KVCacheManager):
    """Fails at a prefill after any release."""

    released = False

    def allocate_for_prefill(self, req):
        if self.released:
            raise KeyError("no more")
        super().allocate_for_prefill(req)

    def release_request(self, req):
        super().release_request(req)
        self.released = True


@pytest.mark.parametrize("factory", [KeepsLast, SecondRelease, LosesResumed, OneLife])
@pytest.mark.usefixtures("unmeasured")
def test_the_first_violation_is_the_one_that_a_whole_campaign_shows(factory):
    first, whole = campaign(factory, "first"), campaign(factory, "all")
    assert first.verdict == whole.verdict == "violated"
    assert shown(first) == shown(whole)[:1] != []
    assert first.coverage.states <= whole.coverage.states
    assert first.coverage.random_steps == 0


def test_only_the_smallest_of_several_violations_is_shown():
    whole = campaign(SeveralLater, "all")
    assert len(shown(whole)) > 1
    first = campaign(SeveralLater, "first")
    least = min((len(e.commands), e.geometry) for e in whole.counterexamples)
    assert {(len(e.commands), e.geometry) for e in first.counterexamples} == {least}


@dataclass(frozen=True, slots=True)
class Wider(Profile):
    """A pool in which three requests can be live, which only the main scope tries."""

    def scopes(self, declared, *, pair):
        pools = (Geometry(1, 1), Geometry(3, 1))
        return Scope("fixed", pools, 3), Scope("resume", pools, 2, keeps_released=True)


class NoThird(SecondRelease):
    """Refuses a third request, and loses a block in the second release of its life."""

    def allocate_for_prefill(self, req):
        if not req.block_table and len(self._live) == 2:
            raise OutOfBlocks(req.request_id, 1, 0)
        super().allocate_for_prefill(req)


def test_what_the_smaller_scope_found_before_does_not_stand_beside_what_is_shorter():
    values = {field.name: getattr(TINY, field.name) for field in fields(Profile)}
    wider = Wider(**{**values, "depth": 4})
    first = run_campaign(Subject("target", (NoThird,)), Plan(wider, 60.0, until="first"))
    assert [(e.property, len(e.commands)) for e in first.counterexamples] == [("out-of-blocks", 3)]


def test_what_nothing_depends_on_is_a_first_violation_too():
    first = campaign(mutants_of("reports-whole-percent"), "first")
    assert [e.property for e in first.counterexamples] == ["report-agrees"]
    assert first.coverage.random_steps == 0


def mutants_of(name: str):
    from pagedkv.targets import Target, resolve

    target = resolve(mutants.mutants()[name].target)
    assert isinstance(target, Target)
    return target.factory


@pytest.mark.usefixtures("unmeasured")
def test_looking_for_the_first_violation_passes_a_right_manager_on_the_same_evidence():
    first, whole = campaign(KVCacheManager, "first"), campaign(KVCacheManager, "all")
    assert shown(first) == shown(whole) == []
    assert first.properties == whole.properties
    assert first.coverage == whole.coverage
