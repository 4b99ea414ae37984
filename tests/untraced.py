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
    measuring = Coverage.current()
    if measuring is None:
        yield
        return
    measuring.stop()
    try:
        yield
    finally:
        measuring.start()
