"""pytest's door to pagedkv: options, and what is told at the end of a run.

pytest loads this in every run wherever pagedkv is installed. So nothing of pagedkv is imported
here, and nothing is done, until somebody asks for a check.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import pytest

RUNNING: list[pytest.Config] = []
"""The runs in this process, the innermost last."""

TOLD = pytest.StashKey[list[str]]()
"""A line for each campaign of a run; printed in the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, all of which start with --pagedkv."""
    group = parser.getgroup("pagedkv", "paged KV-cache allocators")
    group.addoption(
        "--pagedkv",
        metavar="TARGET",
        action="append",
        default=[],
        help="Check this allocator too, one test a property: a built-in name or module:attribute.",
    )
    group.addoption(
        "--pagedkv-profile",
        choices=("quick", "ci", "nightly"),
        help="How much is tried of each target.",
    )
    group.addoption("--pagedkv-seed", type=_seed, metavar="N", help="Of the random histories.")
    group.addoption(
        "--pagedkv-budget",
        type=_seconds,
        metavar="SECONDS",
        help="Time for each target, instead of the profile's.",
    )
    group.addoption(
        "--pagedkv-traces",
        metavar="DIR",
        help="Write each counterexample into this folder too, for `pagedkv replay`.",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no integer >= 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds > 0")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    """Have the targets of --pagedkv collected. Raises UsageError for settings that are none."""
    RUNNING.append(config)
    config.addinivalue_line("markers", "pagedkv: a check of a paged KV-cache allocator")
    if targets := config.getoption("pagedkv"):
        from pagedkv.suite import collecting

        config.pluginmanager.register(collecting(targets), "pagedkv-targets")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Forget the run."""
    if config in RUNNING:
        RUNNING.remove(config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of xdist: send what is told to where it is printed."""
    if lines := session.config.stash.get(TOLD, None):
        sent: dict[str, Any] = getattr(session.config, "workeroutput", {})
        sent["pagedkv"] = lines


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of xdist has ended; one that died has sent nothing."""
    lines = getattr(node, "workeroutput", {}).get("pagedkv", [])
    node.config.stash.setdefault(TOLD, []).extend(lines)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A line for each campaign."""
    if lines := config.stash.get(TOLD, None):
        terminalreporter.write_sep("=", "pagedkv")
        for line in lines:
            terminalreporter.write_line(line)
