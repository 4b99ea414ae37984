"""The order of eviction, judged on one target: the longest unheld first, as declared."""

from __future__ import annotations

import pytest

from able import able, after, seen
from builders import declaring, message, step
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.group import GroupEnd
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapOut
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.eviction import judge_order
from pagedkv.specs.model import EMPTY
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryStep, Need
from pagedkv.specs.rollback import judge_unchanged
from pagedkv.specs.steps import NoBlocks

WITHIN = able("prefix", evicts="lru-tail-first")
LOOSE = able("prefix", evicts="lru")
OOM = NoBlocks("OOM")
THREE = after(WITHIN, Prefill(0, 6))
GONE = after(WITHIN, Release(0), start=THREE)
ENDS = {0: THREE.live[0][1], 1: THREE.live[0][3], 2: THREE.live[0][5]}


def cached(*order, dense=EMPTY, tables=None, within=WITHIN, **more):
    """Blocks 0, 1, 2 have the content of the first, second and third block of zeros."""
    return seen(
        within,
        dense,
        tables or {},
        cached=frozenset(order),
        eviction_order=order,
        ends={b: ENDS.get(b, -1) for b in order} | more.pop("ends", {}),
        **more,
    )


def admits(command, was, table, now, **more):
    """The step that admits request 1 with this table, and the orders around it."""
    dense = command.advance(GONE, WITHIN)
    first = cached(*was, dense=GONE, **more)
    return step(command, first, cached(*now, dense=dense, tables={1: table}, **more))


OTHER = Admit(1, (1, 0), 0)


@pytest.mark.parametrize(
    ("table", "now", "idle"), [((2,), (0,), [1]), ((3,), (1, 0), [2]), ((3,), (), [2, 1, 0])]
)
def test_refuses_the_eviction_of_what_is_handed_out_to_nobody(table, now, idle):
    found = judge_order(admits(OTHER, (2, 1, 0), table, now))
    assert message(found) == f"{OTHER} evicted {idle}, and handed it out to nobody"
    assert isinstance(found, Broken)
    assert found.blocks == tuple(idle)


@pytest.mark.parametrize(
    ("command", "was", "table", "now"),
    [
        (OTHER, (2, 1, 0), (3,), (2, 1, 0)),
        (OTHER, (2, 1, 0), (2,), (1, 0)),
        (Admit(1, (1, 0, 0), 0), (2, 1, 0), (1, 2), (0,)),
        (Prefill(1, 3), (2, 1, 0), (0, 2), (1,)),
        (Prefill(1, 3), (0, 2, 1), (0, 2), (1,)),
        (Prefill(1, 4), (1, 0), (0, 1), ()),
        (Prefill(1, 2), (0,), (0,), ()),
    ],
    ids=["none", "one", "two", "beside a hit", "behind a hit", "what it fills anew", "its last"],
)
def test_accepts_the_first_of_what_is_not_found(command, was, table, now):
    assert judge_order(admits(command, was, table, now)) is HOLDS


@pytest.mark.parametrize(
    ("command", "was", "table", "now", "words"),
    [
        (OTHER, (2, 1, 0), (0,), (2, 1), "evicted [0] != [2], the first of eviction_order"),
        (OTHER, (2, 1, 0), (1,), (2, 0), "evicted [1] != [2], the first of eviction_order"),
        (
            Prefill(1, 3),
            (2, 1, 0),
            (0, 1),
            (2,),
            "evicted [1] != [2], the first of eviction_order = [2, 1, 0] without [0], which it",
        ),
        (Prefill(1, 2), (2, 0), (0,), (2,), "evicted [0] != [2], the first of eviction_order"),
        (Admit(1, (1, 0, 0), 0), (2, 1, 0), (0, 2), (1,), "evicted [2, 0] != [2, 1], the first of"),
    ],
    ids=[
        "the last",
        "one between",
        "beside a hit",
        "its own last block is no hit",
        "what it fills",
    ],
)
def test_rejects_another_than_the_first(command, was, table, now, words):
    judgement = judge_order(admits(command, was, table, now))
    assert message(judgement).startswith(f"{command} {words}")


def test_a_wrong_eviction_names_the_order_and_both_blocks():
    first = "the first of eviction_order = [2, 1, 0]"
    judgement = judge_order(admits(OTHER, (2, 1, 0), (0,), (2, 1)))
    assert Broken(f"{OTHER} evicted [0] != [2], {first}", (0, 2)) == judgement
    judgement = judge_order(admits(Prefill(1, 3), (2, 1, 0), (0, 1), (2,)))
    words = f"prefill(1, 3) evicted [1] != [2], {first} without [0], which it found"
    assert Broken(words, (1, 2)) == judgement


def test_every_leading_block_that_a_prompt_finds_is_no_eviction():
    assert judge_order(admits(Prefill(1, 5), (2, 3, 1, 0), (0, 1, 2), (3,))) is HOLDS


def lets_go(now, was=(3,), within=WITHIN):
    first = cached(*was, dense=THREE, tables={0: (0, 1, 2)}, within=within)
    return step(Release(0), first, cached(*now, dense=GONE, within=within))


