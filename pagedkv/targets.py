"""What can be checked: the built-in targets, anything as `module:attribute`, programs, and pairs.

Whatever is wrong with a name, and with the code behind it, is one `BadTarget` of one line.
"""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedkv.builtin import BUILTINS, Builtin
from pagedkv.declarations import Declarations
from pagedkv.loading import (
    METHODS,
    BadTarget,
    attribute_of,
    did_you_mean,
    imported,
    one_line,
    place_of,
    refuse,
    told,
)
from pagedkv.protocol import PagedKVManager
from pagedkv.specs.model import Geometry
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.world import World
from pagedkv.tolerances import NONE, BadTolerance, Table, Tolerances, table_of, tolerant

if TYPE_CHECKING:
    from pagedkv.driver.client import Driver


@dataclass(frozen=True)
class Target:
    """A name, and the factory `(num_blocks, block_size, head_dim) -> manager` behind it."""

    name: str
    factory: Callable[[int, int, int], PagedKVManager]


@dataclass(frozen=True)
class Pair:
    """Two targets driven alike, in lockstep."""

    left: Target
    right: Target

    @property
    def name(self) -> str:
        """Both names, as `resolve` reads them."""
        return f"{self.left.name}+{self.right.name}"


def default_targets(tolerances: Tolerances = NONE) -> tuple[Target | Pair, ...]:
    """The targets of a run that names none: reference and array, each and in lockstep."""
    reference, array = (_resolve_one(name, tolerances) for name in ("reference", "array"))
    return reference, array, Pair(reference, array)


def resolve(spec: str, tolerances: Tolerances = NONE) -> Target | Pair:
    """The target that `spec` names: a built-in, `module:attribute`, `exec:COMMAND`, or two
    joined by `+`.

    Imports the module with the current folder on the path, where it stays, or starts the program,
    and makes one manager to see whether it can be driven. tolerances: what is said of targets over
    what they declare. Raises BadTarget.
    """
    return _resolved(spec, lambda name: _resolve_one(name, tolerances))


def isolated(spec: str, tolerances: Tolerances = NONE) -> Target | Pair:
    """The same target, in a process of its own, where it may also die. Raises BadTarget."""
    return _resolved(
        spec, lambda name: _resolve_one(name if is_apart(name) else ISOLATE + name, tolerances)
    )


def singles(spec: str) -> list[str]:
    """The names of the targets of a pair, or of the one; changes nothing."""
    return _split(spec)


def version_of(spec: str) -> str | None:
    """The engines that `spec` names and their versions; None if it names none. Imports nothing."""
    names = {name.removeprefix(ISOLATE) for name in _split(spec)}
    versions = [b.version for b in BUILTINS if b.name in names]
    return ", ".join(filter(None, versions)) or None


def is_apart(spec: str) -> bool:
    """Whether the target runs in a process of its own anyway, and none of it in this one."""
    return all(name.startswith((EXEC, ISOLATE)) for name in _split(spec))


EXEC, ISOLATE = "exec:", "isolate:"
"""What the names of programs begin with, and those of Python targets in processes of their own."""


def _split(spec: str) -> list[str]:
    """The names of a pair, or the one; what follows exec: is a command, plus signs and all."""
    if spec.startswith(EXEC):
        first, plus, second = spec.partition("+" + EXEC)
        return [first, EXEC + second] if plus else [spec]
    first, plus, second = spec.partition("+")
    if not plus:
        return [spec]
    return [first, second] if second.startswith(EXEC) else spec.split("+")


def _resolved(spec: str, resolve_one: Callable[[str], Target]) -> Target | Pair:
    names = _split(spec)
    if len(names) == 1:
        return replace(resolve_one(spec), name=spec)
    if len(names) != 2 or not all(names):
        refuse(spec, "a pair in lockstep is exactly two targets, like reference+array")
    first, second = map(resolve_one, names)
    return Pair(replace(first, name=names[0]), replace(second, name=names[1]))


def verified(name: str, factory: Any, table: Table | None = None) -> Target:
    """The target, once its factory has made a manager that can be driven. Raises BadTarget.

    table: declarations over its own.
    """
    if not callable(factory):
        what = f"is of type {type(factory).__name__}, not a callable"
        if all(callable(getattr(factory, method, None)) for method in METHODS):
            what = f"is a manager already; give its class, {type(factory).__name__}, or a function"
        refuse(name, f"{what}; {_A_TARGET}")
    _check_signature(name, factory)
    try:
        factory = tolerant(factory, table)
        _probe(factory)
    except KeyboardInterrupt:
        raise
    except BadTolerance as error:
        refuse(name, f"[tool.pagedkv] tolerances: {error}", error)
    except CannotDrive as error:
        cause = error.__cause__ or error
        if isinstance(cause, BadTolerance):
            refuse(name, f"[tool.pagedkv] tolerances: {cause}", error)
        about_size = isinstance(error.__cause__, ValueError)
        hint = "; declares says which sizes a target can have" if about_size else ""
        refuse(name, f"{one_line(error)}{place_of(cause)}{hint}", error)
    except BaseException as error:  # noqa: BLE001 - a factory may also leave by SystemExit
        refuse(name, f"making one ended in {told(error)}{place_of(error)}", error)
    return Target(name, factory)


