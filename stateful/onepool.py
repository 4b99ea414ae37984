"""Every history of one pool, searched, as a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Property, Sometimes
from pagedkv.stateful.examples import example_of
from pagedkv.stateful.exploration import INTERRUPTED, Exploration, Found, Limits, Progress
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.minimise import Minimiser
from pagedkv.stateful.processes import PROGRESS_SECONDS
from pagedkv.stateful.profiles import EVERY, Scope
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    OneMinimal,
    Part,
    Proof,
    PropertyResult,
    Shortest,
    TargetReport,
    Verdict,
)
from pagedkv.stateful.shards import Shard
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import System
from pagedkv.stateful.verdict import NOT_HERE


def explore_pool(
    subject: Subject,
    geometry: Geometry,
    requests: int,
    depth: int | None = None,
    on_progress: Callable[[Progress, float], None] = lambda _at, _elapsed: None,
    shard: Shard | None = None,
) -> TargetReport:
    """Search every history of exactly this pool; changes nothing but the targets it makes.

    depth: only those of up to so many commands. shard: only these of them; what is found there is
    then looked for in all that are shorter. Raises CannotDrive if the target can't have this
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

    tell = _paced(lambda at: on_progress(at, monotonic() - start))
    explored, judged = explore(
        make,
        scope.geometries,
        judge,
        Limits(depth=depth, beyond=1),
        tell,
        shard=shard,
    )
    proven: list[tuple[Found, Proof]] = [
        (found, Shortest(found.states)) for _, found in sorted(explored.found.items())
    ]
    if explored.cuts and explored.found:
        proven = _proven(make, judge, explored, tell, ALSO_SECONDS + monotonic() - start)
    examples = tuple(
        example_of(lambda: make(geometry), judge, geometry, found.commands, found.violation, proof)
        for found, proof in proven
    )
    report = _report(
        subject.name, scope, explored, judged, examples, depth, monotonic() - start, shard
    )
    return replace(report, tolerances=subject.tolerances)


ALSO_SECONDS = 30.0
"""For a proof over other shards' histories there is this and as long as the search took."""


def _proven(
    make: Callable[[Geometry], System],
    judge: Callable[[], Judge],
    shard: Exploration,
    tell: Callable[[Progress], None],
    seconds: float,
) -> list[tuple[Found, Proof]]:
    """What a shard found, or what of other shards' is smaller; and whether nothing else is."""
    (pool,) = {found.geometry for found in shard.found.values()}
    longest = max(len(found.commands) for found in shard.found.values())
    limits = Limits(depth=longest, hard_seconds=seconds, enough=shard.found.keys())
    whole, _ = explore(make, (pool,), judge, limits, tell)
    proven = list[tuple[Found, Proof]]()
    for name, found in sorted(shard.found.items()):
        if name in whole.found:
            proven.append((whole.found[name], Shortest(whole.found[name].states)))
            continue
        case = Minimiser(make, judge, name).one_minimal(pool, found.commands)
        if case is not None and case.geometry == pool:
            found = replace(found, commands=case.commands, violation=case.violation)  # noqa: PLW2901
        proven.append((found, OneMinimal(f"the search of other shards ended: {whole.stopped}")))
    return proven


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
    shard: Shard | None,
) -> TargetReport:
    """The verdict is about what was asked for: all histories, or those up to the depth."""
    done = explored.stopped != INTERRUPTED and (
        explored.exhausted or (depth is not None and explored.covers(depth))
    )
    reason = None if done or examples else explored.stopped
    verdict: Verdict = "violated" if examples else "passed" if done else "unknown"
    broken = {example.property for example in examples}
    words = f"exactly a pool of {scope.geometries[0]}, {scope.requests} request(s)"
    part = None
    if shard is not None:
        words = f"shard {shard} of {words}"
        part = Part(shard, tuple((scope.name, cut) for cut in explored.cuts))
    return TargetReport(
        target=name,
        verdict=verdict,
        reason=reason,
        properties=tuple(
            _result(prop, judged, broken, done=done, exhausted=explored.exhausted, part=part)
            for prop in PROPERTIES.values()
        ),
        counterexamples=examples,
        coverage=Coverage(
            states=explored.states,
            transitions=explored.transitions,
            depth=explored.depth,
            exhausted=explored.exhausted,
            scope=words,
            stopped=explored.stopped,
            doubts=explored.doubts,
            part=part,
        ),
        seconds=seconds,
    )


def _result(
    prop: Property,
    judged: Judge,
    broken: set[str],
    *,
    done: bool,
    exhausted: bool,
    part: Part | None,
) -> PropertyResult:
    evaluations = judged.evaluations.get(prop.id, 0)
    if prop.id in broken:
        return PropertyResult(prop.id, "violated", evaluations)
    if prop not in judged.properties:
        needs = ", ".join(sorted(need.value for need in prop.needs))
        return PropertyResult(prop.id, "not_applicable", 0, f"needs {needs}")
    if evaluations == 0:
        goal = isinstance(prop.expectation, Sometimes)
        if part is not None and goal:
            return PropertyResult(prop.id, "not_applicable", 0, NOT_HERE)
        what = "never reached" if goal else "there was nothing to judge"
        return PropertyResult(prop.id, "not_applicable" if exhausted else "unknown", 0, what)
    verdict: Verdict = "passed" if done or isinstance(prop.expectation, Sometimes) else "unknown"
    return PropertyResult(prop.id, verdict, evaluations)
