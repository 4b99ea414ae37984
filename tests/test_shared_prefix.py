"""The reference with abilities, with exact tables and counts: prefixes and groups."""

from __future__ import annotations

import pytest

from pagedkv import (
    HoldsNothing,
    MisuseError,
    OutOfBlocks,
    Request,
)
from shared_calls import (
    admit,
    decode,
    fork,
    found,
    kind,
    number,
    read,
    truncate,
    where,
)
from sharing import everything

# ------------------------------------------------------------------ prefix


def test_leading_full_blocks_are_found_and_one_token_is_left():
    manager = kind("prefix")(8, 2, 1)
    first = admit(manager, 0, 1, 2, 3, 4)
    same, longer = admit(manager, 1, 1, 2, 3, 4), admit(manager, 2, 1, 2, 3, 4, 5)
    other = admit(manager, 3, 0, 2, 3, 4)
    assert first.block_table == [0, 1]
    assert (same.block_table, manager.cached_tokens(same)) == ([0, 2], 2)
    assert (longer.block_table, manager.cached_tokens(longer)) == ([0, 1, 3], 4)
    assert (other.block_table, manager.cached_tokens(other)) == ([4, 5], 0)
    assert manager.snapshot().ref_counts == {0: 3, 1: 2, 2: 1, 3: 1, 4: 1, 5: 1}
    assert found(manager) == {
        (None, (1, 2)): 0,
        (None, (1, 2, 3, 4)): 1,
        (None, (0, 2)): 4,
        (None, (0, 2, 3, 4)): 5,
    }


def test_another_extra_key_finds_nothing_and_the_same_one_does():
    manager = kind("prefix")(5, 1, 1)
    admit(manager, 0, 1, 2, extra_key="a")
    other = admit(manager, 1, 1, 2, extra_key="b")
    assert (other.block_table, manager.cached_tokens(other)) == ([2, 3], 0)
    third = Request(2, 2, [1, 2], extra_key="a")
    manager.allocate_for_prefill(third)
    assert third.block_table == [0, 4]


def test_a_block_is_found_only_once_it_is_computed():
    manager = kind("prefix")(4, 1, 1)
    first = Request(0, 2, [1, 2])
    manager.allocate_for_prefill(first)
    assert admit(manager, 1, 1).block_table == [2]
    manager.computed(first)
    assert found(manager) == {(None, (1,)): 2, (None, (1, 2)): 1}


def test_published_at_once_a_block_is_found_from_the_call_that_took_it():
    manager = kind("prefix", "append", publishes_at_once=True)(6, 2, 1)
    first = Request(0, 3, [1, 2, 3])
    manager.allocate_for_prefill(first)
    assert found(manager) == {(None, (1, 2)): 0}
    first.tokens += [4, 5, 6]
    manager.allocate_for_append(first, 3)
    tokens = (1, 2, 3, 4, 5, 6)
    assert found(manager) == {(None, tokens[: 2 * i + 2]): i for i in range(3)}
    before = everything(manager)
    manager.computed(first)
    assert everything(manager) == before


def test_released_blocks_are_cached_and_evicted_the_last_logical_one_first():
    manager = kind("prefix")(4, 1, 1)
    manager.release_request(admit(manager, 0, 1, 2, 3))
    assert where(manager) == ([3], [2, 1, 0], {})
    late = admit(manager, 1, 0, 0)
    assert (late.block_table, where(manager)) == ([3, 2], ([], [1, 0], {3: 1, 2: 1}))
    assert found(manager) == {
        (None, (1,)): 0,
        (None, (1, 2)): 1,
        (None, (0,)): 3,
        (None, (0, 0)): 2,
    }


def test_the_longest_unheld_is_evicted_first_and_a_hit_makes_a_block_held_again():
    manager = kind("prefix")(3, 1, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 2)
    manager.release_request(first)
    manager.release_request(second)
    assert where(manager) == ([2], [0, 1], {})
    third = admit(manager, 2, 1, 5)
    assert (third.block_table, where(manager)) == ([0, 2], ([], [1], {0: 1, 2: 1}))
    manager.release_request(third)
    assert where(manager) == ([], [1, 2, 0], {})
    assert admit(manager, 3, 7).block_table == [1]


