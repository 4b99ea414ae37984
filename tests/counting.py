"""How many states a pool has, for the tests of engines."""

from __future__ import annotations

from typing import Any

from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Need
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.profiles import Scope
from pagedkv.stateful.subject import Subject

NEEDS = frozenset({Need.FREE_LIST, Need.COUNTER, Need.HANDLE_TABLES})


def counted(factory: Any, geometry: Geometry, needs: frozenset[Need] = NEEDS) -> tuple[int, int]:
    """States and transitions of two requests in one pool, with nothing broken or doubted."""
    subject, scope = Subject("counted", (factory,)), Scope("small", (geometry,), 2)
    done, _ = explore(
        lambda geometry: subject.world(scope, geometry),
        (geometry,),
        lambda: Judge(PROPERTIES.values(), needs),
        Limits(),
    )
    assert (done.found, done.stopped, done.doubts) == ({}, None, ())
    return done.states, done.transitions
