"""The exhaustive searches of one campaign: each scope, its share of the budget, what they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from time import monotonic, process_time

from pagedkv.abilities import AbilityName
from pagedkv.declarations import Declarations
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import INTERRUPTED, VARIES, Exploration, Found, Limits, Progress
from pagedkv.stateful.explorer import Search
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import EVERY, Scope, fixed_scope
from pagedkv.stateful.shards import Shard
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import varies

Listener = Callable[[str, Progress], None]
"""Told the phase and how far it is."""

MAIN_ENDS, KEPT_ENDS = 0.85, 0.95
"""Where in the budget the search of the main scope ends, and that of all others.

Proofs are over the main scope, so it may have most; what it leaves goes to the others. Where
abilities have scopes of their own, the main one ends at `SHARED_ENDS`.
"""
SHARED_ENDS = 0.5


class Searches:
    """What the searches of one campaign share.

    evaluations: per property, over all that was searched and judged in this campaign.
    """

    def __init__(self, subject: Subject, plan: Plan, listener: Listener, start: float) -> None:
        """Make one target to see what it offers. Raises CannotDrive."""
        self.subject, self.plan, self._listener = subject, plan, listener
        self._start, self._cpu = start, process_time()
        fresh = subject.probe()
        self.declared = fresh.setting.declared
        self.offered = offered(*fresh.states)
        pair = len(subject.factories) > 1
        self.scopes = plan.profile.scopes(self.declared, pair=pair)
        self.together = together(self.declared, pair=pair)
        if self.together is not None and plan.until == "first":
            self.scopes = (*self.scopes[:2], self.together)
        if not all(scope.geometries for scope in self.scopes):
            raise CannotDrive("the target declares that it can have none of the scope's pools")
        self.evaluations: Counter[str] = Counter()

    def judge(self) -> Judge:
        """A new judge of the properties that were chosen."""
        return Judge(self.plan.chosen(), self.offered)

    def left(self, end: float = 1.0) -> float:
        """Seconds of real time until that part of the budget is over; always a moment."""
        return max(0.1, self._start + end * self.plan.seconds - monotonic())

    def work_left(self) -> float:
        """Seconds of processor time until the budget is over; of real time where that is hard."""
        return self.left() if self.plan.hard else self.plan.seconds + self._cpu - process_time()

    def difference(self) -> str | None:
        """What two fresh targets answer differently; None if nothing was seen."""
        scope = self.scopes[0]
        two = [g for g in scope.geometries if g.num_blocks == 2]
        make = partial(self.subject.world, scope, (two or scope.geometries)[-1])
        try:
            return varies(make, make)
        except KeyboardInterrupt:
            return None  # the searches will hear of the next one

    def explore(self, scope: Scope, limits: Limits, *, whole: bool = False) -> Exploration:
        """Search one scope, of which only the plan's shard unless `whole`."""
        return self._until(self._search(scope, None if whole else self.plan.shard), limits)

    def _search(self, scope: Scope, shard: Shard | None) -> Search:
        return Search(
            lambda geometry: self.subject.world(scope, geometry),
            scope.geometries,
            self.judge,
            lambda progress: self._listener(scope.words, progress),
            shard,
        )

    def _until(self, search: Search, limits: Limits) -> Exploration:
        """Begin a search, or go on with it; what it judged before counts once."""
        self.evaluations.subtract(search.judge.evaluations)
        exploration = search.until(limits)
        self.evaluations.update(search.judge.evaluations)
        return exploration

    def run(self) -> list[Exploration]:
        """Search the scopes, in their order, up to an interruption."""
        if self.plan.until == "first":
            return self._until_first()
        explored: list[Exploration] = []
        for scope, end in zip(self.scopes, self._ends(), strict=True):
            if not interrupted(explored):
                explored.append(self.explore(scope, self._limits(end)))
        return explored

    def _ends(self) -> list[float]:
        """Where in the budget each search ends."""
        others = len(self.scopes) - 1
        first = MAIN_ENDS if others == 1 else SHARED_ENDS
        return [first, *(first + (KEPT_ENDS - first) * (i + 1) / others for i in range(others))]

    def _until_first(self) -> list[Exploration]:
        """Search until one shortest violation is found and nothing as short was left out.

        The smaller scope begins, as deep as the profile asks: the main one then has nothing to
        look for that is longer than what was found, and the smaller one in the end nothing that
        is as long: of two histories of one length the main scope's counts.
        """
        if self.together is not None:
            return self._deeper_and_deeper()
        main, kept = self.scopes
        smaller = self._search(kept, self.plan.shard)
        small = self._until(smaller, self._first(KEPT_ENDS, self.plan.profile.depth))
        if interrupted([small]):
            return [small]
        large = self.explore(main, self._first(MAIN_ENDS, least_of([small])))
        least = least_of([small, large])
        shorter = None if least is None else least - 1
        if not interrupted([large]) and not covers(small, shorter):
            small = self._until(smaller, self._first(KEPT_ENDS, shorter))
        return [large, small]

    def _deeper_and_deeper(self) -> list[Exploration]:
        """The same where there are abilities: every scope to one depth, then to the next.

        That of the abilities begins. The others then have nothing to look for that is longer than
        what was found, and of two histories of one length theirs counts. No scope can be searched
        to its end before the next, as a fault that shows soon in one may not show in another.
        """
        searches = {scope: self._search(scope, self.plan.shard) for scope in self.scopes[::-1]}
        explored: dict[Scope, Exploration] = {}
        depth = self.plan.profile.depth
        while True:
            for scope, search in searches.items():
                least = least_of(explored.values())
                due = depth if least is None else least
                if scope in explored and covers(explored[scope], due):
                    continue
                explored[scope] = self._until(search, self._first(MAIN_ENDS, due))
                if interrupted(explored.values()):
                    return [explored[one] for one in self.scopes if one in explored]
            all_of_it = all(one.exhausted for one in explored.values())
            in_time = all(covers(one, depth) for one in explored.values())
            if least_of(explored.values()) is not None or all_of_it or not in_time:
                return [explored[scope] for scope in self.scopes]
            depth += 1

    def _first(self, end: float, depth: int | None) -> Limits:
        return replace(self._limits(end), beyond=None, enough="any", depth=depth)

    def _limits(self, end: float) -> Limits:
        seconds, plan = self.plan.seconds, self.plan
        spent = process_time() - self._cpu
        return Limits(
            seconds=max(end * seconds - spent, 0.1 * seconds),
            at_least=plan.profile.depth,
            hard_seconds=self.left(end) if plan.hard else 3 * seconds,
            beyond=1,
        )