def test_hits_are_pinned_before_blocks_are_counted_and_taken():
    manager = kind("prefix", "ask")(3, 1, 1)
    manager.release_request(admit(manager, 0, 1, 2))
    again = Request(1, 4, [1, 2, 3, 4])
    assert not manager.can_prefill(again)
    before = everything(manager)
    with pytest.raises(OutOfBlocks, match=r"needs 2 more block.s., 1 available"):
        manager.allocate_for_prefill(again)
    assert everything(manager) == before
    again = admit(manager, 1, 1, 2, 3)
    assert (again.block_table, where(manager)) == ([0, 1, 2], ([], [], {0: 1, 1: 1, 2: 1}))


def test_content_that_is_published_already_is_free_once_nobody_holds_it():
    manager = kind("prefix")(4, 1, 1)
    one, two = admit(manager, 0, 1), admit(manager, 1, 1)
    assert found(manager) == {(None, (1,)): 0}
    manager.release_request(two)
    assert where(manager) == ([1, 2, 3], [], {0: 1})
    manager.release_request(one)
    assert where(manager) == ([1, 2, 3], [0], {})


def test_a_duplicate_takes_the_place_of_what_was_evicted_when_it_is_computed_again():
    manager = kind("prefix")(2, 1, 1)
    one, two = admit(manager, 0, 1), admit(manager, 1, 1)
    manager.release_request(one)
    decode(manager, two, 2)
    assert (two.block_table, found(manager)) == ([1, 0], {(None, (1,)): 1, (None, (1, 2)): 0})


def test_a_block_that_a_decode_fills_is_published_and_found():
    manager = kind("prefix")(4, 2, 1)
    first = admit(manager, 0, 1)
    assert found(manager) == {}
    decode(manager, first, 2)
    assert admit(manager, 1, 1, 2, 3).block_table == [0, 1]


def test_a_prefill_needs_one_token_for_each_position():
    manager = kind("prefix", "ask")(4, 2, 1)
    request = Request(0, 2)
    request.tokens = [1]
    before = everything(manager)
    with pytest.raises(MisuseError, match=r"len\(tokens\) = 1 != 2 = seq_len; give one token"):
        manager.allocate_for_prefill(request)
    assert (everything(manager), manager.can_prefill(request)) == (before, False)


def test_tokens_that_are_missing_are_not_published():
    manager = kind("prefix")(4, 2, 1)
    request = admit(manager, 0, 1, 2, 3)
    manager.allocate_for_decode(request)
    manager.computed(request)
    assert found(manager) == {(None, (1, 2)): 0}


def test_a_block_is_found_under_one_key_even_if_the_tokens_were_edited():
    manager = kind("prefix")(4, 1, 1)
    request = admit(manager, 0, 1)
    request.tokens[0] = 2
    manager.computed(request)
    assert found(manager) == {(None, (1,)): 0}


def test_only_the_live_handle_publishes_its_blocks():
    manager = kind("prefix")(4, 1, 1)
    manager.allocate_for_prefill(Request(0, 1, [1]))
    manager.computed(Request(0, 1, [2]))
    assert found(manager) == {}


def test_what_was_found_is_told_of_live_requests_only():
    manager = kind("prefix")(4, 1, 1)
    first = admit(manager, 0, 1, 2)
    manager.release_request(first)
    for stranger in (first, Request(7, 1)):
        with pytest.raises(HoldsNothing, match=r"cached_tokens of request ., which is not live"):
            manager.cached_tokens(stranger)
    manager.computed(first)
    assert where(manager) == ([2, 3], [1, 0], {})


# ------------------------------------------------------------------ pairs with prefix


def test_a_resume_finds_what_was_published_before_the_preemption():
    manager = kind("prefix")(6, 2, 1)
    request = admit(manager, 0, 1, 2, 3)
    decode(manager, request, 4, 5)
    assert request.block_table == [0, 1, 2]
    manager.release_request(request)
    assert where(manager) == ([2, 3, 4, 5], [1, 0], {})
    manager.allocate_for_prefill(request)
    assert (request.block_table, manager.cached_tokens(request)) == ([0, 1, 2], 4)


def test_a_truncated_published_tail_is_withdrawn_before_its_holder_writes():
    manager = kind("prefix", "truncate")(4, 2, 1)
    request = admit(manager, 0, 1, 2, 3, 4)
    truncate(manager, request, 1)
    assert where(manager) == ([2, 3], [1], {0: 1})
    assert found(manager) == {(None, (1, 2)): 0, (None, (1, 2, 3, 4)): 1}
    decode(manager, request, 5)
    assert found(manager) == {(None, (1, 2, 3, 4)): 1, (None, (1, 5)): 0}
    assert admit(manager, 1, 1, 2, 3).block_table == [2, 3]


