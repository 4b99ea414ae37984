"""Starting processes, and trying in one what may kill it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection


def usable_cores() -> int:
    """The cores that this process may run on, as far as the system says: a container has fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def name_of(code: int) -> str:
    """How a process ended, in words: "exit code 7", "SIGSEGV"."""
    names = {int(one): one.name for one in signal.Signals}
    return f"exit code {code}" if code >= 0 else names.get(-code, f"signal {-code}")


def death_of(work: Callable[[str], object], name: str, seconds: float) -> str | None:
    """How a child that does `work(name)` dies or hangs; None if it ends, whatever it raises."""
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_quietly, args=(work, name, there), daemon=True)
    with deaf():
        process.start()
    there.close()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return f"its process hung for {seconds:.0f} s"
    code = process.exitcode or 0
    if code < 0:
        return f"its process died ({name_of(code)})"
    return None if _told(here) else f"its process was ended (exit code {code}, as by os._exit)"


def _quietly(work: Callable[[str], object], name: str, there: Connection) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with suppress(BaseException):
        work(name)
    there.send_bytes(b"done")


def _told(here: Connection) -> bool:
    """Whether the child came to its end: no exit code says so, since a target may choose any."""
    try:
        return bool(here.recv_bytes())
    except EOFError:
        return False


@contextmanager
def deaf() -> Iterator[None]:
    """Let SIGINT pass unheard, and what is started meanwhile too, until it listens itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
