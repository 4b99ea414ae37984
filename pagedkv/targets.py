"""What can be checked: the built-in targets, anything as `module:attribute`, programs, and pairs.

Whatever is wrong with a name, and with the code behind it, is one `BadTarget` of one line.
"""

from __future__ import annotations

import importlib
import inspect
import json
import shlex
import shutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from pagedkv.builtin import BUILTINS, Builtin, prefixes
from pagedkv.declarations import Declarations
from pagedkv.protocol import PagedKVManager
from pagedkv.specs.model import Geometry
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.world import World
from pagedkv.tolerances import NONE, BadTolerance, Table, Tolerances, table_of, tolerant

if TYPE_CHECKING:
    from pagedkv.driver.client import Driver

METHODS = ("allocate_for_prefill", "allocate_for_decode", "release_request")


class BadTarget(ValueError):
    """A target that can't be had: the message is one line, with the name and what to do."""


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
        _bad(spec, "a pair in lockstep is exactly two targets, like reference+array")
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
        _bad(name, f"{what}; {_A_TARGET}")
    _check_signature(name, factory)
    try:
        factory = tolerant(factory, table)
        _probe(factory)
    except KeyboardInterrupt:
        raise
    except BadTolerance as error:
        _bad(name, f"[tool.pagedkv] tolerances: {error}", error)
    except CannotDrive as error:
        cause = error.__cause__ or error
        if isinstance(cause, BadTolerance):
            _bad(name, f"[tool.pagedkv] tolerances: {cause}", error)
        about_size = isinstance(error.__cause__, ValueError)
        hint = "; declares says which sizes a target can have" if about_size else ""
        _bad(name, f"{_one_line(error)}{_at(cause)}{hint}", error)
    except BaseException as error:  # noqa: BLE001 - a factory may also leave by SystemExit
        _bad(name, f"making one ended in {_told(error)}{_at(error)}", error)
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
        near = _near(spec, [builtin.name for builtin in BUILTINS])
        known = ", ".join(builtin.name for builtin in BUILTINS)
        hint = near or f"; built in are {known}"
        own = f"{spec}:MyManager" if Path(f"{spec}.py").is_file() else "module:attribute"
        _bad(spec, f"no such target; your own allocator is {own}{hint}")
    if not module_name or module_name.endswith(".py") or {"/", "\\"} & set(module_name):
        name = Path(module_name).stem or "mymodule"
        _bad(spec, f"name the module as an import does, like {name}:{attribute or 'MyManager'}")
    module = _import(spec, module_name)
    return verified(spec, _attribute(spec, module, attribute), table)


def _program(spec: str, table: Table | None) -> Target:
    """A program that speaks the line protocol, started in the current folder."""
    from pagedkv.driver.client import Driver

    if table is not None and "out_of_blocks" in table:
        what = "a program says out_of_blocks by the outcome of that name"
        _bad(spec, f"[tool.pagedkv] tolerances: {what}; leave that out")
    try:
        command = shlex.split(spec.removeprefix(EXEC))
    except ValueError as error:
        _bad(spec, f"can't be read as a command: {error}", error)
    if not command:
        _bad(spec, "names no program; give one, like exec:./driver")
    if shutil.which(command[0]) is None:
        there = Path(command[0]).exists()
        why = "is not executable; try chmod +x" if there else "is no program, here or on the PATH"
        _bad(spec, f"{command[0]} {why}")
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
        _bad(spec, f"isolates nothing; give a Python target, like {ISOLATE}mymodule:MyManager")
    seconds = 30.0  # unlike the author of a driver, nobody has thought about how long it takes
    told = () if table is None else (json.dumps(dict(table)),)
    command = (sys.executable, "-m", "pagedkv.driver.server", name, *told)
    try:
        return _verified(spec, Driver(command, seconds=seconds))
    except BadTarget as error:
        cause = error.__cause__ and error.__cause__.__cause__
        start = f"target {name!r}: "
        if isinstance(cause, CantBeHad) and str(cause).startswith(start):  # not about a size
            _bad(spec, str(cause).removeprefix(start), cause)
        raise


def _resolve_builtin(builtin: Builtin, table: Table | None) -> Target:
    if not builtin.installed:
        _bad(
            builtin.name,
            f"needs {builtin.needs}, which is not installed; install it with: {builtin.install}",
        )
    module_name, _, attribute = builtin.where.partition(":")
    try:
        value = _attribute(builtin.name, _import(builtin.name, module_name), attribute)
        return verified(builtin.name, value, table)
    except BadTarget as error:
        raise BadTarget(f"{error}; install it with: {builtin.install}") from error


def _import(spec: str, name: str) -> ModuleType:
    """Import the user's module. Puts the current folder on the path, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the module may have been written a moment ago
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name in prefixes(name) and not _user_frames(error):
            near = _near(name, [path.stem for path in Path.cwd().glob("*.py")])
            what = f"no module {error.name}, neither in {here} nor installed{near}"
            _bad(spec, what, error)
        what = f"importing {name} failed{_at(error)}: {_one_line(error)}; install it, or mend that"
        _bad(spec, what, error)
    except BaseException as error:  # noqa: BLE001 - a module may also leave by SystemExit
        how = "ended the program" if isinstance(error, SystemExit) else "failed"
        what = f"importing {name} {how}{_at(error)}: {_told(error)}"
        _bad(spec, what, error)


def _attribute(spec: str, module: ModuleType, path: str) -> Any:
    value: Any = module
    owner = f"module {module.__name__}"
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            near = _near(name, dir(value)) or _managers_in(value)
            what = f"{owner} has no attribute {name}" if name else "names no attribute"
            _bad(spec, f"{what}{near}", error)
        except Exception as error:  # noqa: BLE001 - a module's own __getattr__ may
            what = f"reading {name} of {owner} failed{_at(error)}: {_told(error)}"
            _bad(spec, what, error)
        owner = name
    return value


def _managers_in(value: object) -> str:
    """A hint at the managers that a module has."""
    names = [
        name
        for name, held in vars(value).items()
        if isinstance(held, type) and all(hasattr(held, method) for method in METHODS)
    ]
    return f"; it has {' and '.join(names)}" if names else ""


def _check_signature(name: str, factory: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables written in C have none; then the call tells
        return
    try:
        signature.bind(1, 1, 1)
    except TypeError as error:
        what = f"takes {signature}, which (num_blocks, block_size, head_dim) does not fit: {error}"
        _bad(name, f"{what}; {_A_TARGET}", error)


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


def _bad(spec: str, what: str, cause: BaseException | None = None) -> NoReturn:
    raise BadTarget(f"target {spec!r}: {what}") from cause


def _near(word: str, known: Iterable[str]) -> str:
    matches = get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


def _one_line(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - even the message is the target's code
        text = "(its message can't be shown)"
    return text if len(text) <= 300 else f"{text[:300]}..."


def _told(error: BaseException) -> str:
    text = _one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_LIBRARIES = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("platstdlib"),
    str(Path(__file__).parent),
    "<",
)


def _user_frames(error: BaseException) -> list[tuple[str, int | None]]:
    """File and line of each frame that is neither Python's, nor installed, nor ours."""
    return [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_LIBRARIES)
        and not {"site-packages", "dist-packages"} & set(Path(frame.filename).parts)
    ]


def _at(error: BaseException) -> str:
    """Where it happened, as " at file:line" of the innermost frame of the user's; or nothing."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        file, line = error.filename, error.lineno
    elif frames := _user_frames(error):
        file, line = frames[-1][0], frames[-1][1] or 0
    else:
        return ""
    path = Path(file)
    return f" at {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
