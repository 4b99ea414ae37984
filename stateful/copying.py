"""The whole state of a target as bytes, at the speed of pickling, where that is faithful.

Bytes serve twice: equal bytes are an equal state, and a copy is made from them. They stay in this
process; nothing that comes from outside is ever unpickled. An object whose class says itself how
it is pickled might leave something out, and is refused (one engine's pickling drops fields).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection
from copy import deepcopy
from functools import cache
from io import BytesIO
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedkv.stateful.fingerprint import all_in_attributes, means_nothing, met_in, slots_of
from pagedkv.stateful.locks import anew, of_threads, renewed
from pagedkv.stateful.opaque import Opaque

_FAITHFUL = frozenset(
    {"builtins", "collections", "datetime", "decimal", "enum", "fractions", "functools"}
    | {"itertools", "numpy", "operator", "pathlib", "random", "types", "uuid"}
)
"""Modules whose own classes are known to pickle whole."""


_TEXT, _BYTES = b"t", b"b"
"""How what is written out by its value begins."""


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
    return _Thawer(BytesIO(frozen)).load()


def deep_copy(value: Any) -> Any:
    """A deep copy in which locks are new ones; raises what making it raises.

    Opaque, where the value can't be seen either: that says where the obstacle stands.
    """
    try:
        return deepcopy(value)
    except Exception:
        new = renewed(met_in(value))
        if not new:
            raise
        return deepcopy(value, new)


class _Thawer(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> str | bytes:
        kind, value = pid[:1], pid[1:]
        return str(value, "utf-8", "surrogatepass") if kind == _TEXT else bytes(value)


class _Freezer(pickle.Pickler):
    def __init__(self, out: BytesIO, meaningless: frozenset[str]) -> None:
        super().__init__(out, protocol=5)
        self._meaningless = meaningless
        self._memory: set[int] = set()

    def persistent_id(self, value: object) -> bytes | None:
        # Pickle writes a string once and then refers to it, if it is the same *object*. Whether
        # two equal strings are one object means nothing, so each is written out; so with bytes.
        if type(value) is str:
            return _TEXT + value.encode("utf-8", "surrogatepass")
        return _BYTES + value if type(value) is bytes else None

    def reducer_override(self, value: object) -> Any:
        kind: type = type(value)
        if isinstance(value, FunctionType) and value.__dict__:
            raise Opaque("a function is pickled by its name, without its attributes")
        if of_threads(kind) and (made := anew(value)) is not None:
            return made
        if isinstance(value, np.ndarray):
            return _as_array, self._array(value)
        if _is_tensor(kind):
            return _as_tensor, self._tensor(value)
        if not _is_faithful(kind):
            raise Opaque(f"{kind.__qualname__} pickles itself in its own way")
        if self._meaningless:
            return self._without(value, kind)
        return NotImplemented

    def _array(self, array: NDArray[Any]) -> tuple[bytes, str, tuple[int, ...]]:
        if type(array) is not np.ndarray or array.base is not None:
            raise Opaque("an array that may share its memory would be copied without the sharing")
        return self._owned(array)

    def _tensor(self, tensor: Any) -> tuple[bytes, str, tuple[int, ...]]:
        if tensor.requires_grad or tensor.untyped_storage().nbytes() != tensor.nbytes:
            raise Opaque("a tensor that is part of another would be copied without the rest")
        return self._owned(tensor.detach().numpy())

    def _owned(self, array: NDArray[Any]) -> tuple[bytes, str, tuple[int, ...]]:
        """What makes an array that has its memory for itself."""
        kind, start = array.dtype.str, array.__array_interface__["data"][0]
        if array.size and start in self._memory:
            raise Opaque("arrays that share their memory would be copied without the sharing")
        if np.dtype(kind) != array.dtype or array.dtype.hasobject:
            raise Opaque(f"the bytes of {array.dtype} don't say all")
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise Opaque("the copy of an array would be laid out in another way")
        self._memory.add(start)
        return array.tobytes(), kind, array.shape

    def _without(self, value: object, kind: type) -> Any:
        own = getattr(value, "__dict__", {})
        left_out = {n for n in (*own, *slots_of(kind)) if means_nothing(n, kind, self._meaningless)}
        if not left_out or isinstance(value, type):
            return NotImplemented
        if slots_of(kind) or not all_in_attributes(kind):
            raise Opaque("only plain attributes can be left out")
        return object.__new__, (kind,), {n: item for n, item in own.items() if n not in left_out}


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
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):  # a NamedTuple gives all its fields
        return plain
    hooks = ("__setstate__", "__getnewargs__", "__getnewargs_ex__")
    return of_dataclass or (plain and not any(hasattr(kind, hook) for hook in hooks))


def _is_tensor(kind: type) -> bool:
    return kind.__module__ == "torch" and kind.__name__ == "Tensor"


def _as_array(data: bytes, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.ndarray(shape, kind, data).copy()


def _as_tensor(data: bytes, kind: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(_as_array(data, kind, shape))
