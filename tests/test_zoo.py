"""Correct oddities: none is accused, each is really odd, and what it declares is not idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from allocators import world
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.verdict import FLOOR
from pagedkv.stateful.world import World
from zoo import ANIMALS, BY_NAME, Animal, orders, spoilt
from zoo.animal import Factory
from zoo.walk import walk

# The same code is measured elsewhere; a search that is traced takes three times as long.
pytestmark = pytest.mark.usefixtures("unmeasured")

DEPTH, STEPS = 3, 400

each = pytest.mark.parametrize("animal", ANIMALS, ids=lambda animal: animal.name)


def searched(
    factory: Factory, pools: list[Geometry], limits: Limits, *, keeps_released: bool = False
) -> Exploration:
    """The search of these pools with two requests, wrong use included."""

    def make(geometry: Geometry) -> World:
        return World(factory, geometry, requests=2, keeps_released=keeps_released)

    can = offered(make(pools[0]).state)
    exploration, _ = explore(make, pools, lambda: Judge(PROPERTIES.values(), can), limits)
    return exploration


def possible(animal: Animal, most: int) -> list[Geometry]:
    """Pools of up to `most` blocks of 1 and 2 tokens that it declares it can have."""
    pools = [Geometry(blocks, size) for blocks in range(1, most + 1) for size in (1, 2)]
    return [pool for pool in pools if animal.declares.supports(pool.num_blocks, pool.block_size)]


def messages(violations: Any) -> list[str]:
    return [str(violation) for violation in violations]


# ---------------------------------------------------------------- no false alarm


@each
def test_no_history_of_three_commands_accuses_a_correct_allocator(animal):
    exploration = searched(animal.factory, possible(animal, 3), Limits(depth=DEPTH))
    assert messages(found.violation for found in exploration.found.values()) == []
    assert exploration.covers(DEPTH), exploration.stopped


@each
def test_no_random_step_accuses_a_correct_allocator(animal):
    walked = walk(animal.factory, animal.declares, STEPS)
    assert messages(walked.violations) == [], walked.commands
    assert walked.steps == STEPS
    # What is judged at every step was judged at every step, not left out.
    assert min(walked.judge.evaluations[name] for name in ("table-cover", "out-of-blocks")) >= FLOOR


def test_a_walk_ends_at_a_violation_with_its_history():
    walked = walk(spoilt(BY_NAME["lookahead"], "lookahead"), BY_NAME["lookahead"].declares, STEPS)
    assert "table-cover" in {violation.property.id for violation in walked.violations}
    assert len(walked.commands) == len(set(walked.commands)) > 0
    assert walked.steps < STEPS


def test_names_and_statements_are_each_animals_own():
    assert len(BY_NAME) == len(ANIMALS) >= 30
    assert len({animal.statement for animal in ANIMALS}) == len(ANIMALS)


# ---------------------------------------------------------------- what is declared is needed

NEVER_IN_MODEL = frozenset({"block_sizes", "pool_multiple", "engine"})
"""What says which pools there are and how many are searched: no history breaks without it."""

NEEDS_MORE = {
    # Only five blocks that are all apart leave six free ones in which no four are together.
    ("buddy", "refuses_early"): (
        Geometry(8, 1),
        (
            *(Prefill(0, 1), Prefill(1, 1), Prefill(2, 2), Prefill(3, 1)),
            *(Release(1), Release(2), Prefill(1, 3)),
        ),
    ),
    ("buddy", "max_blocks"): (Geometry(16, 1), (Prefill(0, 1),)),
}
DECLARED = [
    (animal, field)
    for animal in ANIMALS
    for field in animal.declares.because
    if field not in NEVER_IN_MODEL
]


@pytest.mark.parametrize(
    ("animal", "field"), DECLARED, ids=[f"{animal.name}-{field}" for animal, field in DECLARED]
)
def test_without_its_declaration_the_odd_one_is_accused(animal, field):
    twin = spoilt(animal, field)
    if (animal.name, field) in NEEDS_MORE:
        pool, commands = NEEDS_MORE[animal.name, field]
        assert accused(twin, pool, commands) != []
        assert field == "max_blocks" or accused(animal.factory, pool, commands) == []
        return
    pools = [pool for pool in possible(animal, 4) if pool.num_blocks > 1 and pool.block_size == 1]
    limits = Limits(beyond=0, states=2000)
    assert searched(twin, pools, limits, keeps_released=True).found != {}


def accused(factory: Factory, pool: Geometry, commands: tuple[Command, ...]) -> list[Violation]:
    here = World(factory, pool, requests=6, keeps_released=True)
    judge = Judge(PROPERTIES.values(), offered(here.state))
    found = judge.state(here.state)
    for command in commands:
        if found:
            break
        step = here.apply(command)
        found = judge.step(step) + judge.reached(step)
    return found


@pytest.mark.parametrize(
    ("name", "pool"), [("even sizes", Geometry(2, 1)), ("even pools", Geometry(3, 2))]
)
def test_a_pool_that_is_declared_impossible_is_impossible(name, pool):
    assert not BY_NAME[name].declares.supports(pool.num_blocks, pool.block_size)
    with pytest.raises(CannotDrive, match="can't be made"):
        World(BY_NAME[name].factory, pool)


@pytest.mark.parametrize(("name", "other"), [("statistics", "clock"), ("generations", "clock")])
def test_what_is_declared_meaningless_lets_the_search_end(name, other):
    pools, limits = [Geometry(1, 1)], Limits(states=60)
    assert searched(BY_NAME[name].factory, pools, limits).exhausted
    assert not searched(spoilt(BY_NAME[name], "meaningless"), pools, limits).exhausted
    assert not searched(BY_NAME[other].factory, pools, limits).exhausted


def test_a_generator_that_is_declared_meaningless_leaves_the_rest_to_be_seen():
    pools, limits = [Geometry(2, 1)], Limits(states=60)
    assert searched(BY_NAME["locked"].factory, pools, limits).trust.key == "whole"
    assert searched(spoilt(BY_NAME["locked"], "meaningless"), pools, limits).trust.key == "none"


def test_a_run_is_never_scattered():
    walked = walk(BY_NAME["best fit"].factory, BY_NAME["best fit"].declares, STEPS)
    assert walked.judge.evaluations["table-scattered"] == 0
    assert walked.judge.evaluations["table-grown"] == 1


# ---------------------------------------------------------------- the oddity shows

HISTORY = (
    *(Prefill(0, 3), Prefill(1, 5), Prefill(2, 2), Release(1), Decode(0), Decode(2)),
    *(Prefill(1, 4), Release(0), Decode(2), Decode(2), Prefill(3, 3)),
)
LONGER = (*HISTORY, Release(3), Release(1), Prefill(0, 5))


def after(name: str, *commands: Command, blocks: int = 8, size: int = 2) -> World:
    here = world(BY_NAME[name].factory, blocks, size, requests=4)
    for command in commands or HISTORY:
        here.apply(command)
    return here


ORDERS = [
    animal
    for animal in (*orders.ANIMALS, BY_NAME["slabs"])
    if animal.name != "bitmap"  # kept otherwise, but handed out as "lowest first" does
]


def test_no_two_orders_hand_out_alike():
    seen: dict[object, str] = {}
    for animal in ORDERS:
        here = world(animal.factory, 8, 2, requests=4)
        told = tuple(str(here.apply(command).after.seen.tables) for command in LONGER)
        assert told not in seen, f"{animal.name} hands out as {seen.get(told)} does"
        seen[told] = animal.name


def held(here: World) -> frozenset[int]:
    return here.state.seen.held


def table(here: World) -> Any:
    return here.handles[2].block_table


def snap(here: World) -> Any:
    return here.state.seen.snapshot


ODDITIES: dict[str, Callable[[str], bool]] = {
    "bitmap": lambda n: vars(after(n, Prefill(0, 2)).manager)["bits"] == 0b11111110,
    "evictor": lambda n: len(snap(after(n, Prefill(0, 5), Release(0))).cached) == 3,
    "null block": lambda n: 0 in snap(after(n)).reserved and 8 in held(after(n, Prefill(0, 16))),
    "null blocks above": lambda n: snap(after(n)).reserved == {8, 9},
    "from one": lambda n: held(after(n, Prefill(0, 16))) == set(range(1, 9)),
    "spaced": lambda n: min(held(after(n))) > 4000,
    "rounds up": lambda n: len(held(after(n, Prefill(0, 6), blocks=5, size=1))) == 6,
    "counted": lambda n: (snap(after(n)).free_blocks, snap(after(n)).num_free) == (None, 1),
    "unseen": lambda n: (snap(after(n)).free_blocks, snap(after(n)).num_free) == (None, None),
    "bare": lambda n: not hasattr(after(n).manager, "snapshot"),
    "rows": lambda n: isinstance(table(after(n)), np.ndarray) and bool(table(after(n)).base.any()),
    "tuple tables": lambda n: type(table(after(n))) is tuple,
    "shared tables": lambda n: _is_shared(after(n)),
    "backwards": lambda n: _hand_read(after(n, Prefill(0, 2))) == (2, 1),
    "indexed": lambda n: None not in (snap(after(n)).ref_counts, snap(after(n)).reverse_map),
    "clock": lambda n: vars(after(n).manager)["calls"] > 0,
    "statistics": lambda n: vars(after(n).manager)["handed_out"] > 8,
    "generations": lambda n: max(vars(after(n).manager)["generation"]) > 0,
    "locked": lambda n: "lock" in vars(after(n).manager),
    "closures": lambda n: not hasattr(type(after(n).manager), "release_request"),
    "publishes": lambda n: vars(after(n).manager)["published"][2] == 5,
    "moves its tensor": lambda n: len({id(t) for t in _tensors(n)}) == 2,
    "queued": lambda n: vars(after(n).manager)["tickets"][2] == 3,
}


def _is_shared(here: World) -> bool:
    return table(here) is vars(here.manager)["tables"][2]


def _hand_read(here: World) -> tuple[int, ...]:
    return tuple(here.manager.physical_kv_cache[0, :, 0].int().tolist())


def _tensors(name: str) -> list[Any]:
    return [
        after(name, *commands).manager.physical_kv_cache
        for commands in ([Prefill(0, 1)], [Prefill(0, 1), Release(0)])
    ]


@pytest.mark.parametrize("name", ODDITIES)
def test_what_makes_it_odd_can_be_seen(name):
    assert ODDITIES[name](name)


def test_a_manager_that_is_never_told_what_was_computed_says_so():
    class Untold(BY_NAME["publishes"].factory):  # type: ignore[misc]  # it is a class
        computed = None

    found = accused(Untold, Geometry(4, 2), (Prefill(0, 1), Decode(0)))
    assert [violation.property.id for violation in found] == ["answered"]
    assert "never computed" in found[0].broken.message


def test_every_animal_is_shown_to_be_odd_in_one_way_or_another():
    ordered = {animal.name for animal in ORDERS}
    declaring = {animal.name for animal in ANIMALS if animal.declares.because}
    assert {animal.name for animal in ANIMALS} == ordered | declaring | ODDITIES.keys()
