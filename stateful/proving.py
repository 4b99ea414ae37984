"""What the core of a recorded history is proven over: the fixed scope, and two beside it.

The fixed scope has the core's commands alone, and forgets released handles: a request that comes
after one that went has its name. So the scope that keeps them is searched too, and, where the
history has commands of abilities, that in which these are tried at once. Both come first: how long
a history they have is soon known, and the fixed scope need not be searched for longer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pagedkv.abilities import AbilityName
from pagedkv.declarations import Declarations
from pagedkv.specs.catalogue import PROPERTIES, used_by
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.properties import Need
from pagedkv.stateful.exploration import INTERRUPTED, Exploration, Found, Limits, Progress
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.locate import Tell
from pagedkv.stateful.profiles import Scope, fixed_scope, kept_scope
from pagedkv.stateful.report import OneMinimal, Proof, Shortest
from pagedkv.stateful.searches import shortest, together
from pagedkv.stateful.subject import Subject

BUSY = 5
"""So many times its processor time a search may take of real time: what is proven should not depend
on what else the machine does."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What the scopes have of one property, the fixed one first."""

    name: str
    explorations: tuple[Exploration, ...]

    @property
    def found(self) -> Found | None:
        """The shortest history that breaks it; None if none of them has one."""
        return shortest(self.explorations).get(self.name)

    def proof_of(self, found: Found) -> Proof:
        """How far what was found is proven."""
        short = [e for e in self.explorations if not e.covers(len(found.commands) - 1)]
        return _ended(short[0]) if short else Shortest(self._states)

    def proof_beside(self, steps: int) -> Proof:
        """Why a history of so many commands, which has come from elsewhere, is not proven."""
        if all(e.exhausted for e in self.explorations):
            why = f"the fault does not show in the fixed scope, all {self._states:,} states of it"
            return OneMinimal(why)
        if short := [e for e in self.explorations if not e.covers(steps - 1)]:
            return _ended(short[0])
        last = min((e for e in self.explorations if not e.exhausted), key=lambda e: e.depth)
        tried = f"histories of up to {last.depth} command(s)"
        return OneMinimal(f"it does not show in the fixed scope in {tried}; {last.stopped}")

    @property
    def _states(self) -> int:
        return sum(e.states for e in self.explorations)


def _ended(exploration: Exploration) -> OneMinimal:
    return OneMinimal(f"the search of the fixed scope ended: {exploration.stopped}")


@dataclass(frozen=True, slots=True)
class Prover:
    """Searches for what a recorded history breaks.

    seconds: of processor time, for each scope. tell: told how far that is.
    """

    subject: Subject
    declared: Declarations
    judge: Callable[[], Judge]
    seconds: float
    tell: Tell

    def search(self, name: str, commands: Iterable[Command]) -> Searched:
        """The scopes of a history with these commands, searched for one property.

        Changes nothing but the targets it makes. Raises KeyboardInterrupt.
        """
        explored = list[Exploration]()
        for scope in self._scopes(name, commands):
            least = shortest(explored).get(name)
            depth = None if least is None else len(least.commands)
            explored.append(self._explore(scope, name, depth))
        return Searched(name, tuple(explored[::-1]))

    def _scopes(self, name: str, commands: Iterable[Command]) -> Iterator[Scope]:
        """All of them that hold a pool, the fixed one last."""
        if using := self._abilities(name, commands):
            pair = len(self.subject.factories) > 1
            scope = together(self.declared, pair=pair, using=using)
            if scope is not None and scope.geometries:
                yield scope
        if (kept := kept_scope(self.declared)).geometries:
            yield kept
        yield fixed_scope(self.declared)

    def _abilities(self, name: str, commands: Iterable[Command]) -> frozenset[AbilityName]:
        """Those of which the history has commands; where there are any, it is asked too."""
        used = used_by(commands) & self.declared.abilities
        asked = frozenset[AbilityName]({"ask"}) & self.declared.abilities
        return used | asked if used or Need.ASK in PROPERTIES[name].needs else used

    def _explore(self, scope: Scope, name: str, depth: int | None) -> Exploration:
        label = "fixed scope"
        if scope.keeps_released:
            label += ", released handles kept"
        if scope.abilities:
            label += f" of {', '.join(sorted(scope.abilities))}"

        def tell(progress: Progress) -> None:
            far = f"{progress.states:,} states, depth {progress.depth}"
            what = f"{label}, at most {self.seconds:.0f} s, {far}"
            self.tell(what, progress.transitions, 0)

        seconds = self.seconds
        limits = Limits(seconds=seconds, hard_seconds=BUSY * seconds, depth=depth, enough={name})
        exploration, _ = explore(
            lambda geometry: self.subject.world(scope, geometry),
            scope.geometries,
            self.judge,
            limits,
            tell,
        )
        if exploration.stopped == INTERRUPTED:
            raise KeyboardInterrupt
        return exploration
