"""The adapters to vLLM's block managers: obey the protocol, see everything, hide nothing."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import replace

import pytest

from pagedkv import check
from pagedkv.declarations import Raises
from pagedkv.protocol import Request, Snapshot

pytest.importorskip("vllm.v1.core.kv_cache_manager")

from counting import counted
from pagedkv.engines.vllm import VllmCached, VllmManager
from pagedkv.engines.vllm_blockpool import VllmBlockPool
from pagedkv.engines.vllm_hybrid import VllmHybrid, VllmHybridCached
from pagedkv.engines.vllm_prefix import VllmPrefix
from pagedkv.engines.vllm_window import VllmWindow
from pagedkv.specs.model import Geometry

ALL = (VllmManager, VllmCached, VllmBlockPool)
MANAGERS = (VllmManager, VllmCached)
NAMES = {r: r for r in range(16)}


def admit(manager, name: int, tokens: int) -> Request:
    request = Request(name, tokens)
    manager.allocate_for_prefill(request)
    return request


def decode(manager, request: Request) -> object:
    """As a caller does it: the token first, and back after a refusal."""
    request.tokens.append(0)
    granted = manager.allocate_for_decode(request)
    if granted is None:
        request.tokens.pop()
    return granted


def pool_of(manager):
    return manager._engine.block_pool


# ------------------------------------------------------------------------------- the protocol


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_sizes_below_one_are_a_value_error(make, sizes):
    with pytest.raises(ValueError, match="must be >= 1"):
        make(*sizes)


@pytest.mark.parametrize("make", ALL)
def test_a_fresh_manager_has_every_block_free_but_the_null_block(make):
    assert make(3, 2, 1).snapshot() == Snapshot(
        block_tables={},
        seq_lens={},
        free_blocks=(1, 2, 3),
        blocks={1, 2, 3},
        num_free=3,
        ref_counts={1: 0, 2: 0, 3: 0},
        reserved={0},
    )


@pytest.mark.parametrize("make", ALL)
def test_a_table_grows_at_the_boundary_only(make):
    manager = make(3, 2, 1)
    request = admit(manager, 0, 1)
    seen = [(request.seq_len, list(request.block_table))]
    for _ in range(4):
        request.tokens.append(0)
        manager.allocate_for_decode(request)
        seen.append((request.seq_len, list(request.block_table)))
    assert seen == [(1, [1]), (2, [1]), (3, [1, 2]), (4, [1, 2]), (5, [1, 2, 3])]


@pytest.mark.parametrize("make", ALL)
def test_released_blocks_come_back_from_the_tail_of_the_table(make):
    manager = make(4, 2, 1)
    request = admit(manager, 0, 3)
    manager.release_request(request)
    assert (request.seq_len, request.block_table) == (3, [])
    # Block 1 was full: with prefix caching it is kept, and goes to the end of the queue.
    free = (2, 3, 4, 1) if make is VllmCached else (2, 1, 3, 4)
    assert manager.snapshot().free_blocks == free
    assert manager.snapshot().block_tables == {}


@pytest.mark.parametrize("make", MANAGERS)
@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_out_of_blocks_is_none_and_leaves_everything(make, call):
    manager = make(2, 1, 1)
    live, fresh = admit(manager, 0, 2), Request(1, 1)
    before = manager.snapshot(), repr(live), repr(fresh)
    if call == "prefill":
        assert manager.allocate_for_prefill(fresh) is None
    else:
        assert decode(manager, live) is None
    assert before == (manager.snapshot(), repr(live), repr(fresh))


def test_out_of_blocks_of_the_pool_is_a_value_error_as_declared():
    manager = VllmBlockPool(2, 1, 1)
    live = admit(manager, 0, 2)
    before = manager.snapshot(), manager.state_key(NAMES), repr(live)
    (told,) = manager.declares.out_of_blocks
    assert isinstance(told, Raises)
    with pytest.raises(told.exception, match=told.containing):
        manager.allocate_for_decode(live)
    with pytest.raises(told.exception, match=told.containing):
        manager.allocate_for_prefill(Request(1, 1))
    assert before == (manager.snapshot(), manager.state_key(NAMES), repr(live))


@pytest.mark.parametrize("make", MANAGERS)
def test_a_token_that_was_refused_its_slot_waits_for_it(make):
    manager = make(2, 1, 1)
    request, other = admit(manager, 0, 1), admit(manager, 1, 1)
    key = manager.state_key(NAMES)
    for _ in range(2):
        assert decode(manager, request) is None
        assert manager.live[request].num_tokens == 2
    assert key != manager.state_key(NAMES)
    manager.release_request(other)
    assert decode(manager, request) is not None
    assert manager.live[request].num_tokens == request.seq_len == 2
    assert request.block_table == [1, 2]


@pytest.mark.parametrize("make", MANAGERS)
def test_a_refused_token_is_forgotten_when_its_request_is_resumed(make):
    manager = make(1, 1, 1)
    request = admit(manager, 0, 1)
    assert decode(manager, request) is None
    manager.release_request(request)
    assert manager.allocate_for_prefill(request) is not None
    assert (request.seq_len, request.block_table) == (1, [1])


# ------------------------------------------------------------------------------ prefix caching


def test_a_resumed_request_hits_what_it_left_behind():
    manager = VllmCached(4, 1, 1)
    request = admit(manager, 0, 3)
    manager.release_request(request)
    assert manager.snapshot().free_blocks == (4, 3, 2, 1)
    manager.allocate_for_prefill(request)
    # The last token is computed again, hence block 4.
    assert request.block_table == [1, 2, 4]


def test_a_new_request_of_the_same_name_hits_nothing():
    manager = VllmCached(4, 1, 1)
    manager.release_request(admit(manager, 0, 3))
    assert admit(manager, 0, 3).block_table == [4, 3, 2]
    assert len(manager._newest) == 1


def test_without_caching_nothing_is_kept():
    manager = VllmManager(4, 1, 1)
    request = admit(manager, 0, 3)
    manager.release_request(request)
    manager.allocate_for_prefill(request)
    assert request.block_table == [3, 2, 1]
    assert len(pool_of(manager).cached_block_hash_to_block) == 0


# ------------------------------------------------------------------------------ the snapshot


def test_the_snapshot_shows_a_wrong_table():
    manager = VllmManager(3, 1, 1)
    admit(manager, 0, 1)
    (group,) = manager._engine.coordinator.single_type_managers
    group.req_to_blocks["0"].append(pool_of(manager).null_block)
    assert manager.snapshot().block_tables == {0: (1, 0)}


def test_the_snapshot_shows_a_table_that_was_left_behind():
    manager = VllmManager(3, 1, 1)
    request = admit(manager, 0, 1)
    (group,) = manager._engine.coordinator.single_type_managers
    left = list(group.req_to_blocks["0"])
    manager.release_request(request)
    group.req_to_blocks["0"] = left
    assert manager.snapshot().block_tables == {0: (1,)}
    assert manager.snapshot().seq_lens == {}
    assert isinstance(manager.state_key({}), tuple)


FAULTS: dict[str, tuple[Callable[..., object], dict[str, object]]] = {
    "count": (lambda pool: setattr(pool.free_block_queue, "num_free_blocks", 1), {"num_free": 1}),
    "references": (
        lambda pool: setattr(pool.blocks[2], "ref_cnt", -1),
        {"ref_counts": {1: 1, 2: -1, 3: 0}},
    ),
    "order": (
        lambda pool: pool.free_block_queue.append(pool.free_block_queue.popleft()),
        {"free_blocks": (3, 2)},
    ),
    "ring": (
        lambda pool: setattr(pool.blocks[3], "next_free_block", pool.blocks[2]),
        {"free_blocks": (2, 3) * 4},
    ),
    "null": (
        lambda pool: setattr(pool.blocks[3], "is_null", True),
        {"blocks": {1, 2}, "reserved": {0, 3}, "ref_counts": {1: 1, 2: 0}},
    ),
}


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("make", ALL)
def test_snapshot_and_key_show_a_fault_in_the_pool(make, what):
    manager = make(3, 1, 1)
    admit(manager, 0, 1)
    before, key = manager.snapshot(), manager.state_key(NAMES)
    assert key == manager.state_key(NAMES)
    spoil, shown = FAULTS[what]
    spoil(manager._engine if make is VllmBlockPool else pool_of(manager))
    assert manager.snapshot() == replace(before, **{k: _frozen(v) for k, v in shown.items()})
    assert key != manager.state_key(NAMES)


def _frozen(value: object) -> object:
    return frozenset(value) if isinstance(value, set) else value


# ------------------------------------------------------------------------------------ the key


@pytest.mark.parametrize("make", ALL)
def test_the_key_is_hashable_and_marshals(make):
    manager = make(4, 1, 1)
    manager.release_request(admit(manager, 3, 2))
    admit(manager, 2, 1)
    key = manager.state_key(NAMES)
    assert marshal.loads(marshal.dumps(key)) == key
    assert isinstance(hash(key), int)


@pytest.mark.parametrize("make", ALL)
def test_the_key_calls_requests_by_the_names_that_it_is_told(make):
    first, second = make(3, 1, 1), make(3, 1, 1)
    admit(first, 1, 2)
    admit(second, 5, 2)
    assert first.state_key({1: 0}) == second.state_key({5: 0})
    assert first.state_key({1: 0}) != second.state_key({5: 1})


def test_the_key_tells_what_a_request_can_still_hit_from_what_nobody_can():
    manager = VllmCached(3, 1, 1)
    manager.release_request(admit(manager, 0, 2))
    assert manager.state_key({0: 0}) != manager.state_key({})


def test_the_key_tells_apart_which_of_two_blocks_of_the_same_contents_is_hit():
    keys: set[object] = set()
    tables: list[list[int]] = []
    for _ in range(2):
        manager = VllmCached(4, 1, 1)
        request = admit(manager, 0, 2)
        manager.release_request(request)
        manager.allocate_for_prefill(request)  # blocks 1 and 3; 2 holds what 3 does
        if tables:
            cache = pool_of(manager).cached_block_hash_to_block._cache
            twice = next(found for found in cache.values() if isinstance(found, dict))
            twice[2] = twice.pop(2)
        keys.add(manager.state_key(NAMES))
        manager.release_request(request)
        request.seq_len, request.tokens = 3, [0, 0, 0]
        manager.allocate_for_prefill(request)
        tables.append(request.block_table)
    assert tables == [[1, 2, 4], [1, 3, 4]]
    assert len(keys) == 2


# ------------------------------------------------------------------------------- the verdicts


@pytest.mark.parametrize(
    ("target", "states", "transitions"),
    [("vllm", 1021, 3600), ("vllm-cached", 2120, 6975), ("vllm-blockpool", 720, 2447)],
)
def test_the_quick_scope_is_exhausted_and_nothing_breaks(target, states, transitions):
    (report,) = check(target, budget=600).targets
    assert report.verdict == "passed"
    coverage = report.coverage
    assert (coverage.states, coverage.transitions, coverage.exhausted) == (
        states,
        transitions,
        True,
    )


# -------------------------------------------------------------------- prefixes that are shared


def test_a_prompt_finds_what_another_request_wrote_but_its_last_token():
    manager = VllmPrefix(4, 1, 1)
    first = admit(manager, 0, 2)
    second = Request(1, 2)
    manager.allocate_for_prefill(second)
    assert (first.block_table, second.block_table) == ([1, 2], [1, 3])
    assert [manager.cached_tokens(r) for r in (first, second)] == [0, 1]
    assert manager.snapshot().ref_counts == {1: 2, 2: 1, 3: 1, 4: 0}


def test_an_extra_key_keeps_prompts_apart():
    manager = VllmPrefix(4, 1, 1)
    admit(manager, 0, 2)
    other = Request(1, 2, extra_key=1)
    manager.allocate_for_prefill(other)
    assert (other.block_table, manager.cached_tokens(other)) == ([3, 4], 0)


def test_cached_blocks_are_shown_beside_the_free_ones_and_each_is_indexed():
    manager = VllmPrefix(3, 1, 1)
    request, twin = admit(manager, 0, 1), admit(manager, 1, 1)  # a last token is never found
    manager.release_request(request)
    shown = manager.snapshot()
    assert (shown.free_blocks, set(shown.cached), shown.num_free) == ((3,), {1}, 1)
    assert shown.index is not None
    assert list(shown.index.values()) == [1, 2]
    assert twin.block_table == [2]
    admit(manager, 2, 2)  # finds block 1, the first, and takes block 3
    assert manager.snapshot().block_tables == {1: (2,), 2: (1, 3)}


# ------------------------------------------------------------------------------------- a window


def test_blocks_behind_the_window_go_back_before_others_are_taken():
    manager = VllmWindow(2, 1, 1)
    request = admit(manager, 0, 2)
    assert decode(manager, request) is not None
    assert (request.seq_len, request.block_table) == (3, [0, 2, 1])


def test_what_the_first_of_many_tokens_reads_is_kept():
    manager = VllmWindow(5, 1, 1)
    request = admit(manager, 0, 2)
    request.tokens += [0, 0]
    manager.allocate_for_append(request, 2)
    assert request.block_table == [0, 2, 1, 3]


def test_a_refused_call_gives_back_what_is_behind_the_window():
    manager = VllmWindow(2, 1, 1)
    request = admit(manager, 0, 2)
    request.tokens += [0, 0]
    assert manager.allocate_for_append(request, 2) is None
    assert (request.seq_len, request.block_table) == (2, [0, 2])
    assert manager.snapshot().free_blocks == (1,)


@pytest.mark.parametrize("target", ["vllm-prefix", "vllm-window"])
def test_the_scopes_of_the_abilities_are_exhausted_and_nothing_breaks(target):
    (report,) = check(target, budget=600).targets
    assert (report.verdict, report.coverage.exhausted) == ("passed", True)


# ------------------------------------------------------------------- two groups over one pool

HYBRIDS = (VllmHybrid, VllmHybridCached)


@pytest.mark.parametrize(
    ("make", "coordinator", "tables"),
    [
        (
            VllmHybrid,
            "KVCacheCoordinatorNoPrefixCache",
            [[1, 2], [1, 3, 2, 4], [1, 3, 0, 4], [1, 3, 2, 0, 4, 5], [1, 3, 2, 0, 0, 5]],
        ),
        (
            VllmHybridCached,  # a full block is cached, so that it comes to the end of the queue
            "HybridKVCacheCoordinator",
            [[1, 2], [1, 3, 2, 4], [1, 3, 0, 4], [1, 3, 5, 0, 4, 6], [1, 3, 5, 0, 0, 6]],
        ),
    ],
)
def test_each_group_has_a_table_and_one_gives_back_what_its_window_leaves_behind(
    make, coordinator, tables
):
    manager = make(8, 2, 1)
    assert type(manager._engine.coordinator).__name__ == coordinator
    request = admit(manager, 0, 2)
    found = [request.block_table]
    for _ in range(4):
        assert decode(manager, request) is not None
        found.append(request.block_table)
    assert found == tables
    assert manager.snapshot().block_tables == {0: tuple(tables[-1])}


@pytest.mark.parametrize("make", HYBRIDS)
def test_the_slots_of_a_position_are_those_of_each_groups_own_table(make):
    manager = make(8, 2, 1)
    request = admit(manager, 0, 3)
    first, second = [(1, 0), (1, 1), (2, 0)], [(3, 0), (3, 1), (4, 0)]
    assert manager.slots(request) == [*((0, *s) for s in first), *((1, *s) for s in second)]
    _, window = manager._engine.coordinator.single_type_managers
    window.req_to_blocks["0"].pop()
    assert manager.slots(request)[3:] == [(1, 3, 0), (1, 3, 1)]
    assert manager.snapshot().block_tables == {0: (1, 2, 3)}


@pytest.mark.parametrize("make", HYBRIDS)
def test_all_groups_get_their_blocks_or_none_does(make):
    manager = make(3, 1, 1)
    live, fresh = admit(manager, 0, 1), Request(1, 1)
    before = manager.snapshot(), repr(live), manager.state_key(NAMES)
    assert manager.allocate_for_prefill(fresh) is None
    assert decode(manager, live) is None
    assert before == (manager.snapshot(), repr(live), manager.state_key(NAMES))
    assert before[0].free_blocks == (3,)


@pytest.mark.parametrize("make", HYBRIDS)
def test_a_release_gives_the_blocks_of_every_group_back(make):
    manager = make(4, 1, 1)
    request = admit(manager, 0, 2)
    assert request.block_table == [1, 2, 3, 4]
    manager.release_request(request)
    assert (manager.snapshot().block_tables, manager.snapshot().num_free) == ({}, 4)
    assert set(manager.snapshot().free_blocks or ()) == {1, 2, 3, 4}


def test_a_resumed_request_finds_nothing_of_what_is_cached():
    manager = VllmHybridCached(4, 1, 1)
    request = admit(manager, 0, 2)
    manager.release_request(request)
    assert any(block.block_hash is not None for block in pool_of(manager).blocks)
    assert manager.allocate_for_prefill(request) is not None
    assert manager._found[request] == 0
    assert len(set(request.block_table)) == 4


@pytest.mark.parametrize(
    ("make", "blocks", "block_size", "expected"),
    [
        (VllmHybrid, 4, 1, (108, 504)),
        (VllmHybrid, 4, 2, (216, 1224)),
        (VllmHybridCached, 4, 1, (111, 520)),
        (VllmHybridCached, 4, 2, (312, 2040)),
    ],
)
def test_the_states_of_two_groups_are_exhausted(make, blocks, block_size, expected):
    assert counted(make, Geometry(blocks, block_size)) == expected
