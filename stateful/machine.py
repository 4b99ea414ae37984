"""The Hypothesis machine: random histories of any target.

There is one rule, and which command it runs is drawn here. Of one rule for each kind Hypothesis
turns off some in each history, whether or not what is left makes sense: with four kinds a third of
all histories end at, or soon after, their first command.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic, process_time
from typing import ClassVar

import hypothesis
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import DrawFn, SearchStrategy, composite, runner, sampled_from

from pagedkv.specs.catalogue import PROPERTIES, offered, ops_of
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Property, Violation
from pagedkv.specs.steps import Grant, Refuse, State
from pagedkv.stateful.draws import MOST_TIMES, Make, boundary_first, drivable
from pagedkv.stateful.settings import for_search, no_constants_of_others, settings_for
from pagedkv.stateful.trust import System

__all__ = [
    "Falsified",
    "SearchResult",
    "machine_for",
    "search",
    "settings_for",
]

Offers = dict[str, list[Command]]


class Falsified(AssertionError):
    """A history whose last command (none: the fresh state) breaks the properties it names."""

    def __init__(
        self,
        geometry: Geometry,
        commands: tuple[Command, ...],
        violations: tuple[Violation, ...],
    ) -> None:
        super().__init__(geometry, commands, violations)
        self.geometry = geometry
        self.commands = commands
        self.violations = violations

    def __str__(self) -> str:
        lines = [str(violation) for violation in self.violations]
        lines.append(f"in a fresh pool of {self.geometry}, head_dim {self.geometry.head_dim}:")
        width = len(str(len(self.commands)))
        lines += [f"  {n:{width}}. {command}" for n, command in enumerate(self.commands, 1)]
        return "\n".join(lines if self.commands else [*lines, "  no command at all"])


class _Spent(KeyboardInterrupt):
    """The time is up: the one kind of exception that Hypothesis lets through in mid-example."""


@dataclass(slots=True)
class _Run:
    """What all examples of one machine share. `driver` and `history` are the latest example's."""

    make: Make
    judge: Judge | None
    properties: tuple[Property, ...]
    look_past: frozenset[str]
    geometries: tuple[Geometry, ...] = ()
    deadlines: tuple[float, float] | None = None
    examples: int = 0
    steps: int = 0
    driver: _Driver | None = None
    history: list[Command] = field(default_factory=list)
    histories: list[tuple[Geometry, list[Command]]] = field(default_factory=list)
    falsified: Falsified | None = None
    _ops: tuple[str, ...] = ()

    def possible(self) -> tuple[Geometry, ...]:
        """The geometries to draw from. Raises CannotDrive if the target can have none."""
        if not self.geometries:
            self.geometries = drivable(self.make)
        return self.geometries

    def ops(self) -> tuple[str, ...]:
        """The ops of the core, and of the abilities that the worlds are made with."""
        if not self._ops:
            self._ops = ops_of(self.make(self.possible()[0]).setting.active)
        return self._ops

    def judge_of(self, world: System) -> Judge:
        """The one judge."""
        if self.judge is None:
            self.judge = Judge(self.properties, offered(*world.states))
        return self.judge

    def watch(self) -> None:
        """Raise _Spent once the time is up, unless a failure is being run again."""
        if self.deadlines is not None and self.falsified is None:
            work, real = self.deadlines
            if process_time() > work or monotonic() > real:
                raise _Spent


