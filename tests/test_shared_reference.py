"""The reference with all abilities: concrete calls with the exact tables, counts and orders."""

from __future__ import annotations

import marshal
import random

import pytest
import torch

from pagedkv import (
    AlreadyHolding,
    Declarations,
    HoldsNothing,
    InvalidBlockTable,
    MisuseError,
    OutOfBlocks,
    PagedKVManager,
    Request,
)
from pagedkv.abilities import ABILITY_NAMES, missing
from pagedkv.shared_blocks import Withheld
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.stateful.points import Injector, modules_of
from sharing import Drive, everything

ALL = frozenset(ABILITY_NAMES) - {"window"}


def kind(*abilities, **options):
    return SharedKVCacheManager.configured(*abilities, **options)


def admit(manager, name, *tokens, extra_key=None):
    """Prefill a request with these tokens and tell that they are computed."""
    request = Request(name, len(tokens), tokens, extra_key=extra_key)
    manager.allocate_for_prefill(request)
    manager.computed(request)
    return request


def decode(manager, request, *tokens):
    """Decode these tokens one by one, each computed."""
    for token in tokens:
        request.tokens.append(token)
        manager.allocate_for_decode(request)
        manager.computed(request)


def fork(manager, request, name):
    child = Request(name, request.seq_len, request.tokens, extra_key=request.extra_key)
    manager.fork_request(request, child)
    manager.computed(child)
    return child


def truncate(manager, request, length):
    manager.truncate_request(request, length)
    del request.tokens[length:]
    manager.computed(request)


def append(manager, request, *tokens):
    request.tokens.extend(tokens)
    manager.allocate_for_append(request, len(tokens))
    manager.computed(request)


def where(manager):
    """The free, in hand-out order, the cached, in the order of eviction, and the counts."""
    seen = manager.snapshot()
    assert {*manager._blocks.cached} == seen.cached
    return list(seen.free_blocks), manager._blocks.cached, seen.ref_counts


def found(manager):
    return dict(manager.snapshot().index)


def number(manager):
    """Write its own number into every slot of the pool: block * block_size + offset."""
    slots = torch.arange(manager.num_blocks * manager.block_size, dtype=torch.float32)
    manager.physical_kv_cache[:] = slots.reshape(manager.num_blocks, manager.block_size, 1)


def read(manager, request):
    return manager.get_physical_cache(request)[:, 0].int().tolist()


# ------------------------------------------------------------------ which abilities are on


def test_a_manager_keeps_the_protocols_of_all_abilities_for_which_there_are_calls():
    manager: PagedKVManager = SharedKVCacheManager(1, 1, 1)
    assert missing(manager, frozenset(ABILITY_NAMES)) == []


def test_all_abilities_but_window_are_on_and_declared():
    assert SharedKVCacheManager.abilities == ALL
    because = SharedKVCacheManager.declares.because
    assert SharedKVCacheManager.declares == Declarations(
        abilities=ALL, evicts="lru-tail-first", because=because
    )


def test_a_configured_manager_is_a_subclass_that_says_what_it_can_do():
    made = kind("fork", "prefix", forks_eagerly=True, publishes_at_once=True)
    assert issubclass(made, SharedKVCacheManager)
    assert made.__name__ == "SharedKVCacheManagerForkPrefixForksEagerlyPublishesAtOnce"
    assert made is kind("prefix", "fork", forks_eagerly=True, publishes_at_once=True)
    declared = made.declares
    assert declared.abilities == {"fork", "prefix"}
    assert (declared.forks_eagerly, declared.publishes_at_once) == (True, True)
    assert (kind().__name__, kind().abilities) == ("SharedKVCacheManagerCore", frozenset())


def test_a_window_is_declared_with_its_length_and_the_null_block():
    made = kind("window", "append", window=3)
    assert made.__name__ == "SharedKVCacheManagerAppendWindow3"
    assert (made.declares.window, made.declares.null_block) == (3, -1)


