"""Checking from Python: the same campaign, verdicts and report as the command line's."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from pagedkv.protocol import PagedKVManager
from pagedkv.specs.catalogue import PROPERTIES, command_from_json, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import UNDER_FAULT, Fault, fault_from_json
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.injecting import rerun_under_fault
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.processes import Update, run_all
from pagedkv.stateful.profiles import EVERY, PROFILES, Scope
from pagedkv.stateful.replay import replay
from pagedkv.stateful.report import Report, TargetReport
from pagedkv.stateful.shards import Shard
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.target import CannotDrive
from pagedkv.targets import Pair, Target, isolated, resolve, singles, verified, version_of
from pagedkv.tolerances import NONE, Tolerances, table_of

Factory = Callable[[int, int, int], PagedKVManager]


@dataclass(frozen=True, slots=True)
class Options:
    """How to check.

    profile: "quick", "ci" or "nightly". seed: of the random histories; None is the profile's.
    budget: seconds per target; None is the profile's. properties: ids to judge; empty is all.
    expected_failures: property id -> reason. expected_of: further ones, of the target that is
    named. isolate: Python targets run in processes of their own, as programs do, so that a call
    that ends its process is an answer. faults: calls inside the target are made to fail too, as
    they also are if that property is chosen. shard: of the exhaustive searches only this part is
    done, and random histories are drawn with its number as seed where the profile has its own.
    tolerances: by the name of a target, `Declarations` over what it declares, as [tool.pagedkv]
    has them. Raises ValueError for a value that is none.
    """

    profile: str = "quick"
    seed: int | None = None
    budget: float | None = None
    properties: tuple[str, ...] = ()
    expected_failures: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    expected_of: Mapping[str, Mapping[str, str]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    isolate: bool = False
    faults: bool = False
    shard: Shard | None = None
    tolerances: Tolerances = field(default_factory=lambda: NONE)

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"profile {self.profile!r} is none of {', '.join(PROFILES)}")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget = {self.budget} must be a number of seconds > 0")
        of_one = (name for expected in self.expected_of.values() for name in expected)
        for name in (*self.properties, *self.expected_failures, *of_one):
            if name not in PROPERTIES:
                raise ValueError(f"{name!r} is no property; they are {', '.join(PROPERTIES)}")
        if self.isolate and self.faults:
            raise ValueError("calls can only be made to fail in this process; leave out isolate")
        if self.shard is not None and (self.faults or UNDER_FAULT.id in self.properties):
            raise ValueError("made to fail are the calls of a whole scope; leave out the shard")

    def seeded(self) -> Options:
        """The same, with a seed drawn now where the profile has none of its own, or for a shard."""
        if self.seed is not None:
            return self
        if PROFILES[self.profile].derandomised:
            return self if self.shard is None else replace(self, seed=self.shard.number)
        return replace(self, seed=secrets.randbelow(2**32))

    def plan(self) -> Plan:
        """The campaign's plan; changes nothing."""
        profile = PROFILES[self.profile]
        return Plan(
            profile=profile,
            seconds=profile.seconds if self.budget is None else self.budget,
            hard=self.budget is not None,
            seed=self.seed,
            properties=self.properties,
            expected=dict(self.expected_failures),
            expected_of={name: dict(expected) for name, expected in self.expected_of.items()},
            faults=self.faults or UNDER_FAULT.id in self.properties,
            shard=self.shard,
        )

    def report(self, targets: Iterable[TargetReport]) -> Report:
        """What came of targets that were checked so; changes nothing."""
        versioned = [replace(target, version=version_of(target.target)) for target in targets]
        return Report(tuple(versioned), self.profile, self.seed, self.plan().seconds, self.shard)


def subject(target: Target | Pair, tolerances: Tolerances = NONE) -> Subject:
    """What a campaign checks, from a target or a pair in lockstep; changes nothing.

    tolerances: those that it was resolved with.
    """
    both = (target.left, target.right) if isinstance(target, Pair) else (target,)
    tables = _tables([one.name for one in both], tolerances)
    return Subject(target.name, tuple(one.factory for one in both), tolerances=tables)


def _subject_of(name: str, tolerances: Tolerances = NONE) -> Subject:
    return subject(resolve(name, tolerances), tolerances)


def _isolated_subject_of(name: str, tolerances: Tolerances = NONE) -> Subject:
    return subject(isolated(name, tolerances), tolerances)


