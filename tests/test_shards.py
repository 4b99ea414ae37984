"""Searches divided over machines: together all of the scope, and joined one verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from faults import TINY
from pagedkv import KVCacheManager, Request, cli
from pagedkv.api import Options
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.steps import Step
from pagedkv.stateful import explorer, paths, shards, verdict
from pagedkv.stateful.campaign import _Campaign, _Random, run_campaign
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.joining import CannotJoin, joined
from pagedkv.stateful.onepool import explore_pool
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.reading import BadReport, report_from_json
from pagedkv.stateful.report import Report, Shortest, TargetReport
from pagedkv.stateful.shards import Shard
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.verdict import NOT_HERE, UNREACHABLE
from pagedkv.stateful.world import World

POOLS = (Geometry(2, 2), Geometry(3, 1))
Move = tuple[Geometry, bytes | None, str, bytes | None]


class Watched(World):
    """A world that keeps what was tried: the state, the kind of command, and the state after."""

    tried: set[Move]

    def apply(self, command: Command) -> Step:
        before = self.key(Trust())
        step = super().apply(command)
        kind = str(replace(command, request=0))
        self.tried.add((self.setting.geometry, before, kind, self.key(Trust())))
        return step

    def clone(self, trust: Trust) -> Self:
        copy = super().clone(trust)
        copy.tried = self.tried
        return copy


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide as soon as two states wait for each shard, and try nothing but what is due."""
    monkeypatch.setattr(shards, "WIDTH", 2)
    for module, name in ((explorer, "CHECKED_MERGES"), (paths, "CHECKED_CLONES")):
        monkeypatch.setattr(module, name, 0)
    for module, name in ((explorer, "MERGE_PERIOD"), (paths, "CLONE_PERIOD")):
        monkeypatch.setattr(module, name, 10**9)


def tried(shard: Shard | None, depth: int | None = None) -> tuple[set[Move], Exploration]:
    """What a search of the pools tried."""
    moves: set[Move] = set()

    def make(geometry: Geometry) -> World:
        world = Watched(KVCacheManager, geometry, requests=2)
        world.tried = moves
        return world

    can = offered(*make(POOLS[0]).states)
    done, _ = explore(
        make, POOLS, lambda: Judge(PROPERTIES.values(), can), Limits(depth=depth), shard=shard
    )
    return moves, done


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("of", [1, 2, 3])
def test_the_shards_together_try_the_whole_scope(of):
    whole, one = tried(None)
    assert one.cuts == ()
    parts = [tried(Shard(number, of)) for number in range(1, of + 1)]
    assert set.union(*(moves for moves, _ in parts)) == whole
    assert all(done.exhausted for _, done in parts)
    if of == 1:
        assert parts[0][1].transitions == one.transitions


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("of", [2, 3])
def test_each_shard_alone_leaves_something_out(of):
    whole, _ = tried(None)
    for number in range(1, of + 1):
        moves, done = tried(Shard(number, of))
        assert done.cuts
        assert moves < whole


@pytest.mark.usefixtures("narrow")
def test_a_shard_proves_only_what_all_shards_have_in_common():
    _, done = tried(Shard(1, 2))
    common = min(cut.depth for cut in done.cuts)
    assert done.exhausted
    assert done.covers(common + 1)
    assert (done.proves(common), done.proves(common + 1)) == (True, False)
    assert tried(None)[1].proves(common + 1)


def test_a_pool_that_is_too_small_is_searched_whole_by_each():
    whole, _ = tried(None, depth=3)
    moves, done = tried(Shard(2, 1000), depth=3)
    assert (moves, done.cuts) == (whole, ())


@pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1 /2"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="shard"):
        Shard.of_text(text)


def test_a_shard_is_read_as_it_is_written():
    assert Shard.of_text("2/4") == Shard(2, 4)
    assert str(Shard(2, 4)) == "2 of 4"


@pytest.mark.usefixtures("unmeasured")
def test_another_process_divides_the_same_states():
    """Also where sets and texts have another order of their own."""
    pool = ["explore", "reference", "--blocks", "3", "--block-size", "2", "--depth", "3"]
    cuts = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "pagedkv", *pool, "--shard", "1/1", "--json", "-"],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(cli.__file__).parents[1]),
                "PYTHONHASHSEED": seed,
            },
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        )
        cuts.append(json.loads(done.stdout)["targets"][0]["coverage"]["shard"]["cuts"])
    assert cuts[0] == cuts[1]
    assert cuts[0][0]["states"] >= shards.WIDTH