class _Driver(RuleBasedStateMachine):
    """What the rule calls.

    Invariant: `_candidates` are those of the world's model, by op; `offers` are the same, without
    wrong use right after wrong use. That has changed nothing, and half of all steps would be it.
    `_ordered` are some of them as they are drawn from in the world's state. `muted` are ops that
    this history does without where it can: rare states are reached by doing few things often
    (Groce et al., Swarm Testing, ISSTA 2012).
    """

    run: ClassVar[_Run]
    world: System
    geometry: Geometry

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Command] = []
        self.muted = frozenset[str]()
        self.ops: list[str] = []
        self.offers: Offers = {}
        self._candidates: Offers = {}
        self._ordered: Offers = {}

    def begin(self, geometry: Geometry) -> None:
        """Make a fresh world, and judge it."""
        run = self.run
        run.watch()
        run.examples += 1
        run.driver, run.history = self, self.commands
        run.histories.append((geometry, self.commands))
        self.geometry = geometry
        self.world = run.make(geometry)
        judge = run.judge_of(self.world)
        self._fail_on([v for state in self.world.states for v in judge.state(state)])
        self._candidates = self.offers = _by_op(self.world.candidates())

    def act(self, command: Command) -> None:
        """Move the world, and judge the step."""
        run, world = self.run, self.world
        run.watch()
        self.commands.append(command)
        before = world.state
        step = world.apply(command)
        run.steps += 1
        judge = run.judge_of(world)
        self._fail_on(judge.step(step) + judge.reached(step))
        if world.state is not before:
            self._ordered = {}
        if world.state.model is not before.model:
            self._candidates = _by_op(world.candidates())
        self.offers = self._candidates
        if isinstance(step.expected, Refuse):
            self.offers = _without_wrong_use(self.offers, world.state) or self.offers

    def choices(self) -> int:
        """How many numbers there are to draw a command with; 0 where none makes sense.

        Settles which `ops` they stand for.
        """
        self.ops = [op for op in self.offers if op not in self.muted] or list(self.offers)
        return len(self.ops) * MOST_TIMES * max(map(len, self.offers.values()), default=0)

    def chosen(self, number: int) -> Command:
        """The command that a number stands for: each op's first, then each op's second, ..."""
        place, which = divmod(number, len(self.ops))
        op = self.ops[which]
        if op not in self._ordered:
            self._ordered[op] = boundary_first(self.offers[op], self.world.state)
        ordered = self._ordered[op]
        return ordered[place % len(ordered)]

    def _fail_on(self, violations: list[Violation]) -> None:
        run = self.run
        left = tuple(v for v in violations if v.property.id not in run.look_past)
        if left:
            falsified = Falsified(self.geometry, tuple(self.commands), left)
            run.falsified = run.falsified or falsified
            raise falsified


def _by_op(commands: Iterable[Command]) -> Offers:
    offers: Offers = {}
    for command in commands:
        offers.setdefault(command.op, []).append(command)
    return offers


def _without_wrong_use(offers: Offers, state: State) -> Offers:
    return {
        op: commands
        for op, commands in offers.items()
        if isinstance(commands[0].expect(state.model, state.setting), Grant)
    }


@lru_cache(maxsize=1024)
def _below(count: int) -> SearchStrategy[int]:
    """An index. To make a strategy takes longer than to draw from it ten times: each is kept."""
    return sampled_from(range(count))


@composite
def _openings(draw: DrawFn) -> Geometry:
    """A geometry, one number after the other so that each can shrink for itself.

    Also draws what the history does without.
    """
    machine: _Driver = draw(runner())
    left: Sequence[Geometry] = machine.run.possible()
    for name in ("num_blocks", "block_size", "head_dim"):
        values = sorted({getattr(geometry, name) for geometry in left})
        value = values[draw(_below(len(values)))]
        left = [geometry for geometry in left if getattr(geometry, name) == value]
    quarters = draw(_below(4))  # so many of all ops are muted
    machine.muted = frozenset(op for op in machine.run.ops() if draw(_below(4)) >= 4 - quarters)
    return left[0]


@initialize(geometry=_openings())
def start(self: _Driver, geometry: Geometry) -> None:
    """A fresh pool."""
    self.begin(geometry)


