"""The adapter to MAX's BlockManager: obeys the protocol, sees everything, hides nothing."""

from __future__ import annotations

import marshal
from collections.abc import Callable

import pytest

pytest.importorskip("max.pipelines.kv_cache.paged_kv_cache.block_manager")

from findings import printed, scripts
from pagedkv import check
from pagedkv.declarations import Raises
from pagedkv.engines.max import CachedMaxBlockManager, MaxBlockManager
from pagedkv.engines.max_prefix import MaxPrefix
from pagedkv.protocol import Request, Snapshot

NAMES = {r: r for r in range(8)}
FACTORIES = pytest.mark.parametrize("factory", [MaxBlockManager, CachedMaxBlockManager])


def admit(manager: MaxBlockManager, name: int, tokens: int) -> Request:
    request = Request(name, tokens)
    manager.allocate_for_prefill(request)
    manager.computed(request)
    return request


def decode(manager: MaxBlockManager, request: Request) -> None:
    request.tokens.append(0)
    manager.allocate_for_decode(request)
    manager.computed(request)


def everything(manager: MaxBlockManager, *requests: Request) -> tuple[object, ...]:
    return manager.snapshot(), manager.state_key(NAMES), [repr(request) for request in requests]


@FACTORIES
@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_sizes_below_one_are_a_value_error(factory, sizes):
    with pytest.raises(ValueError, match="must be >= 1"):
        factory(*sizes)


@FACTORIES
def test_every_block_of_the_pool_is_usable_and_the_null_block_lies_beyond_it(factory):
    assert factory(3, 2, 4).snapshot() == Snapshot(
        block_tables={},
        seq_lens={},
        free_blocks=(0, 1, 2),
        num_free=3,
        ref_counts={},
        reserved={3},
    )


@FACTORIES
def test_a_request_takes_the_first_free_blocks_and_one_more_at_each_boundary(factory):
    manager = factory(4, 2, 1)
    admit(manager, 0, 1)
    request = admit(manager, 1, 3)
    tables = []
    for _ in range(2):
        decode(manager, request)
        tables.append((request.seq_len, request.block_table))
    assert tables == [(4, [1, 2]), (5, [1, 2, 3])]
    assert manager.snapshot() == Snapshot(
        block_tables={0: (0,), 1: (1, 2, 3)},
        seq_lens={0: 1, 1: 5},
        free_blocks=(),
        num_free=0,
        ref_counts=dict.fromkeys(range(4), 1),
        reserved={4},
    )


@pytest.mark.parametrize(
    ("factory", "order"), [(MaxBlockManager, (2, 0, 1)), (CachedMaxBlockManager, (2, 1, 0))]
)
def test_freed_blocks_queue_in_table_order_and_with_the_cache_from_the_tail(factory, order):
    manager = factory(3, 1, 1)
    request = admit(manager, 0, 2)
    manager.release_request(request)
    assert manager.snapshot().free_blocks == order
    assert (request.seq_len, request.block_table) == (2, [])


@FACTORIES
@pytest.mark.parametrize("tokens", [2, 3])
def test_a_refused_prefill_leaves_nothing_behind(factory, tokens):
    manager = factory(2, 1, 1)
    live, fresh = admit(manager, 0, 1), Request(1, tokens)
    before = everything(manager, live, fresh)
    with pytest.raises(Exception, match=r"block|pages") as refusal:
        manager.allocate_for_prefill(fresh)
    assert any(
        isinstance(told, Raises)
        and isinstance(refusal.value, told.exception)
        and told.containing in str(refusal.value)
        for told in manager.declares.out_of_blocks
    )
    assert before == everything(manager, live, fresh)
    assert len(manager._engine.req_to_blocks) == len(manager._engine.req_to_replica) == 1


@FACTORIES
def test_a_refused_decode_changes_nothing_and_may_be_tried_again(factory):
    manager = factory(2, 1, 1)
    live, other = admit(manager, 0, 1), admit(manager, 1, 1)
    before = everything(manager, live)
    for _ in range(2):
        live.tokens.append(5)
        with pytest.raises(Exception, match="free blocks from the free block queue"):
            manager.allocate_for_decode(live)
        live.tokens.pop()
        assert before == everything(manager, live)
    manager.release_request(other)
    decode(manager, live)
    assert (live.seq_len, live.block_table) == (2, [0, 1])
    assert list(manager.live[live].tokens.all) == [0, 0, -999]


