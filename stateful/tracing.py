"""Seeing the calls inside a target's own code, so that one of them can be made to fail.

Python 3.11 has trace functions: one that is called before each instruction sees every call. One
that raises is taken away, with all that it would have seen; `again` puts it back. From Python 3.12
on there is monitoring, which stays, whatever its callbacks raise.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

OnPoint = Callable[[CodeType, int | None], None]
"""Told the code and the offset of a call, or None for the entry; raises what is to fail."""
Owns = Callable[[FrameType], bool]
"""Whether a frame runs the target's own code."""


class Watch(Protocol):
    """What sees the points of this thread between `start` and `stop`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def again(self) -> None:
        """See to it that the points after a failure are seen too."""

    def sees(self) -> bool:
        """Whether points are still seen."""


def watch_of(owns: Owns, point: OnPoint, spare: Callable[[], None]) -> Watch:
    """What this version of Python has. spare: told of each call that is not to fail."""
    kind = Monitored if hasattr(sys, "monitoring") else Traced
    return kind(owns, point, spare)


# ---------------------------------------------------------------- Python 3.11: a trace function


@dataclass(frozen=True, slots=True)
class _Calls:
    """The offsets of a code's call instructions: those that can fail, and those spared."""

    failing: frozenset[int]
    spared: frozenset[int]


def _calls_of(code: CodeType) -> _Calls:  # pragma: no cover
    failing: set[int] = set()
    spared: set[int] = set()
    before: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname in ("CALL", "CALL_FUNCTION_EX"):
            (spared if _is_spared(one, before) else failing).add(one.offset)
        if one.opname not in ("PRECALL", "CACHE", "EXTENDED_ARG", "KW_NAMES"):
            before.append(one)
    return _Calls(frozenset(failing), frozenset(spared))


def _is_spared(call: dis.Instruction, before: list[dis.Instruction]) -> bool:  # pragma: no cover
    """Whether the call leaves a `with` block, or gives a lock back."""
    if call.opname != "CALL" or not before:
        return False
    if call.arg == 2:  # only the exit of a `with` is called with three constants for two arguments
        nones = [one.opname == "LOAD_CONST" and one.argval is None for one in before[-3:]]
        return len(nones) == 3 and all(nones)
    last = before[-1]
    return call.arg == 0 and last.opname == "LOAD_METHOD" and last.argval == "release"


class Traced:
    """A trace function that sees each instruction of own code."""

    def __init__(self, owns: Owns, point: OnPoint, spare: Callable[[], None]) -> None:
        self._owns, self._point, self._spare = owns, point, spare
        self._steps: dict[CodeType, Any] = {}
        self._entered = False
        self._before: Any = None

    def start(self) -> None:
        self._entered = False
        self._before = sys.gettrace()
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(self._before)

    def sees(self) -> bool:
        return sys.gettrace() is not None

    # While this traces, a coverage tool does not: what runs then can't be counted.
    def again(self) -> None:  # pragma: no cover
        if self.sees():
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._owns(frame):
                self._follow(frame)
            frame = frame.f_back
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, _arg: object) -> Any:  # pragma: no cover
        if event != "call" or not self._owns(frame):
            return None
        self._follow(frame)
        if self._entered:
            self._point(frame.f_code, None)
        self._entered = True
        return frame.f_trace

    def _follow(self, frame: FrameType) -> None:  # pragma: no cover
        code = frame.f_code
        step = self._steps.get(code)
        if step is None:
            step = self._steps[code] = self._step_of(code)
        frame.f_trace, frame.f_trace_lines, frame.f_trace_opcodes = step, False, True

    def _step_of(self, code: CodeType) -> Any:  # pragma: no cover
        calls = _calls_of(code)
        failing, spared, point = calls.failing, calls.spared, self._point

        def step(frame: FrameType, event: str, _arg: object) -> Any:
            if event == "opcode":
                at = frame.f_lasti
                if at in failing:
                    point(code, at)
                elif at in spared:
                    self._spare()
            return step

        return step


# ---------------------------------------------------------------- Python 3.12 on: monitoring


class Monitored:  # pragma: no cover
    """Python's own monitoring, which a failure leaves in place, and coverage too."""

    def __init__(self, owns: Owns, point: OnPoint, spare: Callable[[], None]) -> None:
        self._owns, self._point, self._spare = owns, point, spare
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self._own: dict[CodeType, bool] = {}
        self._tool = 0
        self._entered = False

    def start(self) -> None:
        here, events = self._monitoring, self._monitoring.events
        self._entered = False
        self._tool = next(tool for tool in (3, 4, 2, 1, 0) if here.get_tool(tool) is None)
        here.use_tool_id(self._tool, "pagedkv")
        here.register_callback(self._tool, events.CALL, self._called)
        for event in (events.PY_START, events.PY_RESUME):
            here.register_callback(self._tool, event, self._enter)
        here.set_events(self._tool, events.CALL | events.PY_START | events.PY_RESUME)

    def stop(self) -> None:
        self._monitoring.set_events(self._tool, 0)
        self._monitoring.free_tool_id(self._tool)

    def sees(self) -> bool:
        return True

    def again(self) -> None:
        """Nothing was lost."""

    def _is_own(self, code: CodeType) -> bool:
        known = self._own.get(code)
        if known is None:
            known = self._own[code] = self._owns(sys._getframe(2))
        return known

    def _enter(self, code: CodeType, _offset: int) -> None:
        if self._is_own(code):
            if self._entered:
                self._point(code, None)
            self._entered = True

    def _called(self, code: CodeType, offset: int, called: object, _arg: object) -> None:
        if not self._is_own(code):
            return
        name = getattr(called, "__name__", "")
        if name == "__exit__" or (name == "release" and _is_lock(called)):
            self._spare()
        else:
            self._point(code, offset)


def _is_lock(method: object) -> bool:  # pragma: no cover
    owner = getattr(method, "__objclass__", type(getattr(method, "__self__", None)))
    return hasattr(owner, "acquire")