def _apply(run: _Run) -> Callable[[_Driver, Command | None], None]:
    """The one rule, printed as `apply(command=...)`."""

    @composite
    def commands(draw: DrawFn) -> Command | None:
        # One number, though it says two things: a draw takes longer than a call of an allocator.
        assert run.driver is not None, "only what has begun offers any"
        choices = run.driver.choices()
        return run.driver.chosen(draw(_below(choices))) if choices else None

    @rule(command=commands())
    def apply(self: _Driver, command: Command | None) -> None:
        """One call; where no command makes sense any more, nothing."""
        if command is not None:
            self.act(command)

    return apply


def _machine(run: _Run) -> type[RuleBasedStateMachine]:
    body = {"__module__": __name__, "run": run, "start": start, "apply": _apply(run)}
    return type("Machine", (_Driver,), body)


def machine_for(
    make: Make,
    *,
    geometries: Iterable[Geometry] = (),
    properties: Iterable[Property] = PROPERTIES.values(),
    look_past: Collection[str] = (),
    settings: hypothesis.settings | None = None,
) -> type[RuleBasedStateMachine]:
    """A machine that drives what `make` makes, a World or two in lockstep; changes nothing.

    geometries: smallest first; none given is `drawable`, as far as the target can have them.
    look_past: redundant properties whose violations do not end a history.
    settings: those of its `TestCase`; None is the quick profile.

    Under pytest one name is enough, and two would run it twice:

        TestMyManager = machine_for(lambda geometry: World(MyManager, geometry)).TestCase
    """
    run = _Run(make, None, tuple(properties), frozenset(look_past), tuple(geometries))
    machine = _machine(run)
    machine.TestCase.settings = settings_for("quick") if settings is None else settings
    return machine


# ---------------------------------------------------------------- the search

BUSY = 3.0
"""So many times its processor time a search may take of real time: what is tried should not depend
on what else the machine does."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What random histories brought.

    falsified: the first history that broke a property, as found, not shortened.
    nondeterministic: how the target contradicted itself, if it did.
    out_of_time: the search ended at its time limit.
    """

    falsified: Falsified | None
    nondeterministic: str | None
    out_of_time: bool
    examples: int
    steps: int
    judge: Judge
    histories: Sequence[tuple[Geometry, Sequence[Command]]] = ()


def search(
    make: Make,
    geometries: Iterable[Geometry] = (),
    *,
    judge: Judge,
    settings: hypothesis.settings,
    seed: int | None = None,
    seconds: float | None = None,
    patience: float = BUSY,
    look_past: Collection[str] = (),
) -> SearchResult:
    """Run histories until one breaks a property, all are run, or the time is up.

    seconds: of processor time, and `patience` times as many of real time. Nothing is shrunk,
    printed or kept. `judge` counts on. The same seed gives the same histories, as does no seed with
    settings that are derandomised. Raises CannotDrive.
    """
    ends = None
    if seconds is not None:
        ends = (process_time() + seconds, monotonic() + patience * seconds)
    run = _Run(make, judge, (), frozenset(look_past), tuple(geometries), ends)
    machine = _machine(run)
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    quiet = for_search(settings, derandomize=seed is None and settings.derandomize)
    contradiction, out_of_time = None, False
    try:
        with no_constants_of_others():
            run_state_machine_as_test(machine, settings=quiet)
    except Falsified:
        pass  # the first one is kept in `run`, without the notes for readers
    except Flaky:
        contradiction = _contradiction(run)
    except _Spent:
        out_of_time = True
    if run.falsified is not None:
        run.falsified.__traceback__ = None
    return SearchResult(
        run.falsified,
        contradiction,
        out_of_time,
        run.examples,
        run.steps,
        judge,
        run.histories,
    )


def _contradiction(run: _Run) -> str:
    if run.falsified is not None:
        names = ", ".join(violation.property.id for violation in run.falsified.violations)
        history = ", ".join(map(str, run.falsified.commands)) or "a fresh pool"
        return f"a history broke {names} once and not again: {history}"
    history = ", ".join(map(str, run.history)) or "a fresh pool"
    return f"a second run of the same commands went on differently: {history}"
