"""How many states of an exhausted scope random histories come through, for the report.

A random history runs with more requests, and with released handles kept. Here it runs once more as
the scope has it: what the scope does not allow is left out, and requests go by the scope's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from pagedkv.specs.commands import Command
from pagedkv.specs.growth import free_name
from pagedkv.specs.model import Geometry
from pagedkv.stateful.trust import System, Trust

History = tuple[Geometry, Sequence[Command]]
States = Mapping[Geometry, Set[bytes]]
"""The keys of a scope's states."""


def reached(
    histories: Iterable[History],
    make: Callable[[Geometry], System],
    states: States,
    trust: Trust,
) -> int:
    """The number of different states of the scope that the histories come through.

    make: the scope's worlds. trust: how its keys were taken. Changes nothing but worlds it makes.
    """
    seen: set[tuple[Geometry, bytes]] = set()
    for geometry, commands in histories:
        known = states.get(geometry)
        if known:
            keys = _keys(make(geometry), commands, trust)
            seen.update((geometry, key) for key in keys if key in known)
    return len(seen)


def _keys(world: System, commands: Sequence[Command], trust: Trust) -> Iterable[bytes]:
    """The key of each state on the way; ends where the target can't be looked at."""
    names: dict[int, int] = {}
    if (key := world.key(trust)) is not None:
        yield key
    for command in commands:
        if command.begins:
            name = free_name(world.state.model, world.setting)
            if name is None:
                continue
            names[command.request] = name
        allowed = set(command.names()) <= names.keys()
        renamed = command.renamed(names) if allowed else None
        if renamed is None or renamed not in world.candidates():
            if command.begins:
                del names[command.request]
            continue
        step = world.apply(renamed)
        if not step.observed:
            return
        if step.granted == command.ends and (command.begins or command.ends):
            del names[command.request]
        if (key := world.key(trust)) is not None:
            yield key
