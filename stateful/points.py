"""Making the calls inside a target fail: the n-th one, or every one from the n-th on.

A *point* is a moment at which a failure can come from outside the code at hand: just before a
call that the target's own code makes, to anything, and just before the first instruction of an
own function, whoever calls it (an operator, a property, a sort's key, the next item of a
generator). The command's own call is none: nothing of the target has run yet.

Only calls fail. That `[*a, b]` or `d[k] = v` may find no memory either is left out: no code in
Python can be written to stand that. Left out for the same reason is leaving a `with` block or
giving a lock back (`x.release()`), which would leave the lock closed for good: these are counted
as spared.
"""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import cast

from pagedkv.specs.faults import Mode
from pagedkv.stateful.tracing import Owns, watch_of

RETRIES = 100
"""So many failures in a row a persistent one brings; then calls get through, lest it never ends."""
WIDTH = 60


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the target's code. offset: of the call instruction; None is the entry."""

    code: CodeType
    offset: int | None

    def __str__(self) -> str:
        file, name = Path(self.code.co_filename).name, self.code.co_qualname
        name = name.replace("<locals>.", "")
        if self.offset is None:
            return f"the entry of {name} at {file}:{self.code.co_firstlineno}"
        line, text = self._source()
        return f"{text} at {file}:{line} in {name}"

    def _source(self) -> tuple[int, str]:
        """The line, and the text of the call as far as it is to be had."""
        assert self.offset is not None
        places = list(self.code.co_positions())
        line, last, start, stop = places[self.offset // 2]
        first = self.code.co_firstlineno if line is None else line
        if line is None or last is None or start is None or stop is None:
            return first, "a call"
        lines = [linecache.getline(self.code.co_filename, n) for n in range(first, last + 1)]
        # Columns count bytes.
        raw = [text.encode() for text in lines]
        raw[-1] = raw[-1][:stop]
        raw[0] = raw[0][start:]
        text = " ".join(b" ".join(raw).decode(errors="replace").split())
        return first, (text if len(text) <= WIDTH else f"{text[:WIDTH]}...") or "a call"


class Injector:
    """Runs calls inside which something fails.

    After a run, points: how many there were; failed: how many of them failed; first: where the
    first of them is; spared: how many were not to be failed; lost: whether something that is not
    Python swallowed a failure, so that the points after it were not seen.
    """

    def __init__(
        self, inside: frozenset[str], error: type[Exception] = MemoryError, spare: bool = True
    ) -> None:
        self.inside = inside
        self._error = _failure(error, self._again)
        owns = _owning(inside)
        self._watch = watch_of(owns, self._point, self._spare)
        self._on = self.lost = False
        self._call = 0
        self._mode: Mode = "once"
        self.points = self.failed = self.spared = 0
        self.first: Point | None = None
        self.places: set[Point] = set()

    def run(self, work: Callable[[], object], call: int = 0, mode: Mode = "once") -> object:
        """Do `work`, inside which the `call`-th point fails; 0 is none. Returns or raises as it."""
        self._call, self._mode = call, mode
        self.points = self.failed = self.spared = 0
        self.first = None
        # The collector's finalizers would run at any point. And Python prints failures in
        # finalizers, which is where some of ours end.
        collects, hook = gc.isenabled(), sys.unraisablehook
        gc.disable()
        sys.unraisablehook = _say_nothing
        self._watch.start()
        self._on = True
        try:
            return work()
        finally:
            self._on, self.lost = False, not self._watch.sees()
            self._watch.stop()
            sys.unraisablehook = hook
            if collects:
                gc.enable()

    @property
    def endless(self) -> bool:
        """Whether the last run retried until its failures were taken back."""
        return self.failed >= RETRIES

    # While points are looked for, a coverage tool is not at work: this can't be counted.
    def _point(self, code: CodeType, offset: int | None) -> None:  # pragma: no cover
        self.points += 1
        if self.points < self._call or not self._call:
            return
        if self.points > self._call and (self._mode == "once" or self.failed >= RETRIES):
            return
        self.failed += 1
        if self.first is None:
            self.first = Point(code, offset)
            self.places.add(self.first)
        raise self._error("injected failure")

    def _spare(self) -> None:  # pragma: no cover
        self.spared += 1

    def _again(self) -> None:
        if self._on:
            self._watch.again()


def _say_nothing(_: object) -> None:
    pass


def _owning(inside: frozenset[str]) -> Owns:
    return lambda frame: frame.f_globals.get("__name__") in inside


def _failure(error: type[Exception], again: Callable[[], None]) -> type[Exception]:
    """A subclass of `error` that calls `again` before anything can handle it.

    A trace function that raises is taken away, and with it all later points. Python 3.11 looks at
    an exception's class (is it a subclass of itself?) right before it enters an `except` or a
    `finally`: the one moment at which the trace function can be put back before any code runs.
    """

    class Looked(type(error)):  # type: ignore[misc]  # a metaclass that is only known here
        def __subclasscheck__(cls, subclass: type) -> bool:
            again()
            return bool(super().__subclasscheck__(subclass))

    return cast(type[Exception], Looked(error.__name__, (error,), {"__module__": error.__module__}))


# ---------------------------------------------------------------- what is the target's own


def modules_of(manager: object) -> frozenset[str]:
    """The modules whose code is the manager's own; changes nothing.

    Those of its class and, within the same top-level package, of its bases; of the methods that
    the commands call; and of an object that it holds, since that is an engine behind an adapter.
    Never the standard library; and none where the class says `runs_elsewhere`, as one that only
    passes calls on to another process.
    """
    kind = type(manager)
    if getattr(kind, "runs_elsewhere", False):
        return frozenset()
    found = {base.__module__ for base in kind.__mro__ if _top(base) == _top(kind)}
    found |= {str(getattr(getattr(manager, name, None), "__module__", "")) for name in CALLED}
    for held in getattr(manager, "__dict__", {}).values():
        if _is_engine(held):
            found |= {base.__module__ for base in type(held).__mro__ if _top(base) == _top(held)}
    library = sys.stdlib_module_names
    return frozenset(name for name in found if name and name.partition(".")[0] not in library)


CALLED = ("allocate_for_prefill", "allocate_for_decode", "release_request")
_SHARED = ("pagedkv.protocol", "pagedkv.declarations")
"""Where the handles and what is declared are from: they are no engine."""


def _top(value: object) -> str:
    kind = value if isinstance(value, type) else type(value)
    return kind.__module__.partition(".")[0]


def _is_engine(held: object) -> bool:
    """Whether an object has methods of its own and is neither an array nor a plain value."""
    kind = type(held)
    if kind is type or kind.__module__ in _SHARED or hasattr(kind, "dtype"):
        return False
    return any(hasattr(item, "__code__") for item in vars(kind).values())
