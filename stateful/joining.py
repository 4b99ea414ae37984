"""The reports of all shards of a run, joined into the one of the whole.

What one shard found is found. Nothing passes but what passed in each of them, and nothing is
exhausted but what each has exhausted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.properties import Sometimes
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    PropertyResult,
    Report,
    TargetReport,
    Verdict,
)
from pagedkv.stateful.verdict import NOT_HERE, UNREACHABLE, did_not_fail


class CannotJoin(ValueError):
    """Reports that are not all the shards of one run; the message is one line."""


def joined(reports: Sequence[Report]) -> Report:
    """The report of the whole run; changes nothing.

    Its seconds are those of all machines together; states and transitions that several shards
    have tried count in each. Raises CannotJoin if a shard is missing, given twice, or of another
    run, for no reports too.
    """
    shards = _in_order(reports)
    first = shards[0]
    for name in ("profile", "budget"):
        if len(differ := {getattr(report, name) for report in shards}) > 1:
            raise CannotJoin(f"the shards have different {name}s: {' and '.join(map(str, differ))}")
    names = [target.target for target in first.targets]
    if any([target.target for target in report.targets] != names for report in shards):
        raise CannotJoin(f"not every shard is of the targets {', '.join(names)}")
    seeds = {report.seed for report in shards}
    return replace(
        first,
        targets=tuple(
            _target([report.targets[i] for report in shards], campaign=first.profile is not None)
            for i in range(len(names))
        ),
        seed=seeds.pop() if len(seeds) == 1 else None,
        shard=None,
    )


def _in_order(reports: Sequence[Report]) -> list[Report]:
    """All shards, the first one first."""
    by_number: dict[int, Report] = {}
    if not reports:
        raise CannotJoin("there is nothing to join")
    for i, report in enumerate(reports, start=1):
        if report.shard is None:
            raise CannotJoin(f"report {i} is no shard; give those of --shard only")
        if report.shard.number in by_number:
            raise CannotJoin(f"shard {report.shard} is given twice")
        by_number[report.shard.number] = report
    numbers = {report.shard.of for report in reports if report.shard is not None}
    if len(numbers) > 1:
        told = " and ".join(map(str, sorted(numbers)))
        raise CannotJoin(f"some are of {told} shards; give those of one run")
    (of,) = numbers
    if missing := [k for k in range(1, of + 1) if k not in by_number]:
        told = ", ".join(map(str, missing))
        raise CannotJoin(f"shard(s) {told} of {of} are missing")
    return [by_number[k] for k in range(1, of + 1)]


def _target(shards: Sequence[TargetReport], *, campaign: bool) -> TargetReport:
    """One target. campaign: a goal that was never reached leaves its verdict open."""
    if any(shard.tolerances != shards[0].tolerances for shard in shards):
        raise CannotJoin(f"the shards have different tolerances for {shards[0].target}")
    examples = _smallest(shards)
    astray = _astray(shards)
    coverage = _coverage(shards, astray)
    results = _results(shards, examples, exhausted=coverage.exhausted)
    verdict, reason = _verdict(shards, examples, astray)
    open_goals = [r.id for r in results if r.verdict == "unknown"]
    if verdict == "passed" and campaign and open_goals:
        verdict, reason = "unknown", f"{', '.join(open_goals)}: {NEVER}"
    return TargetReport(
        target=shards[0].target,
        verdict=verdict,
        reason=reason,
        properties=results,
        counterexamples=tuple(examples[name] for name in sorted(examples)),
        coverage=coverage,
        seconds=sum(shard.seconds for shard in shards),
        tolerances=shards[0].tolerances,
    )


NEVER = "never reached in any shard"


def _verdict(
    shards: Sequence[TargetReport], examples: Mapping[str, Counterexample], astray: str | None
) -> tuple[Verdict, str | None]:
    if any(not example.expected for example in examples.values()):
        return "violated", None
    for k, shard in enumerate(shards, start=1):
        if shard.verdict == "unknown":
            return "unknown", f"shard {k} of {len(shards)}: {shard.reason}"
    if astray is not None:
        return "unknown", astray
    parts = [shard.coverage.part for shard in shards]
    unseen = set.intersection(*(set(part.unseen) if part else set() for part in parts))
    if unseen:
        return "violated", did_not_fail(sorted(unseen))
    return "passed", None


def _smallest(shards: Sequence[TargetReport]) -> dict[str, Counterexample]:
    """Per property the smallest counterexample; the first shard's, of those that are alike."""
    smallest: dict[str, Counterexample] = {}
    for shard in shards:
        for example in shard.counterexamples:
            known = smallest.get(example.property)
            if known is None or _size(example) < _size(known):
                smallest[example.property] = example
    return smallest