def check_targets(
    targets: Sequence[Target | Pair],
    options: Options,
    on_progress: Callable[[Update | TargetReport], None] = lambda _: None,
) -> Report:
    """Check named targets, each in a process of its own; changes nothing else."""
    names = [target.name for target in targets]
    subject_of = partial(
        _isolated_subject_of if options.isolate else _subject_of,
        tolerances={name: dict(table) for name, table in options.tolerances.items()},
    )
    options = options.seeded()
    reports = run_all(names, subject_of, options.plan(), on_progress)
    # A campaign that came to no end of its own does not know.
    tables = [_tables(singles(name), options.tolerances) for name in names]
    return options.report(map(_tolerating, reports, tables))


def _tables(names: Iterable[str], tolerances: Tolerances) -> Tolerances:
    """A table for each of these targets that has one."""
    tables = {name: table_of(name, tolerances) for name in names}
    return {name: dict(table) for name, table in tables.items() if table}


def _tolerating(report: TargetReport, tolerances: Tolerances) -> TargetReport:
    return replace(report, tolerances=tolerances)


def check(
    target: str | Factory,
    *,
    profile: str = "quick",
    seed: int | None = None,
    budget: float | None = None,
    properties: Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
    faults: bool = False,
    tolerances: Tolerances = NONE,
) -> Report:
    """Check one target in this process and return its report; changes nothing else.

    target: a built-in name, "module:attribute", or a callable
    `(num_blocks, block_size, head_dim) -> manager`. faults: calls inside it are made to fail too,
    in another process if that can import it. tolerances: by the name of a target, `Declarations`
    over what it declares, as [tool.pagedkv] has them; a callable is called module:name. Raises
    ValueError for bad arguments.
    """
    expected = expected_failures or {}
    options = Options(profile, seed, budget, tuple(properties), expected, faults=faults).seeded()
    return options.report([run_campaign(_as_subject(target, tolerances), options.plan())])


def _as_subject(target: str | Factory, tolerances: Tolerances) -> Subject:
    if isinstance(target, str):
        return _subject_of(target, tolerances)
    if not callable(target):
        raise ValueError(
            f"a target is a name or a callable (num_blocks, block_size, head_dim), not {target!r}"
        )
    name = f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', repr(target))}"
    if (table := table_of(name, tolerances)) is None:
        return Subject(name, (target,))
    made = verified(name, target, table)
    return Subject(name, (made.factory,), tolerances={name: dict(table)})


def assert_holds(
    target: str | Factory,
    commands: Iterable[Mapping[str, object]],
    *,
    num_blocks: int,
    block_size: int,
    head_dim: int = 1,
    property: str | None = None,
    fault: Mapping[str, object] | None = None,
    tolerances: Tolerances = NONE,
) -> None:
    """Run one history on a fresh target; changes nothing else.

    commands: as in a report, such as {"op": "prefill", "request": 0, "tokens": 1}. property: the
    one to judge; None is all. fault: which call inside them fails, as in a report, such as
    {"step": 1, "call": 2, "mode": "once"}; what it leaves behind is judged then. tolerances: as
    those of `check`. Raises
    AssertionError with the equation that breaks, ValueError for an unknown property, a malformed
    command, or one that makes no sense where it stands.
    """
    __tracebackhide__ = True  # pytest shows the line that called this, and the message
    chosen = Options(properties=() if property is None else (property,)).plan().chosen()
    geometry = Geometry(num_blocks, block_size, head_dim)
    history = [command_from_json(dict(command)) for command in commands]
    names = max((command.request for command in history), default=0) + 1
    scope = Scope("replay", (geometry,), names, keeps_released=True, abilities=EVERY)
    checked = _as_subject(target, tolerances)
    try:
        world = checked.world(scope, geometry)
    except CannotDrive as error:
        raise ValueError(str(error)) from error
    if fault is not None:
        _assert_stands(checked, geometry, history, fault_from_json(dict(fault)))
        return
    judge = Judge(chosen, offered(*world.states))
    ran = replay(lambda: checked.world(scope, geometry), history, judge)
    if ran.violations:
        run = ", ".join(map(str, ran.commands)) or "a fresh pool"
        broken = "\n".join(map(str, ran.violations))
        raise AssertionError(f"{broken}\nafter {run} in a pool of {geometry}")
    if len(ran.commands) < len(history):
        left = next(c for i, c in enumerate(history) if ran.commands[i : i + 1] != (c,))
        raise ValueError(f"{left} makes no sense where it stands: see what came before it")


def _assert_stands(
    checked: Subject, geometry: Geometry, history: Sequence[Command], fault: Fault
) -> None:
    __tracebackhide__ = True
    broken = rerun_under_fault(checked, geometry, tuple(history), fault)
    if broken is not None:
        run = ", ".join(map(str, history))
        raise AssertionError(
            f"{UNDER_FAULT.id}: {broken.message}\nafter {run} in a pool of {geometry}"
        )
