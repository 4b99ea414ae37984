"""Scopes and budgets: how much of what is tried, by the name of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from pagedkv.abilities import ABILITY_NAMES, AbilityName
from pagedkv.declarations import Declarations
from pagedkv.specs.model import Geometry

FIXED: tuple[Geometry, ...] = tuple(
    sorted(
        [Geometry(blocks, size) for blocks in (1, 2, 3, 4) for size in (1, 2, 3)]
        + [Geometry(5, 1), Geometry(6, 1)]
    )
)
"""The fixed scope, over which a counterexample is proven shortest, smallest geometry first."""


EVERY: frozenset[AbilityName] = frozenset(ABILITY_NAMES)
"""All abilities; of these a target has what it declares."""

COMBINED: tuple[frozenset[AbilityName], ...] = (
    *(frozenset({name}) for name in ABILITY_NAMES if name not in ("ask", "window")),
    frozenset({"fork", "prefix"}),
    frozenset({"append", "window"}),
    frozenset({"truncate", "prefix"}),
    frozenset({"prefix", "group"}),
    frozenset({"prefix", "swap"}),
)
"""What is tried together: each ability, and the pairs that engines combine."""


MANY: frozenset[AbilityName] = frozenset({"fork", "prefix", "swap"})
"""Abilities with so many states that blocks of 3 tokens are tried in fewer pools, or in none."""


MOST_NAMED = 2
"""Abilities that a search is called by; of more it is not said which."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What an exhaustive search covers, or random histories are drawn from.

    keeps_released: released handles are kept and used. abilities: the commands of which the target
    declares are tried too. varied: with more prompts than could be exhausted.
    """

    name: str
    geometries: tuple[Geometry, ...]
    requests: int
    keeps_released: bool = False
    abilities: Set[AbilityName] = frozenset()
    varied: bool = False

    @property
    def words(self) -> str:
        """What people call the search of it."""
        # To be asked is no command: it only names the search where there is nothing else to.
        tried = sorted(self.abilities - {"ask"}) or sorted(self.abilities)
        beyond = f" with {' and '.join(tried)}" if len(tried) <= MOST_NAMED and tried else ""
        kept = ", released handles kept" if self.keeps_released else ""
        return f"small pools{beyond}{kept}"

    def __str__(self) -> str:
        blocks = max(geometry.num_blocks for geometry in self.geometries)
        sizes = sorted({geometry.block_size for geometry in self.geometries})
        kept = ", released handles kept" if self.keeps_released else ""
        if self.abilities:
            kept += f", with {', '.join(sorted(self.abilities))}"
        if "window" in self.abilities:
            kept += ", requests of at most the pool and a window"
        return (
            f"pools of up to {blocks} block(s), block sizes {', '.join(map(str, sizes))}, "
            f"{self.requests} request(s){kept}"
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """How much is tried.

    seconds: the budget per target. depth: a search that was stopped must have tried every
    history up to this many commands, or the verdict is unknown. examples, steps: random histories
    and their length. derandomised: the same histories in every run unless a seed is given.
    pair_requests, pair_blocks: live requests and the largest pool where two targets run in
    lockstep: the product of two allocators that hand out in another order has many more states.
    engine_blocks: the largest pool for targets that declare `engine`. ability_blocks: that of the
    scopes in which abilities are tried, one by one and in the pairs that engines combine. Both are
    for one table: of targets with several, pools are so many times as large.
    """

    name: str
    seconds: float
    depth: int
    examples: int
    steps: int
    derandomised: bool
    pair_requests: int
    pair_blocks: int
    engine_blocks: int
    ability_blocks: int = 2

    def scopes(self, declared: Declarations, *, pair: bool) -> tuple[Scope, ...]:
        """What is searched, the main scope first, then the one that keeps released handles."""
        tables = len(declared.each_window)
        requests, main, kept = 3, FIXED, KEPT_BLOCKS
        if pair:
            requests = self.pair_requests
            main = tuple(g for g in FIXED if g.num_blocks <= self.pair_blocks)
        if declared.engine:
            requests, kept = 2, self.engine_blocks * tables
            main = tuple(g for g in FIXED if g.num_blocks <= kept and g.block_size <= 2)
        whole = main == FIXED and requests == 3
        return (
            Scope("fixed" if whole else "small", _possible(main, declared), requests),
            kept_scope(declared, kept),
            *self._beyond(declared),
        )

    def _beyond(self, declared: Declarations) -> tuple[Scope, ...]:
        """One scope for each ability that is declared, and for each pair that engines combine."""
        asked = frozenset[AbilityName]({"ask"}) & declared.abilities
        combined = [names for names in COMBINED if names <= declared.abilities]
        if asked and not combined:  # The core's commands are there to be asked about.
            combined = [asked]
        return tuple(
            Scope(
                "+".join(sorted(names)),
                _possible(self._small(names, declared), declared),
                2,
                keeps_released="prefix" in names and "append" not in names,
                abilities=names | asked,
            )
            for names in combined
        )

    def _small(self, names: Set[AbilityName], declared: Declarations) -> tuple[Geometry, ...]:
        """The pools in which these are tried; of blocks of 3 tokens two at most."""
        most = self.ability_blocks * len(declared.each_window)
        threes = 0 if declared.engine else 2 - len(MANY & names)
        return tuple(g for g in FIXED if g.num_blocks <= (most if g.block_size <= 2 else threes))


def _possible(geometries: tuple[Geometry, ...], declared: Declarations) -> tuple[Geometry, ...]:
    """Those that the target can have; its smallest block size where none of ours will do."""
    fit = tuple(g for g in geometries if declared.supports(g.num_blocks, g.block_size))
    if fit or declared.block_sizes is None:
        return fit
    smallest = min(declared.block_sizes)
    pools = sorted({g.num_blocks for g in geometries})
    return tuple(Geometry(n, smallest) for n in pools if declared.supports(n, smallest))


_QUICK = Profile("quick", 40.0, 4, 100, 50, True, pair_requests=2, pair_blocks=3, engine_blocks=3)
PROFILES: Mapping[str, Profile] = {
    "quick": _QUICK,
    "ci": replace(_QUICK, name="ci", seconds=60.0, depth=5, examples=200, pair_requests=3),
    "nightly": replace(
        _QUICK,
        name="nightly",
        seconds=600.0,
        depth=6,
        examples=5000,
        steps=100,
        derandomised=False,
        pair_requests=3,
        pair_blocks=4,
        engine_blocks=4,
        ability_blocks=3,
    ),
}


def fixed_scope(declared: Declarations) -> Scope:
    """The scope that proofs are over, as far as the target can have it."""
    return Scope("fixed", _possible(FIXED, declared), 3)


KEPT_BLOCKS = 3


def kept_scope(declared: Declarations, most: int = KEPT_BLOCKS) -> Scope:
    """The scope that keeps released handles, in pools of up to `most` blocks."""
    largest = 2 if declared.engine else 3
    pools = tuple(g for g in FIXED if g.num_blocks <= most and g.block_size <= largest)
    return Scope("resume", _possible(pools, declared), 2, keeps_released=True)
