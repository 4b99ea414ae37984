"""What share of an exhausted scope's states random histories come through."""

from __future__ import annotations

import pytest

from faults import SHOWN, TINY
from pagedkv import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.reached import reached
from pagedkv.stateful.report import Reach
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.world import World

TWO = Geometry(2, 1)


def world(geometry: Geometry) -> World:
    return World(KVCacheManager, geometry, requests=2)


@pytest.fixture(scope="module")
def whole() -> Exploration:
    done, _ = explore(world, (TWO,), lambda: Judge(PROPERTIES.values(), SHOWN), Limits())
    assert done.exhausted
    assert done.states == len(done.keys[TWO])
    return done


def states_of(whole: Exploration, *histories) -> int:
    return reached([(TWO, history) for history in histories], world, whole.keys, whole.trust)


def test_no_history_and_an_empty_one(whole):
    assert states_of(whole) == 0
    assert states_of(whole, ()) == 1


def test_each_state_on_the_way_counts_once(whole):
    assert states_of(whole, (Prefill(0, 1), Decode(0), Release(0))) == 3
    assert states_of(whole, (Prefill(0, 1),), (Prefill(0, 1), Release(0), Prefill(0, 1))) == 2


def test_what_the_scope_does_not_allow_is_left_out_and_names_follow(whole):
    long = (Prefill(0, 1), Release(0), Misuse(0, "release-released"), Prefill(1, 1), Prefill(2, 1))
    assert states_of(whole, long) == states_of(whole, (Prefill(0, 1), Prefill(1, 1))) == 3
    assert states_of(whole, (Prefill(0, 1), Release(0), Resume(0), Decode(0))) == 2
    assert states_of(whole, (Prefill(0, 3), Decode(0), Prefill(0, 1))) == 2


def test_a_pool_outside_the_scope_counts_nothing(whole):
    other = [(Geometry(2, 2), (Prefill(0, 1),))]
    assert reached(other, world, whole.keys, whole.trust) == 0


def test_every_history_together_comes_through_everything(whole):
    histories = list[tuple[Command, ...]]()
    todo: list[tuple[tuple[Command, ...], World]] = [((), world(TWO))]
    while todo:
        history, here = todo.pop()
        histories.append(history)
        if len(history) < 5:
            for command in here.candidates():
                there = here.clone(whole.trust)
                if there.apply(command).granted:
                    todo.append(((*history, command), there))
    assert states_of(whole, *histories) == whole.states


@pytest.mark.usefixtures("unmeasured")
def test_the_report_says_it_of_an_exhausted_scope():
    plan = Plan(TINY, 60.0)
    report = run_campaign(Subject("reference", (KVCacheManager,)), plan)
    reach = report.coverage.reach
    assert isinstance(reach, Reach)
    assert 1 < reach.states < reach.of < report.coverage.states
    assert report.to_json()["coverage"]["reach"] == {"states": reach.states, "of": reach.of}
