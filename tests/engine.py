"""What the tests of all adapters to engines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pagedkv
from pagedkv.commands.expected import file_of, read_expected_failures
from pagedkv.protocol import Request
from pagedkv.stateful.report import TargetReport
from projects import ROOT

NAMES: Mapping[int, int] = {r: r for r in range(16)}


def admit(manager: Any, name: int, tokens: int) -> Request:
    """A request that holds its blocks."""
    request = Request(name, tokens)
    assert manager.allocate_for_prefill(request) is not False
    computed(manager, request)
    return request


def grow(manager: Any, request: Request) -> None:
    """One more token."""
    assert manager.allocate_for_decode(request) is not False
    computed(manager, request)


def computed(manager: Any, request: Request) -> None:
    """The forward pass, where the adapter is told of it."""
    told = getattr(manager, "computed", None)
    if told is not None:
        told(request)


def seen(manager: Any) -> tuple[object, ...]:
    """All that can be seen of the manager."""
    return manager.snapshot(), manager.state_key(NAMES)


def checked(target: str) -> TargetReport:
    """The quick profile with time enough, and the failures that are known."""
    file = ROOT / "tests" / "engines" / file_of(target)
    expected = read_expected_failures(file) if file.exists() else {}
    (report,) = pagedkv.check(target, budget=300, expected_failures=expected).targets
    return report


def figures(report: TargetReport) -> tuple[str, bool, int, int]:
    """The verdict, whether the scope was exhausted, and the states and transitions of it."""
    coverage = report.coverage
    return report.verdict, coverage.exhausted, coverage.states, coverage.transitions


def assert_twin(make: Callable[[], Any]) -> None:
    """A clone equals its original, and what is done to it does not show there."""
    manager = make()
    live, fresh = admit(manager, 0, 3), Request(2, 1)
    admit(manager, 1, 1)
    twin, handles = manager.clone({0: live, 2: fresh})
    before = (*seen(manager), repr(live), repr(fresh))
    assert (*seen(twin), repr(handles[0]), repr(handles[2])) == before
    grow(twin, handles[0])
    twin.release_request(handles[0])
    assert twin.allocate_for_prefill(handles[2]) is not False
    assert (*seen(manager), repr(live), repr(fresh)) == before
    assert handles[0].tokens is not live.tokens
