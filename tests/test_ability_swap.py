"""Swap: a request's blocks move to a second pool by content, and back."""

from __future__ import annotations

import pytest

from able import PLAIN, able, after, named, said, seen
from builders import message, step
from pagedkv import Request
from pagedkv.specs.abilities.core import Prefill, Release, Resume
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SWAP, SwapIn, SwapOut, judge_host
from pagedkv.specs.catalogue import candidates, offered
from pagedkv.specs.growth import free_name
from pagedkv.specs.model import EMPTY
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, Need, Sometimes
from pagedkv.specs.rollback import judge_exact
from pagedkv.specs.steps import Grant, HostGrant, NoBlocks

WITHIN = able("swap", host=4)
IN = after(WITHIN, Prefill(0, 3), Prefill(1, 1))
OUT = after(WITHIN, SwapOut(0), start=IN)


def test_live_requests_go_out_and_swapped_ones_come_in():
    assert SwapOut(0).enabled(IN, WITHIN)
    assert not SwapOut(0).enabled(OUT, WITHIN)
    assert not SwapOut(2).enabled(IN, WITHIN)
    assert not SwapOut(0).enabled(after(PLAIN, Prefill(0, 1)), PLAIN)
    assert SwapIn(0).enabled(OUT, WITHIN)
    assert not SwapIn(0).enabled(IN, WITHIN)
    assert not SwapIn(1).enabled(OUT, WITHIN)


@pytest.mark.parametrize("command", [Prefill(0, 1), Admit(0, (0,), 0), Fork(0, 1)], ids=str)
def test_the_name_of_a_swapped_request_is_taken(command):
    within = able("swap", "fork", "prefix", host=4)
    out = after(within, Prefill(0, 3), Prefill(1, 1), SwapOut(0))
    assert not command.enabled(out, within)
    assert command.enabled(after(within, Release(0), start=out), within)


def test_a_swapped_request_counts_among_those_there_may_be():
    assert free_name(OUT, WITHIN) == 2
    assert free_name(after(WITHIN, Prefill(2, 1), start=OUT), WITHIN) is None


def test_going_out_needs_the_blocks_of_its_tokens_in_the_second_pool():
    assert HostGrant(2, 2) == SwapOut(0).expect(IN, WITHIN)
    assert Grant(2, 2) == SwapIn(0).expect(OUT, WITHIN)
    assert type(SwapIn(0).expect(OUT, WITHIN)) is Grant


def test_lookahead_may_go_out_and_come_in_too():
    ahead = able("swap", host=4, lookahead=1)
    live = after(ahead, Prefill(0, 3))
    out = after(ahead, SwapOut(0), start=live)
    assert HostGrant(2, 3) == SwapOut(0).expect(live, ahead)
    assert Grant(2, 3) == SwapIn(0).expect(out, ahead)
    for held, free in (((0, 1), (2, 3)), ((0, 1, 2), (3,))):
        assert judge_host(seen(ahead, out, {}, swapped={0: held}, host_free=free)) is HOLDS
    many = seen(ahead, out, {}, swapped={0: (0, 1, 2, 3)}, host_free=())
    assert message(judge_host(many)) == "request 0 holds 4 != 2 block(s) of the second pool"


def test_what_goes_out_and_comes_in_is_the_same():
    assert {0: IN.live[0]} == OUT.swapped
    assert list(OUT.live) == [1]
    back = after(WITHIN, SwapIn(0), start=OUT)
    assert back == IN
    assert list(back.live) == [0, 1]


def test_swapped_requests_stand_in_the_order_of_their_names():
    assert list(after(WITHIN, SwapOut(1), SwapOut(0), start=IN).swapped) == [0, 1]


def test_a_swapped_request_can_be_released_and_keeps_its_length():
    over = after(WITHIN, Release(0), start=OUT)
    assert (over.swapped, over.released) == ({}, {0: 3})
    assert after(WITHIN, Resume(0), start=over) == IN


def test_what_goes_out_shares_no_page_any_more():
    within = able("swap", "fork", host=4)
    both = after(within, Prefill(0, 3), Fork(1, 0))
    out = after(within, SwapOut(0), start=both)
    assert out.pages == {1: (0, 1)}
    assert after(within, SwapIn(0), start=out).pages == {0: (0, 1), 1: (2, 3)}


def test_swaps_make_their_calls_and_have_nothing_to_prepare():
    assert said(SwapOut(0), 0) == ("swap_out", "r0")
    assert said(SwapIn(0), 0) == ("swap_in", "r0")
    handles = {0: Request(0, 3)}
    for command in (SwapOut(0), SwapIn(0)):
        command.prepare(handles, seen(WITHIN, IN, {0: (0, 1), 1: (2,)}))()
    assert handles[0].tokens == [0, 0, 0]