def test_a_subclass_declares_what_its_attributes_say_unless_it_declares_itself():
    class Eager(SharedKVCacheManager):
        forks_eagerly = True

    class Silent(Eager):
        declares = Declarations()

    assert (Eager.declares.forks_eagerly, Eager.declares.abilities) == (True, ALL)
    assert Silent.declares == Declarations()


@pytest.mark.parametrize("name", ["fork", "prefix", "swap", "truncate"])
def test_a_window_goes_with_no_ability_that_shares_or_moves_blocks(name):
    with pytest.raises(ValueError, match=f"window = 2 beside {name}: a window goes with"):
        kind("window", name, window=2)


@pytest.mark.parametrize(
    ("abilities", "options", "why"),
    [
        (["window"], {}, "window = None and abilities"),
        (["append"], {"window": 2}, "window = 2 and abilities"),
        (["window"], {"window": 0}, "window must be >= 1, got 0"),
        (["forks"], {}, "abilities name 'forks'"),
    ],
)
def test_configuring_refuses_what_there_is_not(abilities, options, why):
    with pytest.raises(ValueError, match=why):
        kind(*abilities, **options)


@pytest.mark.parametrize(
    ("ability", "call", "arguments"),
    [
        ("append", "allocate_for_append", (1,)),
        ("truncate", "truncate_request", (1,)),
        ("fork", "fork_request", (Request(1, 2),)),
        ("prefix", "cached_tokens", ()),
        ("swap", "swap_out", ()),
        ("swap", "swap_in", ()),
        ("ask", "can_prefill", ()),
        ("ask", "can_decode", ()),
        ("ask", "can_append", (1,)),
        ("ask", "can_fork", ()),
        ("ask", "can_swap_out", ()),
        ("ask", "can_swap_in", ()),
        ("group", "free_group_begin", None),
        ("group", "free_group_end", None),
    ],
)
def test_a_call_of_an_ability_that_is_off_says_so_and_changes_nothing(ability, call, arguments):
    manager = kind(*(ALL - {ability}))(3, 2, 1)
    request = admit(manager, 0, 1, 1)
    before = everything(manager)
    with pytest.raises(MisuseError, match=rf"^{call} on a .*, whose ability {ability} is off; "):
        getattr(manager, call)(*(() if arguments is None else (request, *arguments)))
    assert everything(manager) == before


def test_a_question_about_a_call_that_is_off_is_a_no():
    manager = kind("ask")(3, 2, 1)
    request = admit(manager, 0, 1)
    answers = [manager.can_append(request, 1), manager.can_fork(request)]
    answers += [manager.can_swap_out(request), manager.can_swap_in(request)]
    assert answers == [False] * 4


def test_what_is_off_is_not_in_the_snapshot():
    seen = kind()(2, 1, 1).snapshot()
    assert (seen.ref_counts, seen.index, seen.swapped, seen.host_free) == (None,) * 4
    assert kind()(2, 1, 1).host_kv_cache.shape == (0, 1, 1)


def test_without_prefix_nothing_is_found_and_tokens_are_not_looked_at():
    manager = kind("fork")(4, 1, 1)
    first = admit(manager, 0, 1, 1)
    second = Request(1, 2, [1, 1])
    second.tokens = []
    manager.allocate_for_prefill(second)
    manager.computed(second)
    assert (first.block_table, second.block_table) == ([0, 1], [2, 3])
    manager.release_request(first)
    assert (manager.free_blocks, manager.snapshot().cached) == ([0, 1], frozenset())


# ------------------------------------------------------------------ append and truncate


def test_append_fills_the_tail_and_takes_the_blocks_that_the_rest_needs():
    manager = kind("append")(4, 2, 1)
    request = admit(manager, 0, 1)
    append(manager, request, 1, 1, 1, 1)
    assert (request.block_table, request.seq_len, manager.free_blocks) == ([0, 1, 2], 5, [3])


