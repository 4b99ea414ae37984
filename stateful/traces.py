"""Traces: histories in files that last, as versioned JSON Lines.

The first line is an object with the version, the target, the geometry and the property that the
last command breaks; every further line is one command:

    {"pagedkv-trace": 1, "target": "mine:M", "geometry": {"num_blocks": 2, "block_size": 1,
     "head_dim": 1}, "breaks": "conservation"}
    {"op": "prefill", "request": 0, "tokens": 1}

`"fault": {"step": 2, "call": 3, "mode": "once"}` in the first line says that a call inside the
second command is to fail. Further fields of it are for later versions.

Reading a trace runs nothing of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pagedkv.specs.catalogue import PROPERTIES, command_from_json
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import Fault, fault_from_json
from pagedkv.specs.model import Geometry

VERSION = 1
MARK = "pagedkv-trace"
FIRST_COMMAND = 2
"""The number of the line that has the first command."""


class BadTrace(ValueError):
    """A file that is no trace: one line that says where, what is wrong and what is right."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A history with what it takes to run it again.

    breaks: the property that the history breaks; None if that is not known. fault: which call
    inside it fails; None is none.
    """

    target: str
    geometry: Geometry
    commands: tuple[Command, ...]
    breaks: str | None = None
    version: int = VERSION
    fault: Fault | None = None

    def header(self) -> dict[str, Any]:
        """The first line, as data; changes nothing."""
        return {
            MARK: self.version,
            "target": self.target,
            "geometry": {f.name: getattr(self.geometry, f.name) for f in fields(self.geometry)},
            "breaks": self.breaks,
            **({} if self.fault is None else {"fault": self.fault.to_json()}),
        }


# ---------------------------------------------------------------- writing


def write_trace(path: Path, trace: Trace) -> None:
    """Write the whole trace or nothing; an older file is replaced. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(text_of(trace))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def text_of(trace: Trace) -> Iterator[str]:
    """The lines of the trace's file, each with its end; changes nothing."""
    yield json.dumps(trace.header()) + "\n"
    for command in trace.commands:
        yield json.dumps(command.to_json()) + "\n"


def file_name(target: str, prop: str, taken: Iterable[str] = ()) -> str:
    """A name for the trace of a target's counterexample; changes nothing.

    It has neither a folder nor a leading dot in it, whatever the target is called, and is none of
    those `taken`.
    """
    name = "-".join(re.sub(r"[^A-Za-z0-9_+]+", "-", part).strip("-") for part in (target, prop))
    name = name.strip("-")[:100] or "trace"
    used, number, unique = set(taken), 1, name
    while f"{unique}.jsonl" in used:
        number += 1
        unique = f"{name}-{number}"
    return f"{unique}.jsonl"


# ---------------------------------------------------------------- reading


