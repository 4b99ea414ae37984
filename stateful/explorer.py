"""Exhaustive search: every history of a scope, shortest first, equal states merged.

Depth by depth across all geometries, commands in canonical order: the first history that breaks
a property is the canonical one, and nothing shorter in the scope breaks it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from time import monotonic, process_time

from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.exploration import (
    INTERRUPTED,
    VARIES,
    Exploration,
    Found,
    Limits,
    Progress,
)
from pagedkv.stateful.paths import Nodes, Paths
from pagedkv.stateful.shards import Division, Shard
from pagedkv.stateful.trust import (
    Distrust,
    NotDeterministic,
    System,
    Trust,
    key_of,
    same_from_here,
)

MakeWorld = Callable[[Geometry], System]


def explore(
    make: MakeWorld,
    geometries: Sequence[Geometry],
    new_judge: Callable[[], Judge],
    limits: Limits,
    on_progress: Callable[[Progress], None] = lambda _: None,
    shard: Shard | None = None,
) -> tuple[Exploration, Judge]:
    """Search all histories of the scope, or a shard of them; changes nothing but its worlds."""
    search = Search(make, geometries, new_judge, on_progress, shard)
    return search.until(limits), search.judge


class Search:
    """A search of one scope that can be gone on with where it came to the depth it was to have.

    What the target offers for speed (its own key, copies) is trusted only as long as checking
    it holds; then the search starts again without.
    """

    def __init__(
        self,
        make: MakeWorld,
        geometries: Sequence[Geometry],
        new_judge: Callable[[], Judge],
        on_progress: Callable[[Progress], None] = lambda _: None,
        shard: Shard | None = None,
    ) -> None:
        self._start = partial(_Search, make, geometries, new_judge, on_progress, shard)
        self._doubts: tuple[str, ...] = ()
        self._search = self._start(None)

    @property
    def judge(self) -> Judge:
        """Who judged what was searched; not what was searched before a new start."""
        return self._search.judge

    def until(self, limits: Limits) -> Exploration:
        """Search up to these limits, which count from now; a search that ended begins again."""
        if not self._search.may_go_on:
            self._search = self._start(self._search.trust)
        start = (monotonic(), process_time())
        while True:
            try:
                return self._search.run(limits, start, self._doubts)
            except Distrust as distrust:
                # What can't be seen is given up once for each key, for one reason.
                self._doubts = tuple(dict.fromkeys((*self._doubts, distrust.reason)))
                self._search = self._start(distrust.less(self._search.trust))


class _Stop(Exception):
    """The search ends before it is done."""


class _DeepEnough(_Stop):
    """It ends between two depths, and could go on."""


CHECKED_MERGES = 3
"""Of each kind of command, the first so many merges are checked."""
MERGE_PERIOD = 4093
"""Of all merges, one in so many is checked."""


def _kind(command: Command) -> tuple[object, ...]:
    """What sort of command it is: all of it but the numbers."""
    values = (getattr(command, f.name) for f in fields(command))
    return (command.op, *(value for value in values if not isinstance(value, int | tuple)))


class _Search:
    """One search with one degree of trust.

    Invariant: every state in `_known` was judged and holds; `_frontier` has, per geometry and in
    order of discovery, those at the current depth whose commands were not tried yet.
    """

    def __init__(
        self,
        make: MakeWorld,
        geometries: Sequence[Geometry],
        new_judge: Callable[[], Judge],
        on_progress: Callable[[Progress], None],
        shard: Shard | None,
        trust: Trust | None,
    ) -> None:
        self.judge, self._new_judge = new_judge(), new_judge
        self._on_progress = on_progress
        self._make, self._geometries = make, tuple(geometries)
        self.trust = make(self._geometries[0]).hooks() if trust is None else trust
        self._nodes = Nodes()
        self._paths = Paths(make, self._geometries, self._nodes, self.trust)
        self._division = None if shard is None else Division(shard, self._geometries)
        self._known: list[set[bytes]] = [set() for _ in self._geometries]
        self._frontier = [array("l") for _ in self._geometries]
        self._next = [array("l") for _ in self._geometries]
        self._found: dict[str, Found] = {}
        self._transitions = self._depth = self._merges = 0
        self._checked: Counter[object] = Counter()
        self._kinds: tuple[dict[Command, object], dict[Command, object]] = ({}, {})
        self.may_go_on = True

    def run(
        self, limits: Limits, start: tuple[float, float], doubts: tuple[str, ...]
    ) -> Exploration:
        self._limits, self._start = limits, start
        stopped, self.may_go_on = None, False
        try:
            if not self._nodes:
                self._begin()
            while self._goes_on():
                self._deep_enough()
                for frontier in self._frontier:
                    for node in frontier:
                        self._expand(node)
                self._depth += 1
                self._frontier = self._next
                self._next = [array("l") for _ in self._geometries]
        except _Stop as stop:
            stopped = str(stop)
            # What is other shards' is left to them once for each depth.
            self.may_go_on = isinstance(stop, _DeepEnough) and self._division is None
        except NotDeterministic as error:
            stopped = f"{VARIES}: {error}"
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        return Exploration(
            states=len(self._nodes),
            transitions=self._transitions,
            depth=self._depth,
            stopped=stopped,
            found=dict(self._found),
            trust=self.trust,
            doubts=doubts,
            cuts=() if self._division is None else self._division.cuts,
            keys=dict(zip(self._geometries, self._known, strict=True)),
        )

    def _goes_on(self) -> bool:
        """Whether any state waits, after what is other shards' was left to them."""
        if self._division is not None:
            self._division.divide(self._frontier, self._nodes, self._depth)
        return any(self._frontier)

    def _confirm(self, geometry: Geometry, commands: tuple[Command, ...], name: str) -> None:
        """Break the property once more, from nothing: what is reported can be run again."""
        world, judge = self._make(geometry), self._new_judge()
        found = [v for state in world.states for v in judge.state(state)]
        for command in commands:
            step = world.apply(command)
            found = judge.step(step) + judge.reached(step)
        if any(violation.property.id == name for violation in found):
            return
        run = ", ".join(map(str, commands)) or "nothing"
        if self.trust.key != "none":
            raise Distrust("key", f"{name} broke after {run}, but not when this alone was run")
        if self.trust.clone != "none":
            raise Distrust("clone", f"{name} broke after {run}, but not when this alone was run")
        raise NotDeterministic(f"{name} broke after {run}, and not when this was run again")

    def _deep_enough(self) -> None:
        limits = self._limits
        if limits.depth is not None and self._depth >= limits.depth:
            raise _DeepEnough(f"depth limit of {limits.depth}")
        if limits.beyond is None:
            return
        fatal = [
            len(found.commands)
            for found in self._found.values()
            if not found.violation.property.redundant
        ]
        if fatal and self._depth >= max(min(fatal) + limits.beyond, limits.at_least):
            raise _Stop(f"a violation was found, and all of {self._depth} commands were tried")

    def _begin(self) -> None:
        for g, geometry in enumerate(self._geometries):
            world = self._make(geometry)
            key = key_of(world, self.trust)
            node = self._nodes.add_root(key, g)
            found = [violation for state in world.states for violation in self.judge.state(state)]
            if not self._record(found, node, ()):
                if key is not None:
                    self._known[g].add(key)
                self._frontier[g].append(node)

    def _expand(self, node: int) -> None:
        """Try every command from `node`."""
        self._watch()
        nodes, key_here = self._nodes, self._nodes.key(node)
        g = nodes.geometry(node)
        known = self._known[g]
        world = self._paths.fork(node)
        moved = False
        for command in world.candidates():
            if moved:
                self._in_time()  # one call may take long
                world = self._paths.fork(node)
            moved = True
            step = world.apply(command)
            self._transitions += 1
            if violations := self.judge.step(step):
                violations += self.judge.reached(step)
                if self._record(violations, node, (command,)):
                    continue
            key = key_of(world, self.trust)
            moved = key is None or key != key_here
            if key is not None and key in known:
                self._merge(node, command, key, moved=moved)
            elif not self._record(self.judge.reached(step), node, (command,)):
                child = nodes.add(key, node, command)
                if key is not None:
                    known.add(key)
                self._next[g].append(child)

    def _in_time(self) -> None:
        hard, (wall, _) = self._limits.hard_seconds, self._start
        if hard is not None and monotonic() - wall > hard:
            raise _Stop(f"its {hard:.1f} s were spent")

    def _merge(self, parent: int, command: Command, key: bytes, *, moved: bool) -> None:
        """Now and then, continue two states that were taken for one."""
        self._merges += 1
        kinds = self._kinds[moved]
        kind = kinds.get(command)
        if kind is None:
            kind = kinds[command] = (_kind(command), moved)
        self._checked[kind] += 1
        if self._checked[kind] > CHECKED_MERGES and self._merges % MERGE_PERIOD:
            return
        known = self._nodes.find(key, self._nodes.geometry(parent)) if moved else parent
        here = self._paths.copies(parent, command)
        difference = same_from_here(here, self._paths.copies(known), self.trust)
        if difference is not None:
            self._paths.steady(here)
            raise Distrust("key", f"two states with one key: {difference}")

    def _record(self, violations: list[Violation], node: int, last: tuple[Command, ...]) -> bool:
        """Keep the first history of each property; returns whether the history ends here."""
        for violation in violations:
            name = violation.property.id
            if name not in self._found:
                commands = (*self._nodes.history(node), *last)
                geometry = self._geometries[self._nodes.geometry(node)]
                self._confirm(geometry, commands, name)
                self._found[name] = Found(violation, geometry, commands, len(self._nodes))
        enough = self._limits.enough
        if self._found and enough == "any":
            raise _Stop("a violation was found, and one was looked for")
        if enough is not None and self._found.keys() >= set(enough):
            raise _Stop("found what was looked for")
        return not all(violation.property.redundant for violation in violations)

    def _watch(self) -> None:
        states = len(self._nodes)
        limits, (_, cpu) = self._limits, self._start
        soft = limits.seconds
        if soft is not None and self._depth >= limits.at_least and process_time() - cpu > soft:
            raise _Stop(f"its {soft:.1f} s of processor time were spent")
        self._in_time()
        if self._limits.states is not None and states > self._limits.states:
            raise _Stop(f"limit of {self._limits.states} states")
        if self._transitions // 64 % 16 == 0:
            waiting = sum(map(len, self._frontier))
            self._on_progress(Progress(states, self._transitions, self._depth, waiting))
