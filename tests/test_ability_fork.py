"""Fork: a second request over the same blocks, and the copy before a write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from able import NULL, PLAIN, able, after, named, said, seen
from builders import message, step
from pagedkv import Request
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.fork import FORK, Fork
from pagedkv.specs.abilities.swap import SwapOut
from pagedkv.specs.catalogue import candidates, offered
from pagedkv.specs.contents import judge_contents
from pagedkv.specs.free_list import judge_conserved
from pagedkv.specs.growth import free_name, outlived
from pagedkv.specs.index import judge_ref_counts
from pagedkv.specs.model import EMPTY
from pagedkv.specs.properties import HOLDS, Broken, Need, Sometimes
from pagedkv.specs.steps import Grant, NoBlocks
from pagedkv.specs.tables import judge_unique

WITHIN = able("fork", "append")
EAGER = able("fork", "append", forks_eagerly=True)
THREE = after(WITHIN, Prefill(0, 3))
BOTH = after(WITHIN, Fork(1, 0), start=THREE)


def test_a_new_name_can_hold_what_a_live_request_holds():
    assert Fork(1, 0).enabled(THREE, WITHIN)
    assert not Fork(0, 0).enabled(THREE, WITHIN)
    assert not Fork(1, 2).enabled(THREE, WITHIN)
    assert not Fork(1, 0).enabled(BOTH, WITHIN)
    assert not Fork(1, 0).enabled(THREE, PLAIN)


def test_a_fork_needs_a_block_only_where_a_partly_filled_tail_is_copied_at_once():
    four = after(WITHIN, Prefill(0, 4))
    assert Grant(0, 0) == Fork(1, 0).expect(THREE, WITHIN)
    assert Grant(1, 1) == Fork(1, 0).expect(after(EAGER, Prefill(0, 3)), EAGER)
    assert Grant(0, 0) == Fork(1, 0).expect(four, EAGER)


def test_the_child_has_its_parents_tokens_and_pages():
    assert {0: THREE.live[0], 1: THREE.live[0]} == BOTH.live
    assert BOTH.pages == {0: (0, 1), 1: (0, 1)}
    assert after(EAGER, Prefill(0, 3), Fork(1, 0)).pages == {0: (0, 1), 1: (0, 2)}


def test_whoever_writes_first_into_a_shared_tail_needs_a_block_for_the_copy():
    assert Grant(1, 1) == Decode(0).expect(BOTH, WITHIN)
    assert Grant(1, 1) == Decode(1).expect(BOTH, WITHIN)
    assert Grant(2, 2) == Append(1, 2).expect(BOTH, WITHIN)
    wrote = after(WITHIN, Decode(1), start=BOTH)
    assert wrote.pages == {0: (0, 1), 1: (0, 2)}
    assert Grant(0, 0) == Decode(0).expect(wrote, WITHIN)


def test_a_tail_that_is_full_or_no_longer_shared_is_not_copied():
    full = after(WITHIN, Prefill(0, 4), Fork(1, 0))
    assert Grant(1, 1) == Decode(1).expect(full, WITHIN)
    assert after(WITHIN, Decode(1), start=full).pages == {0: (0, 1), 1: (0, 1, 2)}
    assert Grant(0, 0) == Decode(1).expect(after(WITHIN, Release(0), start=BOTH), WITHIN)


def test_pages_are_numbered_as_they_first_appear_whatever_came_before():
    one = after(WITHIN, Release(0), Prefill(0, 1), start=BOTH)
    assert one.pages == {0: (0,), 1: (1, 2)}
    assert one.pages == after(WITHIN, Prefill(1, 3), Prefill(0, 1)).pages


def test_new_tokens_of_a_fork_are_its_own():
    wrote = after(WITHIN, Decode(1), Decode(0), start=BOTH)
    assert wrote.live[0][:3] == wrote.live[1][:3]
    assert wrote.live[0][3] != wrote.live[1][3]
    assert WITHIN.name_tag(wrote.live[1][3]) == "token 3 of request 1"


def test_the_child_is_made_of_what_the_history_gave_its_parent():
    parent = Request(0, 3, [7, 8, 9], extra_key="a")
    parent.seq_len, parent.tokens = 1, [7, 8]  # what a target may have done to its handle
    handles = {0: parent}
    undo = Fork(1, 0).prepare(handles, seen(WITHIN, THREE, {0: (0, 1)}))
    child = handles[1]
    assert (child.seq_len, child.prompt_len, child.tokens) == (3, 3, [7, 8, 0])
    assert (child.extra_key, child.block_table) == ("a", [])
    undo()
    assert handles == {0: parent}


def test_a_refused_fork_puts_a_released_handle_back():
    kept, parent = Request(1, 2), Request(0, 3)
    handles = {0: parent, 1: kept}
    undo = Fork(1, 0).prepare(handles, seen(WITHIN, THREE, {0: (0, 1)}))
    assert handles[1] is not kept
    undo()
    assert handles[1] is kept


def test_a_fork_makes_its_call_and_is_renamed_with_its_parent():
    assert said(Fork(1, 0), 0, 1) == ("fork_request", "r0", "r1")
    assert Fork(1, 0).names() == (1, 0)
    assert Fork(4, 2) == Fork(1, 0).renamed({0: 2, 1: 4})


def test_what_a_fork_holds_is_written_already():
    before = seen(WITHIN, THREE, {0: (0, 1)})
    assert Fork(1, 0).written(None, before, Request(1, 3)) == 3


def test_every_live_request_can_be_forked_while_there_may_be_more():
    within = able("fork", requests=3)
    found = candidates(after(within, Prefill(0, 1), Prefill(1, 1)), within)
    assert named(c for c in found if isinstance(c, Fork)) == ["fork(2, 0)", "fork(2, 1)"]
    full = candidates(after(within, Prefill(0, 1), Prefill(1, 1), Prefill(2, 1)), within)
    assert not [c for c in full if isinstance(c, Fork)]
    assert not [c for c in candidates(after(PLAIN, Prefill(0, 1)), PLAIN) if isinstance(c, Fork)]


def test_a_name_that_a_fork_has_tokens_of_is_not_given_out():
    within = able("fork", requests=2, resumes=False)
    assert within.names == 4
    assert PLAIN.names == PLAIN.requests
    alone = after(within, Prefill(0, 1), Fork(1, 0), Release(0)).without_released()
    assert free_name(alone, within) == 2
    assert outlived(alone, within, (1,)) == (0,)
    grown = after(within, Decode(1), Fork(2, 1), Release(1), start=alone).without_released()
    assert free_name(grown, within) == 3
    assert outlived(grown, within, (2,)) == (0, 1)
    over = after(within, Release(2), start=grown).without_released()
    assert free_name(over, within) == 0
    assert outlived(over, within, ()) == ()


@pytest.mark.parametrize(
    ("given", "next_to_one", "next_to_two"),
    [({}, 1, None), ({"varied": True}, 1, 0), ({"resumes": False}, 0, 0)],
)
def test_a_released_name_is_given_out_again_where_none_resumes_or_no_other_is_left(
    given, next_to_one, next_to_two
):
    within = able("append", requests=2, **given)
    one = after(within, Prefill(0, 1), Release(0))
    two = after(within, Prefill(1, 1), Release(1), start=one)
    assert (free_name(one, within), free_name(two, within)) == (next_to_one, next_to_two)


def test_no_name_is_outlived_where_forks_are_not_tried_or_tokens_are_known_by_content():
    forks = able("fork", requests=2)
    assert replace(forks, active=frozenset()).names == 2
    found = able("fork", "prefix", requests=6)
    assert found.names == 6
    assert free_name(after(found, *(Prefill(r, 1) for r in range(3))), found) == 3


@pytest.mark.parametrize("given", [{}, {"resumes": False}, {"varied": True}])
def test_where_all_names_are_taken_no_new_request_comes(given):
    within = able("fork", size=1, blocks=8, requests=2, **given)
    dense = after(within, Prefill(0, 1))
    for child in (1, 2, 3):
        one = (Fork(child, child - 1), Release(child - 1), Decode(child))
        dense = after(within, *one, start=dense).without_released()
    assert outlived(dense, within, (3,)) == (0, 1, 2)
    assert free_name(dense, within) is None
    assert not [c for c in candidates(dense, within) if c.begins]


def test_swapped_requests_have_tokens_of_others_too():
    within = able("fork", "swap", requests=2, host=4, resumes=False)
    out = after(within, Prefill(0, 1), Fork(1, 0), Release(0), SwapOut(1)).without_released()
    assert free_name(out, within) == 2
    assert outlived(out, within, (1,)) == (0,)


# ---------------------------------------------------------------- the core where blocks are shared


SHARED = {0: (0, 1), 1: (0, 1)}


def test_accepts_blocks_that_are_shared_where_the_same_tokens_stand():
    assert judge_unique(seen(WITHIN, BOTH, SHARED)) is HOLDS
    wrote = after(WITHIN, Decode(1), start=BOTH)
    assert judge_unique(seen(WITHIN, wrote, {0: (0, 1), 1: (0, 2)})) is HOLDS


def test_accepts_a_longer_request_that_shares_a_tail_it_wrote_nothing_into():
    both = after(WITHIN, Prefill(0, 4), Fork(1, 0), Decode(1))
    assert judge_unique(seen(WITHIN, both, {0: (0, 1), 1: (0, 1, 2)})) is HOLDS


@pytest.mark.parametrize(
    ("tables", "words", "requests"),
    [
        ({0: (0, 1), 1: (0, 1)}, "block_table[0][1] = 1 = block_table[1][1]", (0, 1)),
        ({0: (0, 1), 1: (1, 2)}, "block_table[0][1] = 1 = block_table[1][0]", (0, 1)),
        ({0: (0, 0), 1: (1, 2)}, "block_table[0][0] = 0 = block_table[0][1]", (0,)),
    ],
    ids=["written by both", "in other places", "twice in one"],
)
def test_rejects_blocks_that_are_shared_over_other_tokens(tables, words, requests):
    wrote = after(WITHIN, Decode(1), Decode(0), start=BOTH)
    judgement = judge_unique(seen(WITHIN, wrote, tables))
    assert f"{words}, but the tokens there are not the same" == message(judgement)
    assert isinstance(judgement, Broken)
    assert judgement.requests == requests


def test_shared_blocks_are_looked_at_behind_null_entries_too():
    within = able("fork", "window", blocks=6, window=3)
    two = after(within, Prefill(0, 5), Prefill(1, 5))
    right = {0: (NULL, 1, 2), 1: (NULL, 3, 4)}
    assert judge_unique(seen(within, two, right)) is HOLDS
    judgement = judge_unique(seen(within, two, {0: (NULL, 1, 2), 1: (NULL, 3, 2)}))
    assert "block_table[0][2] = 2 = block_table[1][2]" in message(judgement)


def test_rejects_a_block_of_two_requests_that_share_nothing():
    two = after(WITHIN, Prefill(0, 2), Prefill(1, 2))
    judgement = judge_unique(seen(WITHIN, two, {0: (0,), 1: (0,)}))
    assert "but the tokens there are not the same" in message(judgement)


def test_a_shared_block_counts_once_and_has_a_reference_from_each_table():
    assert judge_conserved(seen(WITHIN, BOTH, SHARED)) is HOLDS
    assert judge_ref_counts(seen(WITHIN, BOTH, SHARED, ref_counts={0: 2, 1: 2})) is HOLDS
    one = judge_ref_counts(seen(WITHIN, BOTH, SHARED, ref_counts={0: 2, 1: 1}))
    assert message(one) == "ref_count[1] = 1 != 2 = table entries that name it"


def test_rejects_a_shared_block_that_is_free_too_or_a_block_that_is_lost():
    twice = judge_conserved(seen(WITHIN, BOTH, SHARED, free_blocks=(1, 2, 3)))
    assert message(twice) == (
        "free(3) + held(2) + cached(0) != usable(4): double count, "
        "block 1: free, held by request 0 and held by request 1"
    )
    lost = judge_conserved(seen(WITHIN, BOTH, SHARED, free_blocks=(3,)))
    assert "leak, block 2 belongs to nobody" in message(lost)


def test_rejects_a_write_that_reaches_into_anothers_tail():
    wrote = after(WITHIN, Decode(1), start=BOTH)
    tags = wrote.live[0]
    read = (tags[0], tags[1], WITHIN.tag(1, 2))
    judgement = judge_contents(seen(WITHIN, wrote, SHARED, contents={0: read}))
    assert message(judgement) == (
        "cache of request 0, position 2: reads token 2 of request 1 != token 2 of request 0"
    )


def test_the_due_token_of_a_fork_is_called_by_who_wrote_it():
    judgement = judge_contents(seen(WITHIN, BOTH, SHARED, contents={1: (0.0, 0.0, 0.0)}))
    assert message(judgement) == (
        "cache of request 1, position 0: reads 0.0 (no token's tag) != token 0 of request 0"
    )


# ---------------------------------------------------------------- goals


SHARES, COPIES = (prop.expectation for prop in FORK.properties)


def test_the_first_goal_is_a_block_in_two_tables():
    assert isinstance(SHARES, Sometimes)
    before = seen(WITHIN, THREE, {0: (0, 1)})
    assert SHARES.reached(step(Fork(1, 0), before, seen(WITHIN, BOTH, SHARED)))
    apart = seen(WITHIN, BOTH, {0: (0, 1), 1: (2, 3)})
    assert not SHARES.reached(step(Fork(1, 0), before, apart))


def test_null_entries_share_nothing():
    within = able("fork", "window", window=1)
    assert isinstance(SHARES, Sometimes)
    dense = after(within, Prefill(0, 3), Prefill(1, 3))
    here = seen(within, dense, {0: (NULL, 1), 1: (NULL, 3)})
    assert not SHARES.reached(step(Decode(0), here, here))


def test_the_second_goal_is_a_tail_that_is_another_block_after_a_write():
    assert isinstance(COPIES, Sometimes)
    before, wrote = seen(WITHIN, BOTH, SHARED), after(WITHIN, Decode(1), start=BOTH)
    copied = seen(WITHIN, wrote, {0: (0, 1), 1: (0, 2)})
    assert COPIES.reached(step(Decode(1), before, copied))
    assert not COPIES.reached(step(Decode(1), before, seen(WITHIN, wrote, SHARED)))
    assert not COPIES.reached(step(Decode(1), before, copied, outcome=NoBlocks("OOM")))
    gone = seen(WITHIN, after(WITHIN, Release(1), start=BOTH), {0: (0, 1)})
    assert not COPIES.reached(step(Release(1), before, gone))
    assert not COPIES.reached(step(Prefill(0, 3), seen(WITHIN, EMPTY, {}), gone))


def test_copies_at_the_fork_leave_no_copy_to_wait_for():
    assert Need.LAZY_FORK in offered(seen(WITHIN, EMPTY, {}))
    assert Need.LAZY_FORK not in offered(seen(EAGER, EMPTY, {}))
    assert Need.FORK in offered(seen(EAGER, EMPTY, {}))
    assert Need.FORK not in offered(seen(PLAIN, EMPTY, {}))
