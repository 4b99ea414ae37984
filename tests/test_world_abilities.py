"""The world beyond the core: copies a target asks for, a second pool, questions, and keys."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

import engines_alike as alike
from allocators import broken
from pagedkv.mutants.prefixes import ForgetsAtRelease, WithdrawsWhatOthersHold
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import POISON, Geometry
from pagedkv.specs.steps import Raised
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.pool import ShadowPool, TensorPool
from pagedkv.stateful.profiles import EVERY
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.world import World

GEOMETRIES = (Geometry(2, 1), Geometry(2, 2), Geometry(3, 2))


def world(factory, blocks=4, size=2, *, requests=3, keeps=False):
    geometry = Geometry(blocks, size)
    return World(factory, geometry, requests=requests, keeps_released=keeps, abilities=EVERY)


def moved(here, *commands):
    """The same world after these commands, all granted and nothing broken."""
    judge = Judge(PROPERTIES.values(), offered(*here.states))
    for command in commands:
        assert command.enabled(here.state.model, here.setting), command
        step = here.apply(command)
        assert judge.step(step) + judge.reached(step) == []
        assert step.granted, step.outcome
    return here


def searched(*factories, geometries=GEOMETRIES) -> Exploration:
    """Every history of two requests in tiny pools."""

    def make(geometry):
        worlds = [World(f, geometry, requests=2, abilities=EVERY) for f in factories]
        return worlds[0] if len(worlds) == 1 else Lockstep(*worlds)

    can = offered(*make(geometries[0]).states)
    limits = Limits(seconds=60, beyond=1)
    return explore(make, geometries, lambda: Judge(PROPERTIES.values(), can), limits)[0]


# ---------------------------------------------------------------- targets without a tensor


@pytest.mark.parametrize("right", [alike.Forking, alike.Swapping, alike.Grouping, alike.Asking])
def test_a_right_target_without_a_tensor_breaks_nothing(right):
    explored = searched(right, geometries=GEOMETRIES[:2])
    assert explored.found == {}
    assert explored.doubts == ()
    assert explored.exhausted


@pytest.mark.parametrize(
    ("twin", "broken", "steps"),
    [
        (alike.ForgetsTheCopy, "contents", 3),
        (alike.CopiesBackwards, "contents", 3),
        (alike.WritesThrough, "contents", 4),
        (alike.CountsOnce, "ref-counts", 2),
        (alike.MixesUpTheHost, "contents", 4),
        (alike.KeepsTheHostBlocks, "host-conserved", 3),
        (alike.SwapsOverAnother, "host-conserved", 4),
        (alike.EndsWithoutTheFirst, "withheld", 4),
        (alike.AsksTheWrongLength, "asked-agrees", 2),
        (alike.Takes, "asked-pure", 2),
        (alike.Raises, "asked-agrees", 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_fault_in_a_target_without_a_tensor_is_found(twin, broken, steps):
    explored = searched(twin)
    assert broken in explored.found
    assert steps == len(explored.found[broken].commands)


@pytest.mark.usefixtures("unmeasured")
def test_a_target_without_a_tensor_and_one_with_agree():
    forks = SharedKVCacheManager.configured("fork")
    swaps = SharedArrayKVCacheManager.configured("swap")
    for pair in ((alike.Forking, forks), (alike.Swapping, swaps)):
        explored = searched(*pair, geometries=GEOMETRIES[:2])
        assert explored.found == {}
        assert explored.exhausted


def test_a_copied_tail_has_what_stood_before_it():
    here = moved(world(alike.Forking), Prefill(0, 3), Fork(1, 0), Decode(1))
    assert here.state.seen.tables == {0: (0, 1), 1: (0, 2)}
    tag = here.setting.tag
    assert here.pool.read([(1, 0), (1, 1), (2, 0), (2, 1)]) == (
        *(tag(0, 2), POISON),
        *(tag(0, 2), tag(1, 3)),
    )


def test_a_fork_without_a_tensor_must_say_what_is_to_be_copied():
    class Silent(alike.Counted):
        abilities = frozenset({"fork"})

        def fork_request(self, req, child):
            pass

    with pytest.raises(CannotDrive, match=r"fork without physical_kv_cache; give it take_copies"):
        world(Silent)


def test_copies_are_asked_for_once():
    here = world(alike.Forking)
    moved(here, Prefill(0, 3), Fork(1, 0), Decode(1), Decode(0), Fork(2, 1))
    assert here.manager.take_copies() == []


# ---------------------------------------------------------------- the second pool


@pytest.mark.parametrize(
    "factory",
    [alike.Swapping, SharedKVCacheManager.configured("swap")],
    ids=["shadow", "tensor"],
)
def test_what_is_swapped_stands_in_the_second_pool_and_nothing_else(factory):
    here = moved(world(factory), Prefill(0, 3), SwapOut(0))
    slots = [(block, offset) for block in range(4) for offset in range(2)]
    tags = here.state.model.swapped[0]
    assert here.host is not None
    assert here.host.read(slots) == (*tags, *[POISON] * 5)
    assert here.pool.read(slots) == (POISON,) * 8
    moved(here, SwapIn(0))
    assert here.host.read(slots) == (POISON,) * 8
    moved(here, SwapOut(0), Release(0))
    assert here.host.read(slots) == (POISON,) * 8


@pytest.mark.parametrize("factory", [alike.Swapping, SharedKVCacheManager.configured("swap")])
def test_a_copied_world_has_a_second_pool_of_its_own(factory):
    here = moved(world(factory), Prefill(0, 3), SwapOut(0))
    there = here.clone(here.hooks())
    assert here.key(here.hooks()) == there.key(there.hooks())
    moved(there, SwapIn(0))
    assert here.key(here.hooks()) != there.key(there.hooks())
    moved(here, SwapIn(0))
    assert here.key(here.hooks()) == there.key(there.hooks())


def test_a_target_without_swap_has_no_second_pool():
    assert world(alike.Forking).host is None
    assert world(alike.Forking).setting.host_blocks == 0
    assert world(alike.Swapping).setting.host_blocks == 4
    assert isinstance(world(alike.Swapping).host, ShadowPool)
    assert isinstance(world(SharedKVCacheManager).host, TensorPool)


def test_pools_that_hold_the_same_are_the_same_however_it_came():
    first, second = ShadowPool(2), ShadowPool(2)
    first.write([(0, 0), (0, 1)], [5, POISON])
    second.write([(0, 0)], [5])
    assert first.key(None) == second.key(None)


# ---------------------------------------------------------------- asking


def test_what_is_asked_and_answered_stands_in_the_step():
    here = world(alike.Asking, 1, 1)
    step = here.apply(Prefill(0, 1))
    assert step.asked == (True, None)
    assert here.apply(Decode(0)).asked == (False, None)
    assert here.apply(Release(0)).asked is None


def test_nothing_is_asked_where_that_is_not_tried():
    factory: Any = alike.Asking
    here = World(factory, Geometry(1, 1), requests=1)
    assert here.apply(Prefill(0, 1)).asked is None


def test_an_exception_is_an_answer_and_ends_nothing():
    here = moved(world(alike.Raises), Prefill(0, 3))
    step = here.apply(Decode(0))
    assert step.asked is not None
    assert step.asked.answer == Raised("KeyError", "2")
    assert step.granted
    assert (
        "raised KeyError: 2 != True"
        in broken(moved(world(alike.Raises), Prefill(0, 3)), Decode(0))["asked-agrees"]
    )


def test_a_question_that_leaves_nothing_to_look_at_is_an_answer_too():
    class Blinds(alike.Asking):
        def can_decode(self, req):
            self.tables[req.request_id] = None  # type: ignore[assignment]

    here = moved(world(Blinds), Prefill(0, 1))
    step = here.apply(Decode(0))
    assert step.asked is not None
    assert isinstance(step.asked.answer, Raised)


def test_a_fork_is_asked_about_its_parent():
    asked = []

    class Told(SharedKVCacheManager.configured("fork", "ask")):  # type: ignore[misc]
        def can_fork(self, req):
            asked.append(req.request_id)
            return super().can_fork(req)

    moved(world(Told), Prefill(0, 1), Fork(1, 0), Fork(2, 1))
    assert asked == [0, 1]


# ---------------------------------------------------------------- groups, windows, prefixes


def test_a_withheld_block_has_no_content_unless_it_may_be_found_again():
    here = moved(world(alike.Grouping, 2, 1), Prefill(0, 1), GroupBegin(), Release(0))
    assert here.pool.read([(0, 0)]) == (POISON,)
    kept = SharedKVCacheManager.configured("group", "prefix")
    here = moved(world(kept, 2, 1), Prefill(0, 1), GroupBegin(), Release(0))
    assert here.pool.read([(0, 0)]) != (POISON,)
    assert here.state.seen.snapshot.withheld == {0}
    moved(here, GroupEnd())
    assert here.state.seen.snapshot.cached == {0}
    assert here.pool.read([(0, 0)]) != (POISON,)


def test_a_withheld_block_is_handed_out_again_after_the_group():
    here = moved(world(alike.Grouping, 1, 1), Prefill(0, 1), GroupBegin(), Release(0), GroupEnd())
    assert here.apply(Prefill(0, 1)).reused == {0}


def test_a_block_that_is_not_full_is_free_without_a_trace():
    here = moved(world(SharedKVCacheManager.configured("prefix")), Prefill(0, 3), Release(0))
    assert here.state.seen.snapshot.cached == {0}
    assert here.pool.read([(0, 0), (1, 0)]) == (here.setting.more(0, (), 1)[0], POISON)


def test_what_a_prompt_finds_is_not_written_and_so_must_be_right():
    class Rewrites(SharedKVCacheManager.configured("prefix")):  # type: ignore[misc]
        """Says less than it found: the world then writes the rest, and nothing is wrong."""

        def cached_tokens(self, req):
            return 0

    class Overstates(SharedKVCacheManager.configured("prefix")):  # type: ignore[misc]
        def cached_tokens(self, req):
            return req.seq_len

    moved(world(Rewrites), Prefill(0, 3), Prefill(1, 3))
    assert "contents" in broken(world(Overstates), Prefill(0, 3))


def test_the_null_block_is_never_free_and_never_reused():
    here = world(SharedKVCacheManager.configured("window", "append", window=1), 3, 1)
    moved(here, Prefill(0, 2), Decode(0), Release(0))
    assert here.apply(Prefill(0, 2)).reused == {0, 1}
    assert here.apply(Decode(0)).reused == frozenset()
    assert here.state.seen.held == {-1, 0}


@pytest.mark.usefixtures("unmeasured")
def test_what_nobody_holds_may_be_forgotten_where_that_is_declared_and_no_more():
    def declared(kind):
        class Declared(kind):  # type: ignore[misc, valid-type]
            @property
            def declares(self):
                own = super().declares
                why = {**own.because, "forgets_unheld": "blocks go with their last request"}
                return replace(own, forgets_unheld=True, because=why)

        return Declared

    def breaks(kind):
        return {*searched(kind, geometries=GEOMETRIES[:1]).found}

    assert "prefix-kept" in breaks(ForgetsAtRelease)
    assert breaks(declared(ForgetsAtRelease)) == set()
    assert "prefix-kept" in breaks(declared(WithdrawsWhatOthersHold))


# ---------------------------------------------------------------- keys and names

OWN = Trust("own", "own")
FORKS = [SharedKVCacheManager.configured("fork"), SharedArrayKVCacheManager.configured("fork")]


@pytest.mark.parametrize("factory", FORKS)
def test_requests_that_are_alike_may_come_in_any_order(factory):
    here = moved(world(factory), Prefill(0, 3), Fork(1, 0), Fork(2, 1))
    assert sorted(permutations(range(3))) == sorted(here.orders(OWN))
    moved(here, Decode(1))
    assert sorted(here.orders(OWN)) == [(0, 2, 1), (2, 0, 1)]
    assert here.orders(Trust("whole", "own")) == [(0, 1, 2)]


def test_tables_tell_the_requests_of_a_target_without_abilities_apart():
    core = SharedKVCacheManager.configured()
    here = moved(world(core), Prefill(1, 1), Prefill(0, 1))
    assert here.orders(OWN) == [(1, 0)]


@pytest.mark.parametrize("factory", FORKS)
def test_states_that_differ_in_names_only_have_one_key(factory):
    first = moved(world(factory), Prefill(0, 3), Fork(1, 0), Decode(1), Fork(2, 0))
    second = moved(world(factory), Prefill(2, 3), Fork(0, 2), Decode(0), Fork(1, 2))
    assert first.key(OWN) == second.key(OWN)
    third = moved(world(factory), Prefill(0, 3), Fork(1, 0), Decode(0), Fork(2, 0))
    assert first.key(OWN) != third.key(OWN)


@pytest.mark.parametrize("factory", FORKS)
def test_names_that_only_tags_know_play_no_part(factory):
    first = moved(world(factory), Prefill(0, 3), Fork(1, 0), Release(0))
    second = moved(world(factory), Prefill(3, 3), Fork(0, 3), Release(3))
    assert first.key(OWN) == second.key(OWN)
    moved(first, Decode(1))
    moved(second, Decode(0))
    assert first.key(OWN) == second.key(OWN)


@pytest.mark.parametrize(
    ("factory", "one", "other"),
    [
        (FORKS[0], (Prefill(0, 3), Fork(1, 0)), (Prefill(0, 3), Fork(1, 0), Decode(0))),
        (
            SharedKVCacheManager.configured("prefix"),
            (Admit(0, (1,), 0),),
            (Admit(0, (0,), 1),),
        ),
        (
            SharedKVCacheManager.configured("swap"),
            (Prefill(0, 1), Prefill(1, 1), SwapOut(0), SwapOut(1)),
            (Prefill(0, 1), SwapOut(0), Prefill(1, 1), Release(0), SwapOut(1)),
        ),
        (alike.Grouping, (Prefill(0, 1),), (Prefill(0, 1), GroupBegin())),
    ],
    ids=["fork", "prefix", "swap", "group"],
)
def test_states_that_go_on_differently_have_different_keys(factory, one, other):
    first, second = moved(world(factory), *one), moved(world(factory), *other)
    assert first.key(first.hooks()) != second.key(second.hooks())
