"""The whole state of a target as bytes, at the speed of pickling, where that is faithful.

Bytes serve twice: equal bytes are an equal state, and a copy is made from them. They stay in this
process; nothing that comes from outside is ever unpickled. An object whose class says itself how
it is pickled might leave something out, and is refused (one engine's pickling drops fields).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection
from functools import cache
from io import BytesIO
from typing import Any, cast

import numpy as np

from pagedkv.stateful.fingerprint import Opaque

_FAITHFUL = frozenset(
    {"builtins", "collections", "datetime", "decimal", "enum", "fractions", "functools"}
    | {"itertools", "numpy", "operator", "pathlib", "random", "types", "uuid"}
)
"""Modules whose own classes are known to pickle whole."""


def freeze(value: object, meaningless: Collection[str] = ()) -> bytes:
    """Everything reachable from `value`, as bytes; changes nothing.

    meaningless: attributes to leave out, as "attribute" or "Class.attribute": then the bytes are
    good for comparing only. Raises Opaque where pickling fails or may not be faithful.
    """
    out = BytesIO()
    try:
        _Freezer(out, frozenset(meaningless)).dump(value)
    except Opaque:
        raise
    except Exception as error:
        raise Opaque(f"{type(error).__name__}: {error}") from error
    return out.getvalue()


def thaw(frozen: bytes) -> Any:
    """A copy of what `freeze` was given, sharing nothing with it."""
    return pickle.loads(frozen)


class _Freezer(pickle.Pickler):
    def __init__(self, out: BytesIO, meaningless: frozenset[str]) -> None:
        super().__init__(out, protocol=5)
        self._meaningless = meaningless

    def reducer_override(self, value: object) -> Any:
        kind: type = type(value)
        if _is_view(value):
            raise Opaque("an array that shares its memory would be copied without the sharing")
        if not _is_faithful(kind):
            if _is_tensor(kind):
                return _as_tensor, (cast(Any, value).detach().numpy(),)
            raise Opaque(f"{kind.__qualname__} pickles itself in its own way")
        if self._meaningless and hasattr(value, "__dict__"):
            return self._without(value, kind)
        return NotImplemented

    def _without(self, value: object, kind: type) -> Any:
        names = {base.__name__ for base in kind.__mro__}
        kept = {
            name: item
            for name, item in vars(value).items()
            if self._meaningless.isdisjoint({name, *(f"{base}.{name}" for base in names)})
        }
        if len(kept) == len(vars(value)):
            return NotImplemented
        return object.__new__, (kind,), kept


@cache
def _is_faithful(kind: type) -> bool:
    if kind.__module__.partition(".")[0] in _FAITHFUL or issubclass(kind, type):
        return True
    own = (kind.__reduce_ex__, kind.__reduce__)
    if own != (object.__reduce_ex__, object.__reduce__):
        return False
    getstate: Callable[..., Any] = kind.__getstate__
    plain = getstate is object.__getstate__
    # A frozen dataclass with slots has both from its decorator, which leaves nothing out.
    of_dataclass = getattr(getstate, "__module__", None) == "dataclasses"
    hooks = ("__setstate__", "__getnewargs__", "__getnewargs_ex__")
    return of_dataclass or (plain and not any(hasattr(kind, hook) for hook in hooks))


def _is_view(value: Any) -> bool:
    """Whether an array or a tensor is part of memory that something else may hold too."""
    if isinstance(value, np.ndarray):
        return value.base is not None or value.dtype.hasobject
    if _is_tensor(type(value)):
        return bool(value.untyped_storage().nbytes() != value.nbytes or value.device.type != "cpu")
    return False


def _is_tensor(kind: type) -> bool:
    return kind.__module__ == "torch" and kind.__name__ == "Tensor"


def _as_tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)
