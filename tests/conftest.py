"""Set up before anything imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from untraced import untraced

if TYPE_CHECKING:
    from pagedkv import ArrayKVCacheManager, KVCacheManager

# The tensors here are tiny: threads of several workers on the same cores only wait for each other.
# Commands that the tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What the machine that runs the tests says of itself changes what commands show and how much of
# it: pytest prints whole summaries where CI is set, Hypothesis takes another profile. What pytest
# is told from outside is for this run, and not for those that the tests start.
OUTSIDE = ("CI", "BUILD_NUMBER", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "COLUMNS", "LINES")
for name in (*OUTSIDE, "PYTEST_ADDOPTS"):
    os.environ.pop(name, None)


@pytest.fixture(params=["reference", "array"])
def make(request: pytest.FixtureRequest) -> type[KVCacheManager | ArrayKVCacheManager]:
    """Either manager of the core protocol."""
    from pagedkv import ArrayKVCacheManager, KVCacheManager

    return KVCacheManager if request.param == "reference" else ArrayKVCacheManager


@pytest.fixture
def children_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that a test starts run untraced."""
    for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def unmeasured(children_unmeasured: None) -> Iterator[None]:
    """Run a test, and the processes that it starts, untraced."""
    with untraced():
        yield
