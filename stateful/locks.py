"""Locks as state: held or not. What another thread may have a part in is refused.

Between two calls nobody holds one, as a rule, so that a new lock does as well. A thread that holds
or waits for the original would never come to the copy.
"""

from __future__ import annotations

from _thread import LockType
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from threading import Condition, Lock, RLock, Thread, local
from types import BuiltinFunctionType
from typing import Any

from pagedkv.stateful.opaque import Opaque, a

_RLOCK: type = type(RLock())


@cache
def of_threads(kind: type) -> bool:
    """Whether `anew` has something to say about objects of this class."""
    return issubclass(kind, (LockType, _RLOCK, local, Condition, Thread, Future))


def anew(value: Any) -> tuple[Callable[..., object], tuple[bool, ...]] | None:
    """How another one in the same state is made, and its state; changes nothing.

    None for what is copied as any other object is. Raises Opaque where another thread has, or may
    have, a part in it.
    """
    kind = type(value)
    if kind is LockType:
        return lock, (value.locked(),)
    if kind is _RLOCK:
        if not repr(value).startswith("<unlocked "):  # by this thread or another
            raise Opaque("an RLock that is held")
        return RLock, ()
    if kind is local:
        if vars(value):  # and of other threads nothing can be seen
            raise Opaque("a threading.local with something in it")
        return local, ()
    if isinstance(value, Condition) and vars(value).get("_waiters"):
        raise Opaque(f"{a(kind)} that a thread waits for")
    if isinstance(value, Thread) or (isinstance(value, Future) and not value.done()):
        raise Opaque(a(kind))
    return None


def lock(held: bool) -> LockType:
    """A new lock."""
    made = Lock()
    if held:
        made.acquire()
    return made


def renewed(met: list[Any]) -> dict[int, Any]:
    """New locks for those among objects, by identity, as `deepcopy` takes them; changes nothing.

    met: everything there is in a value. A deep copy keeps a bound method of a built-in class as it
    is, so that a method of a lock would be the original's. A Condition has such and is made anew
    too; raises Opaque where something else has.
    """
    new: dict[int, Any] = {}
    for value in met:
        if (made := anew(value)) is not None:
            new[id(value)] = made[0](*made[1])
    methods: set[int] = set()
    for value in met:
        kept = vars(value) if type(value) is Condition else {}
        if id(kept.get("_lock")) in new:
            twin = Condition(new[id(kept["_lock"])])
            if vars(twin).keys() == kept.keys():
                new[id(value)] = twin
                methods.update(map(id, kept.values()))
    for value in met:
        bound = isinstance(value, BuiltinFunctionType) and id(value.__self__) in new
        if bound and id(value) not in methods:
            raise Opaque(f"a method of {a(type(value.__self__))}")
    return new