# ---------------------------------------------------------------- one pool, joined


class Rare(KVCacheManager):
    """Loses a block when a request that holds blocks 2 and 0 is released while another lives."""

    state_key, clone = KVCacheManager.state_key, KVCacheManager.clone

    def release_request(self, req: Request) -> None:
        rare = req.block_table == [2, 0] and req.seq_len == 2
        super().release_request(req)
        if rare and len(self._free) == 2:
            self._free = self._free[1:]


def pool_report(kind: Any, shard: Shard | None, depth: int | None = None) -> Report:
    target = explore_pool(Subject("target", (kind,)), Geometry(3, 1), 2, depth, shard=shard)
    # As it comes from another machine.
    return report_from_json(json.loads(json.dumps(Report((target,), shard=shard).to_json())))


def all_shards(run: Callable[[Shard], Report], of: int) -> list[Report]:
    return [run(Shard(number, of)) for number in range(1, of + 1)]


def example(report: Report) -> Any:
    """The only target's counterexample of `conservation`, but for how much was searched."""
    (target,) = report.targets
    (found,) = [e for e in target.counterexamples if e.property == "conservation"]
    return found


@pytest.mark.usefixtures("narrow")
def test_what_only_one_shard_sees_is_in_the_joined_report():
    whole = pool_report(Rare, None)
    found = example(whole)
    steps = len(found.commands)
    parts = all_shards(lambda shard: pool_report(Rare, shard, steps), 3)
    assert sorted(part.exit_code for part in parts) == [0, 0, 1]
    assert joined(parts).exit_code == 1
    assert example(joined(parts)) == found
    assert isinstance(found.proof, Shortest)


@pytest.mark.usefixtures("narrow")
def test_a_right_target_passes_in_each_shard_and_joined():
    whole = pool_report(KVCacheManager, None)
    parts = all_shards(lambda shard: pool_report(KVCacheManager, shard), 3)
    assert [part.targets[0].verdict for part in parts] == ["passed"] * 3
    (target,) = joined(parts).targets
    assert (target.verdict, target.coverage.exhausted) == ("passed", True)
    assert {r.id: r.verdict for r in target.properties} == {
        r.id: r.verdict for r in whole.targets[0].properties
    }
    assert target.coverage.scope == f"{whole.targets[0].coverage.scope}; in 3 shards"
    assert target.coverage.states >= whole.targets[0].coverage.states


@pytest.mark.usefixtures("narrow")
def test_one_shard_that_is_not_exhausted_leaves_the_whole_so():
    parts = [pool_report(KVCacheManager, Shard(1, 2)), pool_report(KVCacheManager, Shard(2, 2), 5)]
    coverage = joined(parts).targets[0].coverage
    assert (coverage.exhausted, coverage.depth) == (False, 5)
    assert coverage.stopped == "shard 2: depth limit of 5"


@pytest.fixture
def two(narrow: None) -> list[Report]:
    return all_shards(lambda shard: pool_report(KVCacheManager, shard), 2)


def of_target(report: Report, **changed: Any) -> Report:
    return replace(report, targets=(replace(report.targets[0], **changed),))


def of_coverage(report: Report, **changed: Any) -> Report:
    return of_target(report, coverage=replace(report.targets[0].coverage, **changed))


def test_the_order_in_which_shards_are_given_says_nothing(two):
    assert joined(two[::-1]) == joined(two)


def test_shards_that_divided_other_states_are_unknown_together(two):
    part = two[1].targets[0].coverage.part
    assert part is not None
    ((scope, cut),) = part.cuts
    other = replace(part, cuts=((scope, replace(cut, digest="another")),))
    (target,) = joined([two[0], of_coverage(two[1], part=other)]).targets
    assert target.verdict == "unknown"
    assert target.reason is not None
    assert target.reason.startswith("shards 1 and 2 did not divide the same states of a pool of 3")
    assert not target.coverage.exhausted


