"""A journal of a campaign: where it is, in a file that outlives the process.

Written only in the second run of a target whose first run died or hung, since it costs as much as
a small manager's call. A campaign is deterministic, so that the second run comes to the same end.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, Literal, Self

from pagedkv.specs.catalogue import command_from_json
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.specs.steps import Outcome, Raised, Step
from pagedkv.stateful.observe import told
from pagedkv.stateful.target import Factory
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.world import World

SIZE = 1 << 20
_HEADER = struct.Struct("=Q1s")

Phase = Literal["making", "call", "look"]
_PHASES: dict[bytes, Phase] = {b"m": "making", b"c": "call", b"l": "look"}
_SIGNS = {phase: sign for sign, phase in _PHASES.items()}


class CtrlC(KeyboardInterrupt):
    """The user's, and not one that a target raised by itself."""


@dataclass(frozen=True, slots=True)
class Last:
    """What a journal says last: the history, its last command included, and what went on."""

    geometry: Geometry
    commands: tuple[Command, ...]
    phase: Phase

    def __str__(self) -> str:
        pool = f"a fresh pool of {self.geometry}"
        if not self.commands:
            return f"while {pool} was made or looked at"
        history = ", ".join(map(str, self.commands[:-1]))
        where = f"after {history} in {pool}" if history else f"in {pool}"
        last = self.commands[-1]
        if self.phase == "look":
            return f"when it was looked at, or copied, after {last}, {where}"
        return f"in {last}, {where}"


class Journal:
    """One record in a file that is mapped into memory; what was written last stands there."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(SIZE)
            self._map = mmap(file.fileno(), SIZE)

    def write(self, phase: Phase, text: bytes) -> None:
        """Replace the record. What is too long for the file is cut to nothing."""
        text = text if len(text) <= SIZE - _HEADER.size else b""
        self._map[_HEADER.size : _HEADER.size + len(text)] = text
        self._map[: _HEADER.size] = _HEADER.pack(len(text), _SIGNS[phase])

    def phase(self, phase: Phase) -> None:
        """Replace the phase alone."""
        self._map[_HEADER.size - 1 : _HEADER.size] = _SIGNS[phase]


def last_of(path: Path) -> Last | None:
    """What the journal in this file says; None if it says nothing."""
    data = path.read_bytes()
    if len(data) < _HEADER.size:
        return None
    length, sign = _HEADER.unpack_from(data)
    lines = data[_HEADER.size : _HEADER.size + length].splitlines()
    if not lines:
        return None
    geometry, *commands = map(json.loads, lines)
    return Last(Geometry(**geometry), tuple(map(command_from_json, commands)), _PHASES[sign])


class JournaledWorld(World):
    """A world that says what it does before it does it.

    A KeyboardInterrupt that is not the user's is an answer like any other here.
    """

    def __init__(
        self, journal: Journal, factory: Factory, geometry: Geometry, **scope: Any
    ) -> None:
        self._journal = journal
        self._trail = json.dumps(asdict(geometry)).encode()
        journal.write("making", self._trail)
        super().__init__(factory, geometry, **scope)

    def apply(self, command: Command) -> Step:
        self._trail += b"\n" + json.dumps(command.to_json()).encode()
        self._journal.write("call", self._trail)
        return super().apply(command)

    def _call(self, command: Command) -> Outcome:
        try:
            outcome = super()._call(command)
        except CtrlC:
            raise
        except KeyboardInterrupt as error:
            outcome = Raised(type(error).__name__, told(error))
        self._journal.phase("look")
        return outcome

    def clone(self, trust: Trust) -> Self:
        self._journal.write("look", self._trail)
        copy = super().clone(trust)
        copy._journal, copy._trail = self._journal, self._trail
        return copy

    def key(self, trust: Trust, order: tuple[int, ...] | None = None) -> bytes | None:
        self._journal.write("look", self._trail)
        return super().key(trust, order)
