"""From what was judged to verdicts: nothing passes on too little, nothing is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pagedkv.declarations import Declarations
from pagedkv.specs.properties import Need, Property, Sometimes
from pagedkv.stateful.report import PropertyResult, Verdict

FLOOR = 100
"""Evaluations with something to judge that a property needs; a goal needs one."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that verdicts are made from.

    broken: properties with a counterexample. exhausted: every scope was. unfinished: why the
    histories that were due were not all tried; None if they were. doubted: property id -> why its
    evaluations do not do. shard: these are of one shard, and say nothing of what is to be seen in
    the others only.
    """

    properties: tuple[Property, ...]
    offered: frozenset[Need]
    declared: Declarations
    evaluations: Mapping[str, int]
    broken: Collection[str]
    exhausted: bool
    unfinished: str | None
    expected: Mapping[str, str]
    doubted: Mapping[str, str] = field(default_factory=dict)
    shard: bool = False

    def unseen(self) -> list[str]:
        """The expected failures that were due and did not show; changes nothing."""
        # A failure that shows only when calls are made to fail is not due when none are.
        due = {p.id for p in self.properties if Need.FAULTS not in p.needs - self.offered}
        return sorted(p for p in self.expected if p in due and p not in self.broken)


def judge_target(evidence: Evidence) -> tuple[Verdict, str | None, tuple[PropertyResult, ...]]:
    """The target's verdict, its reason, and one result per property; changes nothing."""
    results = tuple(_result(prop, evidence) for prop in evidence.properties)
    unexpected = [p for p in evidence.broken if p not in evidence.expected]
    if unexpected:
        return "violated", None, results
    if evidence.unfinished is not None:
        return "unknown", evidence.unfinished, results
    if not evidence.shard and (unseen := evidence.unseen()):
        return "violated", did_not_fail(unseen), results
    unknown = [result for result in results if result.verdict == "unknown"]
    if unknown:
        reasons = "; ".join(f"{result.id}: {result.reason}" for result in unknown)
        return "unknown", reasons, results
    return "passed", None, results


def did_not_fail(names: Iterable[str]) -> str:
    """The reason of a target of which these were expected to fail, and did not."""
    return f"expected to fail, but did not: {', '.join(names)}; take it off the expected failures"


NOT_HERE = "never reached in this shard"
UNREACHABLE = "the exhausted scope shows that it can't be reached"
"""Reasons of goals that are not applicable."""


def _result(prop: Property, evidence: Evidence) -> PropertyResult:
    evaluations = evidence.evaluations.get(prop.id, 0)
    verdict, reason = _verdict(prop, evaluations, evidence)
    return PropertyResult(prop.id, verdict, evaluations, reason)


def _verdict(prop: Property, evaluations: int, evidence: Evidence) -> tuple[Verdict, str | None]:
    if missing := prop.needs - evidence.offered:
        return "not_applicable", "needs " + ", ".join(sorted(need.value for need in missing))
    if prop.id in evidence.broken:
        reason = evidence.expected.get(prop.id)
        return "violated", None if reason is None else f"expected: {reason}"
    if isinstance(prop.expectation, Sometimes):
        return _goal(prop, evaluations, evidence)
    unfinished = evidence.doubted.get(prop.id, evidence.unfinished)
    if unfinished is not None:
        return "unknown", unfinished
    if evaluations < FLOOR:
        cut = "; every history ends at its first violation" if evidence.broken else ""
        return "unknown", f"{evaluations} < {FLOOR} evaluations{cut}"
    return "passed", None


def _goal(prop: Property, evaluations: int, evidence: Evidence) -> tuple[Verdict, str | None]:
    if evaluations:
        return "passed", None
    if prop.id in evidence.declared.never_reached:
        return "not_applicable", f"declared: {evidence.declared.never_reached[prop.id]}"
    if evidence.broken:
        return "unknown", "never reached; every history ends at its first violation"
    if evidence.shard:
        return "not_applicable", NOT_HERE
    if evidence.exhausted:
        return "not_applicable", UNREACHABLE
    return "unknown", "never reached"
