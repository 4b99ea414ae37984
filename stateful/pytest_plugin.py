"""What pytest is told of a campaign: an outcome as skip, failure or expected failure, and items.

A check that passes returns; none ever passes silently on too little.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Self

import pytest

from pagedkv.stateful.outcomes import Outcome

MARKER = "pagedkv"


def tell(outcome: Outcome, expected: str | None) -> None:
    """Return if the check passed, or raise what pytest calls a skip, a failure, an xfail.

    expected: why it is known to be violated, None if it is not. An expected failure is strict:
    only a violation is excused by it, and one that is not violated fails.
    """
    __tracebackhide__ = True
    if outcome.verdict == "violated":
        if expected is not None:
            pytest.xfail(expected)  # returns under --runxfail
        pytest.fail(outcome.text, pytrace=False)
    if outcome.verdict == "unknown":
        pytest.fail(f"unknown: {outcome.text}", pytrace=False)
    if expected is not None:
        how = "passed" if outcome.verdict == "passed" else f"is not applicable: {outcome.text}"
        what = f"expected to fail ({expected}), but {how}; take it off the expected failures"
        pytest.fail(what, pytrace=False)
    if outcome.verdict == "not_applicable":
        pytest.skip(outcome.text)


class CheckItem(pytest.Item):
    """One check, without a test file."""

    def __init__(self, *, check: Callable[[], None], **fields: Any) -> None:
        super().__init__(**fields)
        self._check = check
        self.add_marker(MARKER)

    @classmethod
    def of(cls, parent: pytest.Collector, name: str, check: Callable[[], None]) -> Self:
        """The item that runs `check`."""
        item: Self = cls.from_parent(parent, name=name, check=check)
        return item

    def runtest(self) -> None:
        """Run the check."""
        self._check()

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """There is no file; the heading of a failure is the id."""
        return self.config.rootpath, None, self.nodeid


class Checks(pytest.Collector):
    """The checks of one target."""

    def __init__(self, *, checks: Mapping[str, Callable[[], None]], **fields: Any) -> None:
        super().__init__(**fields)
        self._checks = checks

    def collect(self) -> Iterator[CheckItem]:
        """One item a check; runs nothing."""
        for name, check in self._checks.items():
            yield CheckItem.of(self, name, check)


class Collecting:
    """Adds the checks of whole targets to whatever else a session collects."""

    def __init__(self, targets: Iterable[tuple[str, Mapping[str, Callable[[], None]]]]) -> None:
        self._targets = list(targets)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Put them after what the session found."""
        report = yield
        if isinstance(collector, pytest.Session) and report.passed:
            report.result += [
                Checks.from_parent(
                    collector, name=target, nodeid=f"{MARKER}::{target}", checks=checks
                )
                for target, checks in self._targets
            ]
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Name no line of ours as the place of a skip."""
        report = yield
        if isinstance(item, CheckItem) and isinstance(report.longrepr, tuple):
            place, line, _ = item.reportinfo()
            report.longrepr = (str(place), line, report.longrepr[-1])  # type: ignore[assignment]
        return report
