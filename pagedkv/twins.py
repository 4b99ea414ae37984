"""Copies of what an engine keeps, attribute by attribute, asking no object how it is copied.

`copy.deepcopy` and pickling ask, and engines' classes then tell what they send to a worker, which
may be less than they have; and a tensor takes ten times as long.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, TypeVar

T = TypeVar("T")

_SAME = frozenset(
    {bool, int, float, complex, str, bytes, range, slice, type, NoneType}
    | {FunctionType, BuiltinFunctionType, ModuleType}
)
"""Types whose objects stand for themselves in a copy."""

_CONTAINERS = frozenset({list, dict, tuple, set, frozenset, deque})


def twin_of(value: T) -> T:
    """A copy of everything reachable from `value`, sharing as the original shares; changes nothing.

    Shared with the original are functions, modules, classes and what never changes. A tensor that
    is a view of another gets memory of its own. An object of a compiled class is deep-copied as it
    says; raises whatever that raises.
    """
    twin: T = _Twins().of(value)
    return twin


class _Twins:
    """One traversal. `_made` has the twin of each object by its identity, as for `deepcopy`."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        kind: type = type(value)
        if kind in _SAME:
            return value
        twin = self._made.get(id(value))
        if twin is None:
            twin = self._made[id(value)] = _way_of(kind)(self, value, kind)
        return twin

    def _container(self, value: Any, kind: type) -> Any:
        of = self.of
        if kind in (tuple, set, frozenset):
            return kind(map(of, value))
        twin = self._made[id(value)] = value.copy()  # before what is in it: that may be in a ring
        twin.clear()
        if kind is dict:
            twin.update({of(key): of(item) for key, item in value.items()})
        else:
            twin.extend([item if type(item) in _SAME else of(item) for item in value])
        return twin

    def _object(self, value: Any, kind: type) -> Any:
        try:
            twin: Any = object.__new__(kind)
        except TypeError:  # of a compiled class
            return copy.deepcopy(value, self._made)
        self._made[id(value)] = twin
        of = self.of
        for name, item in _fields(value, kind):
            object.__setattr__(twin, name, item if type(item) in _SAME else of(item))
        return twin


@cache
def _way_of(kind: type) -> Callable[[_Twins, Any, type], Any]:
    """How objects of this class are copied."""
    if kind in _CONTAINERS:
        return _Twins._container
    if kind is MethodType:
        return lambda twins, value, _kind: MethodType(value.__func__, twins.of(value.__self__))
    torch_s = kind.__name__ if kind.__module__ == "torch" else None
    if torch_s == "Tensor":
        return lambda _twins, value, _kind: value.detach().clone()
    if issubclass(kind, type | Enum) or torch_s in ("dtype", "device"):
        return lambda _twins, value, _kind: value
    return _Twins._object


def _fields(value: Any, kind: type) -> list[tuple[str, Any]]:
    fields = [*getattr(value, "__dict__", {}).items()]
    return fields + [(name, getattr(value, name)) for name in _slots(kind) if hasattr(value, name)]


@cache
def _slots(kind: type) -> tuple[str, ...]:
    found = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{slot}" if private else slot)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
