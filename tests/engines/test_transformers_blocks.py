"""The PagedAttentionCache of transformers 5.9.0, and what the suite finds in it."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers.generation.continuous_batching.cache_manager")

from findings import printed, scripts
from pagedkv.engines.transformers_blocks import TransformersBlocks
from pagedkv.protocol import Request

PAGE = "transformers-fork-out-of-blocks.md"


def admit(manager: TransformersBlocks, name: int, tokens: int) -> Request:
    request = Request(name, tokens)
    assert manager.allocate_for_prefill(request) is True
    manager.computed(request)
    return request


def test_a_request_gets_more_blocks_than_its_tokens_need():
    manager = TransformersBlocks(4, 2, 1)
    admit(manager, 0, 2)
    assert manager.snapshot().block_tables == {0: (0, 1)}
    assert manager.declares.lookahead == 2


def test_a_fork_shares_complete_blocks_and_copies_the_others():
    manager = TransformersBlocks(8, 2, 1)
    parent = admit(manager, 0, 3)
    assert manager.fork_request(parent, Request(1, 3)) is True
    assert manager.snapshot().block_tables == {0: (0, 1, 2), 1: (0, 3, 4)}
    assert manager.take_copies() == [(1, 3), (2, 4)]


def test_a_fork_that_runs_out_of_blocks_keeps_its_references():
    """docs/findings/transformers-fork-out-of-blocks.md."""
    manager = TransformersBlocks(2, 2, 1)
    parent = admit(manager, 0, 2)
    assert manager.snapshot().ref_counts == {0: 1, 1: 1}
    with pytest.raises(ValueError, match="Failed to fork blocks"):
        manager.fork_request(parent, Request(1, 2))
    assert manager.snapshot().ref_counts == {0: 2, 1: 1}


@pytest.mark.parametrize(("script", "output"), scripts(PAGE))
def test_the_script_prints_what_the_page_says(script, output):
    assert printed(script) == output
