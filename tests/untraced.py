"""Stretches of a test that need not be measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coverage import Coverage


@contextmanager
def untraced() -> Iterator[None]:
    """Measure nothing in here: traced, a search takes three times as long.

    For what runs nothing that other tests do not. (pytest-cov's own mark fails under `--no-cov`.)
    """
    stopped = []
    # A worker is measured twice: as a process that was started, and by pytest-cov. Where one stops,
    # the other goes on.
    while (measuring := Coverage.current()) is not None:
        measuring.stop()
        stopped.append(measuring)
    try:
        yield
    finally:
        for measuring in reversed(stopped):
            measuring.start()
