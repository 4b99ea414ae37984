"""One target, checked: the exhaustive scopes, then random histories, then the verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic

from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import UNDER_FAULT
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Need, Violation
from pagedkv.stateful.examples import example_of
from pagedkv.stateful.exploration import INTERRUPTED, VARIES, Exploration, Found, Limits
from pagedkv.stateful.injecting import Injected, Task, inject_apart
from pagedkv.stateful.minimise import Minimiser
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import EVERY, Scope, fixed_scope
from pagedkv.stateful.reached import History, reached
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    OneMinimal,
    Part,
    Proof,
    Reach,
    Shortest,
    TargetReport,
    Unfinished,
)
from pagedkv.stateful.searches import (
    Listener,
    Searches,
    goes_on,
    interrupted,
    order,
    shortest,
    unfinished,
    unseen,
)
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import System
from pagedkv.stateful.verdict import Evidence, judge_target


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


MAIN_SHARE = 0.7
"""Of the time for failing calls, what the main scope has; the others share the rest."""


def _shares(scopes: int) -> list[float]:
    """What part of the time each scope has, the main one first."""
    rest = (1 - MAIN_SHARE) / max(1, scopes - 1)
    return [MAIN_SHARE if scopes > 1 else 1.0, *(rest for _ in range(scopes - 1))]


class _Campaign:
    """The steps of one campaign."""

    def __init__(self, subject: Subject, plan: Plan, listener: Listener, start: float) -> None:
        if plan.faults and plan.hard:
            plan = replace(plan, seconds=plan.seconds / 2)
        self._subject, self._plan, self._listener, self._start = subject, plan, listener, start
        self._searches = Searches(subject, plan, listener, start)
        self._evaluations = self._searches.evaluations
        self._tried: tuple[int, Exploration | None] = (0, None)

    def run(self) -> TargetReport:
        plan = self._plan
        if (difference := self._searches.difference()) is not None:
            # What is found in a target that says two things is not worth reporting.
            raise CannotDrive(f"{VARIES}: two fresh targets: {difference}")
        explored = self._searches.run()
        found = shortest(explored)
        if plan.until == "first" and found:
            first = min(map(order, found.values()))
            found = {name: one for name, one in found.items() if order(one) == first}
        examples = [self._proven(found[name], explored) for name in sorted(found)]
        randomly = _Random()
        if goes_on(plan, found) and not any(exploration.unreliable for exploration in explored):
            randomly = self._beside(found, explored)
        examples += randomly.examples
        injected = self._injected(found, explored)
        if injected is not None and injected.example is not None:
            expected = UNDER_FAULT.id in plan.expected
            examples.append(replace(injected.example, expected=expected))
        evidence = Evidence(
            properties=plan.chosen(),
            offered=self._searches.offered | ({Need.FAULTS} if injected else set()),
            declared=self._searches.declared,
            evaluations=self._evaluations,
            broken={example.property for example in examples},
            exhausted=all(exploration.exhausted for exploration in explored),
            unfinished=randomly.trouble or unfinished(explored, plan.profile.depth),
            expected=plan.expected,
            doubted={UNDER_FAULT.id: injected.trouble} if injected and injected.trouble else {},
            shard=plan.shard is not None,
        )
        verdict, reason, results = judge_target(evidence)
        return TargetReport(
            target=self._subject.name,
            verdict=verdict,
            reason=reason,
            properties=results,
            counterexamples=tuple(examples),
            coverage=self._coverage(explored, randomly, evidence.unseen()),
            seconds=monotonic() - self._start,
            injection=injected.injection if injected else None,
            tolerances=self._subject.tolerances,
        )

    def _injected(self, found: Mapping[str, Found], explored: list[Exploration]) -> Injected | None:
        """What failing calls bring; None where none are to fail."""
        plan = self._plan
        alone = len(self._subject.factories) == 1
        wanted = plan.faults and UNDER_FAULT in plan.chosen()
        if not (wanted and alone) or interrupted(explored):
            return None
        limits = tuple(
            Limits(
                seconds=share * plan.seconds,
                at_least=plan.profile.depth - 1,
                hard_seconds=(1 if plan.hard else 3) * share * plan.seconds,
            )
            for share in _shares(len(self._searches.scopes))
        )
        past = frozenset(name for name in found if PROPERTIES[name].redundant)
        trust, depth = explored[-1].trust, plan.profile.depth - 1
        task = Task(self._subject, self._searches.scopes, limits, trust, past, depth)
        injected = inject_apart(task, self._listener)
        self._evaluations[UNDER_FAULT.id] = injected.injection.failures
        return injected

    def _beside(self, found: Mapping[str, Found], explored: list[Exploration]) -> _Random:
        """Random histories, or why there are none."""
        try:
            return self._random(found, explored)
        except KeyboardInterrupt:
            return _Random(trouble=INTERRUPTED)
        except CannotDrive as error:
            return _Random(trouble=f"random histories could not be run: {error}")

    def _proven(self, found: Found, explored: list[Exploration]) -> Counterexample:
        """The counterexample of one property, over the fixed scope where that can be searched."""
        if not interrupted(explored):
            found, explored = self._over_all(found, explored)
        short = [e for e in explored if not e.proves(len(found.commands) - 1)]
        if not short:
            proof: Proof = Shortest(sum(exploration.states for exploration in explored))
            return self._example(found.geometry, found.commands, found.violation, proof)
        proof = OneMinimal(f"the search of the fixed scope ended: {short[0].stopped}")
        if self._plan.shard is not None:
            # Without a command it may be a history of another shard.
            return self._cut(found, proof)
        return self._example(found.geometry, found.commands, found.violation, proof)

    def _over_all(
        self, found: Found, explored: list[Exploration]
    ) -> tuple[Found, list[Exploration]]:
        """Search what a proof is over, where another scope or only a shard of it was searched."""
        name, main = found.violation.property.id, fixed_scope(self._searches.declared)
        over = list[Exploration]()
        for scope, exploration in zip(self._searches.scopes, explored, strict=True):
            other = not over and scope.name != main.name
            if other or (exploration.cuts and not exploration.proves(len(found.commands))):
                seconds = max(self._searches.left(), 0.5 * self._plan.seconds)
                limits = Limits(hard_seconds=seconds, depth=len(found.commands), enough={name})
                over.append(self._searches.explore(scope if over else main, limits, whole=True))
            else:
                over.append(exploration)
            found = min((shortest(over).get(name, found), found), key=order)
        whole = self._searches.together
        if whole is not None and whole not in self._searches.scopes:
            over.append(self._together(whole, len(found.commands) - 1))
            found = min((shortest(over).get(name, found), found), key=order)
        return found, over

    def _together(self, scope: Scope, depth: int) -> Exploration:
        """All abilities at once, to that depth; what was searched for another proof will do."""
        asked, last = self._tried
        if last is None or (asked < depth and last.covers(asked) and not last.exhausted):
            seconds = max(self._searches.left(), 0.5 * self._plan.seconds)
            limits = Limits(hard_seconds=seconds, depth=depth)
            last = self._searches.explore(scope, limits, whole=True)
            self._tried = (depth, last)
        return last

    def _cut(self, found: Found, proof: Proof) -> Counterexample:
        """The counterexample with nothing in it that can go."""
        case = Minimiser(
            self._replaying,
            self._searches.judge,
            found.violation.property.id,
        ).one_minimal(found.geometry, found.commands)
        if case is None:  # it was run again when it was found
            return self._example(found.geometry, found.commands, found.violation, proof)
        return self._example(case.geometry, case.commands, case.violation, proof)

    def _random(self, found: Mapping[str, Found], explored: list[Exploration]) -> _Random:
        """Random histories of larger pools than can be exhausted."""
        # Hypothesis, only when used
        from pagedkv.stateful.machine import BUSY, search, settings_for

        judge = self._searches.judge()
        scope = Scope("random", (), 6, keeps_released=True, abilities=EVERY, varied=True)
        result = search(
            lambda geometry: self._subject.world(scope, geometry),
            judge=judge,
            settings=settings_for(self._plan.profile.name),
            seed=self._plan.seed,
            seconds=max(self._searches.work_left(), 0.1 * self._plan.seconds),
            patience=1.0 if self._plan.hard else BUSY,
            look_past=found.keys(),
        )
        self._evaluations.update(judge.evaluations)
        if result.falsified is None:
            reach = self._reach(result.histories, explored[0])
            return _Random(result.steps, result.nondeterministic, reach=reach)
        falsified, examples = result.falsified, list[Counterexample]()
        for name in sorted({violation.property.id for violation in falsified.violations}):
            minimiser = Minimiser(
                lambda geometry: self._subject.world(scope, geometry),
                self._searches.judge,
                name,
                found.keys(),
            )
            until = monotonic() + max(self._searches.left(), 0.2 * self._plan.seconds)
            case = minimiser.one_minimal(falsified.geometry, falsified.commands, until=until)
            if case is None:
                trouble = f"{VARIES}: a random history broke {name} once and not again"
                return _Random(result.steps, trouble, tuple(examples))
            if (sooner := self._sooner(name, len(case.commands), explored)) is not None:
                examples.append(sooner)
                continue
            proof: Proof = OneMinimal(unseen(explored))
            if monotonic() > until:
                proof = Unfinished("time ran out")
            examples.append(self._example(case.geometry, case.commands, case.violation, proof))
        return _Random(result.steps, result.nondeterministic, tuple(examples))

    def _sooner(self, name: str, steps: int, explored: list[Exploration]) -> Counterexample | None:
        """What all abilities at once have for a property that a history of so many commands breaks.

        No search has tried them all at once before something was found.
        """
        whole = self._searches.together
        if whole is None or whole in self._searches.scopes:
            return None
        found = self._together(whole, steps).found.get(name)
        return None if found is None else self._proven(found, explored)

    def _example(
        self, geometry: Geometry, commands: tuple[Command, ...], violation: Violation, proof: Proof
    ) -> Counterexample:
        example = example_of(
            lambda: self._replaying(geometry),
            self._searches.judge,
            geometry,
            commands,
            violation,
            proof,
        )
        return replace(example, expected=example.property in self._plan.expected)

    def _reach(self, histories: Iterable[History], main: Exploration) -> Reach | None:
        """How much of the main scope random histories came through; None if it was not all seen."""
        if not main.exhausted or main.cuts or main.trust.key == "none":
            return None
        scope, world = self._searches.scopes[0], self._subject.world
        states = reached(histories, lambda g: world(scope, g), main.keys, main.trust)
        return Reach(states, main.states)

    def _replaying(self, geometry: Geometry) -> System:
        scope = Scope("replay", (geometry,), 6, keeps_released=True, abilities=EVERY)
        return self._subject.world(scope, geometry)

    def _coverage(
        self, explored: list[Exploration], randomly: _Random, unseen: list[str]
    ) -> Coverage:
        stopped = [
            f"{scope.words}: {exploration.stopped}"
            for scope, exploration in zip(self._searches.scopes, explored, strict=False)
            if exploration.stopped is not None
        ]
        scope, shard, part = "; ".join(map(str, self._searches.scopes)), self._plan.shard, None
        if shard is not None:
            cuts = [
                (of.name, cut)
                for of, exploration in zip(self._searches.scopes, explored, strict=False)
                for cut in exploration.cuts
            ]
            scope, part = f"shard {shard} of {scope}", Part(shard, tuple(cuts), tuple(unseen))
        return Coverage(
            states=sum(exploration.states for exploration in explored),
            transitions=sum(exploration.transitions for exploration in explored),
            depth=explored[0].depth,
            exhausted=not stopped,
            scope=scope,
            stopped="; ".join(stopped) or None,
            random_steps=randomly.steps,
            reach=randomly.reach,
            doubts=tuple(dict.fromkeys(doubt for e in explored for doubt in e.doubts)),
            part=part,
        )


@dataclass(frozen=True, slots=True)
class _Random:
    """What random histories brought; `trouble` is why they can't be relied on."""

    steps: int = 0
    trouble: str | None = None
    examples: tuple[Counterexample, ...] = ()
    reach: Reach | None = None
