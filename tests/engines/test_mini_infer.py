"""The adapter to mini-infer: its paged cache, and the tables of its engine."""

from __future__ import annotations

import pytest
import torch

import pagedkv
from engine import admit, checked, figures, grow, seen
from findings import printed, scripts
from pagedkv.protocol import Request, Snapshot

pytest.importorskip("mini_infer", reason="pip install --no-deps mini-infer==0.2.5")

from pagedkv.engines.mini_infer import AnySize, MiniInfer, MiniInferEngine


def test_the_block_that_came_last_goes_out_first():
    manager = MiniInfer(3, 2, 1)
    first, second = admit(manager, 5, 3), admit(manager, 6, 1)
    assert (first.block_table, second.block_table) == ([2, 1], [0])
    manager.release_request(first)
    assert manager.snapshot() == Snapshot(
        block_tables={6: (0,)},
        seq_lens={6: 1},
        free_blocks=(1, 2),
        num_free=2,
        ref_counts={0: 1, 1: 0, 2: 0},
    )


def test_contents_are_read_with_the_pool_s_own_gather():
    manager = MiniInfer(3, 2, 4)
    admit(manager, 0, 1)
    request = admit(manager, 1, 3)
    for position in range(3):
        block = request.block_table[position // 2]
        manager.physical_kv_cache[block, position % 2] = position
    assert torch.equal(manager.get_physical_cache(request), torch.arange(3.0)[:, None].expand(3, 4))


def test_out_of_blocks_leaves_everything_where_the_cache_is_asked_first():
    manager = MiniInfer(1, 1, 1)
    request = admit(manager, 0, 1)
    before = (*seen(manager), repr(request))
    assert manager.allocate_for_prefill(Request(1, 1)) is False
    with pytest.raises(MemoryError, match="Paged KV-Cache pool exhausted"):
        manager.allocate_for_decode(request)
    assert before == (*seen(manager), repr(request))


def test_the_engine_asks_for_two_blocks_at_most():
    manager = MiniInferEngine(2, 16, 1)
    assert MiniInferEngine(1, 16, 1).allocate_for_prefill(Request(0, 17)) is False
    with pytest.raises(MemoryError, match="Paged KV-Cache pool exhausted"):
        manager.allocate_for_prefill(Request(0, 33))


def test_the_engine_keeps_what_a_refused_prefill_took():
    """The finding in docs/findings/; once mini-infer has mended it, this fails and both change."""
    manager = MiniInferEngine(2, 16, 1)
    with pytest.raises(MemoryError):
        manager.allocate_for_prefill(Request(0, 33))
    assert manager.snapshot().block_tables == {0: (1, 0)}


@pytest.mark.parametrize(("block_size", "blocks"), [(1, 1), (8, 1), (16, 1), (32, 1)])
def test_the_engine_s_tables_have_blocks_of_16(block_size, blocks):
    """The finding in docs/findings/; once mini-infer has mended it, this fails and both change."""
    manager = AnySize(3, block_size, 1)
    assert len(admit(manager, 0, 16).block_table) == blocks


def test_a_token_more_takes_a_block_at_the_boundary_only():
    manager = MiniInfer(3, 2, 1)
    request = admit(manager, 0, 1)
    sizes = []
    for _ in range(4):
        grow(manager, request)
        sizes.append((request.seq_len, len(request.block_table)))
    assert sizes == [(2, 1), (3, 2), (4, 2), (5, 3)]


def test_the_verdict_of_the_cache_is_as_recorded():
    assert figures(checked("mini-infer")) == ("passed", True, 720, 2447)


def test_the_shortest_history_of_the_finding_is_as_recorded():
    (report,) = pagedkv.check("mini-infer-engine", properties=["rollback"], budget=60).targets
    (rollback,) = report.counterexamples
    assert rollback.geometry.num_blocks == 2
    assert [command.to_json() for command in rollback.commands] == [
        {"op": "prefill", "request": 0, "tokens": 33}
    ]


@pytest.mark.parametrize(
    ("script", "shown"),
    [*scripts("mini-infer-block-size.md"), *scripts("mini-infer-partial-prefill.md")],
)
def test_the_scripts_of_the_findings_print_what_they_say(script, shown):
    assert printed(script) == shown
