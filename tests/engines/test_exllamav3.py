"""The adapter to exllamav3's PageTable: obeys the protocol, sees everything, hides nothing."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("exllamav3") is None:  # its own import would compile for a GPU
    pytest.skip("needs exllamav3", allow_module_level=True)

import torch

from pagedkv import check
from pagedkv.engines.exllamav3 import ExLlamaV3PageTable
from pagedkv.engines.exllamav3_headless import Compiled, is_whole
from pagedkv.engines.exllamav3_prefix import ExLlamaV3Partly, ExLlamaV3Prefix
from pagedkv.protocol import Request, Snapshot

NAMES = {r: r for r in range(8)}
PAGE = 256


def admit(manager: ExLlamaV3PageTable, name: int, tokens: int) -> Request:
    request = Request(name, tokens)
    assert manager.allocate_for_prefill(request) is True
    computed(manager, request)
    return request


def computed(manager: ExLlamaV3PageTable, request: Request) -> None:
    """Count it as computed, and let the engine's own checker look at everything."""
    manager.computed(request)
    manager._engine.pagetable.validate_pagetable(manager._engine.active_jobs)


def decode(manager: ExLlamaV3PageTable, request: Request) -> None:
    request.tokens.append(0)
    assert manager.allocate_for_decode(request) is True
    computed(manager, request)


def everything(manager: ExLlamaV3PageTable, *requests: Request) -> tuple[object, ...]:
    return manager.snapshot(), manager.state_key(NAMES), [repr(request) for request in requests]


@pytest.mark.parametrize("sizes", [(0, PAGE, 1), (1, 0, 1), (1, PAGE, 0), (1, 128, 1)])
def test_other_sizes_are_a_value_error(sizes):
    with pytest.raises(ValueError, match=r"must be >= 1|pages have 256"):
        ExLlamaV3PageTable(*sizes)


def test_a_fresh_manager_has_every_page_free():
    assert ExLlamaV3PageTable(3, PAGE, 1).snapshot() == Snapshot(
        block_tables={},
        seq_lens={},
        free_blocks=(0, 1, 2),
        num_free=3,
        ref_counts={0: 0, 1: 0, 2: 0},
    )


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (255, 1), (256, 2), (257, 2), (511, 2)])
def test_a_job_reserves_to_the_end_of_the_page_of_its_next_token(tokens, pages):
    manager = ExLlamaV3PageTable(3, PAGE, 1)
    request = admit(manager, 0, tokens)
    assert request.block_table == list(range(pages))
    assert manager.snapshot() == Snapshot(
        block_tables={0: tuple(range(pages))},
        seq_lens={0: tokens},
        free_blocks=tuple(range(pages, 3)),
        num_free=3 - pages,
        ref_counts={page: int(page < pages) for page in range(3)},
    )


def test_decode_goes_on_to_the_end_of_the_reservation_and_a_resume_goes_beyond():
    manager = ExLlamaV3PageTable(2, PAGE, 1)
    request = admit(manager, 0, 254)
    for _ in range(2):
        decode(manager, request)
    before = everything(manager, request)
    assert manager.allocate_for_decode(request) is False
    assert before == everything(manager, request)
    manager.release_request(request)
    assert manager.allocate_for_prefill(request) is True
    computed(manager, request)
    assert (request.seq_len, len(request.block_table)) == (256, 2)


@pytest.mark.parametrize("tokens", [256, 300])
def test_a_job_that_does_not_fit_now_stays_out_and_leaves_nothing_behind(tokens):
    manager = ExLlamaV3PageTable(2, PAGE, 1)
    live, fresh = admit(manager, 0, 1), Request(1, tokens)
    before = everything(manager, live, fresh)
    assert manager.allocate_for_prefill(fresh) is False
    assert before == everything(manager, live, fresh)
    assert manager._engine.pending_jobs == []