@pytest.mark.parametrize(
    ("factory", "committed"), [(MaxBlockManager, 0), (CachedMaxBlockManager, 2)]
)
def test_full_blocks_are_committed_once_they_are_computed(factory, committed):
    manager = factory(4, 2, 1)
    request = Request(0, 5)
    manager.allocate_for_prefill(request)
    assert len(manager._engine.device_block_pool.prefix_cache) == 0
    manager.computed(request)
    assert len(manager._engine.device_block_pool.prefix_cache) == committed


def test_requests_of_the_same_tokens_share_no_block():
    manager = CachedMaxBlockManager(4, 1, 1)
    first, second = admit(manager, 0, 2), admit(manager, 1, 2)
    assert (first.block_table, second.block_table) == ([0, 1], [2, 3])
    manager.release_request(first)
    manager.allocate_for_prefill(first)
    assert manager.live[first].cached_prefix_length == 0


@FACTORIES
@pytest.mark.parametrize("call", ["allocate_for_prefill", "allocate_for_decode"])
def test_wrong_use_is_refused_by_the_engine_and_changes_nothing(factory, call):
    manager = factory(3, 1, 1)
    live, fresh = admit(manager, 0, 1), Request(1, 1)
    before = everything(manager, live, fresh)
    with pytest.raises(ValueError, match=r"Request is (already|not) claimed"):
        getattr(manager, call)(live if call == "allocate_for_prefill" else fresh)
    assert before == everything(manager, live, fresh)


# --------------------------------------------------------------------- requests that share


def share(manager: MaxPrefix, name: int, *tokens: int, key: int | None = None) -> Request:
    request = Request(name, len(tokens), tokens, extra_key=key)
    manager.allocate_for_prefill(request)
    manager.computed(request)
    return request


def test_a_prompt_finds_the_leading_blocks_of_another_but_its_last_token():
    manager = MaxPrefix(6, 2, 1)
    first = share(manager, 0, 1, 1, 2, 2, 3)
    second = share(manager, 1, 1, 1, 2, 2, 4)
    assert (first.block_table, second.block_table) == ([0, 1, 2], [0, 1, 3])
    assert (manager.cached_tokens(first), manager.cached_tokens(second)) == (0, 4)
    shown = manager.snapshot()
    assert shown.ref_counts == {0: 2, 1: 2, 2: 1, 3: 1}
    assert sorted((shown.index or {}).values()) == [0, 1]


def test_a_block_that_is_committed_a_second_time_is_exchanged_for_the_first():
    manager = MaxPrefix(6, 2, 1)
    share(manager, 0, 1, 1)
    second = Request(1, 2, (1, 1))
    manager.allocate_for_prefill(second)
    assert (second.block_table, manager.cached_tokens(second)) == ([1], 0)
    manager.computed(second)
    assert second.block_table == [0]
    assert manager.snapshot().free_blocks == (2, 3, 4, 5, 1)


def test_requests_of_two_salts_find_nothing_of_each_other():
    manager = MaxPrefix(4, 1, 1)
    tables = [share(manager, name, 7, 7, key=name).block_table for name in (0, 1)]
    assert tables == [[0, 1], [2, 3]]


def test_a_prompt_of_one_token_is_not_looked_up():
    manager = MaxPrefix(2, 1, 1)
    assert manager.cached_tokens(share(manager, 0, 7)) == 0


def test_what_a_request_leaves_is_cached_and_the_rest_free():
    manager = MaxPrefix(4, 2, 1)
    manager.release_request(share(manager, 0, 1, 1, 2))
    shown = manager.snapshot()
    assert shown.cached == {0}
    assert (shown.free_blocks, shown.num_free) == ((2, 3, 1), 3)
    assert manager.free_blocks == [1, 2, 3]
    assert list(manager._queue()) == [2, 3, 1, 0]
    share(manager, 1, 3, 3, 4, 4, 5, 5, 6, 6)
    assert sorted((manager.snapshot().index or {}).values()) == [0, 1, 2, 3]