def test_a_shard_that_divided_nothing_and_is_exhausted_is_of_another_whole(two):
    part = two[1].targets[0].coverage.part
    assert part is not None
    undivided = of_coverage(two[1], part=replace(part, cuts=()))
    assert joined([two[0], undivided]).targets[0].verdict == "unknown"
    early = of_coverage(two[1], part=replace(part, cuts=()), exhausted=False, stopped="its time")
    assert joined([two[0], early]).targets[0].verdict == "passed"


def test_one_unknown_shard_leaves_the_whole_unknown(two):
    lost = of_target(two[1], verdict="unknown", reason="its process died")
    (target,) = joined([two[0], lost]).targets
    assert (target.verdict, target.reason) == ("unknown", "shard 2 of 2: its process died")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a, b: [a], "shard(s) 2 of 2 are missing"),
        (lambda a, b: [a, b, a], "shard 1 of 2 is given twice"),
        (lambda a, b: [], "there is nothing to join"),
        (
            lambda a, b: [a, replace(b, shard=None)],
            "report 2 is no shard; give those of --shard only",
        ),
        (lambda a, b: [a, replace(b, shard=Shard(2, 3))], "some are of 2 and 3 shards"),
        (lambda a, b: [a, replace(b, profile="ci")], "the shards have different profiles"),
        (lambda a, b: [a, of_target(b, target="x")], "not every shard is of the targets target"),
        (lambda a, b: [a, of_coverage(b, scope="y")], "the shards are of different scopes"),
    ],
)
def test_what_is_not_all_shards_of_one_run_is_refused(two, change, why):
    with pytest.raises(CannotJoin) as refused:
        joined(change(*two))
    assert str(refused.value).startswith(why)


# ---------------------------------------------------------------- campaigns, joined


class SmallRare(KVCacheManager):
    """Loses a block when a request that holds blocks 1 and 0 is released."""

    state_key, clone = KVCacheManager.state_key, KVCacheManager.clone

    def release_request(self, req: Request) -> None:
        rare = req.block_table == [1, 0]
        super().release_request(req)
        if rare:
            self._free = self._free[1:]


def campaign(kind: Any, shard: Shard | None, **plan: Any) -> Report:
    how = Plan(TINY, 30.0, seed=None if shard is None else shard.number, shard=shard, **plan)
    target = run_campaign(Subject("target", (kind,)), how)
    report = Report((target,), "quick", shard=shard)
    return report_from_json(json.loads(json.dumps(report.to_json())))


def told(target: TargetReport) -> Iterator[tuple[str, str, str | None]]:
    for result in target.properties:
        yield result.id, result.verdict, result.reason


