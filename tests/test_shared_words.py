"""What both managers with abilities say when they refuse, word by word."""

from __future__ import annotations

from typing import Any

import pytest

from pagedkv.protocol import MisuseError, Request
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from sharing import everything

both = pytest.mark.parametrize("kind", [SharedKVCacheManager, SharedArrayKVCacheManager])

CALLS: dict[str, tuple[str, Any]] = {
    "allocate_for_append": ("append", lambda m, r: m.allocate_for_append(r, 1)),
    "truncate_request": ("truncate", lambda m, r: m.truncate_request(r, 1)),
    "fork_request": ("fork", lambda m, r: m.fork_request(r, child())),
    "cached_tokens": ("prefix", lambda m, r: m.cached_tokens(r)),
    "swap_out": ("swap", lambda m, r: m.swap_out(r)),
    "swap_in": ("swap", lambda m, r: m.swap_in(r)),
    "free_group_begin": ("group", lambda m, _: m.free_group_begin()),
    "free_group_end": ("group", lambda m, _: m.free_group_end()),
    "can_prefill": ("ask", lambda m, r: m.can_prefill(r)),
    "can_decode": ("ask", lambda m, r: m.can_decode(r)),
    "can_append": ("ask", lambda m, r: m.can_append(r, 1)),
    "can_fork": ("ask", lambda m, r: m.can_fork(r)),
    "can_swap_out": ("ask", lambda m, r: m.can_swap_out(r)),
    "can_swap_in": ("ask", lambda m, r: m.can_swap_in(r)),
}
ASKED = {
    "can_append": "append",
    "can_fork": "fork",
    "can_swap_out": "swap",
    "can_swap_in": "swap",
}
ACTIONS = {
    "decode": lambda m, r: m.allocate_for_decode(r),
    "append": CALLS["allocate_for_append"][1],
    "truncate": CALLS["truncate_request"][1],
    "fork": CALLS["fork_request"][1],
    "swap_out": CALLS["swap_out"][1],
    "release": lambda m, r: m.release_request(r),
}


def child(length=3):
    return Request(9, length, [1, 2, 3, 4, 5][:length])


def request():
    return Request(0, 3, [1, 2, 3])


def live(kind):
    """A manager with a request of 2 blocks of 2 tokens."""
    manager, req = kind(6, 2, 1), request()
    manager.allocate_for_prefill(req)
    return manager, req


def words(manager, call, req):
    """What the call is refused with, which changes nothing."""
    before = everything(manager)
    with pytest.raises(MisuseError) as refused:
        call(manager, req)
    assert everything(manager) == before
    return str(refused.value)


@both
@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_ability_is_off_says_which_call_and_which_ability(kind, name):
    ability, call = CALLS[name]
    core = kind.configured()
    manager, req = live(core)
    assert words(manager, call, req) == (
        f"{name} on a {core.__name__}, whose ability {ability} is off; make it with "
        f"configured({ability!r}, ...)"
    )


@both
@pytest.mark.parametrize("name", ASKED)
def test_to_ask_about_an_ability_that_is_off_is_answered_with_no(kind, name):
    manager, req = live(kind.configured("ask"))
    assert not CALLS[name][1](manager, req)


@both
@pytest.mark.parametrize("action", ACTIONS)
def test_each_call_names_itself_for_who_holds_nothing(kind, action):
    manager = kind(6, 2, 1)
    assert words(manager, ACTIONS[action], request()) == (
        f"{action} of request 0, which holds no blocks; prefill it first"
    )


@both
@pytest.mark.parametrize("action", ["decode", "append", "truncate", "fork"])
def test_each_call_names_itself_for_a_length_that_was_edited(kind, action):
    manager, req = live(kind.configured("append", "truncate", "fork", "swap"))
    call = ACTIONS[action] if action != "fork" else lambda m, r: m.fork_request(r, child(5))
    req.seq_len = 5
    message = words(manager, call, req)
    assert message.startswith(
        f"{action} of request 0: seq_len = 5 was edited, it needs 3 block(s) and the request "
        f"holds 2"
    )