def test_append_is_all_or_nothing():
    manager = kind("append")(3, 2, 1)
    request = admit(manager, 0, 1)
    before = everything(manager)
    with pytest.raises(OutOfBlocks, match=r"needs 3 more block.s., 2 available"):
        manager.allocate_for_append(request, 6)
    assert (everything(manager), request.block_table, request.seq_len) == (before, [0], 1)
    manager.allocate_for_append(request, 5)
    assert request.block_table == [0, 1, 2]


@pytest.mark.parametrize(
    ("count", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (1.0, TypeError)]
)
def test_append_refuses_what_is_no_count(count, error):
    manager = SharedKVCacheManager(3, 2, 1)
    request = admit(manager, 0, 1)
    before = everything(manager)
    with pytest.raises(error, match="count must be"):
        manager.allocate_for_append(request, count)
    assert (everything(manager), manager.can_append(request, count)) == (before, False)


def test_truncate_gives_whole_blocks_back_and_keeps_the_tails():
    manager = kind("truncate")(4, 2, 1)
    request = admit(manager, 0, 1, 1, 1, 1, 1, 1, 1)
    truncate(manager, request, 3)
    assert (request.block_table, request.seq_len, manager.free_blocks) == ([0, 1], 3, [2, 3])
    truncate(manager, request, 3)
    assert (request.block_table, request.seq_len, manager.free_blocks) == ([0, 1], 3, [2, 3])


@pytest.mark.parametrize("length", [0, -1, 4])
def test_truncate_refuses_a_length_that_the_request_does_not_have(length):
    manager = SharedKVCacheManager(4, 2, 1)
    request = admit(manager, 0, 1, 1, 1)
    before = everything(manager)
    with pytest.raises(ValueError, match=f"got {length}|to {length} tokens, and it has 3"):
        manager.truncate_request(request, length)
    assert everything(manager) == before


# ------------------------------------------------------------------ fork and copy-on-write


def test_a_fork_holds_the_same_blocks_and_a_block_is_free_when_nobody_holds_it():
    manager = kind("fork")(4, 2, 1)
    parent = admit(manager, 0, 1, 1, 1)
    child = fork(manager, parent, 1)
    assert (child.block_table, where(manager)) == ([0, 1], ([2, 3], [], {0: 2, 1: 2}))
    assert child.block_table is not parent.block_table
    manager.release_request(parent)
    assert (child.block_table, where(manager)) == ([0, 1], ([2, 3], [], {0: 1, 1: 1}))
    manager.release_request(child)
    assert where(manager) == ([0, 1, 2, 3], [], {})


@pytest.mark.parametrize("writer", ["parent", "child"])
def test_the_first_writer_gets_a_copy_of_a_shared_tail_and_the_last_writes_in_place(writer):
    manager = kind("fork")(4, 2, 1)
    number(manager)
    parent = admit(manager, 0, 1, 1, 1)
    child = fork(manager, parent, 1)
    first, last = (parent, child) if writer == "parent" else (child, parent)
    decode(manager, first, 1)
    assert (first.block_table, last.block_table) == ([0, 2], [0, 1])
    assert read(manager, first) == [0, 1, 2, 3]
    assert manager.physical_kv_cache[2].tolist() == manager.physical_kv_cache[1].tolist()
    decode(manager, last, 1)
    assert (last.block_table, where(manager)) == ([0, 1], ([3], [], {0: 2, 1: 1, 2: 1}))


def test_a_full_shared_tail_is_not_copied():
    manager = kind("fork")(4, 2, 1)
    parent = admit(manager, 0, 1, 1)
    child = fork(manager, parent, 1)
    decode(manager, child, 1)
    assert (parent.block_table, child.block_table) == ([0], [0, 1])


