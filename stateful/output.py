"""What a target prints: taken as it comes, so that it never waits, and shown up to a limit."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

SHOWN = 16 << 10
"""Bytes of what one target prints that are shown."""
_AT_ONCE = 1 << 20


class Output:
    """The end of a pipe that a target prints into; `shown` counts over several processes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = SHOWN
        self._pipe: Connection | None = None

    def follow(self, pipe: Connection) -> None:
        """Take from this pipe from now on."""
        self.close()
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe

    @property
    def pipe(self) -> Connection | None:
        """The pipe, while something may come."""
        return self._pipe

    def take(self) -> None:
        """Take what is there now, and show of it what is still to be shown."""
        taken = 0
        while self._pipe is not None and taken < _AT_ONCE:
            try:
                data = os.read(self._pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return
            taken += len(data)
            if data:
                self._show(data)
            else:
                self.close()

    def close(self) -> None:
        """Take no more."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _show(self, data: bytes) -> None:
        if self._left <= 0:
            return
        text = data[: self._left].decode("utf-8", "replace")
        self._left -= len(data)
        if self._left <= 0:
            text += f"\n[{self._name} prints more than {SHOWN:,} bytes: the rest is not shown]\n"
        with suppress(OSError, ValueError):  # nobody may be there to read it
            sys.stderr.write(text)
            sys.stderr.flush()
