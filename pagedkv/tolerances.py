"""What a project says of a target beside what the target itself declares: `[tool.pagedkv]`.

    [tool.pagedkv.tolerances."mymodule:MyManager"]
    late_calls = 2
    out_of_blocks = [{ raises = "MemoryError", containing = "pool" }, { returns = false }]
    because = { late_calls = "MyManager.flush", out_of_blocks = "MyManager.take" }

Each field takes the place of the declared one. As in `Declarations`, whatever is not the default
needs its reason.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from pagedkv.declarations import Declarations, Raises, Returns, declared_by

Table = Mapping[str, Any]
"""Fields of `Declarations` by name, as TOML has them."""
Tolerances = Mapping[str, Table]
"""A table for each target that has one, by its name."""
NONE: Tolerances = MappingProxyType({})


class BadTolerance(Exception):
    """A table that can't be applied: one line with the field and its cure."""


def table_of(name: str, tolerances: Tolerances) -> Table | None:
    """What is said of one target, also where that runs in a process of its own."""
    found = tolerances.get(name)
    return found or tolerances.get(name.removeprefix("isolate:")) or None


def over(declared: Declarations, table: Table, *, importing: bool = True) -> Declarations:
    """`declared` with the table's fields in the place of its own; changes nothing.

    importing: exceptions that the table names are looked up; a check of the table alone does
    without. Raises BadTolerance.
    """
    reader = _Reader(importing)
    hints = get_type_hints(Declarations)
    values = {name: reader.read(name, hints, value) for name, value in table.items()}
    reasons = values.pop("because", {})
    if strange := reasons.keys() - values.keys():
        raise BadTolerance(f"because names {min(strange)!r}, which is not set beside it")
    kept = {name: why for name, why in declared.because.items() if name not in values}
    default = Declarations()
    for name, value in values.items():
        needs = name not in ("never_reached", "meaningless") and value != getattr(default, name)
        if needs and not str(reasons.get(name, "")).strip():
            raise BadTolerance(f"{name} is given without a reason; add because.{name} = 'where'")
    try:
        return replace(declared, **values, because={**kept, **reasons})
    except (TypeError, ValueError) as error:
        raise BadTolerance(str(error)) from error


@dataclass(frozen=True, slots=True)
class Tolerant:
    """A factory whose managers declare what a table says over what they declare themselves."""

    factory: Callable[[int, int, int], Any]
    table: Table

    @property
    def declares(self) -> Declarations:
        """What the factory itself declares, with the table over it. Raises BadTolerance."""
        return over(declared_by(self.factory), self.table)

    def __call__(self, num_blocks: int, block_size: int, head_dim: int) -> Any:
        """A manager of the factory, with its declarations changed. Raises BadTolerance."""
        manager = self.factory(num_blocks, block_size, head_dim)
        declared = getattr(manager, "declares", None) or Declarations()
        if isinstance(declared, Declarations):  # else whoever drives it refuses it
            changed = over(declared, self.table)
            try:
                manager.declares = changed
            except (AttributeError, TypeError) as error:
                kind = type(manager).__name__
                what = f"a {kind} takes no attribute declares ({error}); let it declare that itself"
                raise BadTolerance(what) from error
        return manager


def tolerant(factory: Callable[[int, int, int], Any], table: Table | None) -> Any:
    """The factory, with the table over what it declares if there is one."""
    return factory if table is None else Tolerant(factory, dict(table))


_KINDS: Mapping[object, str] = {int: "an integer", bool: "true or false", str: "a text"}


@dataclass(frozen=True, slots=True)
class _Reader:
    """Values as TOML has them to those that `Declarations` takes, by the type of the field."""

    importing: bool

    def read(self, name: str, hints: Mapping[str, Any], value: Any) -> Any:
        if name not in hints:
            from pagedkv.config import nearest

            raise BadTolerance(f"{name} is no declaration; {nearest(name, hints)}")
        if name == "out_of_blocks":
            return self._ways(name, value)
        return self._value(name, hints[name], value)

    def _value(self, name: str, hint: Any, value: Any) -> Any:
        if hint in _KINDS:
            if type(value) is not hint:
                _bad(name, value, _KINDS[hint])
            return value
        origin, inside = get_origin(hint), get_args(hint)
        if origin is Literal:
            if value not in inside:
                _bad(name, value, f"one of {', '.join(map(str, inside))}")
            return value
        if origin in (Union, UnionType):
            (hint,) = (one for one in inside if one is not NoneType)
            return self._value(name, hint, value)
        if origin in (tuple, frozenset):
            if not isinstance(value, list):
                _bad(name, value, "a list")
            return origin(self._value(name, inside[0], item) for item in value)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            if not isinstance(value, dict):
                _bad(name, value, "a table")
            return {k: self._value(f"{name}.{k}", inside[1], item) for k, item in value.items()}
        raise BadTolerance(f"{name} can't be set here; let the target declare it")

    def _ways(self, name: str, value: Any) -> tuple[Raises | Returns, ...]:
        if not isinstance(value, list) or not value:
            _bad(name, value, _WAYS)
        return tuple(self._way(name, one) for one in value)

    def _way(self, name: str, way: Any) -> Raises | Returns:
        found: Raises | Returns | None = None
        match way:
            case {"returns": bool() | int() | str() as returned, **rest} if not rest:
                found = Returns(returned)
            case {"returns_none": True, **rest} if not rest:
                found = Returns(None)
            case {"raises": str() as kind, "containing": str() as text, **rest} if not rest:
                found = Raises(self._exception(name, kind), text)
        if found is None:
            _bad(name, way, _WAYS)
        return found

    def _exception(self, name: str, kind: str) -> type[BaseException]:
        """A built-in exception, or `module:Name`."""
        module, colon, attribute = kind.partition(":")
        if colon and not self.importing:
            return RuntimeError
        try:
            found = getattr(import_module(module) if colon else builtins, attribute or kind, None)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise BadTolerance(f"{name}: raises = {kind!r} can't be imported: {what}") from error
        if not isinstance(found, type) or not issubclass(found, BaseException):
            due = "is no exception; give a built-in one or module:Name"
            raise BadTolerance(f"{name}: raises = {kind!r} {due}")
        return found


_WAYS = (
    'a list like [{ raises = "MemoryError", containing = "pool" }, { returns = false }, '
    "{ returns_none = true }]"
)


def _bad(name: str, value: object, due: str) -> NoReturn:
    raise BadTolerance(f"{name} = {value!r} must be {due}")