def test_a_write_into_a_shared_tail_needs_one_block_more():
    manager = kind("fork", "append", "ask")(3, 2, 1)
    parent = admit(manager, 0, 1)
    fork(manager, parent, 1)
    admit(manager, 2, 1)
    assert (manager.can_append(parent, 1), manager.can_append(parent, 2)) == (True, False)
    before = everything(manager)
    with pytest.raises(OutOfBlocks, match=r"needs 2 more block.s., 1 available"):
        manager.allocate_for_append(parent, 2)
    assert everything(manager) == before


def test_an_eager_fork_copies_a_partly_filled_tail_at_once():
    manager = kind("fork", forks_eagerly=True)(4, 2, 1)
    number(manager)
    parent = admit(manager, 0, 1, 1, 1)
    child = fork(manager, parent, 1)
    assert (child.block_table, where(manager)) == ([0, 2], ([3], [], {0: 2, 1: 1, 2: 1}))
    assert read(manager, child) == [0, 1, 2]
    decode(manager, parent, 1)
    decode(manager, child, 1)
    assert (parent.block_table, child.block_table) == ([0, 1], [0, 2])


def test_an_eager_fork_of_full_blocks_takes_none_and_one_without_room_changes_nothing():
    manager = kind("fork", "ask", forks_eagerly=True)(1, 2, 1)
    parent = admit(manager, 0, 1)
    before = everything(manager)
    assert not manager.can_fork(parent)
    with pytest.raises(OutOfBlocks, match=r"needs 1 more block.s., 0 available"):
        fork(manager, parent, 1)
    assert everything(manager) == before
    decode(manager, parent, 1)
    assert manager.can_fork(parent)
    assert fork(manager, parent, 1).block_table == [0]


def test_a_tail_that_a_truncation_made_is_copied_even_where_forks_are_eager():
    manager = kind("fork", "truncate", forks_eagerly=True)(4, 2, 1)
    parent = admit(manager, 0, 1, 1)
    child = fork(manager, parent, 1)
    truncate(manager, child, 1)
    decode(manager, child, 0)
    assert (parent.block_table, child.block_table) == ([0], [1])


def test_a_fork_needs_a_live_parent_and_a_fresh_child_that_is_like_it():
    manager = SharedKVCacheManager(4, 2, 1)
    parent, other = admit(manager, 0, 1), admit(manager, 1, 0)
    before = everything(manager)
    with pytest.raises(HoldsNothing, match=r"^fork of request 5, which holds no blocks"):
        manager.fork_request(Request(5, 1), Request(6, 1))
    with pytest.raises(AlreadyHolding, match=r"^fork into request 1, which holds the blocks"):
        manager.fork_request(parent, other)
    with pytest.raises(AlreadyHolding, match=r"^fork into request 1, whose id a live request"):
        manager.fork_request(parent, Request(1, 1))
    with pytest.raises(MisuseError, match="into 2: their lengths are 1 and 2"):
        manager.fork_request(parent, Request(2, 2))
    with pytest.raises(MisuseError, match=r"into 2: their tokens or extra keys differ, \[1\]"):
        manager.fork_request(parent, Request(2, 1, [0]))
    with pytest.raises(MisuseError, match="under 'a'"):
        manager.fork_request(parent, Request(2, 1, [1], extra_key="a"))
    assert everything(manager) == before


def test_a_forged_table_of_shared_blocks_is_refused_with_the_reason():
    manager = kind("fork")(4, 1, 1)
    parent = admit(manager, 0, 1, 1)
    child = fork(manager, parent, 1)
    before = everything(manager)
    child.block_table = [0]
    with pytest.raises(InvalidBlockTable, match=r"it was given \[0, 1\]"):
        manager.release_request(child)
    child.block_table = [0, 3]
    with pytest.raises(InvalidBlockTable, match="block 3 is free"):
        manager.allocate_for_decode(child)
    assert everything(manager) == before


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


# ------------------------------------------------------------------ swap


