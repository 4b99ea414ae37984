"""Commands: calls as plain data, each knowing what is due and how the model moves.

An ability brings its own subclasses. A command's dataclass fields are its JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pagedkv.protocol import PagedKVManager, Request
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.steps import Expected, State

Handles = MutableMapping[int, Request]
Undo = Callable[[], None]


def nothing_to_undo() -> None:
    """Undo nothing."""


@dataclass(frozen=True, slots=True)
class Command(ABC):
    """One call on a manager. `request` is the request's name in the history."""

    op: ClassVar[str]
    takes_blocks: ClassVar[bool] = True
    """Whether running out of blocks is an answer that the call can give."""
    request: int

    @abstractmethod
    def enabled(self, model: Model, setting: Setting) -> bool:
        """Whether the command makes sense after this history; changes nothing."""

    @abstractmethod
    def expect(self, model: Model, setting: Setting) -> Expected:
        """What is due, from the logical model alone; changes nothing."""

    @abstractmethod
    def prepare(self, handles: Handles, state: State) -> Undo:
        """Make the handle ready for the call; return what takes this back after a refusal."""

    @abstractmethod
    def perform(self, manager: PagedKVManager, request: Request) -> object:
        """Call the manager; mutates it and the handle."""

    def advance(self, model: Model, setting: Setting) -> Model:
        """The model after a grant; changes nothing."""
        return model

    def to_json(self) -> dict[str, Any]:
        """`{"op": ..., fields}`."""
        return {"op": self.op, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def __str__(self) -> str:
        return f"{self.op}({', '.join(str(getattr(self, f.name)) for f in fields(self))})"
