"""The ring of transformers 5.9.0, which is read from the wrong place, and of 5.16.1."""

from __future__ import annotations

from importlib.metadata import version

import pytest

pytest.importorskip("transformers.generation.continuous_batching.cache_manager")

from findings import printed, scripts
from pagedkv import check
from pagedkv.engines.transformers_ring import TransformersRing
from pagedkv.protocol import Request

TARGET = "pagedkv.engines.transformers_ring:TransformersRing"
MENDED = version("transformers") == "5.16.1"


def admit(manager: TransformersRing, tokens: int) -> Request:
    request = Request(0, tokens)
    assert manager.allocate_for_prefill(request) is True
    return request


def test_a_request_gets_as_many_blocks_as_the_window_needs():
    manager = TransformersRing(4, 4, 1)
    request = admit(manager, 9)
    assert manager.snapshot().block_tables == {0: (0, 1)}
    assert manager.allocate_for_append(request, 9) is True
    shown = manager.snapshot()
    assert shown.block_tables == {0: (0, 1)}
    assert shown.reserved == frozenset({4, 5})
    assert shown.ref_counts is None


def test_what_is_read_begins_behind_the_token_that_the_window_has_left():
    manager = TransformersRing(2, 4, 1)
    request = admit(manager, 5)
    ring = [(0, p // 4, p % 4) for p in range(5)]
    assert manager.slots(request) == ring
    assert manager.allocate_for_decode(request) is True
    assert manager.slots(request)[1:5] == (ring[1:] if MENDED else ring[:4])
    assert manager.slots(request)[5] == ring[0]


def test_of_a_prompt_longer_than_the_window_the_last_tokens_are_stored_where_they_belong():
    manager = TransformersRing(2, 4, 1)
    places = [4 * block + offset for _, block, offset in manager.slots(admit(manager, 7))[2:]]
    assert places == ([2, 3, 4, 0, 1] if MENDED else [0, 1, 2, 3, 4])


def test_the_fault_is_found_where_it_is_and_only_there():
    (report,) = check(TARGET, budget=600).targets
    if MENDED:
        assert (report.verdict, report.coverage.exhausted) == ("passed", True)
        return
    (found,) = report.counterexamples
    assert (found.property, found.expected) == ("contents", False)
    assert [str(command) for command in found.commands] == ["prefill(0, 5)", "decode(0)"]


@pytest.mark.skipif(MENDED, reason="mended")
@pytest.mark.parametrize(("script", "output"), scripts("transformers-ring-start.md"))
def test_the_script_prints_what_the_page_says(script, output):
    assert printed(script) == output