def test_a_request_is_moved_to_the_second_pool_and_back_with_its_content():
    manager = kind("swap")(4, 2, 1)
    number(manager)
    request, other = admit(manager, 0, 1, 2, 3), admit(manager, 1, 1)
    manager.swap_out(request)
    seen = manager.snapshot()
    assert (request.block_table, request.seq_len) == ([], 3)
    assert (seen.block_tables, seen.swapped) == ({1: (2,)}, {0: (0, 1)})
    assert (seen.free_blocks, seen.host_free) == ((0, 1, 3), (2, 3))
    manager.physical_kv_cache[[0, 1, 3]] = -1
    admit(manager, 2, 1)
    manager.swap_in(request)
    seen = manager.snapshot()
    assert (request.block_table, seen.swapped, seen.host_free) == ([1, 3], {}, (0, 1, 2, 3))
    assert read(manager, request) == [0, 1, 2]
    assert read(manager, other) == [4]


def test_a_swap_moves_a_request_and_leaves_what_others_hold():
    manager = kind("swap", "fork", "prefix")(4, 1, 1)
    parent = admit(manager, 0, 1, 2)
    child = fork(manager, parent, 1)
    manager.swap_out(parent)
    assert where(manager) == ([2, 3], [], {0: 1, 1: 1})
    manager.swap_in(parent)
    manager.computed(parent)
    assert (parent.block_table, child.block_table) == ([2, 3], [0, 1])
    assert found(manager) == {(None, (1,)): 0, (None, (1, 2)): 1}
    manager.swap_out(child)
    assert where(manager) == ([], [1, 0], {2: 1, 3: 1})


def test_what_was_swapped_in_is_published_when_computed_or_at_once():
    for at_once in (False, True):
        manager = kind("swap", "prefix", publishes_at_once=at_once)(2, 1, 1)
        request = admit(manager, 0, 1)
        manager.swap_out(request)
        manager.release_request(admit(manager, 1, 2, 2))
        assert (None, (1,)) not in found(manager)
        manager.swap_in(request)
        assert ((None, (1,)) in found(manager)) == at_once
        manager.computed(request)
        assert (None, (1,)) in found(manager)


def test_what_a_prefill_found_is_kept_over_a_swap():
    manager = kind("swap", "prefix")(4, 1, 1)
    admit(manager, 0, 1)
    request = admit(manager, 1, 1, 2)
    manager.swap_out(request)
    with pytest.raises(HoldsNothing, match="which is not live"):
        manager.cached_tokens(request)
    manager.swap_in(request)
    assert manager.cached_tokens(request) == 1


def test_a_swap_without_room_in_either_pool_changes_nothing():
    manager = kind("swap", "ask")(2, 1, 1)
    request = admit(manager, 0, 1, 1)
    manager.swap_out(request)
    other = admit(manager, 1, 1)
    before = everything(manager)
    assert not manager.can_swap_in(request)
    with pytest.raises(OutOfBlocks, match=r"request 0 needs 2 more block.s., 1 available"):
        manager.swap_in(request)
    assert not manager.can_swap_out(other)
    with pytest.raises(OutOfBlocks, match=r"request 1 needs 1 more block.s., 0 available"):
        manager.swap_out(other)
    assert everything(manager) == before
    manager.release_request(other)
    assert manager.can_swap_in(request)


def test_a_swapped_request_can_be_released_and_nothing_else():
    manager = SharedKVCacheManager(3, 1, 1)
    request = admit(manager, 0, 1)
    manager.swap_out(request)
    before = everything(manager)
    with pytest.raises(AlreadyHolding, match=r"^prefill of request 0, which is swapped out"):
        manager.allocate_for_prefill(request)
    with pytest.raises(AlreadyHolding, match="whose id a request that is swapped out has"):
        manager.allocate_for_prefill(Request(0, 1))
    for call, arguments in [
        ("allocate_for_decode", ()),
        ("allocate_for_append", (1,)),
        ("truncate_request", (1,)),
        ("fork_request", (Request(1, 1, [1]),)),
        ("swap_out", ()),
    ]:
        with pytest.raises(HoldsNothing, match="of request 0, which is swapped out; swap it in"):
            getattr(manager, call)(request, *arguments)
    manager.computed(request)
    assert everything(manager) == before
    manager.release_request(request)
    seen = manager.snapshot()
    assert (seen.swapped, seen.host_free, request.seq_len) == ({}, (0, 1, 2), 1)
    with pytest.raises(HoldsNothing, match="swap_in of request 0, which is not swapped out"):
        manager.swap_in(request)


