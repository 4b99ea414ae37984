"""The checks of a target as tests: their ids at once, one campaign at the first of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pagedkv import plugin
from pagedkv.config import PROFILES, BadConfig, nearest, nearest_config
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.stateful.once import once
from pagedkv.stateful.outcomes import Outcome
from pagedkv.stateful.pytest_plugin import Collecting, tell
from pagedkv.suite_campaign import Campaign

if TYPE_CHECKING:
    from pagedkv.api import Factory

Test = TypeVar("Test", bound=Callable[..., object])


# ---------------------------------------------------------------- once for all of its tests


@dataclass(frozen=True)
class Suite:
    """The checks of one campaign. Without the plugin, each suite keeps its own outcomes."""

    campaign: Campaign
    expected: Mapping[str, str]
    _own: dict[str, _Ran] = field(default_factory=dict)

    def checks(self) -> dict[str, Check]:
        """Every check by its id; runs nothing."""
        return {name: Check(name, self, self.expected.get(name)) for name in self.campaign.ids()}

    def outcome(self, name: str) -> Outcome | ToldBy:
        """What came of one check, from the campaign, which the first call runs.

        Where that could not be run, it is said by one check, the first that asks, not by each.
        """
        config = plugin.RUNNING[-1] if plugin.RUNNING else None
        done = self._own if config is None else config.stash.setdefault(_DONE, {})
        key = self.campaign.key()
        if key not in done:
            done[key] = self._run(config, key)
        ran = done[key]
        if ran.refused:
            folder = None if config is None else _shared(config)
            if not ran.teller:
                ran.teller = name if folder is None else _first(folder, key, name)
            if ran.teller != name:
                return ToldBy(ran.teller)
        return ran.outcomes[name]

    def _run(self, config: pytest.Config | None, key: str) -> _Ran:
        folder = None if config is None else _shared(config)
        ours = True
        if folder is None:
            value = self.campaign.run()
        else:
            value, ours = once(folder, key, self.campaign.run, self._died)
        if ours and config is not None:
            config.stash.setdefault(plugin.TOLD, []).append(value["summary"])
        outcomes = {name: Outcome(*outcome) for name, outcome in value["outcomes"].items()}
        return _Ran(outcomes, refused="refused" in value)

    def _died(self, how: str) -> dict[str, Any]:
        return self.campaign.failed(f"the campaign came to no end: {how}")


@dataclass(slots=True)
class _Ran:
    """A campaign's outcomes. refused: it could not be run, which the check `teller` says."""

    outcomes: Mapping[str, Outcome]
    refused: bool
    teller: str = ""


@dataclass(frozen=True, slots=True)
class ToldBy:
    """The campaign could not be run, and the check of this id says so."""

    id: str


_DONE = pytest.StashKey[dict[str, _Ran]]()


def _first(folder: Path, key: str, name: str) -> str:
    """The check that is the first to ask, of all workers."""
    teller, _ = once(folder, f"{key}-teller", lambda: name, lambda _: name)
    return str(teller)


def _shared(config: pytest.Config) -> Path | None:
    """The folder that the workers of this run share; None where there is nobody to share with.

    xdist gives each local worker a base folder in that of the run.
    """
    worker = getattr(config, "workerinput", None)
    own = config.getoption("basetemp", None)
    if worker is None or own is None:
        return None
    return Path(own).parent / f"pagedkv-{worker['testrunuid']}"


@dataclass(frozen=True)
class Check:
    """One check. Calling it returns if it passed, and tells pytest what else came of it."""

    id: str
    suite: Suite = field(repr=False)
    expected: str | None = None

    def __call__(self) -> None:
        __tracebackhide__ = True
        outcome = self.suite.outcome(self.id)
        if isinstance(outcome, ToldBy):
            pytest.skip(f"it could not be run: see {outcome.id}")
        tell(outcome, self.expected)


# ---------------------------------------------------------------- from settings to suites


