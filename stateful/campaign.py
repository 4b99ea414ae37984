"""One target, checked: the exhaustive scopes, then random histories, then the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Literal

from pagedkv.declarations import Declarations
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import UNDER_FAULT
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Need, Property, Violation
from pagedkv.stateful.examples import example_of
from pagedkv.stateful.explorer import (
    INTERRUPTED,
    VARIES,
    Exploration,
    Found,
    Limits,
    Progress,
    explore,
)
from pagedkv.stateful.injecting import Injected, Task, inject_apart
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.minimise import Minimiser
from pagedkv.stateful.profiles import FIXED, Profile, Scope, fixed_scope
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    OneMinimal,
    Proof,
    Shortest,
    TargetReport,
    Unfinished,
)
from pagedkv.stateful.target import CannotDrive, Factory
from pagedkv.stateful.trust import System, varies
from pagedkv.stateful.verdict import Evidence, judge_target
from pagedkv.stateful.world import World

Listener = Callable[[str, Progress], None]
"""Told the phase and how far it is."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: one factory, or two in lockstep. maker: of their worlds."""

    name: str
    factories: tuple[Factory, ...]
    maker: Callable[..., World] = World

    def world(self, scope: Scope, geometry: Geometry) -> System:
        """A fresh system for one geometry of a scope. Raises CannotDrive."""
        worlds = [
            self.maker(
                factory, geometry, requests=scope.requests, keeps_released=scope.keeps_released
            )
            for factory in self.factories
        ]
        return worlds[0] if len(worlds) == 1 else Lockstep(*worlds)

    def probe(self) -> System:
        """A fresh system of the smallest geometry that the target can have.

        Raises CannotDrive, with what the smallest said, if it can have none that is tried.
        """
        refused: CannotDrive | None = None
        declared = getattr(self.factories[0], "declares", None) or Declarations()
        own = [Geometry(declared.min_blocks, size) for size in sorted(declared.block_sizes or (1,))]
        for geometry in (*own, *FIXED, Geometry(4, 16)):
            try:
                return self.world(Scope("probe", (geometry,), 1), geometry)
            except CannotDrive as error:
                refused = refused or error
        assert refused is not None
        raise refused


