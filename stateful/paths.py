"""The states of a search, kept as parent and command, and how to get back to one."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace

from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.stateful.observe import in_words
from pagedkv.stateful.trust import (
    UNCOPIED,
    Distrust,
    NotDeterministic,
    System,
    Trust,
    same_from_here,
)

CHECKED_CLONES = 8
"""The first so many copies are checked, and then one in `CLONE_PERIOD`."""
CLONE_PERIOD = 1024
KEY_PERIOD = 16
"""Of copies, one in so many has its key compared, and all of the first."""


class Nodes:
    """Every state found: its key, the state before it, and the command between the two.

    A root is its own parent. Packed: a search finds millions of them.
    """

    def __init__(self) -> None:
        self._keys = bytearray()
        self._width = 0  # of a key; 0 where none can be taken
        self._parents = array("l")
        self._commands = array("i")
        self._geometries = array("h")
        self._names: dict[Command, int] = {}
        self._by_name: list[Command] = []

    def __len__(self) -> int:
        return len(self._parents)

    def add_root(self, key: bytes | None, geometry: int) -> int:
        """Add a fresh target's state; returns its number."""
        return self._add(key, len(self), 0, geometry)

    def add(self, key: bytes | None, parent: int, command: Command) -> int:
        """Add the state that `command` leads to from `parent`; returns its number."""
        name = self._names.setdefault(command, len(self._by_name))
        if name == len(self._by_name):
            self._by_name.append(command)
        return self._add(key, parent, name, self._geometries[parent])

    def _add(self, key: bytes | None, parent: int, name: int, geometry: int) -> int:
        if key is not None:
            self._keys += key
            self._width = len(key)
        self._parents.append(parent)
        self._commands.append(name)
        self._geometries.append(geometry)
        return len(self) - 1

    def key(self, node: int) -> bytes | None:
        """The state's key, if keys can be taken."""
        width = self._width
        return bytes(self._keys[node * width : (node + 1) * width]) if width else None

    def find(self, key: bytes, geometry: int) -> int:
        """The state of a geometry that has this key; looks at all, so not to be asked often."""
        at = -1
        while True:
            at = self._keys.index(key, at + 1)
            node, rest = divmod(at, self._width)
            if rest == 0 and self._geometries[node] == geometry:
                return node

    def geometry(self, node: int) -> int:
        """Which geometry of the scope the state belongs to."""
        return self._geometries[node]

    def parent(self, node: int) -> int:
        """The state before; a root's is itself."""
        return self._parents[node]

    def command(self, node: int) -> Command:
        """The command that led here from the parent; a root has none."""
        return self._by_name[self._commands[node]]

    def history(self, node: int) -> tuple[Command, ...]:
        """The commands from the root to the state."""
        commands = []
        while (parent := self._parents[node]) != node:
            commands.append(self.command(node))
            node = parent
        return tuple(reversed(commands))


class Paths:
    """Worlds at any state: kept along the way to the last one, cloned from there.

    Invariant: `_way` holds (state, world) from a root down, each the parent of the next, and the
    worlds in it are never moved.
    """

    def __init__(
        self,
        make: Callable[[Geometry], System],
        geometries: tuple[Geometry, ...],
        nodes: Nodes,
        trust: Trust,
    ) -> None:
        self._make, self._geometries = make, geometries
        self._nodes, self._trust = nodes, trust
        self._way: list[tuple[int, System]] = []
        self._clones = 0

    def fork(self, node: int) -> System:
        """A world at `node` that the caller may move."""
        if self._trust.clone == "none":
            return self.replay(node)
        world = self._clone(self._at(node))
        self._clones += 1
        if self._clones % KEY_PERIOD == 0 or self._clones <= KEY_PERIOD * CHECKED_CLONES:
            self._check_key(node, world)
        if self._clones <= CHECKED_CLONES or self._clones % CLONE_PERIOD == 0:
            self._check(node, world)
        return world

    def copies(self, node: int, *after: Command) -> Callable[[], System]:
        """A maker of worlds at `node`, each moved by the commands `after`."""

        def make() -> System:
            world = self.fork(node)
            for command in after:
                world.apply(command)
            return world

        if self._trust.clone == "none":
            return make
        first = make()
        return lambda: self._clone(first)

    def replay(self, node: int) -> System:
        """A fresh world moved to `node`; raises what is to blame if it arrives elsewhere."""
        world = self._run(node)
        if world.key(self._trust) != self._nodes.key(node):
            self.steady(lambda: self._run(node))
            names = ", ".join(map(str, self._nodes.history(node))) or "nothing"
            if self._trust.clone == "none":
                raise NotDeterministic(f"a second run of {names} ended in another state")
            raise Distrust("clone", f"a copy and a second run differ after {names}")
        return world

    def _run(self, node: int) -> System:
        world = self._make(self._geometries[self._nodes.geometry(node)])
        for command in self._nodes.history(node):
            world.apply(command)
        return world

    def _at(self, node: int) -> System:
        if self._way and self._way[-1][0] == node:
            return self._way[-1][1]
        missing = []
        kept = {n: i for i, (n, _) in enumerate(self._way)}
        at = node
        while at not in kept:
            missing.append(at)
            if self._nodes.parent(at) == at:
                break
            at = self._nodes.parent(at)
        del self._way[kept[at] + 1 if at in kept else 0 :]
        for at in reversed(missing):
            if not self._way:
                world = self.replay(at)
            else:
                world = self._clone(self._way[-1][1])
                world.apply(self._nodes.command(at))
                if world.key(self._trust) != self._nodes.key(at):
                    last = self._nodes.command(at)
                    raise Distrust("clone", f"a copy moved by {last} went astray")
            self._way.append((at, world))
        return self._way[-1][1]

    def _clone(self, world: System) -> System:
        try:
            return world.clone(self._trust)
        except Exception as error:
            raise Distrust("clone", f"{UNCOPIED}: {in_words(error)}") from error

    def _check_key(self, node: int, world: System) -> None:
        if world.key(self._trust) != self._nodes.key(node):
            raise Distrust("clone", "a copy has another key than what it was made from")

    def _check(self, node: int, world: System) -> None:
        difference = same_from_here(
            lambda: self._clone(world), lambda: self.replay(node), self._trust
        )
        if difference is not None:
            self.steady(lambda: self.replay(node))
            raise Distrust("clone", f"a copy and a second run: {difference}")

    def steady(self, make: Callable[[], System]) -> None:
        """Raise what is to blame if two of a kind differ: then no copy is.

        NotDeterministic if they answer differently, Distrust of the key if only that differs:
        an address or a running number in the state says nothing about the answers.
        """
        difference = same_from_here(make, make, replace(self._trust, key="none"))
        if difference is not None:
            raise NotDeterministic(f"two runs of one history: {difference}")
        if make().key(self._trust) != make().key(self._trust):
            raise Distrust("key", "two runs of one history answer alike and have different keys")
        difference = same_from_here(make, make, self._trust)
        if difference is not None:
            raise Distrust("key", f"two runs of one history answer alike, but {difference}")
