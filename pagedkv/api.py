"""Checking from Python: the same campaign, verdicts and report as the command line's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pagedkv.protocol import PagedKVManager
from pagedkv.specs.catalogue import PROPERTIES, command_from_json, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.campaign import Plan, Subject, run_campaign
from pagedkv.stateful.processes import Update, run_all
from pagedkv.stateful.profiles import PROFILES, Scope
from pagedkv.stateful.replay import replay
from pagedkv.stateful.report import Report, TargetReport
from pagedkv.stateful.target import CannotDrive
from pagedkv.targets import Pair, Target, resolve

Factory = Callable[[int, int, int], PagedKVManager]


@dataclass(frozen=True, slots=True)
class Options:
    """How to check.

    profile: "quick", "ci" or "nightly". seed: of the random histories; None is the profile's.
    budget: seconds per target; None is the profile's. properties: ids to judge; empty is all.
    expected_failures: property id -> reason. Raises ValueError for a value that is none.
    """

    profile: str = "quick"
    seed: int | None = None
    budget: float | None = None
    properties: tuple[str, ...] = ()
    expected_failures: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"profile {self.profile!r} is none of {', '.join(PROFILES)}")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"budget = {self.budget} must be a number of seconds > 0")
        for name in (*self.properties, *self.expected_failures):
            if name not in PROPERTIES:
                raise ValueError(f"{name!r} is no property; they are {', '.join(PROPERTIES)}")

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
        )


def subject(target: Target | Pair) -> Subject:
    """What a campaign checks, from a target or a pair in lockstep; changes nothing."""
    if isinstance(target, Pair):
        return Subject(target.name, (target.left.factory, target.right.factory))
    return Subject(target.name, (target.factory,))


def _subject_of(name: str) -> Subject:
    return subject(resolve(name))


def check_targets(
    targets: Sequence[Target | Pair],
    options: Options,
    on_progress: Callable[[Update | TargetReport], None] = lambda _: None,
) -> Report:
    """Check named targets, each in a process of its own; changes nothing else."""
    names = [target.name for target in targets]
    return Report(tuple(run_all(names, _subject_of, options.plan(), on_progress)))


def check(
    target: str | Factory,
    *,
    profile: str = "quick",
    seed: int | None = None,
    budget: float | None = None,
    properties: Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> Report:
    """Check one target in this process and return its report; changes nothing else.

    target: a built-in name, "module:attribute", or a callable
    `(num_blocks, block_size, head_dim) -> manager`. Raises ValueError for bad arguments.
    """
    options = Options(profile, seed, budget, tuple(properties), expected_failures or {})
    return Report((run_campaign(_as_subject(target), options.plan()),))


def _as_subject(target: str | Factory) -> Subject:
    if isinstance(target, str):
        return _subject_of(target)
    if not callable(target):
        raise ValueError(
            f"a target is a name or a callable (num_blocks, block_size, head_dim), not {target!r}"
        )
    name = f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', repr(target))}"
    return Subject(name, (target,))


def assert_holds(
    target: str | Factory,
    commands: Iterable[Mapping[str, object]],
    *,
    num_blocks: int,
    block_size: int,
    head_dim: int = 1,
    property: str | None = None,
) -> None:
    """Run one history on a fresh target; changes nothing else.

    commands: as in a report, such as {"op": "prefill", "request": 0, "tokens": 1}. property: the
    one to judge; None is all. Raises AssertionError with the equation that breaks, ValueError for
    an unknown property, a malformed command, or one that makes no sense where it stands.
    """
    chosen = Options(properties=() if property is None else (property,)).plan().chosen()
    geometry = Geometry(num_blocks, block_size, head_dim)
    history = [command_from_json(dict(command)) for command in commands]
    names = max((command.request for command in history), default=0) + 1
    scope = Scope("replay", (geometry,), names, keeps_released=True)
    checked = _as_subject(target)
    try:
        world = checked.world(scope, geometry)
    except CannotDrive as error:
        raise ValueError(str(error)) from error
    judge = Judge(chosen, offered(*world.states))
    ran = replay(lambda: checked.world(scope, geometry), history, judge)
    if ran.violations:
        run = ", ".join(map(str, ran.commands)) or "a fresh pool"
        broken = "\n".join(map(str, ran.violations))
        raise AssertionError(f"{broken}\nafter {run} in a pool of {geometry}")
    if len(ran.commands) < len(history):
        left = next(c for i, c in enumerate(history) if ran.commands[i : i + 1] != (c,))
        raise ValueError(f"{left} makes no sense where it stands: see what came before it")