def test_a_swapped_request_with_an_edited_handle_is_refused():
    manager = kind("swap")(3, 1, 1)
    request = admit(manager, 0, 1)
    manager.swap_out(request)
    before = everything(manager)
    request.block_table = [0]
    for call in (manager.swap_in, manager.release_request):
        with pytest.raises(InvalidBlockTable, match=r"block_table = \[0\], though it is swapped"):
            call(request)
    request.block_table, request.seq_len = [], 2
    with pytest.raises(InvalidBlockTable, match="swap_in of request 0: seq_len = 2 was edited"):
        manager.swap_in(request)
    request.seq_len = 1
    assert everything(manager) == before


# ------------------------------------------------------------------ window


def test_blocks_behind_the_window_go_back_before_blocks_are_taken():
    manager = kind("window", window=2)(3, 1, 1)
    number(manager)
    request = admit(manager, 0, 1, 1, 1)
    assert (request.block_table, read(manager, request)) == ([0, 1, 2], [1, 2])
    decode(manager, request, 1)
    assert (request.block_table, manager.free_blocks) == ([-1, -1, 2, 0], [1])
    assert (request.seq_len, read(manager, request)) == (4, [2, 0])
    manager.release_request(request)
    assert (manager.free_blocks, request.block_table) == ([0, 1, 2], [])


@pytest.mark.parametrize(
    ("window", "table"), [(1, [-1, -1, 0]), (2, [-1, 1, 0]), (3, [-1, 1, 0]), (4, [0, 1, 2])]
)
def test_only_whole_blocks_behind_the_window_go_back(window, table):
    manager = kind("window", window=window)(4, 2, 1)
    request = admit(manager, 0, 1, 1, 1, 1)
    decode(manager, request, 1)
    assert request.block_table == table
    number(manager)
    last = [2 * block + offset for block in table for offset in (0, 1)][:5]
    assert read(manager, request) == last[-min(window, 5) :]


def test_an_append_goes_on_over_what_it_frees_itself():
    manager = kind("window", "append", "ask", window=1)(3, 2, 1)
    request = admit(manager, 0, 1, 1, 1, 1)
    assert (manager.can_append(request, 6), manager.can_append(request, 7)) == (True, False)
    before = everything(manager)
    with pytest.raises(OutOfBlocks, match=r"needs 4 more block.s., 3 available"):
        manager.allocate_for_append(request, 7)
    assert (everything(manager), request.block_table) == (before, [0, 1])
    append(manager, request, 1, 1, 1, 1, 1, 1)
    assert (request.block_table, request.seq_len) == ([-1, -1, 0, 1, 2], 10)


def test_inside_a_group_what_falls_behind_the_window_is_withheld():
    manager = kind("window", "group", "ask", window=1)(2, 1, 1)
    request = admit(manager, 0, 1, 1)
    manager.free_group_begin()
    assert not manager.can_decode(request)
    with pytest.raises(OutOfBlocks, match=r"needs 1 more block.s., 0 available"):
        manager.allocate_for_decode(request)
    manager.free_group_end()
    decode(manager, request, 1)
    assert request.block_table == [-1, -1, 0]


def test_a_report_counts_null_entries_as_room_that_is_not_allocated():
    manager = kind("window", window=1)(4, 2, 1)
    request = admit(manager, 0, 1, 1, 1, 1)
    decode(manager, request, 1)
    assert request.block_table == [-1, -1, 0]
    assert manager.allocation_report(request) == {
        "logical_tokens": 5,
        "allocated_tokens": 2,
        "unused_tail_tokens": 1,
        "utilization": 0.5,
    }


