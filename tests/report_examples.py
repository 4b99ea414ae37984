"""Reports made of histories of planted faults, each run once: no search, so that they are quick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from faults import EarlyOut, FreeTwice, KeepsLast, SortsTable, StaysFree, WrongReport
from pagedkv import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.replay import replay
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    PropertyResult,
    Report,
    Shortest,
    TargetReport,
    Verdict,
)
from pagedkv.stateful.world import World

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m\u202e\ud800]]>\uffff"
"""What breaks out of HTML, of attributes, of JSON, of XML and of terminals."""

TWICE = (Prefill(0, 1), Prefill(1, 1), Release(0))
LEAK = (Prefill(0, 2), Release(0))
STAYS = (Prefill(0, 1), Decode(0))
SORTED = (Prefill(0, 1), Prefill(1, 1), Release(0), Decode(1))

SMALL = Geometry(2, 1)
Factory = Callable[[int, int, int], Any]


def examples_of(
    factories: Factory | tuple[Factory, Factory],
    commands: tuple[Command, ...],
    geometry: Geometry = SMALL,
) -> list[Counterexample]:
    """The counterexample of each property that the history breaks at its last step."""
    both = factories if isinstance(factories, tuple) else (factories,)

    def make() -> Any:
        world = partial(World, geometry=geometry, requests=4, keeps_released=True)
        worlds = [world(factory) for factory in both]
        return Lockstep(*worlds) if len(worlds) == 2 else worlds[0]

    judge = Judge(PROPERTIES.values(), offered(*make().states))
    ran = replay(make, commands, judge, frames=True)
    assert ran.commands == commands
    return [
        Counterexample(
            property=violation.property.id,
            statement=violation.property.statement,
            equation=violation.property.equation,
            message=violation.broken.message,
            geometry=geometry,
            commands=commands,
            proof=Shortest(7),
            frames=ran.frames,
            blocks=violation.broken.blocks,
            requests=violation.broken.requests,
        )
        for violation in sorted(ran.violations, key=lambda found: found.property.id)
    ]


def target(
    name: str,
    examples: list[Counterexample],
    *,
    verdict: Verdict = "violated",
    reason: str | None = None,
    results: tuple[PropertyResult, ...] = (),
) -> TargetReport:
    """A target whose properties in `results` stand beside those of the examples."""
    broken = tuple(
        PropertyResult(e.property, "violated", 120, "expected: issue 12" if e.expected else None)
        for e in examples
    )
    coverage = Coverage(
        20, 60, 4, exhausted=False, scope="pools of 2", stopped="its time was spent"
    )
    return TargetReport(name, verdict, reason, broken + results, tuple(examples), coverage, 1.25)


PASSED = PropertyResult("table-valid", "passed", 1234)
UNKNOWN = PropertyResult("block-reused", "unknown", 0, "never reached")
NOT_APPLICABLE = PropertyResult("ref-counts", "not_applicable", 0, "needs reference counts")
OTHERS = (PASSED, UNKNOWN, NOT_APPLICABLE)


def report() -> Report:
    """Every kind of verdict, a pair in lockstep, and a target that could not be driven."""
    expected = [replace(e, expected=True) for e in examples_of(WrongReport, (Prefill(0, 1),))]
    pair = examples_of((KVCacheManager, EarlyOut), STAYS)
    return Report(
        (
            target("mine:FreeTwice", examples_of(FreeTwice, TWICE), results=OTHERS),
            target("mine:SortsTable", examples_of(SortsTable, SORTED)),
            target("reference+mine:EarlyOut", pair),
            target("mine:WrongReport", expected, verdict="passed"),
            target("mine:Gone", [], verdict="unknown", reason="it died (signal 11)"),
            target("reference", [], verdict="passed", results=(PASSED,)),
        )
    )


def hostile_report() -> Report:
    """Names, messages, outcomes and reasons that try to break out of what they stand in."""
    example = examples_of(KeepsLast, LEAK)[0]
    frames = tuple(replace(f, outcome=f"raised {HOSTILE}: {HOSTILE}") for f in example.frames)
    bad = replace(example, message=HOSTILE, frames=frames)
    odd = PropertyResult("block-reused", "unknown", 0, HOSTILE)
    judged = target(HOSTILE, [bad], reason=HOSTILE, results=(odd,))
    return Report((replace(judged, coverage=replace(judged.coverage, doubts=(HOSTILE,))),))


def stays_free() -> list[Counterexample]:
    """A block that is held and free at once."""
    return examples_of(StaysFree, STAYS)
