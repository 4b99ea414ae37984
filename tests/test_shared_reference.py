"""The reference with abilities, with exact tables and counts: append, truncate, fork."""

from __future__ import annotations

import pytest

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
from pagedkv.shared_reference import SharedKVCacheManager
from shared_calls import (
    ALL,
    admit,
    append,
    decode,
    fork,
    kind,
    number,
    read,
    truncate,
    where,
)
from sharing import everything

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