def test_a_truncated_published_tail_that_another_found_is_copied():
    manager = kind("prefix", "truncate")(4, 2, 1)
    number(manager)
    request = admit(manager, 0, 1, 2)
    truncate(manager, request, 1)
    other = admit(manager, 1, 1, 2, 3)
    assert (other.block_table, where(manager)[2]) == ([0, 1], {0: 2, 1: 1})
    decode(manager, request, 5)
    assert (request.block_table, read(manager, request)) == ([2], [0, 1])
    assert found(manager) == {(None, (1, 2)): 0, (None, (1, 5)): 2}


def test_a_truncation_caches_the_last_logical_block_first():
    manager = kind("prefix", "truncate")(4, 1, 1)
    request = admit(manager, 0, 1, 2, 3, 4)
    truncate(manager, request, 1)
    assert where(manager) == ([], [3, 2, 1], {0: 1})


def test_what_a_fork_shares_is_cached_only_when_the_last_holder_goes():
    manager = kind("prefix", "fork")(4, 1, 1)
    parent = admit(manager, 0, 1, 2)
    child = fork(manager, parent, 1)
    assert manager.cached_tokens(child) == 0
    manager.release_request(parent)
    assert where(manager) == ([2, 3], [], {0: 1, 1: 1})
    assert admit(manager, 2, 1, 2).block_table == [0, 2]
    manager.release_request(child)
    assert where(manager) == ([3], [1], {0: 1, 2: 1})


def test_what_two_forks_write_is_found_under_its_own_tokens():
    manager = kind("prefix", "fork")(4, 2, 1)
    parent = admit(manager, 0, 1)
    child = fork(manager, parent, 1)
    decode(manager, parent, 2)
    decode(manager, child, 3)
    assert found(manager) == {(None, (1, 2)): 1, (None, (1, 3)): 0}
    assert admit(manager, 2, 1, 2, 9).block_table == [1, 2]


# ------------------------------------------------------------------ group


def test_blocks_that_come_back_inside_a_group_are_withheld_until_it_ends():
    manager = kind("group")(3, 1, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 2)
    manager.free_group_begin()
    manager.release_request(second)
    manager.release_request(first)
    assert (manager.free_blocks, manager.snapshot().withheld) == ([2], {0, 1})
    with pytest.raises(OutOfBlocks, match=r"needs 2 more block.s., 1 available"):
        admit(manager, 2, 1, 1)
    manager.free_group_end()
    assert (manager.free_blocks, manager.snapshot().withheld) == ([0, 1, 2], None)


def test_groups_do_not_nest_and_an_empty_one_changes_nothing():
    manager = kind("group")(2, 1, 1)
    with pytest.raises(MisuseError, match="free_group_end outside a group"):
        manager.free_group_end()
    before = everything(manager)
    manager.free_group_begin()
    assert manager.snapshot().withheld == frozenset()
    with pytest.raises(MisuseError, match="free_group_begin inside a group"):
        manager.free_group_begin()
    manager.free_group_end()
    assert everything(manager) == before


def test_a_withheld_block_is_not_found_and_comes_back_cached_in_the_order_given():
    manager = kind("group", "prefix")(6, 1, 1)
    first, second = admit(manager, 0, 1, 2), admit(manager, 1, 3)
    manager.free_group_begin()
    manager.release_request(second)
    manager.release_request(first)
    assert (found(manager), where(manager)) == ({}, ([3, 4, 5], [], {}))
    assert admit(manager, 2, 1, 2).block_table == [3, 4]
    manager.free_group_end()
    # Its content was published again meanwhile: blocks 0 and 1 are duplicates now.
    assert where(manager) == ([0, 1, 5], [2], {3: 1, 4: 1})
    assert found(manager) == {(None, (3,)): 2, (None, (1,)): 3, (None, (1, 2)): 4}


def test_the_order_given_back_inside_a_group_is_the_order_of_eviction():
    manager = kind("group", "prefix")(4, 1, 1)
    first, second = admit(manager, 0, 1, 2), admit(manager, 1, 3)
    manager.free_group_begin()
    manager.release_request(second)
    manager.release_request(first)
    manager.free_group_end()
    assert where(manager) == ([3], [2, 1, 0], {})
