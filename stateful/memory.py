"""How much memory a process and its children hold, and how much they may.

Watched from outside: a limit on the address space refuses what is only reserved, and torch
reserves a lot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

SHARE = 0.8
"""Of the memory that is free when first asked, so much may be taken."""
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


class TooMuchMemory(Exception):
    """A process holds more than it may."""


def check_memory(pid: int) -> None:
    """Raise TooMuchMemory if the process and its children hold too much; changes nothing.

    Where the system doesn't say how much that is, nothing is raised.
    """
    held, limit = resident(pid, *_children(pid)), most()
    if limit is not None and held > limit:
        raise TooMuchMemory(too_much(held))


def too_much(held: int) -> str:
    """Words for holding too much."""
    return f"it took {held / 2**30:.1f} GiB of memory, more than {SHARE:.0%} of what was free"


def resident(*pids: int) -> int:
    """Bytes in memory of these processes; 0 where that can't be told."""
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            total += int((_PROC / str(pid) / "statm").read_text().split()[1]) * page
    return total


def _children(pid: int) -> Iterator[int]:
    """The processes below one, as far as the system says."""
    parents: dict[int, list[int]] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may have anything in it; then come a letter and the parent.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        waiting += below
        yield from below


@cache
def most() -> int | None:
    """Bytes that may be held, of what was free when first asked; None if that can't be told."""
    free = _available()
    with suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        left = limit - int((_CGROUP / "memory.current").read_text())
        free = left if free is None else min(free, left)
    return None if free is None else int(SHARE * free)


def _available() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
