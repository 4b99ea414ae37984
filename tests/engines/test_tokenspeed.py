"""The adapter to TokenSpeed's scheduler: one request at a time, by plans that hold the others."""

from __future__ import annotations

import marshal
from typing import Any

import pytest

pytest.importorskip("tokenspeed_scheduler")

from pagedkv import check
from pagedkv.adapter import unpadded
from pagedkv.engines.tokenspeed import TokenSpeedScheduler
from pagedkv.protocol import Request, Snapshot

NAMES = {r: r for r in range(8)}


def admit(manager: TokenSpeedScheduler, name: int, tokens: int) -> Request:
    request = Request(name, tokens)
    assert manager.allocate_for_prefill(request) is True
    return request


def everything(manager: TokenSpeedScheduler, *requests: Request) -> tuple[object, ...]:
    return manager.snapshot(), manager.state_key(NAMES), [repr(request) for request in requests]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_sizes_below_one_are_a_value_error(sizes):
    with pytest.raises(ValueError, match="must be >= 1"):
        TokenSpeedScheduler(*sizes)


def test_page_0_is_for_padding_and_all_others_are_available():
    assert TokenSpeedScheduler(3, 2, 1).snapshot() == Snapshot(
        block_tables={},
        seq_lens={},
        free_blocks=None,
        blocks={1, 2, 3},
        num_free=3,
        reserved={0},
    )


@pytest.mark.parametrize(("tokens", "table"), [(1, [1]), (2, [1, 2]), (3, [1, 2]), (4, [1, 2, 3])])
def test_admission_reserves_a_slot_for_the_token_that_comes_next(tokens, table):
    manager = TokenSpeedScheduler(4, 2, 1)
    assert admit(manager, 0, tokens).block_table == table
    assert manager.snapshot().num_free == 4 - len(table)


def test_a_decode_moves_its_request_and_holds_the_other():
    manager = TokenSpeedScheduler(5, 2, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 2)
    seen = []
    for _ in range(4):
        assert manager.allocate_for_decode(first) is True
        seen.append((first.seq_len, first.block_table, second.seq_len, second.block_table))
    assert seen == [
        (2, [1, 4], 2, [2, 3]),
        (3, [1, 4], 2, [2, 3]),
        (4, [1, 4, 5], 2, [2, 3]),
        (5, [1, 4, 5], 2, [2, 3]),
    ]
    assert manager.allocate_for_decode(second) is True
    assert (second.seq_len, second.block_table) == (3, [2, 3])


def test_requests_of_the_same_tokens_share_no_page():
    manager = TokenSpeedScheduler(4, 1, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 1)
    assert not {*first.block_table} & {*second.block_table}


def test_a_refused_decode_changes_nothing_and_is_granted_once_there_are_pages():
    manager = TokenSpeedScheduler(4, 1, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 1)
    before = everything(manager, first, second)
    for _ in range(2):
        assert manager.allocate_for_decode(first) is False
        assert before == everything(manager, first, second)
    manager.release_request(second)
    assert manager.allocate_for_decode(first) is True
    assert (first.seq_len, len(first.block_table)) == (2, 3)


def test_a_refused_decode_of_the_only_request_changes_nothing():
    manager = TokenSpeedScheduler(2, 1, 1)
    live = admit(manager, 0, 1)
    before = everything(manager, live)
    assert manager.allocate_for_decode(live) is False
    assert before == everything(manager, live)
    manager.release_request(live)
    assert manager.snapshot().num_free == 2


def test_a_refused_prefill_is_aborted_and_leaves_nothing_behind():
    manager = TokenSpeedScheduler(3, 1, 1)
    live, fresh = admit(manager, 0, 1), Request(1, 1)
    before = everything(manager, live, fresh)
    assert manager.allocate_for_prefill(fresh) is False
    assert before == everything(manager, live, fresh)
    engine = manager._engine
    assert (engine.waiting_size(), engine.prefilling_size(), engine.decoding_size()) == (0, 0, 1)


def test_what_the_whole_pool_cannot_hold_is_refused_when_it_is_submitted():
    manager, fresh = TokenSpeedScheduler(2, 2, 1), Request(0, 4)
    before = everything(manager, fresh)
    with pytest.raises(ValueError, match="request token limit 5 exceeds cache capacity 4"):
        manager.allocate_for_prefill(fresh)
    assert before == everything(manager, fresh)


def test_a_release_makes_all_pages_available_at_once():
    manager = TokenSpeedScheduler(4, 2, 1)
    admit(manager, 0, 1)
    request = admit(manager, 1, 3)
    manager.release_request(request)
    assert (request.seq_len, request.block_table) == (3, [])
    assert manager.snapshot().num_free == 3
    assert manager.allocate_for_prefill(request) is True


def test_nothing_is_printed(capfd):
    manager = TokenSpeedScheduler(2, 1, 1)
    live = admit(manager, 0, 1)
    manager.allocate_for_decode(live)
    manager.allocate_for_prefill(Request(1, 1))
    manager.release_request(live)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("row", "table"), [([1, 2], [1, 2]), ([1, -1], [1]), ([-1, 2, -1], [-1, 2]), ([-1], [])]
)
def test_a_row_ends_at_its_last_page_and_shows_a_hole(row, table):
    assert unpadded(row) == table


def test_the_key_tells_apart_the_order_in_which_pages_came_back():
    keys = set()
    for order in ((0, 1), (1, 0)):
        manager = TokenSpeedScheduler(4, 2, 1)
        requests = [admit(manager, name, 1) for name in range(2)]
        for name in order:
            manager.release_request(requests[name])
        key: Any = manager.state_key(NAMES)
        assert marshal.loads(marshal.dumps(key)) == key
        keys.add(key)
    assert len(keys) == 2


def test_the_scope_of_engines_is_exhausted_and_nothing_breaks():
    (report,) = check("tokenspeed", budget=300).targets
    assert (report.verdict, report.coverage.exhausted) == ("passed", True)
    assert (report.coverage.states, report.coverage.transitions) == (709, 2776)
