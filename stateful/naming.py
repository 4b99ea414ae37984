"""Which request each command of a history is about, and the smallest names for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush

from pagedkv.specs.commands import Command


def lives(commands: Sequence[Command]) -> list[int]:
    """For each command, the number of the request that it is about; changes nothing.

    An id that is prefilled again after its release is another request. What follows a release
    without that, such as a resume, is about the same one.
    """
    current: dict[int, int] = {}
    ended: set[int] = set()
    numbers: list[int] = []
    made = 0
    for command in commands:
        name = command.request
        if name not in current or (command.begins and name in ended):
            current[name] = made
            made += 1
        if command.ends:
            ended.add(name)
        elif ended:
            ended.discard(name)
        numbers.append(current[name])
    return numbers


def _called(
    command: Command, names: Sequence[int], known: dict[tuple[int, ...], Command]
) -> Command:
    """The command by other names; known by identity, since equal commands mostly are one object."""
    old = command.names()
    if old == (*names,):
        return command
    key = (id(command), *names)
    if key not in known:
        known[key] = command.renamed(dict(zip(old, names, strict=True)))
    return known[key]


class _Naming:
    """Names for requests as they come, the lowest free one for each.

    heirs[w] = forks in which there may be tokens of request w, and that have a name still
    """

    def __init__(self) -> None:
        self._names: dict[int, int] = {}
        self._free: list[int] = []
        self._made = 0
        self._writers: dict[int, set[int]] = {}
        self._heirs: Counter[int] = Counter()
        self._over: set[int] = set()

    def name(self, life: int) -> int:
        """The name of a request, a new one if it has none."""
        if life not in self._names:
            if not self._free:
                heappush(self._free, self._made)
                self._made += 1
            self._names[life] = heappop(self._free)
        return self._names[life]

    def named(self, life: int | None) -> bool:
        """Whether the request has a name and goes on."""
        return life in self._names and life not in self._over

    def forked(self, parent: int, child: int) -> None:
        """What the parent has, its own tokens and those of others, the child has too."""
        writers = self._writers.setdefault(child, set())
        more = {parent, *self._writers.get(parent, ())} - writers
        writers |= more
        self._heirs.update(more)

    def ended(self, life: int) -> None:
        """Nothing more is said of the request; its name is free once no fork has its tokens."""
        self._over.add(life)
        for writer in self._writers.pop(life, ()):
            self._heirs[writer] -= 1
            self._give_up(writer)
        self._give_up(life)

    def _give_up(self, life: int) -> None:
        if life in self._over and not self._heirs[life]:
            self._over.discard(life)
            heappush(self._free, self._names.pop(life))


def renamed(commands: Sequence[Command]) -> tuple[Command, ...]:
    """The same history with each request called by the lowest name that is free; changes nothing.

    A name is free before the first and after the last command about its request, if the request
    holds nothing then: one that is never released keeps it, as does one whose tokens a fork has.
    Tags are made from names, so that names must stay small.
    """
    about = lives(commands)
    last = {life: i for i, life in enumerate(about)}
    holds: set[int] = set()
    naming = _Naming()
    current: dict[int, int] = {}  # what is called so now, by old name
    known: dict[tuple[int, ...], Command] = {}
    result: list[Command] = []
    for i, (command, life) in enumerate(zip(commands, about, strict=True)):
        old = command.names()
        if not old:
            result.append(command)
            continue
        own = naming.name(life)
        current[command.request] = life
        others = [current[name] for name in old[1:] if naming.named(current.get(name))]
        for other in others:
            naming.forked(other, life)
        # One that is over can't be forked: nor can a request from itself.
        whole = len(others) == len(old) - 1
        names = [own, *map(naming.name, others)] if whole else [own] * len(old)
        result.append(_called(command, names, known))
        if command.ends:
            holds.discard(life)
        elif command.takes:
            holds.add(life)
        if last[life] == i and life not in holds:
            naming.ended(life)
    return tuple(result)
