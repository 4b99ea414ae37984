"""Work for children that has nothing heavy to import."""

from __future__ import annotations

import os
import signal
import time


def job(what: str) -> tuple[str, int]:
    """Say what was asked for, and in which process; or end it, or never come back."""
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leave":
        os._exit(3)
    if what == "hang":
        time.sleep(60)
    return what, os.getpid()


class NotThere:
    """Work that no child can load."""

    def __call__(self, what: str) -> str:
        return what

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (4,)
