"""A digest of any object's whole state, for telling whether two managers are in the same one.

Two values get the same digest only if they have the same shape: the same types, the same scalars
and the same sharing of mutable parts. What can't be looked into is refused, never guessed.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import cache
from hashlib import blake2b
from logging import Logger
from struct import calcsize
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pagedkv.stateful.locks import anew, of_threads
from pagedkv.stateful.opaque import Opaque, a

_WORD = calcsize("P")
_NAMED = Enum | type | FunctionType | BuiltinFunctionType | ModuleType | Logger


def fingerprint(value: object, meaningless: Collection[str] = ()) -> bytes:
    """A 128-bit digest of everything reachable from `value`; changes nothing.

    meaningless: attributes to leave out, as "attribute" or "Class.attribute". Raises Opaque for
    generators, open files and other things whose state can't be read, and says where they stand.
    """
    whole = "\x1f".join(_walked(value, meaningless).parts).encode("utf-8", "surrogatepass")
    return blake2b(whole, digest_size=16).digest()


def met_in(value: object) -> list[object]:
    """What `fingerprint` looks at and what has an identity; raises Opaque as it does."""
    return _walked(value, ()).alive


def _walked(value: object, meaningless: Collection[str]) -> _Walk:
    walk = _Walk(frozenset(meaningless))
    try:
        walk.visit(value)
    except Opaque:
        raise
    except Exception as error:  # an object may do anything when it is looked at
        raise Opaque(f"not to be looked at ({type(error).__name__}: {error})") from error
    return walk


class _Walk:
    """One traversal: `parts` are the pieces of the canonical form, in order.

    Loop invariant of `visit`: `seen` has every mutable object met so far, numbered by first
    visit, so that sharing shows and cycles end. `alive` keeps temporaries from being reused.
    """

    def __init__(self, meaningless: frozenset[str]) -> None:
        self.parts: list[str] = []
        self._seen: dict[int, int] = {}
        self.alive: list[object] = []
        self._memory: dict[int, int] = {}
        self._meaningless = meaningless

    def visit(self, value: Any) -> None:
        kind = type(value)
        if value is None or kind in (bool, int, float, str, bytes, complex):
            self.parts.append(f"{kind.__name__}:{value!r}")
            return
        if isinstance(value, _NAMED) and not isinstance(value, FunctionType):
            self._name(value)
            return
        if kind not in (tuple, frozenset):  # these have no identity that anything depends on
            number = self._seen.get(id(value))
            if number is not None:
                self.parts.append(f"again:{number}")
                return
            self._seen[id(value)] = len(self._seen)
            self.alive.append(value)
        self.parts.append(f"{kind.__module__}.{kind.__qualname__}(")
        if isinstance(value, FunctionType):
            self._function(value)
        else:
            self._inside(value, kind)
        self.parts.append(")")

    def _name(self, value: Any) -> None:
        if isinstance(value, Enum):
            self.parts.append(
                f"enum:{type(value).__module__}.{type(value).__qualname__}.{value.name}"
            )
            return
        name = getattr(value, "__qualname__", None) or str(value)
        self.parts.append(f"named:{getattr(value, '__module__', '')}.{name}")
        owner = getattr(value, "__self__", None)
        if isinstance(value, BuiltinFunctionType) and not isinstance(owner, ModuleType | None):
            self.alive.append(value)
            self._below(".__self__", owner)

    def _below(self, step: str, value: Any) -> None:
        try:
            self.visit(value)
        except Opaque as error:
            raise error.within(step) from error

    def _function(self, value: FunctionType) -> None:
        """What tells two functions of one name apart."""
        code = value.__code__
        self.parts.append(f"{value.__module__}.{value.__qualname__}:{code.co_firstlineno}")
        self.parts.append(code.co_code.hex())
        for part in (code.co_names, value.__defaults__, value.__kwdefaults__):
            self.visit(part)
        self.visit([const for const in code.co_consts if not isinstance(const, CodeType)])
        for cell in value.__closure__ or ():
            self._below(".__closure__[...]", cell.cell_contents)
        if value.__dict__:
            self.visit(value.__dict__)

    def _inside(self, value: Any, kind: type) -> None:
        if isinstance(value, dict):
            self._mapping(value)
            if isinstance(value, defaultdict):
                self.visit(value.default_factory)
        elif isinstance(value, list | tuple | deque):
            self._sequence(value)
        elif isinstance(value, set | frozenset):
            self._unordered(value)
        elif (plain := _plain(value)) is not None:
            self.parts.append(plain)
        elif isinstance(value, MethodType):
            self._below(".__self__", value.__self__)
            self.parts.append(value.__qualname__)
        elif not self._array(value):
            self._attributes(value, kind)
            return
        if kind.__module__ not in ("builtins", "collections") or getattr(value, "__dict__", None):
            self._attributes(value, kind, must=False)

    def _sequence(self, value: Collection[Any]) -> None:
        self.parts.append(f"maxlen:{getattr(value, 'maxlen', None)}")
        try:
            for item in value:
                self.visit(item)
        except Opaque as error:
            raise error.within("[...]") from error

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        # Insertion order is state too: `next(iter(d))` and `popitem` depend on it.
        try:
            for key, item in value.items():
                self.visit(key)
                self.visit(item)
        except Opaque as error:
            raise error.within("[...]") from error

    def _unordered(self, value: Collection[Any]) -> None:
        # `set.pop` follows the table's layout, which for integers is the order of iteration;
        # that of other elements changes from process to process and can't be relied on.
        if all(type(item) is int for item in value):
            self.parts.extend(map(repr, value))
            return
        digests = []
        for item in value:
            if type(item) in (int, str, bytes, float, bool) or item is None:
                digests.append(repr(item))
            else:
                digests.append(fingerprint(item, self._meaningless).hex())
        self.parts.extend(sorted(digests))

    def _array(self, value: Any) -> bool:
        """Whether `value` is an array or a tensor, whose dtype, shape and bytes are its state."""
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None or not hasattr(value, "tolist"):
            return False
        self.parts.append(f"{dtype}{tuple(shape)}{_place(value, self._memory)}")
        if getattr(dtype, "hasobject", False):
            self.visit(value.tolist())
        elif hasattr(value, "tobytes"):
            self.parts.append(value.tobytes().hex())
        else:
            self.parts.append(repr(value.tolist()))
        return True

    def _attributes(self, value: Any, kind: type, *, must: bool = True) -> None:
        fields = _fields(value, kind)
        if must and not all_in_attributes(kind):
            # What a class in C keeps shows only when it is taken apart, if at all.
            fields |= _by_reduce(value)
        for name, item in sorted(fields.items()):
            if not means_nothing(name, kind, self._meaningless):
                self.parts.append(name)
                try:
                    self.visit(item)
                except Opaque as error:
                    raise error.within(f".{name}", kind) from error


def _plain(value: Any) -> str | None:
    """The state of a value that is nothing but what can be printed; None for all others."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, range | slice):
        return repr(value)
    if isinstance(value, random.Random):
        return repr(value.getstate())
    kind: type = type(value)
    if of_threads(kind) and (made := anew(value)) is not None:
        return repr(made[1])
    return None


