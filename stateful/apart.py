"""Work in a process of its own that a caller of any kind may start, and that may die.

The campaigns' own children are made by multiprocessing, which runs the caller's main module again
and lets a child have no children; this is for work inside a campaign.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from time import monotonic
from typing import Any, TypeVar

A = TypeVar("A")
R = TypeVar("R")
Tell = Callable[[object], None]
Note = Callable[[str], None]
"""Keeps a line on what is being done; after a death the last one is read."""
Work = Callable[[A, Tell, Note], R]

NOTE_BYTES = 600
ENDING_SECONDS = 5.0
"""How long the process may take to end once it has told its result."""


class Unsendable(Exception):
    """The work can't be sent to another process."""


class Lost(Exception):
    """The process died or hung; the message says how, and in the middle of what."""


def apart(work: Work[A, R], argument: A, tell: Tell, seconds: float) -> R:
    """Do `work` in a process of its own; returns what it returns.

    work: a module's own function. tell: gets what it tells. Raises Unsendable, Lost when it dies
    or is not done after so many seconds, and KeyboardInterrupt if it had nothing to say to one.
    """
    try:
        sent = pickle.dumps((work, argument))
    except Exception as error:
        raise Unsendable(str(error)) from error
    if b"__main__" in sent:
        raise Unsendable("it is in the main module, which the other process has not")
    ours, theirs = Pipe()
    with tempfile.TemporaryFile() as notes, ours:
        with theirs:
            process = _started(theirs.fileno(), notes.fileno())
        try:
            ours.send_bytes(sent)
            result: R = _result(ours, tell, monotonic() + seconds)
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise Lost(f"{_end(process)}{_last(notes.fileno())}") from error
        except _Late:
            raise Lost(f"it hung: no end after {seconds:.0f} s{_last(notes.fileno())}") from None
        finally:
            process.kill()
            process.wait()
        return result


class _Late(Exception):
    pass


def _started(pipe: int, notes: int) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from pagedkv.stateful.apart import main; main({pipe}, {notes})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=(pipe, notes)
    )


def _result(pipe: Connection, tell: Tell, ends: float) -> Any:
    while True:
        try:
            if not pipe.poll(max(0.0, ends - monotonic())):
                raise _Late
            kind, value = pipe.recv()
        except KeyboardInterrupt:
            # It has heard of it too, and says what it knows; a second one is for good.
            if not pipe.poll(10.0):
                raise
            continue
        if kind == "done":
            return value
        if kind == "unsendable":
            raise Unsendable(value)
        tell(value)


def _end(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    names = {int(one): one.name for one in signal.Signals}
    how = f"exit code {code}" if code >= 0 else names.get(-code, f"signal {-code}")
    return f"its process died ({how})"


def _last(notes: int) -> str:
    text = os.pread(notes, NOTE_BYTES, 0).rstrip(b"\0 ").decode(errors="replace")
    return f", {text}" if text else ""


# ---------------------------------------------------------------- the other process


def main(pipe: int, notes: int) -> None:
    """Do the work that comes through the pipe, and send what came of it."""
    os.dup2(2, 1)  # what a target prints must not stand in the report
    connection = Connection(pipe)
    sent = connection.recv_bytes()
    threading.Thread(target=_leave_with, args=(connection,), daemon=True).start()
    try:
        work, argument = pickle.loads(sent)
    except Exception as error:  # noqa: BLE001 - importing somebody's module may raise anything
        connection.send(("unsendable", f"{type(error).__name__}: {error}"))
        return

    def note(text: str) -> None:
        os.pwrite(notes, text.encode(errors="replace")[:NOTE_BYTES].ljust(NOTE_BYTES), 0)

    result = work(argument, lambda value: connection.send(("told", value)), note)
    connection.send(("done", result))


def _leave_with(connection: Connection) -> None:
    """End this process when the one that wants its result has ended, whatever the target does."""
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