def test_a_job_that_never_fits_is_refused_when_it_is_queued():
    manager, fresh = ExLlamaV3PageTable(2, PAGE, 1), Request(1, 512)
    before = everything(manager, fresh)
    with pytest.raises(AssertionError, match=r"requires 3 pages .* and cannot be enqueued"):
        manager.allocate_for_prefill(fresh)
    assert before == everything(manager, fresh)


def test_jobs_of_the_same_tokens_share_no_page():
    manager = ExLlamaV3PageTable(4, PAGE, 1)
    first, second = admit(manager, 0, 300), admit(manager, 1, 300)
    assert (first.block_table, second.block_table) == ([0, 1], [2, 3])
    manager.release_request(first)
    assert manager.allocate_for_prefill(first)
    assert manager.live[first].cached_pages == 0


def test_pages_are_handed_out_in_the_order_that_the_snapshot_shows():
    manager = ExLlamaV3PageTable(4, PAGE, 1)
    requests = [admit(manager, name, 300) for name in range(2)]
    for request in requests:
        manager.release_request(request)
    order = manager.snapshot().free_blocks
    assert order is not None
    assert [admit(manager, name, 1).block_table for name in range(2, 6)] == [[b] for b in order]


def test_a_page_that_decode_fills_is_known_by_its_content():
    manager = ExLlamaV3PageTable(2, PAGE, 1)
    request = admit(manager, 0, 255)
    (filled,) = manager.live[request].sequences[0].allocated_pages
    assert filled.phash[:8] == bytes(8)  # a number in place of a hash
    decode(manager, request)
    assert filled.phash[:8] != bytes(8)


def test_an_idle_page_table_is_put_in_order_from_time_to_time():
    manager = ExLlamaV3PageTable(4, PAGE, 1)
    table = manager._engine.pagetable
    for _ in range(40):
        manager.release_request(admit(manager, 0, 1))
    assert table.last_defrag_serial > table.max_pages
    assert sorted(page.page_index for page in table.all_pages) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("a", "b", "most", "count"),
    [([1, 2, 3], [1, 2, 4], 3, 2), ([1, 2], [1, 2], 1, 1), ([1], [2], 1, 0)],
)
def test_the_stand_in_counts_equal_leading_tokens(a, b, most, count):
    assert Compiled.count_match_tensor(torch.tensor([a]), torch.tensor([b]), most) == count


# ------------------------------------------------------------------------------ the snapshot


@pytest.fixture
def manager() -> ExLlamaV3PageTable:
    """Pages 0, 1 with request 5 and page 2 with request 6; page 3 is free."""
    manager = ExLlamaV3PageTable(4, PAGE, 1)
    admit(manager, 5, 300)
    admit(manager, 6, 2)
    return manager


def test_the_snapshot_shows_a_page_in_two_tables(manager):
    first, second = (job.sequences[0] for job in manager.live.values())
    second.allocated_pages[0] = first.allocated_pages[1]
    assert manager.snapshot().block_tables == {5: (0, 1), 6: (1,)}


def test_a_page_that_the_index_lost_shows_in_the_count(manager):
    manager._engine.pagetable.unreferenced_pages.clear()
    shown = manager.snapshot()
    assert (shown.free_blocks, shown.num_free) == ((3,), 0)


CORRUPTIONS: dict[str, Callable[[ExLlamaV3PageTable], object]] = {
    "references": lambda manager: setattr(page(manager, 0), "ref_count", 2),
    "filled": lambda manager: setattr(page(manager, 1), "kv_position", 7),
    "hash": lambda manager: setattr(page(manager, 3), "phash", b"a hash of content"),
    "chain": lambda manager: setattr(page(manager, 1), "prev_hash", None),
    "age": lambda manager: setattr(page(manager, 0), "access_serial", 10**6),
    "revert": lambda manager: setattr(page(manager, 2), "can_revert", True),
    "index": lambda manager: setattr(page(manager, 3), "page_index", 2),
    "free pages": lambda manager: manager._engine.pagetable.unreferenced_pages.clear(),
    "time to defragment": lambda manager: setattr(
        manager._engine.pagetable, "last_defrag_serial", -100
    ),
}


