"""How sharp a suite is: what it found of faults that are known, and at what length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.stateful.report import TargetReport

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Planted:
    """A known fault: the target that has it, the property it breaks, in how many commands."""

    name: str
    target: str
    breaks: str
    optimum: int


@dataclass(frozen=True, slots=True)
class Run:
    """One campaign against one planted fault.

    by: the properties that the shortest counterexample breaks; none if nothing was found.
    steps, proof: its length, and how that is known; geometry and commands are the history.
    at_optimum: the property that is due was broken, in as many commands as are due, proven.
    reason: why nothing was found.
    """

    fault: Planted
    seed: int | None
    by: tuple[str, ...]
    steps: int | None
    proof: str | None
    at_optimum: bool
    seconds: float
    geometry: Geometry | None = None
    commands: tuple[Command, ...] = ()
    reason: str | None = None

    @property
    def found(self) -> bool:
        """Whether any property was broken."""
        return bool(self.by)

    def to_json(self) -> dict[str, Any]:
        """The run as the schema has it."""
        geometry = self.geometry
        return {
            "seed": self.seed,
            "found": self.found,
            "by": list(self.by),
            "steps": self.steps,
            "proof": self.proof,
            "at_optimum": self.at_optimum,
            "seconds": round(self.seconds, 3),
            "num_blocks": geometry and geometry.num_blocks,
            "block_size": geometry and geometry.block_size,
            "commands": [command.to_json() for command in self.commands],
            "reason": self.reason,
        }


def run_of(fault: Planted, seed: int | None, report: TargetReport) -> Run:
    """What a campaign's report says of a planted fault; changes nothing."""
    examples = sorted(report.counterexamples, key=lambda e: (len(e.commands), e.geometry))
    if not examples:
        reason = report.reason or f"its verdict is {report.verdict}"
        return lost(fault, seed, reason, report.seconds)
    # The one that is due, if it is among the shortest.
    least = [e for e in examples if len(e.commands) == len(examples[0].commands)]
    shown = next((e for e in least if e.property == fault.breaks), least[0])
    due = shown.property == fault.breaks and len(shown.commands) == fault.optimum
    return Run(
        fault=fault,
        seed=seed,
        by=tuple(dict.fromkeys([shown.property, *(e.property for e in least)])),
        steps=len(shown.commands),
        proof=shown.proof.name,
        at_optimum=due and shown.proof.name == "shortest",
        seconds=report.seconds,
        geometry=shown.geometry,
        commands=shown.commands,
    )


def lost(fault: Planted, seed: int | None, reason: str, seconds: float) -> Run:
    """A campaign that found nothing, or had no end."""
    return Run(fault, seed, (), None, None, at_optimum=False, seconds=seconds, reason=reason)


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs in a few numbers; seconds are those of each run, 0 where there was none."""

    runs: int
    found: int
    at_optimum: int
    median_seconds: float
    max_seconds: float

    @property
    def all_at_optimum(self) -> bool:
        """Whether there were any runs, and each found its fault as short as it can be."""
        return self.at_optimum == self.runs > 0

    def to_json(self) -> dict[str, Any]:
        """The summary as the schema has it."""
        return {
            "runs": self.runs,
            "found": self.found,
            "at_optimum": self.at_optimum,
            "median_seconds": round(self.median_seconds, 3),
            "max_seconds": round(self.max_seconds, 3),
        }


def summary_of(runs: Sequence[Run]) -> Summary:
    """Count over all runs; changes nothing."""
    seconds = [run.seconds for run in runs] or [0.0]
    return Summary(
        runs=len(runs),
        found=sum(run.found for run in runs),
        at_optimum=sum(run.at_optimum for run in runs),
        median_seconds=median(seconds),
        max_seconds=max(seconds),
    )
