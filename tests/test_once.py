"""Computed by one process, read by the others, and no process waits for a dead one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pagedkv.stateful.once import ATTEMPTS, once
from projects import COPY

WORK = """
import sys, time
from pathlib import Path
sys.path.insert(0, {copy!r})
from pagedkv.stateful.once import once

def compute():
    print("computing", flush=True)
    time.sleep(1)
    return ["a value"]

print(once(Path({folder!r}), "it", compute, lambda how: how))
"""
DEATH = """
import os, sys
from pathlib import Path
sys.path.insert(0, {copy!r})
from pagedkv.stateful.once import once

once(Path({folder!r}), "it", lambda: os._exit(7), lambda how: how)
"""


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    code = program.format(copy=str(COPY), folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=60)
    return process.returncode


def never() -> object:
    raise AssertionError("it was computed already")


def test_the_first_computes_and_the_next_reads(tmp_path):
    folder = tmp_path / "made"
    assert once(folder, "it", lambda: {"a": [1]}, str) == ({"a": [1]}, True)
    assert once(folder, "it", never, str) == ({"a": [1]}, False)
    assert once(folder, "another", lambda: 2, str) == (2, True)


def test_of_several_at_once_one_computes_and_the_others_wait_for_it(tmp_path):
    others = [start(WORK, tmp_path) for _ in range(3)]
    told = [other.communicate(timeout=60)[0].splitlines() for other in others]
    assert sorted(told) == [
        ["(['a value'], False)"],
        ["(['a value'], False)"],
        ["computing", "(['a value'], True)"],
    ]


def test_where_one_dies_the_next_takes_over(tmp_path):
    assert ended(start(DEATH, tmp_path)) == 7
    assert once(tmp_path, "it", lambda: 3, str) == (3, True)


def test_what_several_died_over_is_told_and_not_tried_again(tmp_path):
    dead = [start(DEATH, tmp_path) for _ in range(ATTEMPTS)]
    assert [ended(one) for one in dead] == [7] * ATTEMPTS
    told, ours = once(tmp_path, "it", never, str)
    assert ours
    assert told.startswith("processes ")
    assert all(str(one.pid) in told for one in dead)
    assert once(tmp_path, "it", never, str) == (told, False)


def test_what_fails_to_be_computed_is_tried_again(tmp_path):
    with pytest.raises(AssertionError, match="already"):
        once(tmp_path, "it", never, str)
    assert once(tmp_path, "it", lambda: 4, str) == (4, True)
