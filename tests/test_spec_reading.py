"""Reading a manager changes nothing, and `free_blocks` says what the snapshot says."""

from __future__ import annotations

import re

import pytest

from pagedkv import KVCacheManager, Request, Snapshot, assert_holds
from pagedkv.specs.index import judge_listed, judge_reads
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken
from pagedkv.specs.steps import Observation, State
from pagedkv.stateful.world import World

PREFILL = {"op": "prefill", "request": 0, "tokens": 1}


def fresh() -> State:
    return World(KVCacheManager, Geometry(3, 1)).state


def with_seen(state: State, seen: Observation) -> State:
    return State(state.setting, state.model, seen)


def test_accepts_a_manager_that_reading_leaves_alone():
    assert judge_reads(fresh()) is HOLDS
    assert judge_listed(fresh()) is HOLDS


def test_rejects_a_manager_that_reading_changes():
    here = fresh()
    later = Snapshot(block_tables={}, seq_lens={}, free_blocks=(2, 1, 0))
    judgement = judge_reads(with_seen(here, here.seen._replace(again=lambda: later)))
    assert judgement == Broken("free_blocks before [0, 1, 2] != [2, 1, 0] after reading")


def test_reading_may_leave_a_zero_behind():
    here = fresh()
    first = Snapshot(block_tables={}, seq_lens={}, free_blocks=(0, 1, 2), capacities={})
    later = Snapshot(block_tables={}, seq_lens={}, free_blocks=(0, 1, 2), capacities={0: 0})
    seen = here.seen._replace(snapshot=first, again=lambda: later)
    assert judge_reads(with_seen(here, seen)) is HOLDS


def test_rejects_a_list_that_the_snapshot_does_not_have():
    here = fresh()
    judgement = judge_listed(with_seen(here, here.seen._replace(listed=lambda: (0, 1))))
    assert judgement == Broken("free_blocks = [0, 1] != [0, 1, 2] = sorted(snapshot)")


def test_without_a_second_look_or_a_list_there_is_nothing_to_judge():
    here = fresh()
    blind = here.seen._replace(again=lambda: None, listed=lambda: None)
    assert judge_reads(with_seen(here, blind)) is VACUOUS
    assert judge_listed(with_seen(here, blind)) is VACUOUS


class ReadReorders(KVCacheManager):
    """Turns the free list round whenever somebody asks for a report."""

    def allocation_report(self, req: Request) -> dict[str, float]:
        self._free = self._free[::-1]
        return super().allocation_report(req)


class ListedLies(KVCacheManager):
    """Lists the first so many blocks as free, whichever are."""

    @property
    def free_blocks(self) -> list[int]:
        return list(range(len(self._free)))


@pytest.mark.parametrize(
    ("factory", "name"), [(ReadReorders, "reads-pure"), (ListedLies, "free-listed")]
)
def test_it_is_caught_in_a_real_manager(factory, name):
    with pytest.raises(AssertionError, match=name):
        assert_holds(factory, [PREFILL], num_blocks=3, block_size=1, property=name)
    assert_holds(KVCacheManager, [PREFILL], num_blocks=3, block_size=1, property=name)


class OnlyOnce(KVCacheManager):
    """Its snapshot and its list of free blocks can be taken once after each call."""

    once = True

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        self.once = True

    def snapshot(self) -> Snapshot:
        if not self.once:
            raise SystemExit("no second one")
        self.once = not self._live
        return super().snapshot()


class NoList(KVCacheManager):
    """Its list of free blocks can't be had while a request is live."""

    @property
    def free_blocks(self) -> list[int]:
        if self._live:
            raise LookupError("mislaid")
        return super().free_blocks


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            OnlyOnce,
            "reads-pure: after reading, the snapshot can't be taken again: SystemExit: no second",
        ),
        (NoList, "free-listed: free_blocks can't be read: LookupError: mislaid"),
    ],
)
def test_what_a_target_raises_while_it_is_read_is_a_violation(factory, words):
    with pytest.raises(AssertionError, match=re.escape(words)):
        assert_holds(factory, [PREFILL], num_blocks=2, block_size=1)