def test_what_is_let_go_stands_behind_all_others_the_last_logical_block_first():
    assert judge_order(lets_go((3, 2, 1, 0))) is HOLDS
    assert judge_order(lets_go((3, 2, 0))) is HOLDS
    for now in ((3, 0, 1, 2), (2, 1, 0, 3), (2, 3, 1, 0)):
        judgement = judge_order(lets_go(now))
        words = f"release(0): eviction_order after = {list(now)} != [3, 2, 1, 0], with [3] before"
        assert Broken(words, now) == judgement


def test_the_last_logical_block_is_meant_whatever_its_number():
    first = cached(3, dense=THREE, tables={0: (1, 2, 0)})
    for now, right in (((3, 0, 2, 1), True), ((3, 2, 1, 0), False)):
        judgement = judge_order(step(Release(0), first, cached(*now, dense=GONE)))
        assert (judgement is HOLDS) == right


def test_within_one_request_any_order_will_do_where_only_lru_is_declared():
    assert judge_order(lets_go((3, 0, 2, 1), within=LOOSE)) is HOLDS
    assert judge_order(lets_go((0, 3, 2, 1), within=LOOSE)) is not HOLDS


def test_those_that_stay_keep_their_order():
    judgement = judge_order(lets_go((3, 4, 2, 1, 0), was=(4, 3)))
    assert "eviction_order after = [3, 4, 2, 1, 0] != [4, 3, 2, 1, 0]" in message(judgement)


def test_what_is_swapped_out_is_let_go_too():
    within = able("prefix", "swap", evicts="lru-tail-first", host=4)
    first = cached(3, dense=THREE, tables={0: (0, 1, 2)}, within=within)
    dense = after(within, SwapOut(0), start=THREE)
    for order, right in (((3, 2, 1, 0), True), ((3, 0, 1, 2), False)):
        judgement = judge_order(step(SwapOut(0), first, cached(*order, dense=dense, within=within)))
        assert (judgement is HOLDS) == right


def test_what_comes_back_from_a_group_is_only_behind_the_others():
    within = able("prefix", "group", evicts="lru-tail-first")
    first = cached(3, within=within, withheld=frozenset({0, 1}))
    for order, right in (((3, 0, 1), True), ((3, 1, 0), True), ((0, 3, 1), False)):
        judgement = judge_order(step(GroupEnd(), first, cached(*order, within=within)))
        assert (judgement is HOLDS) == right


def test_growing_evicts_the_first_too():
    dense = after(WITHIN, Prefill(0, 2))
    first = cached(2, 1, dense=dense, tables={0: (0,)})
    grown = after(WITHIN, Decode(0), start=dense)
    for block, left, right in ((2, 1, True), (1, 2, False)):
        then = cached(left, dense=grown, tables={0: (0, block)})
        assert (judge_order(step(Decode(0), first, then)) is HOLDS) == right


def test_the_order_is_that_of_the_cached_blocks():
    wrong = seen(WITHIN, GONE, {}, cached={0, 1}, eviction_order=(1,), ends=ENDS)
    judgement = judge_order(step(Release(0), cached(dense=THREE, tables={0: (0, 1)}), wrong))
    assert Broken("eviction_order = [1], but cached = {0, 1}", (1,)) == judgement


def test_nothing_to_judge_where_nothing_is_cached_or_granted():
    nothing = cached()
    assert judge_order(step(Prefill(0, 1), nothing, nothing)) is VACUOUS
    some = cached(2, 1, dense=GONE)
    assert judge_order(step(Prefill(1, 9), some, some, outcome=OOM)) is VACUOUS


# ---------------------------------------------------------------- where it is judged, and beside


def test_it_is_judged_only_where_it_is_declared_and_seen():
    prop = PROPERTIES["eviction-order"]
    assert isinstance(prop.expectation, EveryStep)
    assert prop.needs == {Need.EVICTION}
    assert Need.EVICTION in offered(cached())
    assert Need.EVICTION not in offered(cached(within=able("prefix")))
    assert Need.EVICTION not in offered(seen(WITHIN, EMPTY, {}))


def test_only_an_order_that_is_known_can_be_declared():
    with pytest.raises(ValueError, match="evicts = 'fifo'; use one of lru, lru-tail-first"):
        declaring(evicts="fifo")
    assert declaring(evicts="lru").evicts == "lru"


def test_a_refusal_leaves_the_order_as_it_was():
    first = cached(2, 1, 0, dense=GONE)
    touched = step(Prefill(1, 9), first, cached(2, 0, 1, dense=GONE), outcome=OOM)
    assert message(judge_unchanged(touched)).startswith(
        "eviction_order before [2, 1, 0] != [2, 0, 1] after"
    )


def test_a_refusal_that_may_evict_leaves_the_order_of_the_others():
    within = able("prefix", evicts="lru", evicts_cached=True)
    first = cached(2, 1, 0, dense=GONE, within=within, free_blocks=(3,), num_free=1)
    for order, right in (((1, 0), True), ((0, 1), False)):
        then = cached(*order, dense=GONE, within=within, free_blocks=(3, 2), num_free=2)
        judgement = judge_unchanged(step(Prefill(1, 9), first, then, outcome=OOM))
        assert (judgement is HOLDS) == right
