"""Something computed once by several processes that share a folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ATTEMPTS = 2
"""So many processes may die over the same thing; then the rest is told."""


def once(
    folder: Path, name: str, compute: Callable[[], Any], died: Callable[[str], Any]
) -> tuple[Any, bool]:
    """What the first process that comes here computes, as JSON, and whether that was this one.

    Writes into `folder`, which is made. The others wait; where the one that computes dies, the
    next one takes over, and where that dies too, the value is what `died` says of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, attempts = folder / f"{name}.json", folder / f"{name}.attempts"
    if result.exists():  # it is put there whole
        return _read(result), False
    with (folder / f"{name}.lock").open("a+b") as lock, _alone(lock):
        if result.exists():
            return _read(result), False
        before = _read(attempts) if attempts.exists() else []
        if len(before) >= ATTEMPTS:
            value = died(f"processes {' and '.join(map(str, before))} died over it")
        else:
            _write(attempts, [*before, os.getpid()])
            value = compute()
        _write(result, value)
        return value, True


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, value: Any) -> None:
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    beside.write_text(json.dumps(value), encoding="utf-8")
    beside.replace(file)


if sys.platform == "win32":  # pragma: no cover

    @contextmanager
    def _alone(lock: IO[bytes]) -> Iterator[None]:
        """Wait until no other process is in here; the system frees the lock of one that dies."""
        import msvcrt

        while True:
            try:
                msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK, 1)
                break
            except OSError:  # after ten seconds
                continue
        try:
            yield
        finally:
            lock.seek(0)
            msvcrt.locking(lock.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    @contextmanager
    def _alone(lock: IO[bytes]) -> Iterator[None]:
        """Wait until no other process is in here; the system frees the lock of one that dies.

        The lock is the process', not the file's: a child that it forks does not keep it.
        """
        fcntl.lockf(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(lock, fcntl.LOCK_UN)
