"""The adapter to nano-vllm's BlockManager."""

from __future__ import annotations

import pytest

from engine import admit, assert_twin, checked, figures, grow, seen
from pagedkv.protocol import Request, Snapshot

pytest.importorskip("xxhash", reason="pip install xxhash numpy")
nano_vllm = pytest.importorskip(
    "pagedkv.engines.nano_vllm",
    reason="pip install --no-deps nano-vllm-fork==20260210",
    exc_type=ImportError,
)


def make(num_blocks=3, block_size=2):
    return nano_vllm.NanoVllm(num_blocks, block_size, 1)


def test_blocks_come_first_in_first_out_and_go_back_from_the_tail():
    manager = make()
    first, second = admit(manager, 5, 3), admit(manager, 6, 1)
    assert (first.block_table, second.block_table) == ([0, 1], [2])
    manager.release_request(first)
    assert manager.snapshot() == Snapshot(
        block_tables={6: (2,)},
        seq_lens={6: 1},
        free_blocks=(1, 0),
        num_free=2,
        ref_counts={0: 0, 1: 0, 2: 1},
    )


def test_a_token_takes_a_block_after_each_full_one():
    manager = make()
    request = admit(manager, 0, 1)
    tables = []
    for _ in range(4):
        grow(manager, request)
        tables.append(list(request.block_table))
    assert tables == [[0], [0, 1], [0, 1], [0, 1, 2]]


def test_requests_of_equal_tokens_share_no_block():
    manager = make(4)
    tables = [admit(manager, name, 4).block_table for name in (0, 1)]
    assert tables == [[0, 1], [2, 3]]


def test_a_request_that_comes_back_gets_fresh_tokens():
    manager = make(2)
    request = admit(manager, 0, 4)
    manager.release_request(request)
    manager.allocate_for_prefill(request)
    assert request.block_table == [1, 0]
    assert manager.live[request].num_cached_tokens == 0


def test_a_refused_token_stays_pending_and_is_appended_once():
    manager = make(2)
    request, other = admit(manager, 0, 2), admit(manager, 1, 1)
    before = manager.snapshot()
    for _ in range(2):
        assert manager.allocate_for_decode(request) is False
        assert (manager.snapshot(), request.seq_len) == (before, 2)
        assert len(manager.live[request]) == 3
    manager.release_request(other)
    grow(manager, request)
    assert (request.seq_len, request.block_table) == (3, [0, 1])
    assert manager.snapshot().seq_lens == {0: 3}


def test_a_pending_token_is_a_state_of_its_own():
    manager = make(1)
    request = admit(manager, 0, 2)
    before = seen(manager)
    assert manager.allocate_for_decode(request) is False
    after = seen(manager)
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_a_prefill_that_is_refused_leaves_no_trace():
    manager = make(1)
    before = seen(manager)
    assert manager.allocate_for_prefill(Request(0, 3)) is False
    assert before == seen(manager)


def test_the_key_does_not_depend_on_how_many_were_admitted_before():
    fresh, used = make(1), make(1)
    used.release_request(admit(used, 0, 1))
    for manager in (fresh, used):
        admit(manager, 0, 1)
    assert fresh.state_key({0: 0}) == used.state_key({0: 0})


def test_managers_of_different_block_sizes_do_not_disturb_each_other():
    small, large = make(3, 2), make(3, 4)
    assert len(admit(small, 0, 4).block_table) == 2
    assert len(admit(large, 0, 4).block_table) == 1
    assert len(admit(small, 1, 1).block_table) == 1


def test_a_clone_equals_and_shares_nothing():
    assert_twin(lambda: make(4))


def test_the_verdict_is_as_recorded():
    assert figures(checked("nano-vllm")) == ("passed", True, 1684, 6097)
