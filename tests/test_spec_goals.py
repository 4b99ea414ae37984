"""The goals that keep a run from passing on nothing, on plain data."""

from __future__ import annotations

import pytest

from builders import setting, state, step
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.goals import GOALS
from pagedkv.specs.properties import Sometimes
from pagedkv.specs.steps import NoBlocks, Refused, Step

OOM = NoBlocks("OOM")
EMPTY, ONE = state({}, {}), state({0: 3}, {0: (0, 1)})
LONE = state({0: 2}, {0: (0,)})
FULL = state({0: 8}, {0: (0, 1, 2, 3)})
BOTH = state({0: 2, 1: 2}, {0: (0,), 1: (1,)})
HALF = setting(num_blocks=2)


def reached(goal: str, happened: Step) -> bool:
    (expectation,) = [prop.expectation for prop in GOALS if prop.id == goal]
    assert isinstance(expectation, Sometimes)
    return expectation.reached(happened)


NAMED = {
    "pool-full": step(Prefill(0, 8), EMPTY, FULL),
    "oom-hit": step(Prefill(1, 9), ONE, ONE, outcome=OOM),
    "oom-in-decode": step(Decode(0), FULL, FULL, outcome=OOM),
    "table-grown": step(Decode(0), LONE, ONE),
    "table-scattered": step(Decode(0), LONE, state({0: 3}, {0: (0, 2)})),
    "two-live": step(Prefill(1, 2), LONE, BOTH),
    "released-beside": step(Release(1), BOTH, state({0: 2}, {0: (0,)}, released={1: 2})),
    "block-reused": step(Prefill(0, 3), EMPTY, ONE, reused=frozenset({1})),
    "misuse-tried": step(Misuse(0, "prefill-live"), ONE, ONE, outcome=Refused("no")),
}
NOT = {
    "pool-full": [
        step(Prefill(0, 3), EMPTY, ONE),
        step(Misuse(0, "prefill-live"), FULL, FULL, outcome=Refused("no")),
    ],
    "oom-hit": [
        step(Prefill(0, 3), EMPTY, ONE),
        step(Misuse(0, "prefill-live"), ONE, ONE, outcome=OOM),
    ],
    "oom-in-decode": [
        step(Prefill(1, 9), ONE, ONE, outcome=OOM),
        step(Decode(0), LONE, ONE),
    ],
    "table-grown": [
        step(Decode(0), state({0: 3}, {0: (0, 1)}), state({0: 4}, {0: (0, 1)})),
        step(Prefill(0, 3), EMPTY, ONE),
        step(Prefill(0, 3), state({0: 1}, {0: ()}), ONE),
    ],
    "table-scattered": [step(Prefill(0, 3), EMPTY, ONE), step(Prefill(0, 2), EMPTY, LONE)],
    "two-live": [step(Prefill(0, 3), EMPTY, ONE)],
    "released-beside": [
        step(Release(0), ONE, state({}, {}, released={0: 3})),
        step(Decode(0), BOTH, state({0: 3, 1: 2}, {0: (0, 2), 1: (1,)})),
    ],
    "block-reused": [step(Prefill(0, 3), EMPTY, ONE)],
    "misuse-tried": [step(Decode(0), ONE, ONE, outcome=Refused("no"))],
}


def test_every_goal_is_tested_both_ways():
    ids = [prop.id for prop in GOALS]
    assert ids == list(NAMED)
    assert ids == list(NOT)


@pytest.mark.parametrize("goal", NAMED)
def test_accepts_the_step_that_the_goal_names(goal):
    assert reached(goal, NAMED[goal])


@pytest.mark.parametrize(
    ("goal", "other"), [(goal, other) for goal, others in NOT.items() for other in others]
)
def test_rejects_steps_that_only_look_like_it(goal, other):
    assert not reached(goal, other)


def test_a_full_pool_is_one_without_a_usable_block_left():
    within = setting(usable=frozenset({1, 3}))
    full = state({0: 3}, {0: (3, 1)}, within=within)
    assert reached("pool-full", step(Prefill(0, 3), state({}, {}, within=within), full))


def test_a_descending_table_is_scattered():
    turned = state({0: 3}, {0: (1, 0)})
    assert reached("table-scattered", step(Prefill(0, 3), EMPTY, turned))