_A_TARGET = "a target is a callable (num_blocks, block_size, head_dim) -> manager"


def _resolve_one(spec: str, tolerances: Tolerances = NONE) -> Target:
    table = table_of(spec, tolerances)
    if spec.startswith(EXEC):
        return _program(spec, table)
    if spec.startswith(ISOLATE):
        return _isolated(spec, table)
    builtin = next((builtin for builtin in BUILTINS if builtin.name == spec), None)
    if builtin is not None:
        return _resolve_builtin(builtin, table)
    module_name, colon, attribute = spec.partition(":")
    if not colon:
        near = did_you_mean(spec, [builtin.name for builtin in BUILTINS])
        known = ", ".join(builtin.name for builtin in BUILTINS)
        hint = near or f"; built in are {known}"
        own = f"{spec}:MyManager" if Path(f"{spec}.py").is_file() else "module:attribute"
        refuse(spec, f"no such target; your own allocator is {own}{hint}")
    if not module_name or module_name.endswith(".py") or {"/", "\\"} & set(module_name):
        name = Path(module_name).stem or "mymodule"
        refuse(spec, f"name the module as an import does, like {name}:{attribute or 'MyManager'}")
    module = imported(spec, module_name)
    return verified(spec, attribute_of(spec, module, attribute), table)


def _program(spec: str, table: Table | None) -> Target:
    """A program that speaks the line protocol, started in the current folder."""
    from pagedkv.driver.client import Driver

    if table is not None and "out_of_blocks" in table:
        what = "a program says out_of_blocks by the outcome of that name"
        refuse(spec, f"[tool.pagedkv] tolerances: {what}; leave that out")
    try:
        command = shlex.split(spec.removeprefix(EXEC))
    except ValueError as error:
        refuse(spec, f"can't be read as a command: {error}", error)
    if not command:
        refuse(spec, "names no program; give one, like exec:./driver")
    if shutil.which(command[0]) is None:
        there = Path(command[0]).exists()
        why = "is not executable; try chmod +x" if there else "is no program, here or on the PATH"
        refuse(spec, f"{command[0]} {why}")
    return _verified(spec, Driver(command), table)


def _verified(spec: str, driver: Driver, table: Table | None = None) -> Target:
    """The target of a driver that makes a manager; no process of it is left waiting."""
    try:
        return verified(spec, driver, table)
    finally:
        driver.close()


def _isolated(spec: str, table: Table | None) -> Target:
    """A Python target in a process of its own, which says whatever is wrong with it.

    table: applied there, since that process tells how blocks ran out.
    """
    from pagedkv.driver.client import Driver
    from pagedkv.driver.history import CantBeHad

    name = spec.removeprefix(ISOLATE)
    if not name or name.startswith((EXEC, ISOLATE)):
        refuse(spec, f"isolates nothing; give a Python target, like {ISOLATE}mymodule:MyManager")
    seconds = 30.0  # unlike the author of a driver, nobody has thought about how long it takes
    told = () if table is None else (json.dumps(dict(table)),)
    command = (sys.executable, "-m", "pagedkv.driver.server", name, *told)
    try:
        return _verified(spec, Driver(command, seconds=seconds))
    except BadTarget as error:
        cause = error.__cause__ and error.__cause__.__cause__
        start = f"target {name!r}: "
        if isinstance(cause, CantBeHad) and str(cause).startswith(start):  # not about a size
            refuse(spec, str(cause).removeprefix(start), cause)
        raise


def _resolve_builtin(builtin: Builtin, table: Table | None) -> Target:
    if not builtin.installed:
        refuse(
            builtin.name,
            f"needs {builtin.needs}, which is not installed; install it with: {builtin.install}",
        )
    module_name, _, attribute = builtin.where.partition(":")
    try:
        value = attribute_of(builtin.name, imported(builtin.name, module_name), attribute)
        return verified(builtin.name, value, table)
    except BadTarget as error:
        raise BadTarget(f"{error}; install it with: {builtin.install}") from error


def _check_signature(name: str, factory: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables written in C have none; then the call tells
        return
    try:
        signature.bind(1, 1, 1)
    except TypeError as error:
        what = f"takes {signature}, which (num_blocks, block_size, head_dim) does not fit: {error}"
        refuse(name, f"{what}; {_A_TARGET}", error)


def _probe(factory: Callable[[int, int, int], PagedKVManager]) -> None:
    """Make one manager of the smallest pool that is declared, or else of a common size.

    Raises CannotDrive, with what the smallest said.
    """
    declared = getattr(factory, "declares", None)
    sizes = declared.block_sizes if isinstance(declared, Declarations) else None
    refused: CannotDrive | None = None
    least = declared.min_blocks if isinstance(declared, Declarations) else 1
    for geometry in (Geometry(least, min(sizes or (1,))), Geometry(4, 16), Geometry(4, 256)):
        try:
            World(factory, geometry)
        except CannotDrive as error:
            refused = refused or error
        else:
            return
    assert refused is not None
    raise refused