def test_a_table_with_null_entries_is_checked_and_the_reason_is_not_the_null():
    manager = kind("window", window=1)(4, 1, 1)
    request = admit(manager, 0, 1, 1)
    decode(manager, request, 1)
    request.block_table = [-1, -1, 3]
    with pytest.raises(InvalidBlockTable, match="block 3 is free"):
        manager.release_request(request)
    request.block_table = [-1, -1, 9]
    with pytest.raises(InvalidBlockTable, match=r"9 is no block of the pool, 0 .. 3"):
        manager.get_physical_cache(request)
    request.block_table = [-1, -1, -1]
    with pytest.raises(InvalidBlockTable, match=r"-1 is no block of the pool, 0 .. 3"):
        manager.get_physical_cache(request)


# ------------------------------------------------------------------ ask


def test_asking_is_exact_and_wrong_use_is_a_no():
    manager = SharedKVCacheManager(2, 2, 1)
    request = admit(manager, 0, 1, 1)
    assert (manager.can_prefill(Request(1, 2)), manager.can_prefill(Request(1, 3))) == (True, False)
    assert manager.can_decode(request)
    admit(manager, 1, 0)
    before = everything(manager)
    assert not manager.can_decode(request)
    assert not manager.can_prefill(request)
    assert not manager.can_swap_in(request)
    for call in (manager.can_decode, manager.can_fork, manager.can_swap_out):
        assert not call(Request(7, 1))
    request.block_table = [1]
    assert not manager.can_swap_out(request)
    assert everything(manager) == before


# ------------------------------------------------------------------ state key and clone


def scene():
    """A manager in whose state everything occurs, and its requests."""
    manager = SharedKVCacheManager(10, 2, 1)
    number(manager)
    requests = [admit(manager, 0, 1, 1, 1), admit(manager, 1, 2, 2, 2, 2), admit(manager, 2, 3)]
    requests.append(fork(manager, requests[0], 3))
    manager.swap_out(requests[2])
    manager.release_request(admit(manager, 4, 5, 5, 5, 5))
    manager.free_group_begin()
    truncate(manager, requests[1], 2)
    return manager, requests


def test_a_state_key_survives_marshalling_and_names_are_the_callers():
    manager, _ = scene()
    names = {0: 3, 1: 2, 2: 1, 3: 0}
    key = manager.state_key(names)
    assert key == marshal.loads(marshal.dumps(key))
    assert hash(key) == hash(manager.state_key(names))
    assert key != manager.state_key({name: name for name in names})


def test_whatever_a_later_call_can_depend_on_is_in_the_key():
    manager, _ = scene()
    keys = {everything(manager)[1]}
    for change in (
        lambda m: m._blocks.free.reverse(),
        lambda m: m._blocks.cached.reverse(),
        lambda m: m._blocks.refs.update({0: 7}),
        lambda m: m._blocks.index.update({(None, (1, 1)): 9}),
        lambda m: m._blocks.withheld.append(Withheld(9, None)),
        lambda m: setattr(m._blocks, "withheld", None),
        lambda m: m._host_free.reverse(),
        lambda m: m._live.update({0: m._live[0]._replace(cached_tokens=2)}),
        lambda m: m._live.update({0: m._live[0]._replace(blocks=(1, 0))}),
        lambda m: m._swapped.update({2: m._swapped[2]._replace(blocks=(5,))}),
    ):
        twin, _ = manager.clone({})
        change(twin)
        keys.add(everything(twin)[1])
    assert len(keys) == 11


