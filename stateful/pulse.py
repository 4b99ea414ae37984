"""The pulse of a campaign: whether it is stuck in one call, told from outside of that call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType

BEAT_SECONDS = 1.0
_WATCHED = frozenset(
    f"pagedkv.stateful.{name}" for name in ("world", "observe", "target", "copying", "swift")
)
"""What calls targets, and does nothing else that could take seconds."""


class Pulse:
    """A thread that says every second for how long the main thread has been in one call.

    It costs the campaign nothing. A call that never lets go of the interpreter stops it too, and
    then its silence says the same.
    """

    def __init__(self, tell: Callable[[float], object], beat: float = BEAT_SECONDS) -> None:
        self._tell, self._beat = tell, beat
        self._main = threading.current_thread().ident
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing is told after this."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        last: tuple[FrameType, int] | None = None
        since = monotonic()
        while not self._done.wait(self._beat):
            at = self._place()
            if at is None or last is None or at[0] is not last[0] or at[1] != last[1]:
                last, since = at, monotonic()
            self._tell(monotonic() - since)

    def _place(self) -> tuple[FrameType, int] | None:
        """The innermost of our frames that call targets, and where in it; None outside of them."""
        frame = sys._current_frames().get(self._main or 0)
        while frame is not None:
            if frame.f_globals.get("__name__") in _WATCHED:
                return frame, frame.f_lasti
            frame = frame.f_back
        return None
