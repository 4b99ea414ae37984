"""Commands: calls as plain data, each knowing what is due and how the model moves.

An ability brings its own subclasses. A command's dataclass fields are its JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from pagedkv.protocol import Request
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.steps import Expected, State

Handles = MutableMapping[int, Request]
Undo = Callable[[], None]


def nothing_to_undo() -> None:
    """Undo nothing."""


NOBODY = -1
"""The `request` of a command that is about none."""


@dataclass(frozen=True, slots=True)
class Command(ABC):
    """One call on a manager. `request` is the request's name in the history.

    sizes: the fields that are numbers of tokens. takes: the request did not hold blocks before.
    begins, ends: it is a new one from here on, or gives up its name.
    """

    op: ClassVar[str]
    sizes: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[bool] = False
    begins: ClassVar[bool] = False
    ends: ClassVar[bool] = False
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
    def perform(self, manager: Any, handles: Handles) -> object:
        """Call the manager; mutates it and the handle."""

    def written(self, manager: Any, before: State, request: Request) -> int:
        """How many leading tokens need no writing after a grant; changes nothing.

        What the call copied or found is there already.
        """
        return len(before.model.live.get(self.request, ()))

    def advance(self, model: Model, setting: Setting) -> Model:
        """The model after a grant; changes nothing."""
        return model

    def question(self) -> tuple[str, tuple[int, ...]] | None:
        """The manager's call that asks whether this would be granted, and what it takes besides
        the request; None where there is none.
        """
        return None

    def asks_about(self) -> int:
        """The request that the question is about."""
        return self.request

    def to_json(self) -> dict[str, Any]:
        """`{"op": ..., fields}`."""
        return {"op": self.op, **{f.name: getattr(self, f.name) for f in fields(self) if f.init}}

    def names(self) -> tuple[int, ...]:
        """The requests that the command is about, its own first."""
        return (self.request,)

    def renamed(self, names: Mapping[int, int]) -> Self:
        """The same command for the requests' new names; changes nothing."""
        return replace(self, request=names[self.request])

    def simpler(self) -> Iterator[Command]:
        """Commands of another kind or shape that ask for less; none with smaller `sizes`."""
        return iter(())

    def scaled(self, size: int, smaller: int, *, full: bool) -> Self:
        """The same numbers of blocks in smaller ones: the last of each full, or with one token."""
        blocks = {name: -(-getattr(self, name) // size) for name in self.sizes}
        sizes = {name: n * smaller if full else (n - 1) * smaller + 1 for name, n in blocks.items()}
        return replace(self, **sizes)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What Hypothesis and IPython show, on one line."""
        printer.text(repr(self))

    def __str__(self) -> str:
        given = (str(getattr(self, f.name)) for f in fields(self) if f.init)
        return f"{self.op}({', '.join(given)})"
