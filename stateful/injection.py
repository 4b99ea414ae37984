"""Injected failure: every command of every state, with each call inside it failing in turn.

Breadth first over the scope, as the explorer goes, so that the first history found is a shortest
one. From each state each command is run with its 1st, 2nd, ... call failing, once and from then
on, until it gets through with none failing: that run is the search's own transition.

Two things make this affordable, and neither leaves anything out. A world whose whole state is as it
was serves again for the next call. And where no call followed the one that failed once, the run
is the persistent one too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import monotonic, process_time
from typing import cast

from pagedkv.specs.commands import Command
from pagedkv.specs.faults import Fault, Mode
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Broken
from pagedkv.specs.steps import Step
from pagedkv.stateful.aftermath import Aftermath
from pagedkv.stateful.exploration import INTERRUPTED, VARIES, Limits, Progress
from pagedkv.stateful.failing import MakeWorld, apply_failing, under_fault, whole_of
from pagedkv.stateful.paths import Nodes, Paths
from pagedkv.stateful.points import Injector, modules_of
from pagedkv.stateful.report import Injection
from pagedkv.stateful.trust import Distrust, NotDeterministic, System, Trust, key_of
from pagedkv.stateful.world import World

MOST_CALLS = 2000
"""A command with more calls than this inside it is not tried to its end, which is said."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first history in which a failure breaks something, and where it failed."""

    broken: Broken
    geometry: Geometry
    commands: tuple[Command, ...]
    fault: Fault


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one search did. `stopped` is None if nothing of its scope was left out."""

    counts: Injection
    depth: int
    stopped: str | None
    found: Found | None = None

    def covers(self, length: int) -> bool:
        """Whether every history of up to `length` commands was tried, its last one failing."""
        unreliable = self.stopped is not None and self.stopped.startswith((INTERRUPTED, VARIES))
        return self.stopped is None or (self.depth >= length and not unreliable)


class _Stop(Exception):
    """The search ends before it is done."""


class _Hit(Exception):
    """A failure broke something."""

    def __init__(self, found: Found) -> None:
        self.found = found


@dataclass(frozen=True, slots=True)
class Terms:
    """How to search.

    past: redundant properties that the target breaks without any failure. error: what is raised.
    on_progress: told how far it is. note: told what is about to be done, in case it is the last.
    """

    limits: Limits
    past: Collection[str] = ()
    error: type[Exception] = MemoryError
    on_progress: Callable[[Progress], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


def sweep(
    make: MakeWorld, geometries: Sequence[Geometry], terms: Terms, trust: Trust | None = None
) -> Sweep:
    """Search the scope; changes nothing but the worlds it makes. Ends at the first violation.

    trust: what may be relied on, as an earlier search found; None is all that the target brings.
    """
    start = (monotonic(), process_time())
    while True:
        search = _Sweep(make, geometries, terms, start, trust)
        try:
            return search.run()
        except Distrust as distrust:
            trust = distrust.less(search.trust)


@dataclass(slots=True)
class _Here:
    """The state at hand.

    whole: its digest, hidden parts and all; None if it can't be taken. world: one in this state
    that may be moved; None if there is none left.
    """

    node: int
    whole: bytes | None
    world: World | None
    gone_on: set[bytes] = field(default_factory=set)


class _Sweep:
    """One search with one degree of trust.

    Invariant: every state of `_frontier` is reached without a failure, and holds.
    """

    def __init__(
        self,
        make: MakeWorld,
        geometries: Sequence[Geometry],
        terms: Terms,
        start: tuple[float, float],
        trust: Trust | None,
    ) -> None:
        self._make, self._geometries = make, tuple(geometries)
        fresh = make(self._geometries[0])
        self.trust = fresh.hooks() if trust is None else trust
        self._terms, self._start = terms, start
        self._aftermath = Aftermath(fresh, terms.past)
        inside = modules_of(fresh.manager)
        self._injector = Injector(inside, terms.error)
        self._nodes = Nodes()
        made = cast(Callable[[Geometry], System], make)
        self._paths = Paths(made, self._geometries, self._nodes, self.trust)
        self._known: list[set[bytes]] = [set() for _ in self._geometries]
        self._frontier: list[list[int]] = [[] for _ in self._geometries]
        self._next: list[list[int]] = [[] for _ in self._geometries]
        self._counts = Injection(inside=inside)
        self._depth = 0

    def run(self) -> Sweep:
        stopped, found = None, None
        try:
            self._begin()
            while any(self._frontier):
                deepest = self._terms.limits.depth
                if deepest is not None and self._depth >= deepest:
                    raise _Stop(f"depth limit of {deepest}")
                for frontier in self._frontier:
                    for node in frontier:
                        self._state(node)
                self._depth += 1
                self._frontier, self._next = self._next, [[] for _ in self._geometries]
        except _Hit as hit:
            stopped, found = "a violation was found", hit.found
        except _Stop as stop:
            stopped = str(stop)
        except NotDeterministic as error:
            stopped = f"{VARIES}: {error}"
        except KeyboardInterrupt:
            stopped = INTERRUPTED
        self._counts.places = len(self._injector.places)
        return Sweep(self._counts, self._depth, stopped, found)

    def _begin(self) -> None:
        for g, geometry in enumerate(self._geometries):
            key = key_of(self._make(geometry), self.trust)
            self._frontier[g].append(self._nodes.add_root(key, g))
            if key is not None:
                self._known[g].add(key)

    def _fork(self, node: int) -> World:
        return cast(World, self._paths.fork(node))

    def _state(self, node: int) -> None:
        """Try every command from a state."""
        self._watch()
        world = self._fork(node)
        here = _Here(node, whole_of(world), world)
        for command in world.candidates():
            self._command(here, command)
        self._counts.states += 1

    def _command(self, here: _Here, command: Command) -> None:
        """Try one command with each call inside it failing, until it gets through."""
        injector, counts = self._injector, self._counts
        history = ", ".join(map(str, (*self._nodes.history(here.node), command)))
        for call in range(1, MOST_CALLS):
            self._terms.note(f"in the last of {history}, with call {call} failing")
            step = self._try(here, command, call, "once")
            if injector.first is None:
                break
            counts.points += 1
            later = injector.points > call
            self._judge(here, command, Fault(0, call, "once"), step)
            if later:
                step = self._try(here, command, call, "persistent")
                self._judge(here, command, Fault(0, call, "persistent"), step)
            else:
                counts.failures += 1
        else:
            raise _Stop(f"{command} makes more than {MOST_CALLS - 1} calls")
        counts.commands += 1
        counts.spared += injector.spared
        self._through(here, command, step)

    def _try(self, here: _Here, command: Command, call: int, mode: Mode) -> Step:
        if here.world is None:
            here.world = self._fork(here.node)
        return apply_failing(here.world, command, self._injector, call, mode)

    def _through(self, here: _Here, command: Command, step: Step) -> None:
        """Go on from a command in which nothing failed."""
        world = here.world
        assert world is not None
        self._kept(here)
        if not self._aftermath.right(step):
            return  # that is for a search without failures to report
        node, g = here.node, self._nodes.geometry(here.node)
        key = key_of(world, self.trust)
        if key is not None and key in self._known[g]:
            return
        self._next[g].append(self._nodes.add(key, node, command))
        if key is not None:
            self._known[g].add(key)

    def _kept(self, here: _Here) -> bytes | None:
        """The whole state of the world at hand, which is let go unless it is the one it was."""
        assert here.world is not None
        whole = whole_of(here.world)
        if whole is None or whole != here.whole:
            here.world = None
        return whole

    def _judge(self, here: _Here, command: Command, fault: Fault, step: Step) -> None:
        """Judge what a failure left behind; raises _Hit."""
        injector, counts = self._injector, self._counts
        counts.failures += 1
        counts.retried += injector.endless
        counts.unseen += injector.lost
        whole = self._kept(here) if step.observed else None
        if here.world is not None and step.observed and not step.granted:
            return  # nothing at all has changed
        here.world = None
        if broken := self._aftermath.at_once(step):
            self._hit(here, command, fault, (), broken)
        if whole is not None:
            seen = whole + _moved_by(command, granted=step.granted)
            if seen in here.gone_on:
                return
            here.gone_on.add(seen)
        node = here.node

        def failed() -> World:
            world = self._fork(node)
            apply_failing(world, command, injector, fault.call, fault.mode)
            return world

        def twin() -> World:
            world = self._fork(node)
            if step.granted:
                world.apply(command)
            return world

        if found := self._aftermath.goes_on(failed, twin):
            self._hit(here, command, fault, *found)

    def _hit(
        self,
        here: _Here,
        command: Command,
        fault: Fault,
        after: tuple[Command, ...],
        broken: Broken,
    ) -> None:
        """Break it once more, from nothing, and end the search."""
        history = (*self._nodes.history(here.node), command)
        commands = (*history, *after)
        fault = Fault(len(history), fault.call, fault.mode)
        geometry = self._geometries[self._nodes.geometry(here.node)]
        again = under_fault(self._make, geometry, commands, fault, self._injector, self._aftermath)
        if again is None:
            run = ", ".join(map(str, commands))
            raise NotDeterministic(f"{broken.message}; not when {run} was run again")
        raise _Hit(Found(again, geometry, commands, fault))

    def _watch(self) -> None:
        limits, (wall, cpu) = self._terms.limits, self._start
        soft, hard = limits.seconds, limits.hard_seconds
        if soft is not None and self._depth >= limits.at_least and process_time() - cpu > soft:
            raise _Stop(f"its {soft:.1f} s of processor time were spent")
        if hard is not None and monotonic() - wall > hard:
            raise _Stop(f"its {hard:.1f} s were spent")
        waiting = sum(map(len, self._frontier))
        progress = Progress(len(self._nodes), self._counts.failures, self._depth, waiting)
        self._terms.on_progress(progress)


def _moved_by(command: Command, *, granted: bool) -> bytes:
    """What a granted command adds to the state it led to: a twin is moved by it too."""
    return str(command).encode() if granted else b""