def read_trace(path: Path) -> Trace:
    """Read a trace; changes nothing. Raises BadTrace as `file:line: what is wrong, what is right`.

    A line that was there before costs next to nothing, and equal commands are one object.
    """
    try:
        with path.open("rb") as file:
            header = _header(_parsed(path, 1, file.readline().removeprefix(b"\xef\xbb\xbf")), path)
            read = _Reader(path)
            known: dict[bytes, Command] = {}
            commands: list[Command] = []
            ended = 0
            for number, line in enumerate(file, start=FIRST_COMMAND):
                command = known.get(line)
                if command is None:
                    if not line.strip():
                        ended = ended or number
                        continue
                    command = known[line] = read(number, line)
                if ended:
                    raise BadTrace(f"{path}:{ended}: a blank line; one command stands on each line")
                commands.append(command)
    except OSError as error:
        raise BadTrace(f"{path}: can't be read: {error.strerror or error}") from error
    return replace(header, commands=tuple(commands))


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The object on one line; raises BadTrace if there is none."""
    where = f"{path}:{number}"
    try:
        data = json.loads(line.decode("utf-8"), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        why = (
            "nested too deeply"
            if isinstance(error, RecursionError)
            else " ".join(str(error).split())
        )
        raise BadTrace(f"{where}: no JSON object ({why}): {_shown(line)}") from error
    if not isinstance(data, dict):
        raise BadTrace(f"{where}: a JSON object is due, not {_shown(line)}")
    return data


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a field stands there twice")
    return data


def _shown(line: bytes) -> str:
    text = line.strip().decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _header(data: dict[str, Any], path: Path) -> Trace:
    where = f"{path}:1"
    if MARK not in data:
        raise BadTrace(f'{where}: no trace; the first line starts with {{"{MARK}": {VERSION}, ...')
    version = data[MARK]
    if type(version) is not int or version < 1:
        raise BadTrace(f"{where}: {MARK} = {version!r} must be a version, like {VERSION}")
    if version > VERSION:
        raise BadTrace(
            f"{where}: version {version} is newer than this pagedkv, which reads up to {VERSION}; "
            f"update pagedkv"
        )
    if missing := [name for name in ("target", "geometry", "breaks") if name not in data]:
        raise BadTrace(f"{where}: lacks {', '.join(missing)}; it has target, geometry and breaks")
    target, breaks = data["target"], data["breaks"]
    if not isinstance(target, str) or not target:
        raise BadTrace(f"{where}: target = {target!r} must be a target's name")
    if breaks is not None and (not isinstance(breaks, str) or breaks not in PROPERTIES):
        near = get_close_matches(str(breaks), PROPERTIES, n=1)
        hint = f"did you mean {near[0]}?" if near else "it is a property's id, or null"
        raise BadTrace(f"{where}: breaks = {breaks!r} is no property; {hint}")
    geometry, fault = _geometry(data["geometry"], where), _fault(data.get("fault"), where)
    return Trace(target, geometry, (), breaks, version, fault)


def _fault(data: object, where: str) -> Fault | None:
    try:
        return None if data is None else fault_from_json(data)
    except ValueError as error:
        raise BadTrace(f"{where}: {error}") from error


def _geometry(data: object, where: str) -> Geometry:
    names = [f.name for f in fields(Geometry)]
    if not isinstance(data, dict) or set(data) != set(names):
        raise BadTrace(f"{where}: geometry = {data!r} must be an object of {', '.join(names)}")
    for name in names:
        if type(data[name]) is not int or data[name] < 1:
            raise BadTrace(f"{where}: {name} = {data[name]!r} must be an integer >= 1")
    return Geometry(**data)


_REQUEST = re.compile(rb'"request": ?(0|[1-9][0-9]{0,15})(?=[,} ])')


class _Reader:
    """Reads lines that were not there before.

    In a long history most of them differ in the request only: the line without that number is
    read and checked once, and then the number is put in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shapes: dict[bytes, Callable[[int], Command] | None] = {}

    def __call__(self, number: int, line: bytes) -> Command:
        found = _REQUEST.search(line)
        if found is None:
            return self._whole(number, line)
        shape = line[: found.start(1)] + b"0" + line[found.end(1) :]
        if shape not in self._shapes:
            self._shapes[shape] = _maker(self._whole(number, shape))
        make = self._shapes[shape]
        return self._whole(number, line) if make is None else make(int(found[1]))

    def _whole(self, number: int, line: bytes) -> Command:
        try:
            return command_from_json(_parsed(self._path, number, line))
        except BadTrace:
            raise
        except ValueError as error:
            raise BadTrace(f"{self._path}:{number}: {error}") from error


def _maker(command: Command) -> Callable[[int], Command] | None:
    """Makes the same command for another request; None if 0 is not where the request stands."""
    if command.request != 0:
        return None
    kind: Callable[..., Command] = type(command)
    values = {f.name: getattr(command, f.name) for f in fields(command)}
    del values["request"]
    return lambda request: kind(request=request, **values)
