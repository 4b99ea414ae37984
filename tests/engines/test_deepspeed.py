"""The adapter to DeepSpeed-FastGen's state manager."""

from __future__ import annotations

import pytest
import torch

from engine import NAMES, admit, checked, figures, grow, seen
from findings import printed, scripts
from pagedkv.protocol import Owned, Request, Snapshot

deepspeed = pytest.importorskip(
    "pagedkv.engines.deepspeed", reason="tox -e engine-deepspeed", exc_type=ImportError
)


def make(num_blocks=3, block_size=2):
    return deepspeed.DeepSpeed(num_blocks, block_size, 1)


def test_the_block_that_came_last_goes_out_first():
    manager = make()
    first, second = admit(manager, 5, 3), admit(manager, 6, 1)
    assert (first.block_table, second.block_table) == ([0, 1], [2])
    manager.release_request(first)
    assert manager.snapshot() == Snapshot(
        block_tables={6: (2,)},
        seq_lens={6: 1},
        free_blocks=(1, 0),
        num_free=2,
        ref_counts={2: 1},
        reverse_map={Owned(6, 0, 2)},
    )


def test_a_token_more_takes_a_block_at_the_boundary_only():
    manager = make()
    request = admit(manager, 0, 1)
    tables = []
    for _ in range(4):
        grow(manager, request)
        tables.append(list(request.block_table))
    assert tables == [[0], [0, 1], [0, 1], [0, 1, 2]]


def test_tokens_in_flight_count_until_they_are_computed():
    manager = make()
    request = Request(0, 3)
    manager.allocate_for_prefill(request)
    assert manager.snapshot().seq_lens == {0: 3}
    sequence = manager._engine.get_sequence(0)
    assert (sequence.seen_tokens, sequence.in_flight_tokens) == (0, 3)
    manager.computed(request)
    assert (sequence.seen_tokens, sequence.in_flight_tokens) == (3, 0)


def test_out_of_blocks_is_declared_and_leaves_everything():
    manager = make(1, 1)
    request = admit(manager, 0, 1)
    before = (*seen(manager), repr(request))
    for allocate, asked in (
        (manager.allocate_for_prefill, Request(1, 1)),
        (manager.allocate_for_decode, request),
    ):
        with pytest.raises(ValueError, match="Not enough free blocks in the KV-cache"):
            allocate(asked)
    assert before == (*seen(manager), repr(request))


CORRUPTIONS = {
    "head": lambda engine: setattr(engine._kv_cache._allocators[0], "_head", 1),
    "links": lambda engine: engine._kv_cache._allocators[0]._blocks[2].fill_(0),
    "counter": lambda engine: setattr(engine._kv_cache._allocators[0], "_free_blocks", 0),
    "table": lambda engine: engine._all_block_ids[0][0, 0, 1].fill_(2),
    "table on the host": lambda engine: engine._all_block_ids_shadow[0][0, 0, 1].fill_(2),
    "length": lambda engine: setattr(engine.get_sequence(0), "_seen_tokens", 1),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_snapshot_and_key_show_each_structure(what):
    manager = make()
    admit(manager, 0, 3)
    before = seen(manager)
    assert seen(manager) == before
    CORRUPTIONS[what](manager._engine)
    assert all(new != old for new, old in zip(seen(manager), before, strict=True))


def test_the_key_shows_the_slots_of_tracked_sequences():
    manager = make()
    before = manager.state_key(NAMES)
    manager._engine._tracking_allocator.allocate(1)
    assert manager.state_key(NAMES) != before


def test_a_circle_in_the_free_list_shows_as_a_block_that_is_there_twice():
    manager = make()
    manager._engine._kv_cache._allocators[0]._blocks.copy_(torch.tensor([1, 0, 3]))
    assert manager.snapshot().free_blocks == (0, 1, 0, 1)


def test_the_verdict_is_as_recorded():
    assert figures(checked("deepspeed")) == ("passed", True, 1308, 4335)


@pytest.mark.parametrize(("script", "shown"), scripts("deepspeed-free.md"))
def test_the_script_of_the_finding_prints_what_it_says(script, shown):
    assert printed(script) == shown
