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


def admit(
    manager: TokenSpeedScheduler, name: int, tokens: int | list[int], extra_key: int | None = None
) -> Request:
    """A request of this prompt; of a number alone, one that nobody else has."""
    prompt = [10 + name] * tokens if isinstance(tokens, int) else tokens
    request = Request(name, len(prompt), prompt, extra_key=extra_key)
    assert manager.allocate_for_prefill(request) is True
    write(manager, request)
    return request


def decode(manager: TokenSpeedScheduler, request: Request) -> None:
    request.tokens.append(0)
    assert manager.allocate_for_decode(request) is True
    write(manager, request)


def write(manager: TokenSpeedScheduler, request: Request) -> None:
    """The forward pass: what was not found is written."""
    found = manager.cached_tokens(request) if request.seq_len == request.prompt_len else None
    for p in range(request.seq_len - 1 if found is None else found, request.seq_len):
        page = request.block_table[p // manager.block_size]
        manager.physical_kv_cache[page, p % manager.block_size] = p + 100 * request.tokens[p]
    manager.computed(request)


def read(manager: TokenSpeedScheduler, request: Request) -> list[float]:
    size, cache = manager.block_size, manager.physical_kv_cache
    return [
        float(cache[request.block_table[p // size], p % size, 0]) for p in range(request.seq_len)
    ]


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


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_admission_reserves_a_slot_for_the_token_that_comes_next(tokens, pages):
    manager = TokenSpeedScheduler(4, 2, 1)
    assert len(admit(manager, 0, tokens).block_table) == pages
    assert manager.snapshot().num_free == 4 - pages


def test_a_decode_moves_its_request_and_holds_the_other():
    manager = TokenSpeedScheduler(5, 2, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 2)
    seen, held = [], list(second.block_table)
    for _ in range(4):
        decode(manager, first)
        seen.append((first.seq_len, len(first.block_table)))
        assert (second.seq_len, second.block_table) == (2, held)
    assert seen == [(2, 2), (3, 2), (4, 3), (5, 3)]
    decode(manager, second)
    assert (second.seq_len, second.block_table) == (3, held)


@pytest.mark.parametrize(("tokens", "found"), [(1, 0), (2, 0), (3, 2), (4, 2), (5, 4), (6, 5)])
def test_a_prompt_finds_whole_pages_and_the_end_of_another_prompt(tokens, found):
    manager = TokenSpeedScheduler(9, 2, 1)
    first, second = admit(manager, 0, [0] * 5), admit(manager, 1, [0] * tokens)
    assert manager.cached_tokens(second) == found
    assert second.block_table[: found // 2] == first.block_table[: found // 2]
    assert read(manager, second) == [float(p) for p in range(tokens)]


def test_what_is_found_outlives_who_wrote_it():
    manager = TokenSpeedScheduler(4, 2, 1)
    manager.release_request(admit(manager, 0, [1, 0, 0]))
    assert manager.snapshot().cached == {1, 2, 3}
    second = admit(manager, 1, [1, 0, 0, 0])
    assert (manager.cached_tokens(second), second.block_table[0]) == (3, 1)
    assert read(manager, second) == [100.0, 1.0, 2.0, 3.0]


def test_other_content_and_another_extra_key_find_nothing():
    manager = TokenSpeedScheduler(9, 1, 1)
    admit(manager, 0, [0, 0])
    assert manager.cached_tokens(admit(manager, 1, [1, 0])) == 0
    assert manager.cached_tokens(admit(manager, 2, [0, 0], extra_key=1)) == 0


def test_a_page_that_becomes_equal_to_another_is_given_up_for_it_in_its_own_call():
    manager = TokenSpeedScheduler(9, 2, 1)
    first = admit(manager, 0, [0] * 4)
    second = admit(manager, 1, [0])
    assert second.block_table[0] != first.block_table[0]
    decode(manager, second)
    assert second.block_table[0] == first.block_table[0]


def test_a_refused_decode_changes_nothing_and_is_granted_once_there_are_pages():
    manager = TokenSpeedScheduler(4, 1, 1)
    first, second = admit(manager, 0, 1), admit(manager, 1, 1)
    before = everything(manager, first, second)
    for _ in range(2):
        assert manager.allocate_for_decode(first) is False
        assert before == everything(manager, first, second)
    manager.release_request(second)
    decode(manager, first)
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
    with pytest.raises(ValueError, match="request token limit 5 exceeds cache capacity 2"):
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
    assert (report.coverage.states, report.coverage.transitions) == (2501, 10457)
