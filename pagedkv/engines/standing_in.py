"""Imports that an engine makes and its allocator does not use."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType


class _Nothing(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def standing_in(package: str, *modules: str) -> Iterator[None]:
    """Let `package` and these modules of it be imported inside, though it is not installed.

    Nothing stands in for a package that is installed, and afterwards nothing is left behind.
    """
    names = [package, *(f"{package}.{module}" for module in modules)]
    with left_out(*([] if find_spec(package) else names)):
        yield


@contextmanager
def left_out(*modules: str) -> Iterator[None]:
    """Let these modules be imported inside without being run; afterwards nothing is left behind.

    A module that is imported already stays. Warnings of what is imported, about hardware that is
    not there, are not shown.
    """
    absent = [name for name in modules if name not in sys.modules]
    for name in absent:
        sys.modules[name] = module = _Nothing(name)
        module.__path__ = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in absent:
            del sys.modules[name]
