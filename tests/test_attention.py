"""What attention reads through block tables is what it reads from a dense cache, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engines_alike as alike
from attention import LAYOUTS, Cache, Runner, Shape
from pagedkv import ArrayKVCacheManager, KVCacheManager
from pagedkv.configurable import ALL_BUT_WINDOW
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.model import Geometry
from pagedkv.stateful.profiles import EVERY
from pagedkv.stateful.world import World

SHARED: list[Any] = [SharedKVCacheManager, SharedArrayKVCacheManager]
EVERYTHING = tuple(sorted(ALL_BUT_WINDOW))
MANAGERS: dict[str, Any] = {
    "core, reference": KVCacheManager,
    "core, arrays": ArrayKVCacheManager,
    **{f"all, {kind.__name__}": kind for kind in SHARED},
    **{
        f"eager, {kind.__name__}": kind.configured(
            *EVERYTHING, forks_eagerly=True, publishes_at_once=True
        )
        for kind in SHARED
    },
    **{
        f"window, {kind.__name__}": kind.configured("append", "group", "window", window=3)
        for kind in SHARED
    },
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = st.builds(
    Shape, st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.sampled_from(DTYPES)
)


def driven(factory: Any, geometry: Geometry) -> World:
    return World(factory, geometry, requests=3, keeps_released=True, abilities=EVERY)


@pytest.mark.parametrize("factory", MANAGERS.values(), ids=list(MANAGERS))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data(), shape=SHAPES, seed=st.integers(0, 2**16))
def test_attention_over_every_paged_layout_is_that_over_a_dense_cache(factory, data, shape, seed):
    geometry = Geometry(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3)))
    world = driven(factory, geometry)
    runner = Runner(world, shape, seed)
    for _ in range(data.draw(st.integers(1, 10))):
        ops = {command.op for command in world.candidates()} - {"misuse"}
        op = data.draw(st.sampled_from(sorted(ops)))
        commands = [command for command in world.candidates() if command.op == op]
        runner.follow(world.apply(data.draw(st.sampled_from(commands))))
    assert runner.differences() == []


HISTORY = (
    *(Prefill(0, 5), Fork(1, 0), Decode(0), Decode(1), Append(1, 3), SwapOut(0)),
    *(Admit(2, (1, 0, 0), 0), SwapIn(0), Decode(0)),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factory", SHARED)
def test_forks_hits_and_swaps_are_read_as_they_were_written(factory, dtype):
    world = driven(factory, Geometry(12, 2))
    runner = Runner(world, Shape(2, 2, 3, dtype), 0)
    for command in (*HISTORY, Prefill(3, 5)):
        step = world.apply(command)
        assert step.granted, step.outcome
        runner.follow(step)
        assert runner.differences() == []
    manager: Any = world.manager
    assert manager.cached_tokens(world.handles[3]) == 4


# ---------------------------------------------------------------- planted faults


class MixesUpTheTable(KVCacheManager):
    """Exchanges the first two blocks of a table that grows to three."""

    def allocate_for_decode(self, req):
        super().allocate_for_decode(req)
        if len(req.block_table) == 3:
            blocks = [req.block_table[1], req.block_table[0], req.block_table[2]]
            self._live[req.request_id] = self._live[req.request_id]._replace(blocks=tuple(blocks))
            req.block_table = blocks


class ForgetsThePrefix(SharedKVCacheManager.configured("prefix")):  # type: ignore[misc]
    """Finds a block by its own tokens, whatever stands before them."""

    def _key(self, req, logical):
        extra, tokens = super()._key(req, logical)
        return extra, tokens[-self.block_size :]


class HitsOneTooMany(SharedKVCacheManager.configured("prefix")):  # type: ignore[misc]
    """Says that it found a block more than it did, which then stays unwritten."""

    def cached_tokens(self, req):
        return min(super().cached_tokens(req) + self.block_size, req.seq_len - 1)


EVERYWHERE = sorted(LAYOUTS)


@pytest.mark.parametrize(
    ("factory", "commands", "request_"),
    [
        (MixesUpTheTable, (Prefill(0, 4), Decode(0)), 0),
        (alike.WritesThrough, (Prefill(0, 3), Fork(1, 0), Decode(1), Decode(0)), 1),
        (ForgetsThePrefix, (Admit(0, (1, 0, 0, 0, 0), 0), Admit(1, (0, 0, 0, 0, 0), 0)), 1),
        (HitsOneTooMany, (Prefill(0, 5),), 0),
    ],
    ids=["table in wrong order", "tail written by both", "foreign hit", "unwritten hit"],
)
def test_attention_differs_in_every_layout_where_a_table_is_wrong(factory, commands, request_):
    world = driven(factory, Geometry(8, 2))
    runner = Runner(world, Shape(2, 1, 3, torch.float32), 0)
    *before, last = commands
    for command in before:
        runner.follow(world.apply(command))
        assert [d for d in runner.differences() if not d.endswith("own")] == []
    runner.follow(world.apply(last))
    found = [d.partition(", ") for d in runner.differences()]
    assert {who for who, _, _ in found} == {f"request {request_}"}
    assert sorted(layout for _, _, layout in found if layout != "own") == EVERYWHERE


def test_a_tail_that_is_not_copied_is_read_stale(monkeypatch):
    world = driven(alike.Forking, Geometry(8, 2))
    runner = Runner(world, Shape(1, 1, 2, torch.float16), 0)
    for command in (Prefill(0, 3), Fork(1, 0)):
        runner.follow(world.apply(command))
    monkeypatch.setattr(Cache, "copy", lambda *_: None)
    runner.follow(world.apply(Decode(1)))
    stale = [d for d in runner.differences() if not d.endswith("own")]
    assert stale == [f"request 1, {name}" for name in LAYOUTS]
