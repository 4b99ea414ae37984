"""The adapter to LMDeploy's Scheduler with its BlockTrie, and what was found with it."""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from findings import printed, scripts
from pagedkv import assert_holds, check
from pagedkv.protocol import Request, Snapshot

pytest.importorskip("lmdeploy.pytorch.paging.block_trie")

from pagedkv.engines.lmdeploy_trie import LmdeployTrie
from pagedkv.engines.lmdeploy_turns import LmdeployTurns
from pagedkv.engines.standing_in import left_out

NAMES = {r: r for r in range(16)}


def admit(
    manager: LmdeployTrie, name: int, *tokens: int, key: int | None = None
) -> tuple[Request, object]:
    request = Request(name, len(tokens), tokens, extra_key=key)
    return request, manager.allocate_for_prefill(request)


def decode(manager: LmdeployTrie, request: Request, token: int) -> bool:
    request.tokens.append(token)
    granted = manager.allocate_for_decode(request)
    if not granted:
        request.tokens.pop()
    return granted


def everything(manager: LmdeployTrie, *requests: Request) -> tuple[object, ...]:
    return manager.snapshot(), manager.state_key(NAMES), [repr(request) for request in requests]


def test_a_fresh_manager_has_every_block_free_but_the_reserved():
    assert LmdeployTrie(3, 2, 1).snapshot() == Snapshot(
        block_tables={},
        seq_lens={},
        free_blocks=(1, 2, 3),
        blocks={1, 2, 3},
        num_free=3,
        ref_counts=dict.fromkeys(range(4), 0),
        reserved={0},
        index={},
    )


def test_a_prompt_finds_the_leading_blocks_of_another_but_its_last_token():
    manager = LmdeployTrie(6, 2, 1)
    first, _ = admit(manager, 0, 1, 1, 2, 2, 3)
    second, _ = admit(manager, 1, 1, 1, 2, 2)
    assert (first.block_table, second.block_table) == ([1, 2, 3], [1, 2])
    # The second block was not found, as its last token is computed, and then exchanged.
    assert (manager.cached_tokens(first), manager.cached_tokens(second)) == (0, 2)
    shown = manager.snapshot()
    assert shown.index == {(None, 1, 1): 1, (None, 1, 1, 2, 2): 2}
    assert shown.ref_counts == {0: 0, 1: 2, 2: 2, 3: 1, 4: 0, 5: 0, 6: 0}
    assert shown.free_blocks == (4, 5, 6)


def test_requests_of_two_adapters_find_nothing_of_each_other():
    manager = LmdeployTrie(6, 1, 1)
    tables = [admit(manager, name, 7, 7, key=name)[0].block_table for name in (0, 1)]
    assert tables == [[1, 2], [3, 4]]
    assert manager.snapshot().index == {
        ("0", 7): 1,
        ("0", 7, 7): 2,
        ("1", 7): 3,
        ("1", 7, 7): 4,
    }


def test_what_a_request_leaves_is_cached_and_the_leaf_that_was_used_first_goes_first():
    manager = LmdeployTrie(4, 1, 1)
    for name in (0, 1):
        manager.release_request(admit(manager, name, name, 7)[0])
    assert manager.snapshot().cached == {1, 2, 3, 4}
    again, _ = admit(manager, 2, 0, 7, 7)  # finds 0 7, so that 1 7 was used first: 7 goes
    assert (again.block_table, manager.cached_tokens(again)) == ([1, 2, 4], 2)
    found = {(None, 0): 1, (None, 0, 7): 2, (None, 0, 7, 7): 4, (None, 1): 3}
    assert manager.snapshot().index == found


def test_a_decoded_block_is_found_once_the_next_one_is_taken():
    manager = LmdeployTrie(4, 2, 1)
    request, _ = admit(manager, 0, 5)
    found = []
    for token in (6, 7):
        assert decode(manager, request, token)
        found.append(dict(manager.snapshot().index or {}))
    assert found == [{}, {(None, 5, 6): 1}]
    assert (request.seq_len, request.block_table) == (3, [1, 2])


def test_a_refused_prompt_leaves_no_session_but_may_evict():
    manager = LmdeployTrie(3, 1, 1)
    live, _ = admit(manager, 0, 1)
    manager.release_request(admit(manager, 1, 2)[0])
    fresh, granted = admit(manager, 2, 3, 3, 3)
    assert granted is False
    assert (repr(fresh), list(manager._scheduler.sessions)) == (repr(Request(2, 3)), [0])
    shown = manager.snapshot()
    assert (shown.cached, shown.num_free) == (frozenset(), 2)
    assert live.block_table == [1]


def test_a_refused_decode_leaves_the_sequence_running_with_what_it_has():
    manager = LmdeployTrie(2, 1, 1)
    request, other = admit(manager, 0, 1)[0], admit(manager, 1, 2)[0]
    before = everything(manager, request)
    for _ in range(2):
        assert decode(manager, request, 5) is False
        assert before == everything(manager, request)
    manager.release_request(other)
    assert decode(manager, request, 5) is True
    assert (request.block_table, manager.snapshot().index) == ([1, 2], {(None, 1): 1})


# ------------------------------------------------------------------------------ the snapshot


def spoil_reference(manager: LmdeployTrie) -> None:
    manager._engine.allocator._log_mem.ref_count[0] -= 1


