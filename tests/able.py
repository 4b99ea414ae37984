"""Settings, models and states of targets with abilities, on plain data.

A model is made by commands, as in a history; what is seen is what a right allocator with these
tables would show, and a test names only what it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from builders import declaring, setting
from pagedkv import Declarations, Request, Snapshot
from pagedkv.specs.commands import Command
from pagedkv.specs.model import EMPTY, POISON, Geometry, Model, Setting
from pagedkv.specs.steps import Handle, Observation, State

NULL = -1

Tables = Mapping[int, tuple[int, ...]]


def able(
    *names: Any,
    blocks: int = 4,
    size: int = 2,
    requests: int = 3,
    host: int = 0,
    keeps_released: bool = True,
    varied: bool = False,
    **declared: Any,
) -> Setting:
    """A pool of 4 blocks of 2 tokens and a target with these abilities, all of them tried.

    With `window` its null block is -1.
    """
    if "window" in names:
        declared = {"null_block": NULL, **declared}
    says: Declarations = declaring(abilities=frozenset(names), **declared)
    usable = frozenset(range(blocks))
    geometry = Geometry(blocks, size)
    active = frozenset(says.abilities)
    return Setting(geometry, says, usable, requests, keeps_released, active, host, varied)


PLAIN = setting(num_blocks=4, block_size=2)
"""The same pool and a target without any."""


def after(within: Setting, *commands: Command, start: Model = EMPTY) -> Model:
    """Where these commands lead, each of which makes sense and is granted."""
    for command in commands:
        assert command.enabled(start, within), command
        start = command.advance(start, within)
    return start


def seen(
    within: Setting,
    dense: Model,
    tables: Tables,
    *,
    contents: Mapping[int, Any] | None = None,
    ends: Mapping[int, float] | None = None,
    reports: Mapping[int, Any] | None = None,
    handles: Mapping[int, Handle] | None = None,
    **snapshot: Any,
) -> State:
    """What is seen of a target with these tables after the history that led to the model.

    `ends` and `handles` are put over what they should be; `snapshot` are fields of it.
    """
    held = {block for table in tables.values() for block in table}
    gone = held.union(snapshot.get("cached", ()), snapshot.get("withheld") or ())
    lens = {r: len(tags) for r, tags in dense.live.items()}
    fields: dict[str, Any] = {
        "block_tables": tables,
        "seq_lens": lens,
        "free_blocks": tuple(sorted(within.usable - gone)),
        **snapshot,
    }
    every = {**lens, **{r: len(tags) for r, tags in dense.swapped.items()}, **dense.released}
    shown = {r: Handle(r, n, tables.get(r, ()), (0,) * n, n) for r, n in every.items()}
    read = {r: within.readable(tags) for r, tags in dense.live.items()} | dict(contents or {})
    last = ends_of(within, dense, tables) | dict(ends or {})
    observation = Observation(
        Snapshot(**fields),
        shown | dict(handles or {}),
        lambda: read,
        lambda: reports,
        ends=last,
    )
    return State(within, dense, observation)


def ends_of(within: Setting, dense: Model, tables: Tables) -> dict[int, float]:
    """The tag in the last slot of each block that a table names."""
    size, ends = within.geometry.block_size, dict[int, float]()
    for r, table in tables.items():
        tags = dense.live.get(r, ())
        for i, block in enumerate(table):
            end = (i + 1) * size - 1
            ends[block] = tags[end] if end < len(tags) else ends.get(block, POISON)
    return ends


def named(commands: Iterable[Command]) -> list[str]:
    """The commands in words."""
    return [str(command) for command in commands]


class Told:
    """A manager that only says which of its calls was made, and with what."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: (name, *given)


def said(command: Command, *names: int) -> tuple[Any, ...]:
    """The call that a command makes on a manager with these requests, each by its name."""
    handles = {r: Request(r, 4) for r in names}
    made: Any = command.perform(Told(), handles)
    call, *given = made
    return (call, *(f"r{g.request_id}" if isinstance(g, Request) else g for g in given))
