"""One driver process, and lines to and from it: nothing it does can block or flood this one."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from pagedkv.driver.wire import LONGEST_LINE, BadAnswer, answer_of, line_of, quoted

KEPT = 2000
"""Bytes of what a driver writes to stderr that are kept, the last ones."""
CHUNK = 1 << 16
GOODBYE_SECONDS = 1.0
"""How long a driver may take to end once its input is closed."""


class Died(Exception):
    """The target's process ended where an answer was due."""


class NoAnswer(Exception):
    """No answer came in time; the process was ended."""


class Channel:
    """A running driver. `at` is whatever its user says it is at; None is nowhere in particular.

    Raises OSError if the program can't be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.at: object = None
        self._idle = True
        self._next = 1
        self._buffer = bytearray()
        self._said = bytearray()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for us, and ending the group ends its children
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - one prepared call, no Python besides
        )
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._ends = [pipe.fileno() for pipe in pipes if pipe is not None]
        for end in self._ends:
            os.set_blocking(end, False)
        self._selector = selectors.DefaultSelector()
        for end in self._ends[1:]:
            self._selector.register(end, selectors.EVENT_READ)
        self._finalizer = weakref.finalize(self, _end, self._process, self._selector)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._finalizer.alive

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def close(self) -> None:
        """End the process and what it started; nothing stays behind. Closing twice is nothing.

        A driver that is idle may end by itself: its input is closed first.
        """
        if self._finalizer.alive and self._idle:
            assert self._process.stdin is not None
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GOODBYE_SECONDS)
        self._finalizer()

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        seconds: float,
        watch: Callable[[int], None] = lambda _: None,
    ) -> list[dict[str, Any]]:
        """Send messages and return their answers, each within `seconds` of the one before.

        watch: told the process id now and then; what it raises ends the process. Raises Died,
        NoAnswer and BadAnswer; after any exception the channel is closed.
        """
        self._idle = False
        try:
            answers = self._ask(messages, seconds, watch)
        except BaseException:
            self.close()
            raise
        self._idle = True
        return answers

    def _ask(
        self, messages: Sequence[Mapping[str, Any]], seconds: float, watch: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        self._nothing_more()
        first, out = self._next, bytearray()
        for message in messages:
            out += line_of({"id": self._next, **message})
            self._next += 1
        answers: list[dict[str, Any]] = []
        since = monotonic()
        while len(answers) < len(messages):
            left = since + seconds - monotonic()
            if left <= 0:
                raise NoAnswer(f"no answer within {seconds:g} s{self._so_far()}")
            self._send(out)
            # While there is more to send, an end that can be read from may be what lets it go on.
            ready = self._wait(0.01 if out else min(left, 0.25))
            if not ready:
                watch(self.pid)
            if self._ends[2] in ready:
                self._listen()
            if self._ends[1] not in ready:
                continue
            self._read()
            while len(answers) < len(messages) and (line := self._line()) is not None:
                answers.append(answer_of(line, first + len(answers)))
                since = monotonic()
        return answers

    def _wait(self, seconds: float) -> Collection[int]:
        """The ends that can be read from."""
        ready = self._selector.select(seconds)
        return [key.fd for key, _ in ready]

    def _send(self, out: bytearray) -> None:
        """Write what the pipe takes now."""
        if out:
            try:
                del out[: os.write(self._ends[0], out[:CHUNK])]
            except BlockingIOError:
                return
            except BrokenPipeError:  # it is gone, which reading says better
                out.clear()

    def _read(self) -> None:
        try:
            data = os.read(self._ends[1], CHUNK)
        except BlockingIOError:
            return
        if not data:
            raise Died(self._how())
        self._buffer += data
        if len(self._buffer) > LONGEST_LINE and b"\n" not in self._buffer:
            raise BadAnswer(f"an answer of at most {LONGEST_LINE:,} bytes", self._start())

    def _line(self) -> bytes | None:
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return bytes(line)

    def _nothing_more(self) -> None:
        """Raise BadAnswer if more came than was asked for; what comes later has a wrong id."""
        if self._buffer:
            raise BadAnswer("one answer to each message, and no more,", self._start())

    def _listen(self) -> None:
        """Take what it says on stderr, and keep the end of it."""
        with suppress(BlockingIOError):
            data = os.read(self._ends[2], CHUNK)
            self._said += data
            del self._said[:-KEPT]
            if not data and self._ends[2] in self._selector.get_map():
                self._selector.unregister(self._ends[2])

    def _how(self) -> str:
        """How the process ended."""
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            return f"its process closed its output and runs on{self._last_said()}"
        self._listen()
        half = f" in the middle of an answer, {quoted(self._start())}" if self._buffer else ""
        return f"its process died ({name_of(code)}){half}{self._last_said()}"

    def _start(self) -> str:
        """The start of what was read and is no whole line."""
        return self._buffer[:200].decode("utf-8", "backslashreplace")

    def _so_far(self) -> str:
        half = f"; so far came {quoted(self._start())}, without its end" if self._buffer else ""
        return half + self._last_said()

    def _last_said(self) -> str:
        """The last line that it wrote to stderr."""
        lines = self._said.decode("utf-8", "backslashreplace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"; it last said: {quoted(last)}" if last else ""


def name_of(code: int) -> str:
    """A return code in words: "exit code 7", "SIGSEGV"."""
    if code >= 0:
        return f"exit code {code}"
    return {int(one): one.name for one in signal.Signals}.get(-code, f"signal {-code}")


def _end(process: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> None:
    selector.close()
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()


PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], object] | None:
    """On Linux: what makes a driver end when we are ended, however that is."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
