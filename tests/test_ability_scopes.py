"""Both managers with all abilities, side by side: every history of small pools, exactly counted."""

from __future__ import annotations

import pytest

from pagedkv.abilities import AbilityName
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.explorer import Exploration, Limits, explore
from pagedkv.stateful.profiles import COMBINED, Scope
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
    "truncate": (SMALL, 62, 802),
    "fork": (SMALL, 406, 5_369),
    "prefix": (TINY, 155, 3_087),
    "swap": (SMALL, 305, 3_018),
    "group": (SMALL, 116, 1_389),
    "fork+prefix": (TINY, 233, 4_263),
    "append+window": (TINY, 25, 297),
    "prefix+truncate": (TINY, 240, 4_699),
    "group+prefix": (TINY, 502, 10_719),
    "prefix+swap": (TINY[:2], 329, 3_530),
}


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("names", COUNTS)
def test_both_managers_agree_over_every_history_of_small_pools(names):
    geometries, states, transitions = COUNTS[names]
    done = counted(frozenset(names.split("+")), geometries)
    assert (done.states, done.transitions) == (states, transitions)


# Lookahead takes most of a pool, so that pools of 3 blocks and blocks of 3 tokens are small.
AHEAD: dict[int, tuple[tuple[Geometry, ...], int, int]] = {
    1: ((Geometry(2, 1), Geometry(3, 1), Geometry(2, 2), Geometry(2, 3)), 122, 2_310),
    2: ((Geometry(3, 1), Geometry(2, 3)), 50, 893),
}


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("lookahead", AHEAD)
def test_both_managers_agree_with_lookahead(lookahead):
    geometries, states, transitions = AHEAD[lookahead]
    done = counted(frozenset({"append", "truncate"}), geometries, lookahead)
    assert (done.states, done.transitions) == (states, transitions)


def test_every_combination_is_counted():
    assert {*COUNTS} == {"+".join(sorted(names)) for names in COMBINED}
