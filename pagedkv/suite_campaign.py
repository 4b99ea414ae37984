"""One campaign of a test run: what identifies it, and what came of it as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedkv.stateful.outcomes import Outcome, check_ids, outcomes_of

if TYPE_CHECKING:
    from pagedkv.api import Factory, Options
    from pagedkv.stateful.report import Report, TargetReport


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is checked and how; equal campaigns are run once.

    where: the test that a factory was given to; a factory has no name that says which it is.
    """

    target: str | Factory
    where: str
    profile: str
    seed: int | None
    budget: float | None
    properties: tuple[str, ...]
    isolate: bool
    faults: bool
    traces: Path | None
    tolerances: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call the target."""
        if isinstance(self.target, str):
            return self.target
        module = getattr(self.target, "__module__", "?")
        return f"{module}:{getattr(self.target, '__qualname__', repr(self.target))}"

    def key(self) -> str:
        """A name for it that is the same in every process of a run, and fit for a file."""
        known = {f.name: str(getattr(self, f.name)) for f in fields(self) if f.name != "target"}
        return sha256(json.dumps([self.name, known]).encode()).hexdigest()[:32]

    def options(self) -> Options:
        """How it is run; what is expected to fail is judged later, of each test."""
        from pagedkv.api import Options

        return Options(
            profile=self.profile,
            seed=self.seed,
            budget=self.budget,
            properties=self.properties,
            isolate=self.isolate,
            faults=self.faults,
            tolerances=self.tolerances,
        )

    def ids(self) -> tuple[str, ...]:
        """The id of each of its checks; runs nothing."""
        return check_ids(self.options().plan().chosen())

    def run(self) -> dict[str, Any]:
        """Run it, now and here, and say what came of it as JSON. Writes the traces, if asked to.

        Raises KeyboardInterrupt if that ended it.
        """
        from pagedkv.commands.common import Refused
        from pagedkv.stateful.profiles import PROFILES

        options = self.options().seeded()
        try:
            report = self._report(options)
            hints = self._written(report)
        except Refused as error:
            return {**self.failed(error.message), "refused": True}
        (target,) = report.targets
        found = outcomes_of(target, PROFILES[self.profile], hints, self.ids())
        return self._told(found, _summary(target, options))

    def _report(self, options: Options) -> Report:
        """The report of a target by name from a process of its own, of a factory from this one."""
        from pagedkv.api import check, check_targets
        from pagedkv.commands.common import resolve_all
        from pagedkv.stateful.exploration import INTERRUPTED

        if isinstance(self.target, str):
            chosen = resolve_all([self.target], self.tolerances, isolate=self.isolate)
            report = check_targets(chosen, options)
        else:
            report = check(
                self.target,
                profile=options.profile,
                seed=options.seed,
                budget=options.budget,
                properties=options.properties,
                faults=options.faults,
                tolerances=options.tolerances,
            )
        (target,) = report.targets
        ends = f"{target.reason}; {target.coverage.stopped}".split("; ")
        if any(end.split(": ")[-1] == INTERRUPTED for end in ends):
            raise KeyboardInterrupt
        return report

    def _written(self, report: Report) -> dict[str, str]:
        """How to run each counterexample again, by property; nothing if no traces are asked for."""
        from pagedkv.commands.files import check_folder, write_traces

        if self.traces is None:
            return {}
        check_folder(self.traces)
        examples = report.targets[0].counterexamples
        return {
            example.property: f"\n\nTo run it again: pagedkv replay {shlex.quote(str(_near(file)))}"
            for example, file in zip(examples, write_traces(self.traces, report), strict=True)
        }

    def failed(self, reason: str) -> dict[str, Any]:
        """What came of a campaign that could not be run."""
        return self._told(dict.fromkeys(self.ids(), Outcome("unknown", reason)), reason)

    def _told(self, outcomes: Mapping[str, Outcome], summary: str) -> dict[str, Any]:
        found = {name: outcome.to_json() for name, outcome in outcomes.items()}
        return {"outcomes": found, "summary": f"{self.name}: {summary}"}


def _near(file: Path) -> Path:
    """The file as seen from the current folder, where it is in it."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


def _summary(target: TargetReport, options: Options) -> str:
    """What was tried, in one line."""
    coverage = target.coverage
    end = "exhausted" if coverage.exhausted else f"stopped ({coverage.stopped})"
    seed = "" if options.seed is None else f", seed {options.seed}"
    return (
        f"{target.verdict.replace('_', ' ')}; {coverage.states:,} states, "
        f"{coverage.transitions:,} transitions, {end}, {coverage.random_steps:,} random steps, "
        f"{target.seconds:.1f} s, profile {options.profile}{seed}"
    )
