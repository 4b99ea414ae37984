"""Starting processes, and trying in one what may kill it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context

from pagedkv.stateful.postmortem import name_of


def death_of(work: Callable[[str], object], name: str, seconds: float) -> str | None:
    """How a child that does `work(name)` dies or hangs; None if it ends, whatever it raises."""
    process = get_context("spawn").Process(target=_quietly, args=(work, name), daemon=True)
    with deaf():
        process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return f"its process hung for {seconds:.0f} s"
    code = process.exitcode or 0
    return f"its process died ({name_of(code)})" if code < 0 else None


def _quietly(work: Callable[[str], object], name: str) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with suppress(BaseException):
        work(name)


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
