"""Set up before anything imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from coverage import Coverage

# The tensors here are tiny: threads of several workers on the same cores only wait for each other.
# Commands that the tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test and the processes that it starts untraced: traced, a search takes three times as
    long.

    For tests that run nothing that others do not. (pytest-cov's own mark fails under `--no-cov`.)
    """
    for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS_")]:
        monkeypatch.delenv(name)
    measuring = Coverage.current()
    if measuring is None:
        yield
        return
    measuring.stop()
    yield
    measuring.start()