TOGETHER_BLOCKS, TOGETHER_SIZE = 3, 2
"""The largest pool and block size in which all abilities are tried at once.

With at most two blocks of 3, the least size with a block that was cut and is not full again.
"""


def together(
    declared: Declarations, *, pair: bool = False, using: Set[AbilityName] = EVERY
) -> Scope | None:
    """The scope of all abilities at once, which proofs are over too; None for the core alone.

    using: only of these, as far as they are declared.
    """
    abilities = frozenset(declared.abilities & using)
    if not abilities:
        return None
    pools = [g for g in fixed_scope(declared).geometries if g.num_blocks <= TOGETHER_BLOCKS]
    # A target that has none of our block sizes is tried with its smallest.
    least = min((g.block_size for g in pools), default=1)
    small = tuple(
        g for g in pools if g.block_size <= max(least, TOGETHER_SIZE + (g.num_blocks < 3))
    )
    requests = 2 if pair or declared.engine else 3
    return Scope("together", small, requests, abilities=abilities)


def order(found: Found) -> tuple[int, Geometry]:
    """What makes one history smaller than another."""
    return (len(found.commands), found.geometry)


def shortest(explored: Iterable[Exploration]) -> dict[str, Found]:
    """Per property, the smallest of what the searches found; the earlier search wins a tie."""
    best: dict[str, Found] = {}
    for exploration in explored:
        for name, found in exploration.found.items():
            if name not in best or order(found) < order(best[name]):
                best[name] = found
    return best


def least_of(explored: Iterable[Exploration]) -> int | None:
    """The length of the shortest history found; None if none was."""
    return min((len(found.commands) for found in shortest(explored).values()), default=None)


def interrupted(explored: Iterable[Exploration]) -> bool:
    """Whether one of them was."""
    return any(exploration.stopped == INTERRUPTED for exploration in explored)


def covers(exploration: Exploration, depth: int | None) -> bool:
    """Whether there is nothing left to try of up to so many commands; None is all of them."""
    return exploration.exhausted or (depth is not None and exploration.covers(depth))


def unfinished(explored: Iterable[Exploration], depth: int) -> str | None:
    """Why not every history of up to `depth` commands was tried; None if all were."""
    for exploration in explored:
        if exploration.stopped is not None and exploration.stopped.startswith(VARIES):
            return exploration.stopped
        if not exploration.covers(depth):
            return f"stopped at depth {exploration.depth}: {exploration.stopped}"
    return None


def unseen(explored: Sequence[Exploration]) -> str:
    """Why what random histories found was not found by the searches."""
    states = sum(exploration.states for exploration in explored)
    if all(exploration.exhausted for exploration in explored):
        return f"the fault does not show in the small scopes, all {states:,} states of them"
    depth = min(exploration.depth for exploration in explored if not exploration.exhausted)
    tried = f"histories of up to {depth} command(s), {states:,} states of them"
    return f"the fault does not show in the small scopes, as far as they were searched: {tried}"


def goes_on(plan: Plan, found: Mapping[str, Found]) -> bool:
    """Whether there is anything left to look for."""
    if plan.until == "first":
        return not found
    return all(PROPERTIES[name].redundant for name in found)