def test_a_refused_prompt_gives_back_what_it_found():
    manager = MaxPrefix(3, 1, 1)
    manager.release_request(share(manager, 0, 1, 2))
    live = share(manager, 1, 9)
    before = manager.snapshot()
    with pytest.raises(Exception, match="free blocks from the free block queue"):
        manager.allocate_for_prefill(Request(2, 3, (1, 2, 3)))
    with pytest.raises(Exception, match="Insufficient KV pages"):
        manager.allocate_for_prefill(Request(3, 4, (1, 2, 3, 4)))
    assert manager.snapshot() == before
    assert live.block_table == [2]


def test_the_key_tells_contents_apart():
    keys = set()
    for token in (7, 8):
        manager = MaxPrefix(2, 1, 1)
        manager.release_request(share(manager, 0, token))
        keys.add(manager.state_key(NAMES))
    assert len(keys) == 2


# ------------------------------------------------------------------------------ the snapshot


@pytest.fixture
def manager() -> MaxBlockManager:
    """Blocks 0, 1 with request 5 and block 2 with request 6; block 3 is free."""
    manager = CachedMaxBlockManager(4, 2, 1)
    admit(manager, 5, 3)
    admit(manager, 6, 2)
    return manager


def blocks(manager: MaxBlockManager, name: int) -> list[object]:
    (context,) = (c for req, c in manager.live.items() if req.request_id == name)
    table: list[object] = manager._engine.req_to_blocks[context.request_id]
    return table


def test_the_snapshot_shows_a_wrong_table_entry(manager):
    blocks(manager, 5)[1] = manager._engine.device_block_pool.pool[3]
    assert manager.snapshot().block_tables == {5: (0, 3), 6: (2,)}


def test_the_snapshot_shows_the_table_of_a_request_that_no_live_handle_has(manager):
    manager._engine.req_to_blocks["gone"] = manager._engine.device_block_pool.pool[3:]
    assert manager.snapshot().block_tables == {5: (0, 1), 6: (2,), -1: (3,)}


def test_the_queue_the_set_and_the_counter_are_seen_apart(manager):
    pool = manager._engine.device_block_pool
    pool.free_block_queue.free_blocks.add(2)
    pool.free_block_queue.num_free_blocks = 7
    shown = manager.snapshot()
    assert (shown.free_blocks, manager.free_blocks, shown.num_free) == ((3,), [2, 3], 7)


def _forget(manager: MaxBlockManager) -> None:
    manager._engine.device_block_pool.prefix_cache.clear()


CORRUPTIONS: dict[str, Callable[[MaxBlockManager], object]] = {
    "table": lambda manager: blocks(manager, 5).pop(),
    "references": lambda manager: setattr(manager._engine.device_block_pool.pool[0], "ref_cnt", 2),
    "hash": lambda manager: setattr(manager._engine.device_block_pool.pool[3], "block_hash", b"x"),
    "prefix cache": _forget,
    "free set": lambda manager: manager._engine.device_block_pool.free_blocks.clear(),
    "claim left behind": lambda manager: manager._engine.req_to_replica.update(gone=0),
    "table left behind": lambda manager: manager._engine.req_to_blocks.update(gone=[]),
    "hashes left behind": lambda manager: manager._engine.req_to_hashes.update(gone=[]),
    "committed left behind": lambda manager: manager._engine.req_to_committed_idx.update(gone=0),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_the_key_tells_states_apart_that_differ_in_one_structure(manager, what):
    before = manager.state_key(NAMES)
    assert marshal.loads(marshal.dumps(before)) == before == manager.state_key(NAMES)
    CORRUPTIONS[what](manager)
    assert before != manager.state_key(NAMES)


# ------------------------------------------------------------- beside it, and the verdict


def test_the_script_of_the_page_prints_what_it_says():
    for script, output in scripts("max-refused-input-tokens.md"):
        assert printed(script) == output


@pytest.mark.parametrize(
    ("target", "states", "transitions"),
    [("max", 784, 4247), ("max-cached", 1567, 8482), ("max-prefix", 5336, 30160)],
)
def test_the_scope_of_engines_is_exhausted_and_nothing_breaks(target, states, transitions):
    (report,) = check(target, budget=300).targets
    assert (report.verdict, report.coverage.exhausted) == ("passed", True)
    assert (report.coverage.states, report.coverage.transitions) == (states, transitions)
