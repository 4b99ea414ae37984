"""What an ability is: commands, how to enumerate them, and properties, as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pagedkv.specs.commands import Command
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import Property


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing that allocators can do. The catalogue lists them; drivers never name one.

    commands: the command classes, in canonical order.
    candidates: every command that makes sense after a history, in canonical order.
    """

    id: str
    statement: str
    commands: tuple[type[Command], ...]
    candidates: Callable[[Model, Setting], Iterable[Command]]
    properties: tuple[Property, ...]