def test_what_comes_in_is_there_already_and_is_not_written():
    before = seen(WITHIN, OUT, {1: (2,)}, swapped={0: (0, 1)}, host_free=(2, 3))
    assert SwapIn(0).written(None, before, Request(0, 3)) == 3


def test_where_the_second_pool_is_not_seen_its_room_is_not_judged():
    here = seen(WITHIN, IN, {0: (0, 1), 1: (2,)})
    gone = seen(WITHIN, OUT, {1: (2,)})
    assert judge_exact(step(SwapOut(0), here, gone)) is VACUOUS
    assert judge_exact(step(SwapOut(0), here, here, outcome=NoBlocks("OOM"))) is VACUOUS


def test_every_live_request_goes_out_and_every_swapped_one_comes_in_or_is_released():
    found = [c for c in candidates(OUT, WITHIN) if c.request == 0 or c.op == "swap_out"]
    assert named(found) == ["swap_out(1)", "swap_in(0)", "release(0)"]
    assert not [c for c in candidates(IN, PLAIN) if isinstance(c, SwapOut)]


def test_running_out_of_the_second_pool_is_judged_by_the_second_pool():
    def judged(outcome, host_free):
        before = seen(WITHIN, IN, {0: (0, 1), 1: (2,)}, swapped={}, host_free=host_free)
        return judge_exact(step(SwapOut(0), before, before, outcome=outcome))

    assert judged(NoBlocks("OOM"), (3,)) is HOLDS
    assert "needed(2) <= available(2)" in message(judged(NoBlocks("OOM"), (1, 3)))
    before = seen(WITHIN, IN, {0: (0, 1), 1: (2,)}, swapped={}, host_free=(3,))
    assert "needed(2) > available(1)" in message(judge_exact(step(SwapOut(0), before, before)))


def host(swapped, free, dense=OUT):
    return seen(WITHIN, dense, {1: (2,)}, swapped=swapped, host_free=free)


@pytest.mark.parametrize(
    ("swapped", "free"), [({0: (0, 1)}, (2, 3)), ({0: (3, 1)}, (2, 0))], ids=str
)
def test_accepts_a_second_pool_in_which_all_are_free_or_held_once(swapped, free):
    assert judge_host(host(swapped, free)) is HOLDS


def test_accepts_a_fresh_second_pool():
    assert judge_host(seen(WITHIN, EMPTY, {}, swapped={}, host_free=(0, 1, 2, 3))) is HOLDS


@pytest.mark.parametrize(
    ("swapped", "free", "words"),
    [
        ({0: (0, 1)}, (3,), "free(1) + swapped(2) != blocks(4)"),
        ({0: (0, 1)}, (1, 2, 3), "free(3) + swapped(2) != blocks(4)"),
        ({0: (0, 0)}, (2, 3), "free(2) + swapped(2) != blocks(4)"),
        ({0: (0, 1)}, (2, 2), "free(2) + swapped(2) != blocks(4)"),
    ],
    ids=["lost", "free and held", "held twice", "free twice"],
)
def test_rejects_a_second_pool_that_does_not_add_up(swapped, free, words):
    shown = f"free {list(free)}, swapped {{0: {list(swapped[0])}}}"
    assert message(judge_host(host(swapped, free))) == f"second pool: {words}: {shown}"


def test_rejects_other_requests_than_were_swapped_out():
    words = "those that the history swapped out"
    none = message(judge_host(host({}, (0, 1, 2, 3))))
    assert none == f"swapped requests {{}} != {{0}}, {words}"
    both = message(judge_host(host({0: (0, 1), 1: (2,)}, (3,))))
    assert both == f"swapped requests {{0, 1}} != {{0}}, {words}"


def test_rejects_a_request_with_another_number_of_blocks_than_its_tokens_fill():
    judgement = judge_host(host({0: (0, 1, 2)}, (3,)))
    expected = "request 0 holds 3 != 2 block(s) of the second pool"
    assert Broken(expected, (), (0,)) == judgement


def test_the_second_pool_is_judged_where_it_can_be_seen_only():
    assert Need.HOST in offered(host({0: (0, 1)}, (2, 3)))
    assert Need.HOST not in offered(host(None, (2, 3)))
    assert Need.HOST not in offered(host({0: (0, 1)}, None))


def test_the_goal_is_a_request_that_came_back():
    goal = SWAP.properties[-1].expectation
    assert isinstance(goal, Sometimes)
    out, back = host({0: (0, 1)}, (2, 3)), seen(WITHIN, IN, {0: (0, 1), 1: (2,)})
    assert goal.reached(step(SwapIn(0), out, back))
    assert not goal.reached(step(SwapIn(0), out, out, outcome=NoBlocks("OOM")))
    assert not goal.reached(step(SwapOut(0), back, out))
