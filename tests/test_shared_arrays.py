"""The array-backed manager with all abilities: its arrays, and lockstep with the reference."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv.configurable import NULL_BLOCK
from pagedkv.protocol import MisuseError, OutOfBlocks, Request
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager


def equations(manager: SharedArrayKVCacheManager) -> None:
    """Those at the head of pagedkv/shared_pool.py, as code."""
    tables = {name: held.blocks.tolist() for name, held in manager._live.items()}
    held = [block for t in tables.values() for block in t if block != NULL_BLOCK]
    free = manager._free[: manager._num_free].tolist()
    cached = np.flatnonzero(manager._place >= 0).tolist()
    withheld = [] if manager._withheld is None else manager._withheld.tolist()
    assert all(len({*t}) == len(t) for t in tables.values() if NULL_BLOCK not in t)
    assert Counter(held) == Counter(
        {b: n for b, n in enumerate(manager._refs.tolist()) if n}
    )
    assert sorted([*free, *cached, *withheld, *{*held}]) == [*range(manager.num_blocks)]
    assert len(cached) == manager._num_cached
    for block in cached:
        assert manager._queue[manager._place[block]] == block
        assert manager._head <= manager._place[block] < manager._tail
        assert manager._published[block]
    assert manager._published.tolist() == [key is not None for key in manager._keys]
    assert not manager._published[free].any()
    published = {*np.flatnonzero(manager._published).tolist()} - {*withheld}
    assert manager._index == {manager._keys[block]: block for block in published}
    out = [block for held in manager._swapped.values() for block in held.blocks.tolist()]
    host_free = manager._host_free[: manager._num_host_free].tolist()
    assert sorted(host_free + out) == [*range(manager.num_host_blocks)]
    for name, held_ in manager._live.items():
        assert (held_.handle.request_id, held_.handle.block_table) == (name, tables[name])
        assert -(-held_.handle.seq_len // manager.block_size) == len(tables[name])
    assert not manager._live.keys() & manager._swapped.keys()


# ------------------------------------------------------------------ lockstep

class Tags:
    """One number for each (extra key, tokens up to a position): what must be read back there."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def of(self, request: Request) -> list[int]:
        tokens = tuple(request.tokens[: request.seq_len])
        keys = [(request.extra_key, tokens[: i + 1]) for i in range(len(tokens))]
        return [self.numbers.setdefault(key, len(self.numbers) + 1) for key in keys]