@cache
def all_in_attributes(kind: type) -> bool:
    """Whether instances have room for nothing but attributes; changes nothing.

    Pickling asks the same before it trusts an object without a hook of its own.
    """
    offsets = (kind.__dictoffset__, kind.__weakrefoffset__)
    words = len(slots_of(kind)) + sum(offset > 0 for offset in offsets)
    return kind.__itemsize__ == 0 and kind.__basicsize__ <= object.__basicsize__ + words * _WORD


def _place(value: Any, memory: dict[int, int]) -> str:
    """Which memory an array lies in and where, so that a view is told from a copy."""
    if hasattr(value, "untyped_storage"):
        if not value.numel():  # It lies nowhere, and says any address.
            return ""
        start, at = value.untyped_storage().data_ptr(), value.data_ptr()
    elif hasattr(value, "__array_interface__") and value.size:
        at, base = value.__array_interface__["data"][0], value
        while getattr(base, "base", None) is not None and hasattr(base.base, "__array_interface__"):
            base = base.base
        start = base.__array_interface__["data"][0]
    else:
        return ""
    return f"memory {memory.setdefault(start, len(memory))} at {at - start}"


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that the class and its bases keep in slots; changes nothing."""
    found = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)


def means_nothing(name: str, kind: type, meaningless: Collection[str]) -> bool:
    """Whether the attribute is left out, by its name or that of a base; changes nothing."""
    return name in meaningless or any(
        f"{base.__name__}.{name}" in meaningless for base in kind.__mro__
    )


def _fields(value: Any, kind: type) -> dict[str, Any]:
    fields = dict(getattr(value, "__dict__", {}))
    fields |= {name: getattr(value, name) for name in slots_of(kind) if hasattr(value, name)}
    return fields


def _by_reduce(value: Any) -> dict[str, Any]:
    """The state of an object without attributes, as pickling would see it."""
    reduce: Callable[[int], Any] = value.__reduce_ex__
    try:
        parts = reduce(2)
    except Exception as error:
        raise Opaque(a(type(value))) from error
    if isinstance(parts, str):
        return {"reduced": parts}
    own = getattr(value, "__dict__", None)  # is visited by name already
    return {f"reduced{i}": part for i, part in enumerate(parts) if i != 0 and part is not own}
