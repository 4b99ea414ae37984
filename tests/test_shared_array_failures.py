"""A call of the array-backed manager that shares blocks fails on the way and changes nothing."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from pagedkv.protocol import Request
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.stateful.points import Injector, modules_of
from sharing_arrays import admitted, equations, forked, new

ALL = SharedArrayKVCacheManager
EAGER = ALL.configured("fork", "prefix", forks_eagerly=True)
AT_ONCE = ALL.configured("append", "prefix", "swap", "truncate", publishes_at_once=True)
WINDOW = ALL.configured("append", "window", window=1)

# ------------------------------------------------------------------ where the call finds it


def fresh(manager, text):
    return new(0, text)


def live(manager, text):
    return admitted(manager, text)[0]


def shorter(manager, text):
    request = live(manager, text)
    manager.truncate_request(request, request.seq_len - 1)
    del request.tokens[-1:]
    return request


def child(manager, text):
    return forked(manager, live(manager, text), 1)


def again(manager, text):
    """It finds the blocks that one left, and evicts those of another."""
    manager.release_request(admitted(manager, "9" * 8, first=1)[0])
    manager.release_request(live(manager, text))
    return new(2, f"{text}7777")


def out(manager, text):
    request = live(manager, text)
    manager.swap_out(request)
    return request


def inside(manager, text):
    request = live(manager, text)
    manager.free_group_begin()
    return request


def withheld(manager, text):
    request = inside(manager, text)
    manager.release_request(request)
    return request


SCENES = [
    (ALL, fresh, "1122", "allocate_for_prefill"),
    (AT_ONCE, fresh, "1122", "allocate_for_prefill"),
    (ALL, again, "1122", "allocate_for_prefill"),
    (ALL, live, "112", "allocate_for_decode"),
    (ALL, shorter, "1122", "allocate_for_decode"),
    (ALL, child, "112", "allocate_for_decode"),
    (AT_ONCE, shorter, "1122", "allocate_for_append", 3),
    (WINDOW, live, "112", "allocate_for_append", 4),
    (ALL, live, "112233", "truncate_request", 1),
    (ALL, live, "112", "fork_request", "child"),
    (EAGER, live, "112", "fork_request", "child"),
    (ALL, live, "112", "release_request"),
    (ALL, child, "112", "release_request"),
    (ALL, inside, "112", "release_request"),
    (ALL, out, "112", "release_request"),
    (ALL, live, "112", "swap_out"),
    (AT_ONCE, out, "112", "swap_in"),
    (ALL, withheld, "112", "free_group_end", None),
    (ALL, live, "1122", "computed"),
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda s: "-".join([s[1].__name__, s[3]]))
def test_a_failure_at_any_inner_call_changes_nothing(scene):
    kind, set_up, text, name, *arguments = scene
    for n in count(1):
        manager = kind(6, 2, 1)
        request = set_up(manager, text)
        baby = Request(7, request.seq_len, request.tokens)
        if name == "computed":
            manager.allocate_for_append(request, 2)
            request.tokens += [8, 8]
        if name in ("allocate_for_decode", "allocate_for_append"):
            request.tokens += [6] * (arguments or [1])[0]
        given = [baby if argument == "child" else argument for argument in arguments]
        given = [] if given == [None] else [request, *given]
        before = whole(manager, request, baby)
        injector = Injector(modules_of(manager))
        try:
            injector.run(partial(getattr(manager, name), *given), n)
        except MemoryError:
            assert before == whole(manager, request, baby), f"inner call {n}"
            getattr(manager, name)(*given)
        # Else it failed where Python lets nothing out, in closing a generator, or nowhere.
        equations(manager)
        assert before != whole(manager, request, baby)
        if not injector.failed:
            break
    assert n > 3, "no inner call was ever reached"


def whole(manager, *requests):
    """All that a failed call must leave alone."""
    handles = [(request.seq_len, [*request.block_table], [*request.tokens]) for request in requests]
    tensors = (manager.physical_kv_cache.tolist(), manager.host_kv_cache.tolist())
    return manager.state_key({name: name for name in range(10)}), handles, tensors
