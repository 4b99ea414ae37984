"""The suite against the planted faults: every mutant with every seed, on reused children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pagedkv.api import Options, subject
from pagedkv.mutants import Mutant
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.crew import Lost, run_jobs
from pagedkv.stateful.machine import search, settings_for
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import EVERY, Scope
from pagedkv.stateful.report import TargetReport
from pagedkv.stateful.score import Planted, Run, lost, run_of
from pagedkv.stateful.shrink import Shrunk, shrink
from pagedkv.stateful.traces import Trace
from pagedkv.stateful.trust import System
from pagedkv.targets import resolve

HUNG = 10
"""So many times a campaign's budget, and it hangs."""


def plan_of(seed: int | None = None) -> Plan:
    """The quick profile's plan, as `pagedkv check` has it, up to the first violation."""
    return replace(Options(seed=seed).plan(), until="first")


def campaign_of(job: tuple[str, Plan]) -> TargetReport:
    """One campaign, in this process; changes nothing but the targets it makes."""
    target, plan = job
    return run_campaign(subject(resolve(target)), plan)


def score_all(
    chosen: Sequence[Mutant],
    seeds: Sequence[int | None],
    on_end: Callable[[], None] = lambda: None,
) -> dict[str, list[Run]]:
    """Every mutant with every seed, several at once in children; returns the runs by mutant."""
    pairs = [(mutant, seed) for mutant in chosen for seed in seeds]
    jobs = [(mutant.target, plan_of(seed)) for mutant, seed in pairs]
    ends = run_jobs(
        campaign_of, jobs, seconds=HUNG * plan_of().seconds, on_end=lambda _number: on_end()
    )
    runs: dict[str, list[Run]] = {mutant.name: [] for mutant in chosen}
    for (mutant, seed), end in zip(pairs, ends, strict=True):
        fault = Planted(mutant.name, mutant.target, mutant.breaks, mutant.optimum)
        run = (
            lost(fault, seed, end.reason, end.seconds)
            if isinstance(end, Lost)
            else run_of(fault, seed, end)
        )
        runs[mutant.name].append(run)
    return runs


def by_chance(job: tuple[Mutant, int]) -> Trace | None:
    """A random history of this seed that breaks the mutant's property; None if none does.

    The other order of drivers: chance first, then the search of the fixed scope.
    """
    mutant, seed = job
    made = subject(resolve(mutant.target))
    scope = Scope("random", (), 4, keeps_released=True, abilities=EVERY, varied=True)

    def make(geometry: Geometry) -> System:
        return made.world(scope, geometry)

    judge = Judge([PROPERTIES[mutant.breaks]], offered(*made.probe().states))
    longer = search(make, judge=judge, settings=settings_for("quick"), seed=seed).falsified
    if longer is None:
        return None
    return Trace(mutant.target, longer.geometry, longer.commands, mutant.breaks)


def cut_down(trace: Trace) -> Shrunk:
    """What a history of a mutant comes down to; changes nothing but the targets it makes."""
    return shrink(subject(resolve(trace.target)), trace)
