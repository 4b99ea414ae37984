"""Getting what a name stands for out of somebody's code, and saying in one line what is wrong.

A module may raise anything, or leave, when it is imported or asked for an attribute.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from pagedkv.builtin import prefixes

METHODS = ("allocate_for_prefill", "allocate_for_decode", "release_request")
"""What a manager has, by which one is known."""


class BadTarget(ValueError):
    """A target that can't be had: the message is one line, with the name and what to do."""


def refuse(spec: str, what: str, cause: BaseException | None = None) -> NoReturn:
    """Raise BadTarget for the target of this name."""
    raise BadTarget(f"target {spec!r}: {what}") from cause


def imported(spec: str, name: str) -> ModuleType:
    """Import the user's module. Puts the current folder on the path, as `python -m` does.

    Raises BadTarget for whatever comes of it.
    """
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
            near = did_you_mean(name, [path.stem for path in Path.cwd().glob("*.py")])
            what = f"no module {error.name}, neither in {here} nor installed{near}"
            refuse(spec, what, error)
        what = (
            f"importing {name} failed{place_of(error)}: {one_line(error)}; install it, or mend that"
        )
        refuse(spec, what, error)
    except BaseException as error:  # noqa: BLE001 - a module may also leave by SystemExit
        how = "ended the program" if isinstance(error, SystemExit) else "failed"
        what = f"importing {name} {how}{place_of(error)}: {told(error)}"
        refuse(spec, what, error)


def attribute_of(spec: str, module: ModuleType, path: str) -> Any:
    """What stands at a dotted path in the module; raises BadTarget where nothing does."""
    value: Any = module
    owner = f"module {module.__name__}"
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            near = did_you_mean(name, dir(value)) or _managers_in(value)
            what = f"{owner} has no attribute {name}" if name else "names no attribute"
            refuse(spec, f"{what}{near}", error)
        except Exception as error:  # noqa: BLE001 - a module's own __getattr__ may
            what = f"reading {name} of {owner} failed{place_of(error)}: {told(error)}"
            refuse(spec, what, error)
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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the known words that are like it; nothing where none is."""
    matches = get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""


def one_line(error: BaseException) -> str:
    """The message on one line, and not a long one; raises nothing."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - even the message is the target's code
        text = "(its message can't be shown)"
    return text if len(text) <= 300 else f"{text[:300]}..."


def told(error: BaseException) -> str:
    """The kind of the error, and its message if it has one."""
    text = one_line(error)
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


def place_of(error: BaseException) -> str:
    """Where it happened, as " at file:line" of the innermost frame of the user's; or nothing."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        file, line = error.filename, error.lineno
    elif frames := _user_frames(error):
        file, line = frames[-1][0], frames[-1][1] or 0
    else:
        return ""
    path = Path(file)
    return f" at {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