def page(manager: ExLlamaV3PageTable, index: int) -> object:
    return manager._engine.pagetable.all_pages[index]


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_the_key_tells_states_apart_that_differ_in_one_structure(manager, what):
    before = manager.state_key(NAMES)
    assert marshal.loads(marshal.dumps(before)) == before == manager.state_key(NAMES)
    CORRUPTIONS[what](manager)
    assert before != manager.state_key(NAMES)


def test_a_clone_equals_and_shares_nothing(manager):
    live, fresh = next(iter(manager.live)), Request(7, 2)
    twin, handles = manager.clone({5: live, 7: fresh})
    assert everything(twin, *handles.values()) == everything(manager, live, fresh)
    before = everything(manager, live, fresh), marks(manager)
    decode(twin, handles[5])
    twin.release_request(handles[5])
    assert twin.allocate_for_prefill(handles[7]) is True
    computed(twin, handles[7])
    twin.release_request(next(req for req in twin.live if req.request_id == 6))
    assert before == (everything(manager, live, fresh), marks(manager))
    decode(manager, live)


def marks(manager: ExLlamaV3PageTable) -> list[list[int]]:
    """What the pages say that they hold, and the jobs that they have."""
    pages = [page.sequence[0, : page.kv_position].tolist() for page in table_of(manager).all_pages]
    jobs = manager.live.values()
    return [*pages, *(job.sequences[0].sequence_ids.torch()[0].tolist() for job in jobs)]


def table_of(manager: ExLlamaV3PageTable) -> Any:
    return manager._engine.pagetable


# ------------------------------------------------------------------------------ hits


class Found(Request):
    """A request, and how many tokens its prefill found."""

    found: int


def put(
    manager: ExLlamaV3Prefix, name: int, tokens: list[int], extra_key: int | None = None
) -> Found:
    request = Found(name, len(tokens), tokens, extra_key=extra_key)
    assert manager.allocate_for_prefill(request) is True
    request.found = manager.cached_tokens(request)
    computed(manager, request)
    return request


@pytest.mark.parametrize(("tokens", "found"), [(256, 0), (257, 1), (512, 1), (513, 2), (600, 2)])
def test_a_prompt_finds_whole_pages_but_for_its_last_token(tokens, found):
    manager = ExLlamaV3Prefix(5, PAGE, 1)
    first, second = put(manager, 0, [0] * 600), put(manager, 1, [0] * tokens)
    assert (first.found, second.found) == (0, found * PAGE)
    assert second.block_table[:found] == first.block_table[:found]
    assert second.block_table[-1] not in first.block_table


def test_the_index_has_whole_pages_and_the_unheld_ones_are_cached():
    manager = ExLlamaV3Prefix(4, PAGE, 1)
    first = put(manager, 0, [0] * 600)
    shown = manager.snapshot()
    assert ({*(shown.index or {}).values()}, shown.cached, shown.num_free) == (
        {0, 1},
        frozenset(),
        1,
    )
    manager.release_request(first)
    shown = manager.snapshot()
    assert {*(shown.index or {}).values()} == shown.cached == {0, 1}
    assert (shown.free_blocks, shown.num_free) == ((3, 2), 2)


def test_other_content_and_another_extra_key_find_nothing():
    manager = ExLlamaV3Prefix(6, PAGE, 1)
    put(manager, 0, [0] * 300)
    assert put(manager, 1, [1] + [0] * 299).found == 0
    assert put(manager, 2, [0] * 300, extra_key=1).found == 0


