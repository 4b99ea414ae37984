"""Both managers with all abilities, side by side: every history of small pools, exactly counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import declaring
from pagedkv.abilities import AbilityName
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.profiles import COMBINED, PROFILES, Scope
from pagedkv.stateful.subject import Subject

SMALL = (Geometry(1, 1), Geometry(1, 2), Geometry(2, 1), Geometry(2, 2))
TINY = SMALL[:3]


def counted(
    names: frozenset[AbilityName], geometries: tuple[Geometry, ...], lookahead: int = 0
) -> Exploration:
    """Search both in lockstep, asked before each call; nothing may be found, or doubted."""
    window = 2 if "window" in names else None
    both = (SharedKVCacheManager, SharedArrayKVCacheManager)
    factories = tuple(
        kind.configured(*names, "ask", window=window, lookahead=lookahead) for kind in both
    )
    subject = Subject("both", factories)
    scope = Scope("ability", geometries, 2, abilities=names | {"ask"})
    needs = offered(*subject.world(scope, geometries[0]).states)
    done, _ = explore(
        lambda geometry: subject.world(scope, geometry),
        geometries,
        lambda: Judge(PROPERTIES.values(), needs),
        Limits(),
    )
    assert (done.found, done.stopped, done.doubts) == ({}, None, ())
    assert (done.trust.key, done.trust.clone) == ("own", "own")
    return done


# Pools of up to 2 blocks of 1 and 2 tokens have, with prefixes, 2,613 states and 48,397 steps,
# and with forks beside them 3,535 and 62,309. Counted once; here, what takes a few seconds.
COUNTS: dict[str, tuple[tuple[Geometry, ...], int, int]] = {
    "append": (SMALL, 43, 633),
    "truncate": (SMALL, 62, 878),
    "fork": (TINY, 86, 1_135),
    "prefix": (TINY, 155, 3_087),
    "swap": (TINY, 85, 806),
    "group": (SMALL, 116, 1_389),
    "fork+prefix": (TINY, 233, 4_263),
    "append+window": (SMALL, 83, 1_147),
    "prefix+truncate": (TINY, 240, 4_990),
    "group+prefix": (TINY[:2], 70, 1_091),
    "prefix+swap": (TINY[:2], 329, 3_530),
}


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("names", COUNTS)
def test_both_managers_agree_over_every_history_of_small_pools(names):
    geometries, states, transitions = COUNTS[names]
    done = counted(frozenset(names.split("+")), geometries)
    assert (done.states, done.transitions) == (states, transitions)


# Blocks of 3 tokens: the least that are cut, grow, and are not full again.
THREES: dict[str, tuple[int, int]] = {"truncate": (122, 2_042), "append+window": (164, 2_624)}


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("names", THREES)
def test_both_managers_agree_in_blocks_of_three(names):
    done = counted(frozenset(names.split("+")), (Geometry(2, 3),))
    assert (done.states, done.transitions) == THREES[names]


@pytest.mark.parametrize(
    ("names", "most"),
    [
        ("truncate", 2),
        ("append+window", 2),
        ("fork", 1),
        ("prefix+truncate", 1),
        ("fork+prefix", 0),
    ],
)
def test_blocks_of_three_are_tried_where_that_is_cheap(names, most):
    declared = declaring(
        engine=True,
        abilities=set(names.split("+")),
        window=2 if "window" in names else None,
        null_block=-1,
    )
    for engine, due in ((False, most), (True, 0)):
        scopes = PROFILES["nightly"].scopes(replace(declared, engine=engine), pair=False)
        (scope,) = (s for s in scopes if s.name == "+".join(sorted(names.split("+"))))
        threes = [g.num_blocks for g in scope.geometries if g.block_size == 3]
        assert threes == [*range(1, due + 1)]
        assert {g.num_blocks for g in scope.geometries if g.block_size == 2} == {1, 2, 3}


# Lookahead takes most of a pool, so that pools of 3 blocks and blocks of 3 tokens are small.
AHEAD: dict[int, tuple[tuple[Geometry, ...], int, int]] = {
    1: ((Geometry(2, 1), Geometry(3, 1), Geometry(2, 2), Geometry(2, 3)), 122, 2_474),
    2: ((Geometry(3, 1), Geometry(2, 3)), 50, 950),
}


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("lookahead", AHEAD)
def test_both_managers_agree_with_lookahead(lookahead):
    geometries, states, transitions = AHEAD[lookahead]
    done = counted(frozenset({"append", "truncate"}), geometries, lookahead)
    assert (done.states, done.transitions) == (states, transitions)


def test_every_combination_is_counted():
    assert {*COUNTS} == {"+".join(sorted(names)) for names in COMBINED}
