"""Where targets are written: the file and the line of their class or function.

What was imported is asked; what runs in a process of its own is looked up in its file, which is
read but not run.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import quote

from pagedkv.stateful.reports.sarif import Place, Source
from pagedkv.targets import EXEC, ISOLATE, Pair, Target
from pagedkv.tolerances import Tolerant


def places_of(target: Target | Pair, *, isolated: bool = False) -> Sequence[Place]:
    """The place of a target, or those of a pair; changes nothing.

    isolated: it was not imported here.
    """
    singles = [target.left, target.right] if isinstance(target, Pair) else [target]
    return [Place(single.name, _source(single, isolated=isolated)) for single in singles]


def _source(target: Target, *, isolated: bool) -> Source | None:
    if target.name.startswith(EXEC):
        return None
    name = target.name.removeprefix(ISOLATE)
    found = None
    if name == target.name and not isolated:
        found = _of_object(target.factory)
    found = found or _of_name(name)
    return None if found is None else Source(_uri(found[0]), found[1])


def _of_object(factory: Callable[..., object]) -> tuple[Path, int] | None:
    """Where a class or a function stands, as Python knows it."""
    while isinstance(factory, partial | Tolerant):
        factory = factory.func if isinstance(factory, partial) else factory.factory
    written = factory if inspect.isroutine(factory) or isinstance(factory, type) else type(factory)
    try:
        file = inspect.getsourcefile(written)
        line = inspect.getsourcelines(written)[1]
    except (OSError, TypeError):  # written in C, or at a prompt
        return None
    return None if file is None else (Path(file), max(line, 1))


def _of_name(name: str) -> tuple[Path, int] | None:
    """Where `module:attribute` stands, by the files alone; the file's top if that is not clear."""
    module, _, attribute = name.partition(":")
    path: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    parts = module.split(".")
    for i in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: i + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin)
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    first = attribute.partition(".")[0]
    kinds = (ast.ClassDef, ast.FunctionDef)
    lines = [n.lineno for n in tree.body if isinstance(n, kinds) and n.name == first]
    return file, (lines or [1])[0]


def _uri(file: Path) -> str:
    """The file as code scanning wants it: relative to the repository's root, if it is in it."""
    file, here = file.resolve(), Path.cwd().resolve()
    root = next((p for p in (here, *here.parents) if (p / ".git").exists()), here)
    return quote(file.relative_to(root).as_posix()) if file.is_relative_to(root) else file.as_uri()