class Both:
    """Both managers side by side, under the same calls; only block names may differ.

    After each call the new tokens' tags are written where the tables say, free blocks are
    overwritten, and what each request reads must be its tags.
    """

    def __init__(self, geometry, abilities=None, **how) -> None:
        kinds: list[Any] = [SharedKVCacheManager, SharedArrayKVCacheManager]
        if abilities is not None:
            kinds = [kind.configured(*abilities, **how) for kind in kinds]
        self.managers: list[Any] = [kind(*geometry, 1) for kind in kinds]
        self.on = self.managers[0].abilities
        self.window = self.managers[0].window
        self.handles: dict[int, list[Request]] = {}
        self.tags = Tags()
        self.seen: Counter[str] = Counter()

    def call(self, name, request, *arguments, **other):
        """Make the call on both; return the error, the same on both sides, or None."""
        outcomes: list[Any] = []
        handles = self.handles[request] if request is not None else [None, None]
        asked = name.replace("allocate_for_", "can_").replace("_request", "")
        asked = asked if asked.startswith("can_") else f"can_{asked}"
        asks = "ask" in self.on and request is not None and hasattr(self.managers[0], asked)
        for i, (manager, handle) in enumerate(zip(self.managers, handles, strict=True)):
            before = everything(manager, self.handles, i)
            given = () if handle is None else (handle,)
            child = [self.handles[n][i] for n in other.values()]
            granted = getattr(manager, asked)(handle, *arguments) if asks else None
            try:
                getattr(manager, name)(*given, *child, *arguments)
                outcomes.append(None)
            except (OutOfBlocks, MisuseError) as error:
                assert before == everything(manager, self.handles, i)
                told = error.args if isinstance(error, OutOfBlocks) else ()
                outcomes.append((type(error), *told))
            if asks and not child:
                assert granted is (outcomes[-1] is None)
            if asks and outcomes[-1] is None:
                assert granted
        assert outcomes[0] == outcomes[1]
        self.seen[name if outcomes[0] is None else f"{name}: {outcomes[0][0].__name__}"] += 1
        return outcomes[0]

    def write(self, request, start=0):
        """Write a request's tags from position `start` on, where there is a block."""
        for manager, handle in zip(self.managers, self.handles[request], strict=True):
            size = manager.block_size
            for position, tag in enumerate(self.tags.of(handle)):
                block = handle.block_table[position // size]
                if position >= start and block != NULL_BLOCK:
                    manager.physical_kv_cache[block, position % size] = tag
            manager.computed(handle)

    def check(self):
        first, second = self.managers
        equations(second)
        for i, manager in enumerate(self.managers):
            manager.physical_kv_cache[manager.free_blocks] = -1.0
            for name in manager._live:
                handle = self.handles[name][i]
                read = manager.get_physical_cache(handle)[:, 0].tolist()
                due = self.tags.of(handle)
                assert read == (due if self.window is None else due[-self.window :])
        assert alike(first, second, self.handles)
        for name in first._live:
            one, two = self.handles[name]
            assert first.allocation_report(one) == second.allocation_report(two)
            if "prefix" in self.on:
                assert first.cached_tokens(one) == second.cached_tokens(two)


def everything(manager, handles, i):
    """All that a refusal must leave alone, to compare."""
    names = {name: name for name in handles}
    seen = {name: (h[i].seq_len, [*h[i].block_table], [*h[i].tokens]) for name, h in handles.items()}
    return manager.state_key(names), seen, manager.physical_kv_cache.tolist()


def alike(first, second, handles) -> bool:
    """Whether both are in one state up to block names; AssertionError says where not."""
    one, two = first.snapshot(), second.snapshot()
    assert one.seq_lens == two.seq_lens
    assert one.block_tables.keys() == two.block_tables.keys()
    pairs = [
        pair
        for name, table in one.block_tables.items()
        for pair in zip(table, two.block_tables[name], strict=True)
    ]
    pairs += zip(first._blocks.cached, second._cached().tolist(), strict=True)
    if first._blocks.withheld is not None or second._withheld is not None:
        gone = [given.block for given in first._blocks.withheld]
        pairs += zip(gone, second._withheld.tolist(), strict=True)
    if one.index is not None:
        keys = {digested(second, key): block for key, block in one.index.items()}
        assert keys.keys() == two.index.keys()
        pairs += [(block, two.index[key]) for key, block in keys.items()]
    there = dict(pairs)
    back = {b: a for a, b in pairs}
    assert {(a, b) for a, b in pairs} == {*there.items()} == {(a, b) for b, a in back.items()}
    if one.ref_counts is not None:
        assert {there[b]: n for b, n in one.ref_counts.items()} == two.ref_counts
    assert len(one.free_blocks) == len(two.free_blocks) == two.num_free
    assert (one.withheld is None) == (two.withheld is None)
    if one.swapped is not None:
        assert {n: len(t) for n, t in one.swapped.items()} == {
            n: len(t) for n, t in two.swapped.items()
        }
        assert len(one.host_free) == len(two.host_free)
    return True


def digested(second, key):
    """The array-backed manager's key for a key of the reference: (extra key, all tokens)."""
    extra, tokens = key
    request = Request(0, len(tokens), tokens, extra_key=extra)
    return [*second._prefix_keys(request, len(tokens) // second.block_size)][-1]


def run(both: Both, choices: list[int]) -> None:
    """Interpret numbers as calls; the first of four says which."""
    fresh = 0
    for op, a, b, c in choices:
        live = sorted(both.managers[0]._live)
        out = sorted(both.managers[0]._swapped)
        known = sorted(both.handles)
        name = known[a % len(known)] if known else None
        if op == 0 or name is None:
            tokens = [(c >> i) & 1 for i in range(1 + b % 9)]
            extra = "key" if a % 7 == 0 else None
            name, fresh = fresh, fresh + 1
            both.handles[name] = [Request(name, len(tokens), tokens, extra_key=extra) for _ in "ab"]
            op = 1
        if op == 1:
            if both.call("allocate_for_prefill", name) is None:
                found = both.managers[0].cached_tokens(both.handles[name][0]) if "prefix" in both.on else 0
                both.write(name, found)
        elif op in (2, 3) and (op == 2 or "append" in both.on):
            count = 1 if op == 2 else 1 + b % 5
            for handle in both.handles[name]:
                handle.tokens += [(c >> i) & 1 for i in range(count)]
            call = ("allocate_for_append", name, count) if op == 3 else ("allocate_for_decode", name)
            was = both.handles[name][0].seq_len
            if both.call(*call) is None:
                both.write(name, was)
            else:
                for handle in both.handles[name]:
                    del handle.tokens[-count:]
        elif op == 4:
            both.call("release_request", name)
        elif op == 5 and "truncate" in both.on:
            length = 1 + b % 9
            kept = [[*handle.tokens] for handle in both.handles[name]]
            for handle in both.handles[name]:
                del handle.tokens[length:]
            if both.call("truncate_request", name, length) is not None:
                for handle, tokens in zip(both.handles[name], kept, strict=True):
                    handle.tokens = tokens
            elif name in both.managers[0]._live:
                both.write(name, length)
        elif op == 6 and "fork" in both.on:
            parents = both.handles[name]
            child, fresh = fresh, fresh + 1
            both.handles[child] = [
                Request(child, p.seq_len, p.tokens, extra_key=p.extra_key) for p in parents
            ]
            if both.call("fork_request", name, child=child) is not None:
                del both.handles[child]
            else:
                both.write(child, both.handles[child][0].seq_len)
        elif op == 7 and "swap" in both.on:
            if both.call("swap_in" if name in out else "swap_out", name) is None and name in out:
                both.write(name, both.handles[name][0].seq_len)
        elif op == 8 and "group" in both.on:
            open_ = both.managers[0]._blocks.withheld is not None
            both.call("free_group_end" if open_ ^ (b % 5 == 0) else "free_group_begin", None)
        both.check()


ALL = ("append", "truncate", "fork", "prefix", "swap", "ask", "group")
KINDS = [
    ((6, 2), None, {}),
    ((5, 1), ALL, {"publishes_at_once": True}),
    ((6, 3), ALL, {"forks_eagerly": True}),
    ((7, 2), ("fork", "prefix", "truncate"), {}),
    ((5, 2), ("append", "fork", "swap"), {}),
    ((4, 2), (), {}),
    ((5, 2), ("append", "window", "ask", "group"), {"window": 3}),
    ((5, 1), ("append", "window"), {"window": 1}),
    ((5, 1), ("prefix", "group", "ask"), {}),
]
STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 9), st.integers(0, 9), st.integers(0, 511)),
    max_size=40,
)
