"""Every history of one pool, searched, as a report."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Property, Sometimes
from pagedkv.stateful.examples import example_of
from pagedkv.stateful.explorer import INTERRUPTED, Exploration, Limits, Progress, explore
from pagedkv.stateful.processes import PROGRESS_SECONDS
from pagedkv.stateful.profiles import EVERY, Scope
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    PropertyResult,
    Shortest,
    TargetReport,
    Verdict,
)
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import System


def explore_pool(
    subject: Subject,
    geometry: Geometry,
    requests: int,
    depth: int | None = None,
    on_progress: Callable[[Progress, float], None] = lambda _at, _elapsed: None,
) -> TargetReport:
    """Search every history of exactly this pool; changes nothing but the targets it makes.

    depth: only those of up to so many commands. Raises CannotDrive if the target can't have this
    pool. KeyboardInterrupt ends it with what is known.
    """
    start = monotonic()
    scope = Scope("pool", (geometry,), requests, abilities=EVERY)
    fresh = subject.world(scope, geometry)
    if not fresh.setting.declared.supports(geometry.num_blocks, geometry.block_size):
        raise CannotDrive(f"it declares that it can't have {geometry}")
    can = offered(*fresh.states)

    def make(geometry: Geometry) -> System:
        return subject.world(scope, geometry)

    def judge() -> Judge:
        return Judge(PROPERTIES.values(), can)

    explored, judged = explore(
        make,
        scope.geometries,
        judge,
        Limits(depth=depth, beyond=1),
        _paced(lambda at: on_progress(at, monotonic() - start)),
    )
    examples = tuple(
        example_of(
            lambda: make(geometry),
            judge,
            geometry,
            found.commands,
            found.violation,
            Shortest(found.states),
        )
        for _, found in sorted(explored.found.items())
    )
    return _report(subject.name, scope, explored, judged, examples, depth, monotonic() - start)


def _paced(tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Tell now and then only: a search has something to tell every few microseconds."""
    last = 0.0

    def paced(at: Progress) -> None:
        nonlocal last
        if monotonic() - last >= PROGRESS_SECONDS:
            last = monotonic()
            tell(at)

    return paced


def _report(
    name: str,
    scope: Scope,
    explored: Exploration,
    judged: Judge,
    examples: tuple[Counterexample, ...],
    depth: int | None,
    seconds: float,
) -> TargetReport:
    """The verdict is about what was asked for: all histories, or those up to the depth."""
    done = explored.stopped != INTERRUPTED and (
        explored.exhausted or (depth is not None and explored.covers(depth))
    )
    reason = None if done or examples else explored.stopped
    verdict: Verdict = "violated" if examples else "passed" if done else "unknown"
    broken = {example.property for example in examples}
    return TargetReport(
        target=name,
        verdict=verdict,
        reason=reason,
        properties=tuple(
            _result(prop, judged, broken, done=done, exhausted=explored.exhausted)
            for prop in PROPERTIES.values()
        ),
        counterexamples=examples,
        coverage=Coverage(
            states=explored.states,
            transitions=explored.transitions,
            depth=explored.depth,
            exhausted=explored.exhausted,
            scope=f"exactly a pool of {scope.geometries[0]}, {scope.requests} request(s)",
            stopped=explored.stopped,
            doubts=explored.doubts,
        ),
        seconds=seconds,
    )


def _result(
    prop: Property, judged: Judge, broken: set[str], *, done: bool, exhausted: bool
) -> PropertyResult:
    evaluations = judged.evaluations.get(prop.id, 0)
    if prop.id in broken:
        return PropertyResult(prop.id, "violated", evaluations)
    if prop not in judged.properties:
        needs = ", ".join(sorted(need.value for need in prop.needs))
        return PropertyResult(prop.id, "not_applicable", 0, f"needs {needs}")
    if evaluations == 0:
        goal = isinstance(prop.expectation, Sometimes)
        what = "never reached" if goal else "there was nothing to judge"
        return PropertyResult(prop.id, "not_applicable" if exhausted else "unknown", 0, what)
    verdict: Verdict = "passed" if done or isinstance(prop.expectation, Sometimes) else "unknown"
    return PropertyResult(prop.id, verdict, evaluations)
