"""Nothing is found before it is computed: judged between the call and the writing."""

from __future__ import annotations

import pytest

from able import PLAIN, able, after, seen
from allocators import world
from builders import message, step
from pagedkv.mutants.able import Caching, CachingAndTruncating, CachingAtOnce
from pagedkv.mutants.prefixes import PublishesBeforeComputed
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.early import judge_computed
from pagedkv.specs.model import EMPTY
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, Need

WITHIN = able("prefix")


def admitted(within, early):
    dense = after(within, Prefill(0, 4))
    there = seen(within, dense, {0: (0, 1)})
    made = step(Prefill(0, 4), seen(within, EMPTY, {}), there)
    return made._replace(early=early)


def test_rejects_what_can_be_found_before_it_is_written():
    judgement = judge_computed(admitted(WITHIN, frozenset({1, 0})))
    assert message(judgement) == (
        "prefill(0, 4): block 0 could be found before its tokens were computed"
    )
    assert Broken(message(judgement), (0, 1), (0,)) == judgement


def test_accepts_what_can_be_found_only_later_or_is_declared():
    assert judge_computed(admitted(WITHIN, frozenset())) is HOLDS
    at_once = able("prefix", publishes_at_once=True)
    assert PROPERTIES["prefix-computed"].needs == {Need.INDEX, Need.LATE_PREFIX}
    assert Need.LATE_PREFIX in offered(seen(WITHIN, EMPTY, {}, index={}))
    assert Need.LATE_PREFIX not in offered(seen(at_once, EMPTY, {}, index={}))
    assert Need.LATE_PREFIX not in offered(seen(PLAIN, EMPTY, {}))
    assert judge_computed(admitted(WITHIN, None)) is VACUOUS


@pytest.mark.parametrize(
    ("kind", "early"), [(Caching, set()), (CachingAtOnce, {0}), (PublishesBeforeComputed, {0})]
)
def test_a_world_looks_between_the_call_and_the_writing(kind, early):
    here = world(kind, 3, 2)
    assert here.apply(Prefill(0, 3)).early == early
    assert here.apply(Prefill(0, 99)).early is None
    assert here.apply(Release(0)).early is None


def test_what_a_prompt_found_is_not_what_it_writes():
    here = world(CachingAtOnce, 3, 2)
    here.apply(Prefill(0, 2))
    assert here.apply(Prefill(1, 3)).early == frozenset()


def test_what_is_computed_a_second_time_is_there_already():
    class Again(Caching):
        """Says that it found nothing, so that all is written once more."""

        def cached_tokens(self, req):
            return 0

    here = world(Again, 3, 2)
    here.apply(Prefill(0, 2))
    assert here.apply(Prefill(1, 3)).early == frozenset()


def test_a_block_that_is_written_again_is_withdrawn_before():
    here = world(CachingAndTruncating, 3, 2)
    here.apply(Prefill(0, 2))
    here.apply(Truncate(0, 1))
    assert here.apply(Decode(0)).early == frozenset()