Until = Literal["all", "first"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a subject is checked.

    seconds: the budget. hard: it holds even if the profile's depth was not reached by then.
    properties: ids to judge; empty is all. until: "first" ends with one shortest history that
    breaks something, and looks for nothing else that is broken.
    expected: known failures, property id -> reason. expected_of: further ones, of the target that
    is named. faults: calls inside the target are made to fail too, for as much time again, or half
    of a hard budget.
    """

    profile: Profile
    seconds: float
    hard: bool = False
    seed: int | None = None
    properties: tuple[str, ...] = ()
    until: Until = "all"
    expected: Mapping[str, str] = field(default_factory=dict)
    expected_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    faults: bool = False

    def of(self, target: str) -> Plan:
        """The plan for this target, all of whose known failures are `expected`."""
        expected = {**self.expected, **self.expected_of.get(target, {})}
        return replace(self, expected=expected, expected_of={})

    def chosen(self) -> tuple[Property, ...]:
        """The properties to judge."""
        return tuple(
            p for p in PROPERTIES.values() if not self.properties or p.id in self.properties
        )


def run_campaign(
    subject: Subject, plan: Plan, on_progress: Listener = lambda _phase, _progress: None
) -> TargetReport:
    """Check one subject; changes nothing but the targets it makes."""
    start = monotonic()
    try:
        return _Campaign(subject, plan.of(subject.name), on_progress, start).run()
    except CannotDrive as error:
        coverage = Coverage(0, 0, 0, exhausted=False, stopped=str(error))
        return TargetReport(
            subject.name, "unknown", str(error), (), (), coverage, monotonic() - start
        )


class _Campaign:
    """The steps of one campaign; `_evaluations` counts over all of them."""

    def __init__(self, subject: Subject, plan: Plan, listener: Listener, start: float) -> None:
        if plan.faults and plan.hard:
            plan = replace(plan, seconds=plan.seconds / 2)
        self._subject, self._plan, self._listener, self._start = subject, plan, listener, start
        fresh = subject.probe()
        self._declared = fresh.setting.declared
        pair = len(subject.factories) > 1
        self._offered = offered(*fresh.states)
        self._scopes = plan.profile.scopes(self._declared, pair=pair)
        if not all(scope.geometries for scope in self._scopes):
            raise CannotDrive("the target declares that it can have none of the scope's pools")
        self._evaluations: Counter[str] = Counter()

    def run(self) -> TargetReport:
        plan = self._plan
        if (difference := self._difference()) is not None:
            # What is found in a target that says two things is not worth reporting.
            raise CannotDrive(f"{VARIES}: two fresh targets: {difference}")
        explored = self._search()
        found = _shortest(explored)
        if plan.until == "first" and found:
            first = min(map(_order, found.values()))
            found = {name: one for name, one in found.items() if _order(one) == first}
        examples = [self._proven(found[name], explored) for name in sorted(found)]
        randomly = _Random()
        if self._goes_on(found) and not _interrupted(explored):
            randomly = self._beside(found, explored)
        examples += randomly.examples
        injected = self._injected(found, explored)
        if injected is not None and injected.example is not None:
            expected = UNDER_FAULT.id in plan.expected
            examples.append(replace(injected.example, expected=expected))
        evidence = Evidence(
            properties=plan.chosen(),
            offered=self._offered | ({Need.FAULTS} if injected else set()),
            declared=self._declared,
            evaluations=self._evaluations,
            broken={example.property for example in examples},
            exhausted=all(exploration.exhausted for exploration in explored),
            unfinished=randomly.trouble or _unfinished(explored, plan.profile.depth),
            expected=plan.expected,
            doubted={UNDER_FAULT.id: injected.trouble} if injected and injected.trouble else {},
        )
        verdict, reason, results = judge_target(evidence)
        return TargetReport(
            target=self._subject.name,
            verdict=verdict,
            reason=reason,
            properties=results,
            counterexamples=tuple(examples),
            coverage=self._coverage(explored, randomly.steps),
            seconds=monotonic() - self._start,
            injection=injected.injection if injected else None,
        )

    def _injected(self, found: Mapping[str, Found], explored: list[Exploration]) -> Injected | None:
        """What failing calls bring; None where none are to fail."""
        plan = self._plan
        alone = len(self._subject.factories) == 1
        wanted = plan.faults and UNDER_FAULT in plan.chosen()
        if not (wanted and alone) or _interrupted(explored):
            return None
        limits = tuple(
            Limits(
                seconds=share * plan.seconds,
                at_least=plan.profile.depth - 1,
                hard_seconds=(1 if plan.hard else 3) * share * plan.seconds,
            )
            for share in (0.7, 0.3)
        )
        past = frozenset(name for name in found if PROPERTIES[name].redundant)
        trust, depth = explored[-1].trust, plan.profile.depth - 1
        task = Task(self._subject, self._scopes, limits, trust, past, depth)
        injected = inject_apart(task, self._listener)
        self._evaluations[UNDER_FAULT.id] = injected.injection.failures
        return injected

    def _search(self) -> list[Exploration]:
        """The exhaustive search of each scope, in the order of the scopes.

        Where the first violation is enough, the smaller scope begins, as deep as the profile asks:
        the main one then has nothing to look for that is longer than what was found, and the
        smaller one in the end nothing that is as long.
        """
        first = self._plan.until == "first"
        # Proofs are over the main scope: it may have most of the time.
        main, kept = zip(self._scopes, ((0.0, 0.75), (0.75, 0.85)), strict=True)
        done: dict[str, Exploration] = {}
        judged: dict[str, Counter[str]] = {}
        turns: list[tuple[tuple[Scope, tuple[float, float]], int | None]]
        turns = [(main, None), (kept, None)]
        if first:
            turns.insert(0, (kept, self._plan.profile.depth))
        for (scope, share), deepest in turns:
            depth = deepest
            name, limits, explored = scope.name, self._limits(*share), list(done.values())
            if first:
                least = min((len(f.commands) for f in _shortest(explored).values()), default=None)
                if least is not None:  # Of two histories that are as long, the main scope's counts.
                    depth = least if scope is main[0] else least - 1
                limits = replace(limits, beyond=None, enough="any", depth=depth)
            if not _interrupted(explored) and not _covers(done.get(name), limits.depth):
                self._evaluations.subtract(judged.get(name, ()))
                before = self._evaluations.copy()
                done[name] = self._explore(scope, limits)
                judged[name] = self._evaluations - before
        return [done[scope.name] for scope in self._scopes if scope.name in done]

    def _beside(self, found: Mapping[str, Found], explored: list[Exploration]) -> _Random:
        """Random histories, or why there are none."""
        try:
            return self._random(found, explored)
        except KeyboardInterrupt:
            return _Random(trouble=INTERRUPTED)
        except CannotDrive as error:
            return _Random(trouble=f"random histories could not be run: {error}")

    def _difference(self) -> str | None:
        """What two fresh targets answer differently; None if nothing was seen."""
        scope = self._scopes[0]
        two = [g for g in scope.geometries if g.num_blocks == 2]
        make = partial(self._subject.world, scope, (two or scope.geometries)[-1])
        try:
            return varies(make, make)
        except KeyboardInterrupt:
            return None  # the searches will hear of the next one

    def _left(self, end: float = 1.0) -> float:
        """Seconds of real time until that part of the budget is over; always a moment."""
        return max(0.1, self._start + end * self._plan.seconds - monotonic())

    def _goes_on(self, found: Mapping[str, Found]) -> bool:
        """Whether there is anything left to look for."""
        if self._plan.until == "first":
            return not found
        return all(PROPERTIES[name].redundant for name in found)

    def _limits(self, start: float, end: float) -> Limits:
        seconds = self._plan.seconds
        return Limits(
            seconds=(end - start) * seconds,
            at_least=self._plan.profile.depth,
            hard_seconds=self._left(end) if self._plan.hard else 3 * seconds,
            beyond=1,
        )

    def _judge(self) -> Judge:
        return Judge(self._plan.chosen(), self._offered)

    def _explore(self, scope: Scope, limits: Limits) -> Exploration:
        exploration, judge = explore(
            lambda geometry: self._subject.world(scope, geometry),
            scope.geometries,
            self._judge,
            limits,
            lambda progress: self._listener(scope.name, progress),
        )
        self._evaluations.update(judge.evaluations)
        return exploration

    def _proven(self, found: Found, explored: list[Exploration]) -> Counterexample:
        """The counterexample of one property, over the fixed scope where that can be searched."""
        scope = self._scopes[0]
        if scope.name != "fixed" and not _interrupted(explored):
            name = found.violation.property.id
            seconds = max(self._left(), 0.5 * self._plan.seconds)
            limits = Limits(hard_seconds=seconds, depth=len(found.commands), enough={name})
            fixed = self._explore(fixed_scope(self._declared), limits)
            found = min((found, fixed.found.get(name, found)), key=_order)
            explored = [fixed, *explored[1:]]
        states = sum(exploration.states for exploration in explored)
        short = [e for e in explored if not e.covers(len(found.commands) - 1)]
        proof: Proof = Shortest(states)
        if short:
            proof = OneMinimal(f"the search of the fixed scope ended: {short[0].stopped}")
        return self._example(found.geometry, found.commands, found.violation, proof)

    def _random(self, found: Mapping[str, Found], explored: list[Exploration]) -> _Random:
        """Random histories of larger pools than can be exhausted."""
        from pagedkv.stateful.machine import search, settings_for  # Hypothesis, only when used

        judge = self._judge()
        scope = Scope("random", (), 6, keeps_released=True)
        result = search(
            lambda geometry: self._subject.world(scope, geometry),
            judge=judge,
            settings=settings_for(self._plan.profile.name),
            seed=self._plan.seed,
            seconds=max(self._left(), 0.1 * self._plan.seconds),
            look_past=found.keys(),
        )
        self._evaluations.update(judge.evaluations)
        if result.falsified is None:
            return _Random(result.steps, result.nondeterministic)
        falsified, examples = result.falsified, list[Counterexample]()
        for name in sorted({violation.property.id for violation in falsified.violations}):
            minimiser = Minimiser(
                lambda geometry: self._subject.world(scope, geometry),
                self._judge,
                name,
                found.keys(),
            )
            until = monotonic() + max(self._left(), 0.2 * self._plan.seconds)
            case = minimiser.one_minimal(falsified.geometry, falsified.commands, until=until)
            if case is None:
                trouble = f"{VARIES}: a random history broke {name} once and not again"
                return _Random(result.steps, trouble, tuple(examples))
            proof: Proof = OneMinimal(_unseen(explored))
            if monotonic() > until:
                proof = Unfinished("time ran out")
            examples.append(self._example(case.geometry, case.commands, case.violation, proof))
        return _Random(result.steps, result.nondeterministic, tuple(examples))

    def _example(
        self, geometry: Geometry, commands: tuple[Command, ...], violation: Violation, proof: Proof
    ) -> Counterexample:
        scope = Scope("replay", (geometry,), 6, keeps_released=True)
        example = example_of(
            lambda: self._subject.world(scope, geometry),
            self._judge,
            geometry,
            commands,
            violation,
            proof,
        )
        return replace(example, expected=example.property in self._plan.expected)

    def _coverage(self, explored: list[Exploration], random_steps: int) -> Coverage:
        stopped = [
            f"{scope.name}: {exploration.stopped}"
            for scope, exploration in zip(self._scopes, explored, strict=False)
            if exploration.stopped is not None
        ]
        return Coverage(
            states=sum(exploration.states for exploration in explored),
            transitions=sum(exploration.transitions for exploration in explored),
            depth=explored[0].depth,
            exhausted=not stopped,
            scope="; ".join(map(str, self._scopes)),
            stopped="; ".join(stopped) or None,
            random_steps=random_steps,
            doubts=tuple(doubt for exploration in explored for doubt in exploration.doubts),
        )


@dataclass(frozen=True, slots=True)
class _Random:
    """What random histories brought; `trouble` is why they can't be relied on."""

    steps: int = 0
    trouble: str | None = None
    examples: tuple[Counterexample, ...] = ()


def _order(found: Found) -> tuple[int, Geometry]:
    return (len(found.commands), found.geometry)


def _shortest(explored: list[Exploration]) -> dict[str, Found]:
    """Per property, the smallest of what the searches found; the earlier search wins a tie."""
    best: dict[str, Found] = {}
    for exploration in explored:
        for name, found in exploration.found.items():
            if name not in best or _order(found) < _order(best[name]):
                best[name] = found
    return best


def _interrupted(explored: list[Exploration]) -> bool:
    return any(exploration.stopped == INTERRUPTED for exploration in explored)


def _covers(exploration: Exploration | None, depth: int | None) -> bool:
    """Whether there is nothing left to try of up to so many commands; None is all of them."""
    if exploration is None:
        return False
    return exploration.exhausted or (depth is not None and exploration.covers(depth))


def _unfinished(explored: list[Exploration], depth: int) -> str | None:
    """Why not every history of up to `depth` commands was tried; None if all were."""
    for exploration in explored:
        if not exploration.covers(depth):
            return f"stopped at depth {exploration.depth}: {exploration.stopped}"
    return None


def _unseen(explored: list[Exploration]) -> str:
    for exploration in explored:
        if not exploration.exhausted:
            return f"the search of the small scope ended: {exploration.stopped}"
    states = sum(exploration.states for exploration in explored)
    return f"the fault does not show in the small scope, all {states} states of it"