def _size(example: Counterexample) -> tuple[object, ...]:
    return (len(example.commands), example.geometry, example.proof.name != "shortest")


def _astray(shards: Sequence[TargetReport]) -> str | None:
    """Why the shards are not parts of one whole; None if they are, as far as can be seen."""
    divided = defaultdict[tuple[object, ...], dict[int, str]](dict)
    for k, shard in enumerate(shards, start=1):
        for scope, cut in shard.coverage.part.cuts if shard.coverage.part else ():
            divided[scope, cut.geometry][k] = f"{cut.depth} {cut.digest}"
    for (_, pool), cuts in divided.items():
        # A search that ended early may not have come to where the others divided theirs.
        whole = {
            k: "" for k, s in enumerate(shards, start=1) if k not in cuts and s.coverage.exhausted
        }
        for (k, one), (other, another) in combinations(sorted((cuts | whole).items()), 2):
            if one != another:
                return (
                    f"shards {k} and {other} did not divide the same states of a pool of {pool}: "
                    f"the target differs between machines or from run to run"
                )
    return None


def _coverage(shards: Sequence[TargetReport], astray: str | None) -> Coverage:
    parts = [shard.coverage for shard in shards]
    stopped = [f"shard {k}: {c.stopped}" for k, c in enumerate(parts, start=1) if c.stopped]
    scopes = {
        c.scope.removeprefix(f"shard {c.part.shard} of ") for c in parts if c.part is not None
    }
    if len(scopes) > 1:
        raise CannotJoin(f"the shards are of different scopes: {' and '.join(sorted(scopes))}")
    return Coverage(
        states=sum(c.states for c in parts),
        transitions=sum(c.transitions for c in parts),
        depth=min(c.depth for c in parts),
        exhausted=all(c.exhausted for c in parts) and astray is None,
        scope="".join(f"{scope}; in {len(shards)} shards" for scope in scopes),
        stopped="; ".join(stopped) or astray,
        random_steps=sum(c.random_steps for c in parts),
        doubts=tuple(dict.fromkeys(doubt for c in parts for doubt in c.doubts)),
    )


def _results(
    shards: Sequence[TargetReport], broken: Mapping[str, Counterexample], *, exhausted: bool
) -> tuple[PropertyResult, ...]:
    by_id = defaultdict[str, list[PropertyResult]](list)
    for shard in shards:
        for result in shard.properties:
            by_id[result.id].append(result)
    return tuple(
        _result(name, results, broken=name in broken, exhausted=exhausted)
        for name, results in by_id.items()
    )


def _result(
    name: str, results: Sequence[PropertyResult], *, broken: bool, exhausted: bool
) -> PropertyResult:
    first = {result.verdict: result for result in reversed(results)}
    evaluations = sum(result.evaluations for result in results)
    goal = name in PROPERTIES and isinstance(PROPERTIES[name].expectation, Sometimes)
    order: tuple[Verdict, ...] = ("violated", "unknown", "passed")
    for verdict in ("passed", *order) if goal else order:
        if verdict in first and (verdict != "violated" or broken):
            return replace(first[verdict], evaluations=evaluations)
    if all(result.reason == NOT_HERE for result in results):
        reason, verdict = (UNREACHABLE, "not_applicable") if exhausted else (NEVER, "unknown")
        return PropertyResult(name, verdict, 0, reason)
    return replace(first["not_applicable"], evaluations=evaluations)
