"""The Hypothesis profiles, stated field by field, and what keeps a run free of its surroundings.

Hypothesis fills a field that is not given from the profile it loaded itself, which in CI is
another one than on a desk. So every field is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import ExampleDatabase

from pagedkv.stateful.profiles import PROFILES

DEBUG_EXAMPLES, DEBUG_STEPS = 20, 20


def settings_for(
    profile: str, *, derandomize: bool | None = None, database: ExampleDatabase | None = None
) -> settings:
    """The settings of a machine run under pytest: "quick", "ci", "nightly" or "debug".

    Changes nothing. derandomize: None is what the profile says. database: where failing examples
    are kept between runs; None keeps none, and writes nothing. Raises ValueError for another
    profile, and for a database that a derandomised run would never read.
    """
    if profile != "debug" and profile not in PROFILES:
        raise ValueError(f"profile {profile!r} is none of {', '.join(PROFILES)}, debug")
    debug = profile == "debug"
    if derandomize is None:
        derandomize = debug or PROFILES[profile].derandomised
    if derandomize and database is not None:
        raise ValueError(f"a database is of no use to {profile}, which is derandomised")
    return settings(
        max_examples=DEBUG_EXAMPLES if debug else PROFILES[profile].examples,
        stateful_step_count=DEBUG_STEPS if debug else PROFILES[profile].steps,
        derandomize=derandomize,
        database=database,
        deadline=None,
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        print_blob=False,
        # All violations come from one place, so there is one to report; but stopping at the first
        # one found would shrink from a worse start.
        report_multiple_bugs=not debug,
        # Slow is said of the target, and of the machine it runs on.
        suppress_health_check=(HealthCheck.too_slow,),
        verbosity=Verbosity.verbose if debug else Verbosity.normal,
        backend="hypothesis",
    )


def for_search(given: settings, *, derandomize: bool) -> settings:
    """`given` without shrinking, printing or complaining: failures come back as data."""
    return settings(
        max_examples=given.max_examples,
        stateful_step_count=given.stateful_step_count,
        derandomize=derandomize,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
        verbosity=Verbosity.quiet,
        backend="hypothesis",
    )


@contextmanager
def no_constants_of_others() -> Iterator[None]:
    """Draw no constants from the source of whatever modules are loaded.

    Hypothesis does that for one draw in twenty. The same seed would give other histories after
    another import, and what it found is kept in `.hypothesis` in the current folder. There is no
    setting for it, and where the internals have moved nothing worse happens than that.
    """
    try:
        from hypothesis.internal.conjecture.providers import (
            HypothesisProvider,
        )
    except ImportError:  # pragma: no cover
        yield
        return

    def no_constant(*_: Any, **__: Any) -> None:
        """Draw as usual."""

    with patch.object(HypothesisProvider, "_maybe_draw_constant", no_constant, create=True):
        yield
