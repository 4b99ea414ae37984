"""One fault, one answer: whatever history the search begins with."""

from __future__ import annotations

import pytest

from faults import PLANTED, Planted, broken_history, judging, searched, worlds
from pagedkv.mutants import mutants
from pagedkv.scoring import cut_down
from pagedkv.specs.abilities.core import Decode, Prefill, Release, Resume
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import Found
from pagedkv.stateful.minimise import Case, Minimiser
from pagedkv.stateful.profiles import FIXED
from pagedkv.stateful.traces import Trace

# Searches alone; what they run is measured elsewhere, and traced they take three times as long.
pytestmark = pytest.mark.usefixtures("unmeasured")

SMALL = tuple(g for g in FIXED if g.num_blocks <= 2 and g.block_size <= 2)
"""Where all these faults show; of a larger scope the first answer is the same one."""
NAMES = [planted.factory.__name__ for planted in PLANTED]


def proven(planted: Planted, at_most: int) -> Found:
    """The first history in canonical order that breaks the property."""
    done = searched(planted.factory, *SMALL, depth=at_most, enough={planted.property})
    return done.found[planted.property]


def cut(planted: Planted, seed: int) -> Case:
    make = worlds(planted.factory, 4, keeps_released=True)
    case = Minimiser(make, judging, planted.property).one_minimal(*broken_history(planted, seed))
    assert case is not None
    return case


def answers(planted: Planted, seeds: range) -> set[tuple[Geometry, tuple[Command, ...]]]:
    """What a search leads to that is as deep as the history that each seed was cut to."""
    lengths = {len(cut(planted, seed).commands) for seed in seeds}
    found = [proven(planted, length) for length in lengths]
    return {(one.geometry, one.commands) for one in found}


@pytest.mark.parametrize("planted", PLANTED, ids=NAMES)
def test_every_planted_fault_is_found_at_its_shortest_in_the_smallest_pool(planted: Planted):
    found = proven(planted, planted.steps)
    assert len(found.commands) == planted.steps
    before = searched(planted.factory, *SMALL, depth=planted.steps - 1)
    assert planted.property not in before.found
    for geometry in SMALL:
        if geometry < found.geometry:
            smaller = searched(planted.factory, geometry, depth=planted.steps)
            assert planted.property not in smaller.found


@pytest.mark.parametrize("planted", PLANTED, ids=NAMES)
def test_random_histories_of_a_fault_lead_to_one_counterexample(planted: Planted):
    found = proven(planted, planted.steps)
    seeds = range(50 if planted in PLANTED[::3] else 10)
    assert answers(planted, seeds) == {(found.geometry, found.commands)}


@pytest.mark.parametrize("planted", PLANTED, ids=NAMES)
def test_the_proven_history_is_one_that_the_minimiser_can_not_cut(planted: Planted):
    found = proven(planted, planted.steps)
    make = worlds(planted.factory, 4, keeps_released=True)
    case = Minimiser(make, judging, planted.property).one_minimal(found.geometry, found.commands)
    assert case is not None
    assert (case.geometry, case.commands) == (found.geometry, found.commands)


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        ("recycles-lists", (Prefill(0, 3), Prefill(1, 2), Decode(0), Release(0), Decode(1))),
        ("recycles-lists", (Prefill(0, 1), Release(0), Resume(0), Prefill(1, 1), Release(0))),
        ("maps-owners-by-count", (Prefill(0, 1), Prefill(1, 1), Release(0), Prefill(0, 1))),
    ],
    ids=["a handle that nobody uses", "one that is used", "sooner than in the fixed scope"],
)
def test_what_shows_on_released_handles_is_proven_where_they_are_kept(name, commands):
    mutant = mutants()[name]
    shrunk = cut_down(Trace(mutant.target, Geometry(4, 2), commands, mutant.breaks))
    assert shrunk.commands is None
    assert shrunk.example is not None
    assert len(shrunk.example.commands) == mutant.optimum
    assert shrunk.example.proof.name == "shortest"