def spoil_leaves(manager: LmdeployTrie) -> None:
    manager._scheduler.block_trie.leaves.clear()


def spoil_node(manager: LmdeployTrie) -> None:
    (root,) = manager._scheduler.block_trie._roots.values()
    root.children.clear()


def spoil_times(manager: LmdeployTrie) -> None:
    times = manager._engine.allocator._log_mem.access_time
    times[0] = times.max() + 1


FAULTS: dict[str, tuple[Callable[[LmdeployTrie], None], dict[str, Any]]] = {
    "the trie's own reference": (
        spoil_reference,
        {"ref_counts": {0: 0, 1: -1, 2: 0, 3: 0}, "cached": frozenset({2})},
    ),
    "leaves": (spoil_leaves, {}),
    "times": (spoil_times, {}),
    "nodes": (
        spoil_node,
        {"ref_counts": {0: 0, 1: 1, 2: 1, 3: 0}, "cached": frozenset(), "index": {}},
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_snapshot_and_key_show_a_fault(what):
    manager = LmdeployTrie(3, 1, 1)
    for name in (0, 1):
        manager.release_request(admit(manager, name, name)[0])
    before, key = manager.snapshot(), manager.state_key(NAMES)
    assert before.cached == {1, 2}
    assert key == manager.state_key(NAMES)
    spoil, shown = FAULTS[what]
    spoil(manager)
    assert manager.snapshot() == replace(before, **shown)
    assert key != manager.state_key(NAMES)


def test_the_key_is_hashable_marshals_and_calls_requests_as_it_is_told():
    first, second = LmdeployTrie(3, 1, 1), LmdeployTrie(3, 1, 1)
    admit(first, 1, 7, 7)
    admit(second, 5, 7, 7)
    key: Any = first.state_key({1: 0})
    assert marshal.loads(marshal.dumps(key)) == key
    assert isinstance(hash(key), int)
    assert key == second.state_key({5: 0}) != second.state_key({5: 1})


def test_the_key_has_no_times_of_blocks_that_are_held():
    first, second = LmdeployTurns(3, 2, 1), LmdeployTurns(3, 2, 1)
    admit(first, 0, 7, 7, 7)
    request, _ = admit(second, 0, 7)
    request.tokens += [7, 7]
    second.allocate_for_append(request, 2)
    for manager in (first, second):
        (other,) = manager.live
        other.tokens = [7] * 4
        assert manager.allocate_for_append(other, 1)
    assert first.state_key(NAMES) == second.state_key(NAMES)


def test_the_key_tells_adapters_apart_before_anything_is_found():
    first, second = LmdeployTrie(3, 2, 1), LmdeployTrie(3, 2, 1)
    admit(first, 0, 7)
    admit(second, 0, 7, key=1)
    assert first.state_key(NAMES) != second.state_key(NAMES)


def test_a_module_that_is_left_out_is_there_inside_and_gone_afterwards():
    with left_out("lmdeploy.not_there", "json"):
        from lmdeploy.not_there import Anything
    assert isinstance(Anything, type)
    assert ("lmdeploy.not_there" in sys.modules, "json" in sys.modules) == (False, True)


# ------------------------------------------------------------------------------- the verdict


def test_the_scopes_are_exhausted_and_nothing_breaks():
    (report,) = check("lmdeploy-trie", budget=600).targets
    assert report.verdict == "passed"
    coverage = report.coverage
    assert (coverage.states, coverage.transitions, coverage.exhausted) == (4678, 17406, True)


# ---------------------------------------------------------------------------- what was found
# Once LMDeploy has mended these, the tests fail, and the pages in docs/findings/ change.


def test_a_turn_puts_what_it_finds_behind_a_block_that_is_not_full():
    commands = [
        {"op": "prefill", "request": 0, "tokens": 1},
        {"op": "prefill", "request": 1, "tokens": 2},
        {"op": "append", "request": 0, "tokens": 2},
    ]
    with pytest.raises(AssertionError, match=r"block_table\[0\]\[1\] = 2 = block_table\[1\]\[0\]"):
        assert_holds("lmdeploy-turns", commands=commands, num_blocks=2, block_size=2)


def test_a_refused_turn_gives_up_the_blocks_that_the_session_had():
    manager = LmdeployTurns(1, 1, 1)
    request, _ = admit(manager, 0, 7)
    request.tokens.append(8)
    assert manager.allocate_for_append(request, 1) is False
    shown = manager.snapshot()
    assert shown.block_tables == {0: ()}
    assert shown.cached == {1}


def test_a_turn_that_finds_nothing_grows_the_table():
    manager = LmdeployTurns(4, 2, 1)
    request, _ = admit(manager, 0, 7)
    request.tokens += [8, 9]
    assert manager.allocate_for_append(request, 2) is True
    assert (request.seq_len, request.block_table) == (3, [1, 2])
    assert decode(manager, request, 5)
    assert (request.seq_len, request.block_table) == (4, [1, 2])


@pytest.mark.parametrize(
    "page",
    ["lmdeploy-turn-finds-blocks.md", "lmdeploy-refused-turn.md", "lmdeploy-trie-seconds.md"],
)
def test_the_scripts_of_the_findings_print_what_their_pages_say(page):
    assert [printed(script) for script, _ in scripts(page)] == [told for _, told in scripts(page)]