def test_a_page_that_decode_fills_is_exchanged_for_an_equal_one():
    manager = ExLlamaV3Prefix(3, PAGE, 1)
    put(manager, 0, [0] * 256)
    second = put(manager, 1, [0] * 255)
    assert second.block_table == [2]
    decode(manager, second)
    assert second.block_table == [0]
    assert manager.snapshot().ref_counts == {0: 2, 1: 1, 2: 0}


def test_the_longest_unheld_sequence_is_evicted_first_from_its_end():
    manager = ExLlamaV3Prefix(3, PAGE, 1)
    manager.release_request(put(manager, 0, [0] * 513))
    assert manager.snapshot().cached == {0, 1}
    manager.release_request(put(manager, 1, [1] + [0] * 256))
    assert manager.snapshot().cached == {0, 2}


@pytest.mark.parametrize("held", [True, False])
def test_a_page_that_is_not_whole_is_matched_and_its_first_tokens_are_copied(held):
    manager = ExLlamaV3Partly(3, PAGE, 1)
    first = put(manager, 0, [0] * 100)
    (source,) = first.block_table
    manager.physical_kv_cache[source, :, 0] = torch.arange(256.0)
    if not held:
        manager.release_request(first)
        assert manager.snapshot().cached == {source}
    second = put(manager, 1, [0] * 60 + [1] + [0] * 20)
    assert second.found == 60
    copied = manager.physical_kv_cache[second.block_table[0], :, 0]
    assert copied.tolist() == [*map(float, range(60)), *[0.0] * 196]


def test_what_is_found_in_a_page_that_is_not_whole_counts_where_no_index_is_shown():
    found = []
    for make in (ExLlamaV3Prefix, ExLlamaV3Partly):
        manager = make(5, PAGE, 1)
        put(manager, 0, [0] * 300)
        found.append(put(manager, 1, [0] * 300).found)
        shown = manager.snapshot()
        assert (shown.index is None) == (make is ExLlamaV3Partly)
    assert found == [256, 256 + 43]


def test_an_idle_page_table_moves_contents_with_its_pages():
    manager = ExLlamaV3Prefix(6, PAGE, 1)
    for name in (5, 6, 7):
        manager.release_request(put(manager, name, [name] + [0] * 300))
    table, cache = table_of(manager), manager.physical_kv_cache
    for page, scattered in zip(table.all_pages, (3, 0, 4, 1, 5, 2), strict=True):
        page.page_index = scattered
        cache[scattered] = page.sequence[0, :, None].float()
    before, table.last_defrag_serial = manager.snapshot().index, -100
    manager.release_request(put(manager, 0, [0]))
    assert manager.snapshot().index != before
    whole = [page for page in table.all_pages if is_whole(page)]
    assert len(whole) == 3
    for page in whole:
        assert cache[page.page_index, :, 0].tolist() == page.sequence[0].tolist()


PREFIX_CORRUPTIONS: dict[str, Callable[[Any], object]] = {
    "tokens": lambda page: page.sequence[0, 0].fill_(9),
    "hash of the page": lambda page: setattr(page, "phash", b"another hash of content"),
    "hash before it": lambda page: setattr(page, "prev_hash", b"a hash that no page has"),
}


@pytest.mark.parametrize("what", PREFIX_CORRUPTIONS)
def test_the_key_has_all_that_a_prompt_is_compared_with(what):
    manager = ExLlamaV3Prefix(2, PAGE, 1)
    put(manager, 0, [0] * 257)
    keys = [manager.state_key(NAMES)]
    PREFIX_CORRUPTIONS[what](page(manager, 0))
    keys.append(manager.state_key(NAMES))
    assert len({*keys}) == 2


# ------------------------------------------------------------------------------ the verdict


def test_nothing_breaks_and_the_lengths_are_too_many_to_exhaust():
    (report,) = check("exllamav3-partly", budget=300).targets
    assert (report.verdict, report.reason, report.coverage.exhausted) == ("passed", None, False)
    assert report.coverage.depth >= 4
