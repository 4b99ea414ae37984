"""What a target may bring beside the three calls, and what it may do on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from allocators import Plain, broken, moved, world
from builders import declaring
from pagedkv import KVCacheManager, Snapshot
from pagedkv.specs.abilities.core import Decode, Prefill, Release, Resume
from pagedkv.specs.model import POISON
from pagedkv.stateful.target import CannotDrive


def contents(here):
    return {r: tuple(read) for r, read in here.state.seen.read().items()}


def test_slots_say_where_the_tokens_are():
    class Padded(Plain):
        """Block 0 is the null block, with which every table is filled up behind."""

        declares = declaring(lookahead=3)

        def __init__(self, num_blocks, block_size, head_dim):
            super().__init__(num_blocks + 1, block_size, head_dim)
            self.free.remove(0)

        def slots(self, req):
            real = [block for block in (0, *req.block_table, 0) if block]
            return [(0, real[p // 2], 1 - p % 2) for p in range(req.seq_len)]

    here = world(Padded)
    here.apply(Prefill(0, 3))
    assert contents(here) == {0: (1, 2, 3)}
    assert here.pool.read([(1, 0), (1, 1), (2, 0), (2, 1)]) == (2, 1, POISON, 3)


def test_attributes_that_happen_to_have_the_name_of_an_optional_method_are_none():
    class Named(KVCacheManager):
        def __init__(self, num_blocks, block_size, head_dim):
            super().__init__(num_blocks, block_size, head_dim)
            vars(self).update(self.others)
            self.slots, self.computed, self.take_copies = [None] * num_blocks, 0, ()

        others: Mapping[str, object] = {}

    class AllOfThem(Named):
        others = MappingProxyType(
            {"snapshot": None, "allocation_report": {}, "get_physical_cache": "nothing"}
        )

    for kind in (Named, AllOfThem):
        here = moved(world(kind), Prefill(0, 2))
        assert contents(here) == {0: (1, 2)}
        assert broken(here, Decode(0), Release(0)) == {}


def test_slots_that_miss_a_token_are_caught():
    class Short(Plain):
        def slots(self, req):
            return [(0, req.block_table[p // 2], p % 2) for p in range(min(2, req.seq_len))]

    here = moved(world(Short), Prefill(0, 2))
    assert broken(here, Decode(0))["contents"] == "cache of request 0 has 2 != 3 tokens"


def test_a_manager_is_told_of_computed_tokens_after_they_were_written():
    told = []

    class Publishing(KVCacheManager):
        hashed: frozenset[int] = frozenset()

        def computed(self, req):
            told.append((req.request_id, self.get_physical_cache(req).flatten().tolist()))
            self.hashed |= set(req.block_table)

        def snapshot(self):
            return replace(super().snapshot(), num_free=len(self._free) - 4 * len(self.hashed))

    here = world(Publishing)
    step = here.apply(Prefill(0, 2))
    assert told == [(0, [1.0, 2.0])]
    assert step.after.seen.snapshot.num_free == -1
    here.apply(Prefill(1, 9))
    assert len(told) == 1


def test_a_release_computes_nothing():
    class Publishing(KVCacheManager):
        def computed(self, req):
            self._live[req.request_id]

    assert broken(world(Publishing), Prefill(0, 2), Release(0)) == {}


def test_lookahead_blocks_are_held_but_not_read():
    class Ahead(Plain):
        declares = declaring(lookahead=1)

        def allocate_for_prefill(self, req):
            blocks = -(-req.seq_len // self.block_size)
            req.block_table = self.take(min(blocks + 1, max(blocks, len(self.free))))

        def allocate_for_decode(self, req):
            if -(-(req.seq_len + 1) // self.block_size) > len(req.block_table):
                req.block_table = [*req.block_table, *self.take(1)]
            req.seq_len += 1

    found = broken(world(Ahead), Prefill(0, 2), Decode(0), Prefill(1, 3))
    assert {name: words for name, words in found.items() if name != "misuse-refused"} == {}
    here = moved(world(Ahead), Prefill(0, 2))
    assert contents(here) == {0: (1, 2)}
    assert len(here.state.seen.tables[0]) == 2


def test_reserved_blocks_are_never_written_or_expected():
    class Reserved(Plain):
        def __init__(self, num_blocks, block_size, head_dim):
            super().__init__(num_blocks + 1, block_size, head_dim)
            self.free.remove(0)
            self.tables = {}

        def snapshot(self):
            live = {r: q for r, q in self.tables.items() if q.block_table}
            return Snapshot(
                block_tables={r: tuple(q.block_table) for r, q in live.items()},
                seq_lens={r: q.seq_len for r, q in live.items()},
                free_blocks=tuple(self.free),
                blocks=frozenset({1, 2, 3, 4}),
                reserved=frozenset({0}),
            )

        def allocate_for_prefill(self, req):
            super().allocate_for_prefill(req)
            self.tables[req.request_id] = req

    here = moved(
        world(Reserved), Prefill(0, 8), Prefill(1, 1), Decode(0), Release(0), Prefill(1, 1)
    )
    assert here.pool.read([(0, 0), (0, 1)]) == (POISON, POISON)


def test_tables_outside_of_the_handles_need_a_snapshot():
    class Unseen(KVCacheManager):
        declares = declaring(tables_outside=True)
        snapshot = None  # type: ignore[assignment]  # taken away

    line = r"tables_outside needs a method Unseen\.snapshot\(\), since else nobody could see"
    with pytest.raises(CannotDrive, match=line):
        world(Unseen)


def test_tables_may_be_kept_outside_the_handles():
    class Outside(KVCacheManager):
        declares = declaring(
            tables_outside=True, wrong_use=dict.fromkeys(("prefill", "decode", "release"), "never")
        )

        def seen(self, call, req):
            lease = self._live.get(req.request_id)
            req.block_table = list(lease.blocks) if lease else []
            try:
                call(req)
            finally:
                req.block_table = []

        def allocate_for_prefill(self, req):
            self.seen(super().allocate_for_prefill, req)

        def allocate_for_decode(self, req):
            self.seen(super().allocate_for_decode, req)

        def release_request(self, req):
            self.seen(super().release_request, req)

        get_physical_cache = None  # type: ignore[assignment]  # taken away
        allocation_report = None  # type: ignore[assignment]  # taken away

    moved(world(Outside), Prefill(0, 3), Prefill(1, 9), Decode(0), Decode(0), Release(0), Resume(0))