@pytest.fixture(scope="module")
def campaigns() -> Iterator[Callable[..., Report]]:
    """Campaigns of two shards, each run once, without the random histories that fill its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Campaign, "_beside", lambda *_: _Random())
        patch.setattr(verdict, "FLOOR", 1)
        patch.setattr(shards, "WIDTH", 1)
        known: dict[object, Report] = {}

        def run(kind: Any, shard: Shard | None) -> Report:
            if (kind, shard) not in known:
                known[kind, shard] = campaign(kind, shard)
            return known[kind, shard]

        yield run


@pytest.mark.usefixtures("unmeasured")
def test_the_joined_campaign_says_what_the_whole_one_says(campaigns):
    whole = campaigns(KVCacheManager, None)
    parts = all_shards(lambda shard: campaigns(KVCacheManager, shard), 2)
    assert [part.targets[0].verdict for part in parts] == ["passed", "passed"]
    divided = [part.targets[0].coverage.part for part in parts]
    assert all(part is not None and part.cuts for part in divided)
    assert list(told(joined(parts).targets[0])) == list(told(whole.targets[0]))


@pytest.mark.usefixtures("unmeasured")
def test_a_violation_of_a_shard_is_proven_over_the_whole_scope(campaigns):
    whole = example(campaigns(SmallRare, None))
    parts = all_shards(lambda shard: campaigns(SmallRare, shard), 2)
    found = example(joined(parts))
    assert found.proof.name == whole.proof.name == "shortest"
    assert (found.geometry, found.commands) == (whole.geometry, whole.commands)


def test_a_goal_that_no_shard_reaches_is_open_unless_all_are_exhausted(campaigns):
    def never(report: Report) -> Report:
        results = [
            replace(r, verdict="not_applicable", reason=NOT_HERE, evaluations=0)
            if r.id == "oom-hit"
            else r
            for r in report.targets[0].properties
        ]
        return of_target(report, properties=tuple(results))

    parts = all_shards(lambda shard: campaigns(KVCacheManager, shard), 2)
    only_one = joined([parts[0], never(parts[1])]).targets[0]
    assert ("oom-hit", "passed", None) in told(only_one)
    none = joined(list(map(never, parts))).targets[0]
    assert ("oom-hit", "not_applicable", UNREACHABLE) in told(none)
    early = of_coverage(never(parts[1]), exhausted=False, stopped="its time is over")
    open_goal = joined([never(parts[0]), early]).targets[0]
    assert open_goal.verdict == "unknown"
    assert open_goal.reason == "oom-hit: never reached in any shard"


@pytest.mark.usefixtures("campaigns")
def test_an_expected_failure_must_show_in_one_of_the_shards_only():
    expected = {"conservation": "issue 12"}
    right = campaign(KVCacheManager, Shard(1, 2), expected=expected, properties=("conservation",))
    assert right.targets[0].verdict == "passed"
    part = right.targets[0].coverage.part
    assert part is not None
    assert part.unseen == ("conservation",)
    other = replace(
        right, shard=Shard(2, 2), targets=(of_coverage(right, scope="shard 2 of 2 of x").targets)
    )
    other = of_coverage(other, part=replace(part, shard=Shard(2, 2)))
    same = of_coverage(right, scope="shard 1 of 2 of x")
    (nowhere,) = joined([same, other]).targets
    assert nowhere.verdict == "violated"
    assert nowhere.reason is not None
    assert nowhere.reason.startswith("expected to fail, but did not: conservation")
    seen = of_coverage(other, part=replace(part, shard=Shard(2, 2), unseen=()))
    assert joined([same, seen]).targets[0].verdict == "passed"


def test_random_histories_have_another_seed_in_each_shard_unless_one_is_given():
    assert Options(shard=Shard(3, 4)).seeded().seed == 3
    assert Options(seed=9, shard=Shard(3, 4)).seeded().seed == 9
    assert Options().seeded().seed is None


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "reference", "--shard", "3/2"],
        ["explore", "reference", "--shard", "2"],
        ["check", "reference", "--shard", "1/2", "--faults"],
        ["check", "reference", "--shard", "1/2", "--property", "rollback-under-fault"],
    ],
)
def test_a_shard_that_can_not_be_is_one_line(arguments, capsys):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "shard" in line


def test_reports_of_the_command_line_join(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = ["explore", "reference", "--blocks", "2", "--block-size", "1", "--requests", "2"]
    for number in ("1", "2"):
        assert cli.main([*pool, "--shard", f"{number}/2", "--json", f"{number}.json"]) == 0
    assert "reference: PASSED, shard 2 of 2, " in capsys.readouterr().out
    assert cli.main(["join", "2.json", "1.json", "--json", "whole.json"]) == 0
    assert "in 2 shards" in capsys.readouterr().out
    whole = json.loads(Path("whole.json").read_text(encoding="utf-8"))
    assert "shard" not in whole
    assert whole["targets"][0]["coverage"]["exhausted"]
    for files, why in (
        (["1.json"], "Error: shard(s) 2 of 2 are missing\n"),
        (["1.json", "whole.json"], "Error: report 2 is no shard; give those of --shard only\n"),
        (["1.json", "no.json"], "Error: no.json: can't be read: No such file or directory\n"),
    ):
        assert cli.main(["join", *files]) == 2
        assert capsys.readouterr() == ("", why)


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "nonsense", '{"schema": 1, "pagedkv": "0.0.0", "targets": []}', "[" * 100000],
)
def test_a_file_that_is_no_report_is_refused_in_one_line(tmp_path, capsys, text):
    file = tmp_path / "report.json"
    file.write_text(text, encoding="utf-8")
    assert cli.main(["join", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1


def test_a_report_is_read_as_it_was_written(campaigns):
    for report in (campaigns(KVCacheManager, Shard(1, 2)), campaigns(SmallRare, None)):
        data = report.to_json()
        assert report_from_json(data).to_json() == data
        for broken in ("targets", "seed", "budget"):
            with pytest.raises(BadReport):
                report_from_json({**data, broken: [{}]})
