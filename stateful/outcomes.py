"""A campaign as a test run sees it: one outcome for each property and each driver.

The ids are known before anything was run, and the outcomes are plain JSON, so that one process
can run the campaign and others tell what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pagedkv.specs.properties import Property
from pagedkv.stateful.profiles import Profile
from pagedkv.stateful.report import TargetReport, Verdict
from pagedkv.stateful.text import counterexample_text

EXPLORER, RANDOM = "explorer", "random"
DRIVERS: Mapping[str, str] = {
    EXPLORER: "Every history of small pools was tried, at least to the profile's depth.",
    RANDOM: "Random histories of larger pools were run.",
}
"""The drivers of a campaign, and what is asked of each: that it did its part."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one check: its verdict, and the counterexample or the reason for it."""

    verdict: Verdict
    text: str = ""

    def to_json(self) -> list[str]:
        """Both as JSON has them."""
        return [self.verdict, self.text]


def check_ids(judged: Iterable[Property]) -> tuple[str, ...]:
    """The id of each check: of the properties that are judged, then the drivers'."""
    return (*(prop.id for prop in judged), *DRIVERS)


def outcomes_of(
    report: TargetReport, profile: Profile, hints: Mapping[str, str], ids: Iterable[str]
) -> dict[str, Outcome]:
    """The outcome of each of these ids; changes nothing.

    hints: per property, what to add to its counterexample. A property that the report has
    nothing of is unknown, for the target's reason.
    """
    nothing = Outcome("unknown", report.reason or "the campaign has no result for it")
    found = dict.fromkeys(ids, nothing)
    for result in report.properties:
        found[result.id] = Outcome(result.verdict, result.reason or "")
    for example in report.counterexamples:
        text = counterexample_text(example) + hints.get(example.property, "")
        found[example.property] = Outcome("violated", text)
    found[EXPLORER] = _explorer(report, profile)
    found[RANDOM] = _random(report)
    return _but_for_violations(report, found)


def _but_for_violations(report: TargetReport, found: dict[str, Outcome]) -> dict[str, Outcome]:
    """What is unknown only while something else is violated is not a failure of its own.

    Every history ends at its first violation, so one fault leaves many properties judged too
    seldom. The run is red for it already, and one fault should be one failure.
    """
    broken = [example.property for example in report.counterexamples if not example.expected]
    if not broken:
        return found
    why = f"unknown while {', '.join(broken)} is violated: "
    return {
        name: Outcome("not_applicable", why + outcome.text)
        if outcome.verdict == "unknown"
        else outcome
        for name, outcome in found.items()
    }


def _explorer(report: TargetReport, profile: Profile) -> Outcome:
    """Unknown too where a verdict is that no property shows: nothing passes unseen."""
    coverage = report.coverage
    if report.verdict == "unknown" and all(p.verdict != "unknown" for p in report.properties):
        return Outcome("unknown", report.reason or "the target's verdict is unknown")
    if coverage.exhausted or report.counterexamples or coverage.depth >= profile.depth:
        return Outcome("passed")
    why = f"stopped at depth {coverage.depth} of {profile.depth}: {coverage.stopped}"
    return Outcome("unknown", why)


def _random(report: TargetReport) -> Outcome:
    if report.coverage.random_steps:
        return Outcome("passed")
    if report.counterexamples:
        return Outcome("not_applicable", "a shorter way to a violation was found before")
    return Outcome("unknown", report.reason or "no random history was run")