def test_a_clone_is_equal_and_shares_nothing():
    manager, requests = scene()
    before = everything(manager)
    twin, handles = manager.clone({request.request_id: request for request in requests[:3]})
    assert everything(twin) == before
    # The calls of the reference replace it; a subclass may change it in place.
    assert twin._blocks is not manager._blocks
    assert twin._live[1].handle is handles[1]
    assert twin._swapped[2].handle is handles[2]
    assert twin._live[3].handle is not requests[3]
    for name in (0, 1, 2):
        twin.release_request(handles[name])
    twin.free_group_end()
    twin.physical_kv_cache[:] = -1
    twin.host_kv_cache[:] = -1
    assert everything(manager) == before
    assert [request.block_table for request in requests] == [[0, 1], [2], [], [0, 1]]


def test_a_clone_copies_what_a_subclass_adds():
    class Counting(SharedKVCacheManager):
        def __init__(self, *geometry):
            super().__init__(*geometry)
            self.calls = [0]

    twin, _ = Counting(1, 1, 1).clone({})
    assert twin.calls == [0]
    original = Counting(1, 1, 1)
    assert original.clone({})[0].calls is not original.calls


# ------------------------------------------------------------------ rollback at any failure

CALLS = {
    "prefill": lambda m, r, fresh: m.allocate_for_prefill(fresh),
    "decode": lambda m, r, fresh: m.allocate_for_decode(r[0]),
    "append": lambda m, r, fresh: m.allocate_for_append(r[0], 4),
    "truncate": lambda m, r, fresh: m.truncate_request(r[1], 1),
    "fork": lambda m, r, fresh: m.fork_request(r[1], Request(9, 2, [2, 2])),
    "computed": lambda m, r, fresh: m.computed(r[0]),
    "release": lambda m, r, fresh: m.release_request(r[1]),
    "release-out": lambda m, r, fresh: m.release_request(r[2]),
    "swap_out": lambda m, r, fresh: m.swap_out(r[0]),
    "swap_in": lambda m, r, fresh: m.swap_in(r[2]),
    "group": lambda m, r, fresh: m.free_group_end(),
    "ask": lambda m, r, fresh: m.can_append(r[0], 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_failure_at_any_inner_call_leaves_everything_as_it_was(call):
    manager, requests = scene()
    fresh = Request(8, 5, [5, 5, 5, 5, 5])
    requests[0].tokens.append(1)
    requests[0].seq_len += call == "computed"
    before = everything(manager)
    handles = [*requests, fresh]
    looks = [(h.seq_len, h.block_table, h.tokens[:]) for h in handles]
    injector = Injector(modules_of(manager))
    point, failed = 0, 1
    while failed:
        point += 1
        try:
            injector.run(lambda: CALLS[call](manager, requests, fresh), point)
        except MemoryError:
            assert everything(manager) == before
            assert [(h.seq_len, h.block_table, h.tokens[:]) for h in handles] == looks
        failed = injector.failed
    assert point > 5
    assert call == "ask" or everything(manager) != before


# ------------------------------------------------------------------ random calls

MIXES = [
    kind(*ALL),
    kind(*ALL, forks_eagerly=True, publishes_at_once=True),
    kind("append", "ask", "group", "window", window=2),
    kind("fork", "truncate", "append"),
    kind(),
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.__name__[len("SharedKVCacheManager") :])
def test_random_calls_keep_what_a_dictionary_of_contents_says(mix):
    seen: dict[str, int] = {}
    for seed, (blocks, size) in enumerate([(3, 1), (4, 2), (6, 2), (8, 3)]):
        drive = Drive(mix(blocks, size, 1), seed, vocabulary=random.Random(seed).choice([1, 2]))
        for _ in range(150):
            drive.step()
        for name, times in drive.seen.items():
            seen[name] = seen.get(name, 0) + times
    wanted = {"prefill", "prefill refused", "decode", "decode refused", "release"}
    wanted |= {name for name in ("append", "truncate", "fork") if name in mix.abilities}
    if "prefix" in mix.abilities:
        wanted |= {"hit", "evicted", "swap_out", "swap_in", "swap_in refused", "swap_out refused"}
    if "fork" in mix.abilities and not mix.forks_eagerly:
        wanted |= {"copied"}
    assert {name for name, times in seen.items() if times} >= wanted