def _suite(
    target: str | Factory,
    where: str,
    profile: str | None = None,
    seed: int | None = None,
    budget: float | None = None,
    properties: Iterable[str] = (),
    expected: Mapping[str, str] | None = None,
) -> Suite:
    """Each setting is that of pytest's command line, or that given, or that of [tool.pagedkv].

    Raises BadConfig.
    """
    run = plugin.RUNNING[-1] if plugin.RUNNING else None
    config = nearest_config(Path.cwd() if run is None else run.invocation_params.dir)

    def chosen(name: str, given: Any, configured: Any) -> Any:
        said = None if run is None else run.getoption(f"pagedkv_{name}")
        return next((value for value in (said, given, configured) if value is not None), None)

    traces = chosen("traces", None, config.traces)
    campaign = Campaign(
        target=target,
        where="" if isinstance(target, str) else where,
        profile=chosen("profile", profile, config.profile) or "quick",
        seed=chosen("seed", seed, config.seed),
        budget=chosen("budget", budget, config.budget),
        properties=tuple(properties) or config.properties,
        isolate=config.isolate,
        faults=config.faults,
        traces=None if traces is None else Path.cwd() / traces,
        tolerances=config.tolerances,
    )
    if expected is None:
        ids = campaign.ids()
        known = config.expected(campaign.name)
        return Suite(campaign, {name: why for name, why in known.items() if name in ids})
    return Suite(campaign, dict(expected))


def collecting(targets: Iterable[str]) -> Collecting:
    """The plugin that collects the checks of these targets. Raises UsageError."""
    try:
        return Collecting(
            (target, _suite(target, "").checks()) for target in dict.fromkeys(targets)
        )
    except BadConfig as error:
        raise pytest.UsageError(str(error)) from error


def parametrize_with_checks(
    target: str | Factory,
    *,
    profile: str | None = None,
    seed: int | None = None,
    budget: float | None = None,
    properties: Iterable[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> Callable[[Test], Test]:
    """Make a test function with a parameter `check` one test for each property and driver.

    Runs nothing: the first check that is called runs one campaign for all of them. target: a
    built-in name, "module:attribute" (imported at the first check, in a process of its own at
    first), or a callable `(num_blocks, block_size, head_dim) -> manager` (run in this process).
    expected_failures: property id -> reason; strict, so one that does not fail is a failure.
    What is not given here is that of [tool.pagedkv]; pytest's command line goes before both.
    Raises pytest's CollectError, which stops the file with one line, for values that are none.
    """
    ids = tuple(properties)
    try:
        _check_values(target, profile, seed, budget)
        _check_ids("properties", ids, PROPERTIES)
    except ValueError as error:
        raise _stop(error) from error

    def decorate(test: Test) -> Test:
        where = f"{inspect.getfile(test)}:{getattr(test, '__qualname__', '')}"
        try:
            suite = _suite(target, where, profile, seed, budget, ids, expected_failures)
            judged = [name for name in suite.campaign.ids() if name in PROPERTIES]
            _check_ids("expected_failures", expected_failures or (), judged)
        except ValueError as error:
            raise _stop(error) from error
        checks = suite.checks()
        marked: Test = pytest.mark.parametrize("check", list(checks.values()), ids=list(checks))(
            test
        )
        if plugin.RUNNING:  # else the marker is unknown
            marked = pytest.mark.pagedkv(marked)
        return marked

    return decorate


def _stop(error: ValueError) -> Exception:
    """What makes pytest stop at a file with one line, and no traceback."""
    where = "" if isinstance(error, BadConfig) else "parametrize_with_checks: "
    return pytest.Collector.CollectError(f"{where}{error}")


def _check_values(
    target: object, profile: str | None, seed: int | None, budget: float | None
) -> None:
    if not isinstance(target, str) and not callable(target):
        raise ValueError(f"a target is a name or a callable, not {target!r}")
    if profile is not None and profile not in PROFILES:
        raise ValueError(f"profile = {profile!r} is no profile; {nearest(str(profile), PROFILES)}")
    if seed is not None and (type(seed) is not int or seed < 0):
        raise ValueError(f"seed = {seed!r} must be an integer >= 0")
    if budget is not None and not 0 < budget < math.inf:
        raise ValueError(f"budget = {budget!r} must be a number of seconds > 0")


def _check_ids(argument: str, ids: Iterable[str], known: Iterable[str]) -> None:
    for name in ids:
        if name not in known:
            what = f"names {name!r}, which is no property that is judged here"
            raise ValueError(f"{argument} {what}; {nearest(name, known)}")