@both
def test_swap_in_names_itself_too(kind):
    manager, req = live(kind)
    swap_in = CALLS["swap_in"][1]
    assert words(manager, swap_in, req) == "swap_in of request 0, which is not swapped out"
    manager.swap_out(req)
    req.seq_len = 5
    assert words(manager, swap_in, req).startswith("swap_in of request 0: seq_len = 5 was edited")
    req.seq_len, req.block_table = 3, [0]
    assert words(manager, swap_in, req).startswith("swap_in of request 0 with block_table = [0]")


@both
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, r: m.truncate_request(r, 0), "seq_len must be >= 1, got 0"),
        (lambda m, r: m.allocate_for_append(r, 0), "count must be >= 1, got 0"),
        (
            lambda m, r: m.truncate_request(r, 4),
            "truncate of request 0 to 4 tokens, and it has 3; give a length of at most that",
        ),
    ],
    ids=["truncate to nothing", "append nothing", "truncate to more"],
)
def test_a_number_that_is_none_is_named(kind, call, message):
    manager, req = live(kind)
    before = everything(manager)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the words are compared as a whole
        call(manager, req)
    assert message in str(refused.value)
    assert everything(manager) == before


@both
def test_groups_that_do_not_fit_are_named(kind):
    manager, _ = live(kind)
    begin, end = CALLS["free_group_begin"][1], CALLS["free_group_end"][1]
    assert words(manager, end, None) == "free_group_end outside a group; begin one first"
    manager.free_group_begin()
    assert words(manager, begin, None) == "free_group_begin inside a group; end that one first"


@both
def test_what_a_fork_and_a_look_at_hits_are_refused_with(kind):
    manager, req = live(kind)
    other = Request(9, 3, [1, 2, 3])
    manager.allocate_for_prefill(other)
    forked = words(manager, lambda m, r: m.fork_request(r, other), req)
    assert forked.startswith("fork into request 9, which holds the blocks [2, 3]")
    manager.release_request(other)
    assert words(manager, lambda m, r: m.cached_tokens(r), other) == (
        "cached_tokens of request 9, which is not live; prefill it first"
    )


# ---------------------------------------------------------------- what is written is not found


@both
@pytest.mark.parametrize("lookahead", [0, 2])
def test_a_block_that_is_cut_and_written_is_not_found_any_more(kind, lookahead):
    manager = kind.configured("prefix", "truncate", lookahead=lookahead)(8, 2, 1)
    req = Request(0, 4, [1, 1, 2, 2])
    manager.allocate_for_prefill(req)
    manager.computed(req)
    manager.truncate_request(req, 3)
    req.tokens[3:] = [9]
    manager.allocate_for_decode(req)
    assert [*manager.snapshot().index.values()] == req.block_table[:1]
    found = Request(1, 5, [1, 1, 2, 2, 3])
    manager.allocate_for_prefill(found)
    assert manager.cached_tokens(found) == 2


# ---------------------------------------------------------------- copies


@both
def test_a_clone_of_a_subclass_copies_what_the_subclass_adds_and_knows_its_handles(kind):
    class Logging(kind):  # type: ignore[misc, valid-type]  # whichever manager is tested
        def __init__(self, *geometry):
            super().__init__(*geometry)
            self.log, self.host_calls = [], []

    manager, req = live(Logging)
    manager.log.append(req)
    twin, handles = manager.clone({0: req})
    assert twin.log == [handles[0]]
    assert twin.log is not manager.log
    manager.swap_out(req)
    assert everything(twin) == everything(live(kind)[0])


@both
def test_a_clone_has_a_second_pool_of_its_own(kind):
    manager, req = live(kind)
    twin, handles = manager.clone({0: req})
    twin._host_free[:1] = twin._host_free[1:2]
    assert manager.snapshot().host_free == (0, 1, 2, 3, 4, 5)
    assert handles[0] is not req


# ---------------------------------------------------------------- windows


@both
def test_in_blocks_of_one_token_nothing_goes_back_before_the_window_is_full(kind):
    manager = kind.configured("append", "window", window=3)(6, 1, 1)
    req = Request(0, 1)
    manager.allocate_for_prefill(req)
    for table in ([0, 1], [0, 1, 2], [-1, 1, 2, 0]):
        manager.allocate_for_decode(req)
        assert req.block_table == table
