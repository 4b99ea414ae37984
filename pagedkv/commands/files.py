"""Files that commands read and write: checked before a long run, written whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import Refused

if TYPE_CHECKING:
    from pagedkv.stateful.report import Report
    from pagedkv.stateful.traces import Trace

STDOUT = Path("-")


def check_writable(path: Path, option: str) -> None:
    """Refuse what can't be written now, not after a long run. Leaves nothing behind."""
    try:
        if path == STDOUT or _is_device(path):
            return
        path = path.resolve()
        if path.is_dir():
            raise Refused(f"{option} {path}: is a folder; name a file in it")
        if not path.parent.is_dir():
            raise Refused(f"{option} {path}: there is no folder {path.parent}; make it first")
        _beside(path).touch(exist_ok=False)
        _beside(path).unlink()
    except OSError as error:
        what = f"can't be written: {reason_of(error)}; name another file"
        raise Refused(f"{option} {path}: {what}") from error


def write_whole(path: Path, text: str, option: str) -> None:
    """Put `text` into the file, all of it or, if that fails, nothing. Raises Refused."""
    try:
        if _is_device(path):
            path.write_text(text, encoding="utf-8")
            return
        path = path.resolve()
        try:
            _beside(path).write_text(text, encoding="utf-8")
            _beside(path).replace(path)
        finally:
            _beside(path).unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"{option} {path}: can't be written: {reason_of(error)}") from error


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _is_device(path: Path) -> bool:
    """Something like /dev/stdout, which must not be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def reason_of(error: Exception) -> str:
    """What the operating system said."""
    return getattr(error, "strerror", None) or str(error)


def put(text: str, file: Path, option: str) -> None:
    """Write `text` into the file, or to stdout. Raises Refused."""
    from pagedkv.terminal import give_up

    if file != STDOUT:
        write_whole(file, text, option)
        return
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        give_up(sys.stdout)


# ---------------------------------------------------------------- traces


def read(path: Path) -> Trace:
    """The trace in a file. Raises Refused."""
    from pagedkv.stateful.traces import BadTrace, read_trace

    try:
        return read_trace(path)
    except BadTrace as error:
        raise Refused(str(error)) from error


def check_folder(folder: Path) -> None:
    """Make the folder for traces, unless it is there. Raises Refused if that can't be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _beside(folder / "trace").touch(exist_ok=False)
        _beside(folder / "trace").unlink()
    except OSError as error:
        what = "is a file; name a folder" if folder.is_file() else reason_of(error)
        raise Refused(f"--traces {folder}: can't be written: {what}") from error


def places_of_traces(folder: Path, report: Report) -> list[Path]:
    """Where `write_traces` writes each counterexample; writes nothing."""
    from pagedkv.stateful.traces import file_name

    names: dict[str, Path] = {}
    for target in report.targets:
        for example in target.counterexamples:
            name = file_name(target.target, example.property, names)
            names[name] = folder / name
    return list(names.values())


def write_traces(folder: Path, report: Report) -> list[Path]:
    """One file in `folder` for each counterexample; older ones of the same name are replaced.

    Raises Refused.
    """
    from pagedkv.stateful.traces import Trace, write_trace

    places = places_of_traces(folder, report)
    left = iter(places)
    for target in report.targets:
        for example in target.counterexamples:
            file = next(left)
            trace = Trace(
                target.target,
                example.geometry,
                example.commands,
                example.property,
                fault=example.fault,
            )
            try:
                write_trace(file, trace)
            except OSError as error:
                raise Refused(f"--traces {file}: can't be written: {reason_of(error)}") from error
    return places
