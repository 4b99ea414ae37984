"""The world: what it makes of each call, of each way to fail, and of what it may observe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocators import Plain, broken, moved, world
from pagedkv import ArrayKVCacheManager, KVCacheManager, Snapshot
from pagedkv.specs.abilities.core import KINDS, Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.properties import HOLDS
from pagedkv.specs.rollback import judge_unchanged
from pagedkv.specs.steps import NoBlocks, Raised, Refused
from pagedkv.stateful.world import World

EVERYTHING = (
    Prefill(0, 3),
    Prefill(1, 9),
    Decode(0),
    Decode(0),
    Prefill(1, 2),
    Decode(1),
    Release(0),
    Resume(0),
    Release(1),
    Prefill(1, 1),
)


@pytest.mark.parametrize("factory", [KVCacheManager, ArrayKVCacheManager, Plain])
def test_a_right_manager_breaks_nothing_on_the_way(factory):
    moved(world(factory), *EVERYTHING)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_refuses_every_wrong_use_and_all_is_as_before(kind):
    here = moved(world(KVCacheManager), Prefill(0, 3), Prefill(1, 1), Prefill(2, 1), Release(2))
    request = 2 if "fresh" in kind or "stolen" in kind or "-released" in kind else 0
    kept = dict(here.handles)
    before = (here.state.seen.snapshot, here.state.seen.handles)
    step = here.apply(Misuse(request, kind))
    assert isinstance(step.outcome, Refused)
    assert before == (here.state.seen.snapshot, here.state.seen.handles)
    assert kept == here.handles
    assert judge_unchanged(step) is HOLDS


def test_a_step_tells_what_was_given_and_what_came_back():
    step = world(KVCacheManager).apply(Prefill(0, 3))
    assert (step.index, str(step.outcome)) == (1, "done")
    assert tuple(step.given)[1:] == (3, (), (0, 0, 0), 3)
    assert tuple(step.returned)[1:] == (3, (0, 1), (0, 0, 0), 3)
    assert step.before.seen.tables == {}
    assert step.after.seen.tables == {0: (0, 1)}


def test_a_refused_decode_takes_its_token_back():
    here = moved(world(KVCacheManager, 1, 1), Prefill(0, 1))
    step = here.apply(Decode(0))
    assert isinstance(step.outcome, NoBlocks)
    assert step.given.tokens == (0, 0)
    assert here.handles[0].tokens == [0]


def test_a_refused_prefill_leaves_no_handle():
    here = world(KVCacheManager, 1, 1)
    assert isinstance(here.apply(Prefill(0, 2)).outcome, NoBlocks)
    assert here.handles == {}


def test_released_handles_are_kept_only_where_they_can_be_resumed():
    for keeps in (True, False):
        here = world(KVCacheManager, keeps_released=keeps)
        here.apply(Prefill(0, 3))
        step = here.apply(Release(0))
        assert step.after.model.released == {0: 3}
        assert ({0: 3} if keeps else {}) == here.state.model.released
        assert keeps == (0 in here.handles)
        assert keeps == (0 in here.state.seen.handles)


def test_a_block_is_reused_once_it_was_free_again():
    here = world(KVCacheManager, 2, 1)
    assert frozenset() == here.apply(Prefill(0, 1)).reused
    assert frozenset() == here.apply(Release(0)).reused
    assert frozenset({0}) == here.apply(Prefill(1, 2)).reused


@pytest.mark.parametrize(
    "change",
    [{"request_id": 9}, {"tokens": [5, 0, 0]}, {"seq_len": 2}, {"block_table": [3]}],
    ids=str,
)
def test_a_call_that_changes_what_is_the_callers_is_caught(change):
    class Meddling(KVCacheManager):
        def allocate_for_prefill(self, req):
            super().allocate_for_prefill(req)
            for name, value in change.items():
                setattr(req, name, value)

    assert "handle-filled" in broken(world(Meddling), Prefill(0, 3))


def test_a_refusal_that_takes_the_tokens_is_caught():
    class Greedy(KVCacheManager):
        def allocate_for_decode(self, req):
            req.tokens.clear()
            super().allocate_for_decode(req)

    here = moved(world(Greedy, 1, 1), Prefill(0, 1))
    assert "request 0: tokens before [0, 0] != [] after" in broken(here, Decode(0))["rollback"]


def test_a_refusal_that_replaces_the_tokens_is_caught_and_taken_back():
    class Swapping(KVCacheManager):
        def allocate_for_decode(self, req):
            req.tokens = [9]
            super().allocate_for_decode(req)

    here = moved(world(Swapping, 1, 1), Prefill(0, 1))
    own = here.handles[0].tokens
    assert "request 0: tokens before [0, 0] != [9] after" in broken(here, Decode(0))["rollback"]
    assert here.handles[0].tokens is own
    assert own == [0]


def with_snapshot(change):
    """The reference, whose snapshot is changed once a request is live."""

    class Shown(KVCacheManager):
        def snapshot(self):
            seen = super().snapshot()
            return change(seen) if seen.block_tables else seen

    return Shown


def failing(seen):
    raise KeyError("gone")


def test_a_manager_that_cannot_be_observed_after_a_call_is_a_call_that_raised():
    here = world(with_snapshot(failing))
    step = here.apply(Prefill(0, 3))
    words = "'gone' (when it was observed after prefill(0, 3): done)"
    assert Raised("KeyError", words) == step.outcome
    assert not step.observed
    assert step.after is step.before
    assert here.state.seen.snapshot == step.before.seen.snapshot
    found = broken(world(with_snapshot(failing)), Prefill(0, 3))
    assert f"prefill(0, 3): raised KeyError: {words}" in found["answered"]


def test_an_observation_that_exits_is_a_call_that_raised():
    def leaving(seen):
        raise SystemExit(3)

    assert isinstance(world(with_snapshot(leaving)).apply(Prefill(0, 3)).outcome, Raised)


def test_a_snapshot_of_another_kind_is_told_by_its_value():
    step = world(with_snapshot(lambda seen: {})).apply(Prefill(0, 3))
    assert "snapshot() must give a pagedkv.Snapshot, got {}" in str(step.outcome)


def test_usable_blocks_are_what_the_first_snapshot_says():
    class Padded(KVCacheManager):
        def snapshot(self):
            return replace(super().snapshot(), reserved=frozenset({0}))

    class Offset(KVCacheManager):
        def snapshot(self):
            return replace(super().snapshot(), blocks=frozenset({1, 3}))

    assert frozenset({1, 2, 3}) == world(Padded).setting.usable
    assert frozenset({1, 3}) == world(Offset).setting.usable
    assert frozenset({0, 1, 2, 3}) == world(KVCacheManager).setting.usable


def test_without_a_snapshot_the_handles_tell():
    here = moved(world(Plain), Prefill(1, 3))
    expected = Snapshot(block_tables={1: (0, 1)}, seq_lens={1: 3}, free_blocks=(2, 3))
    assert expected == here.state.seen.snapshot


def test_without_a_snapshot_and_a_free_list_the_tables_tell_what_is_free():
    class Blind(Plain):
        free_blocks = None

    here = moved(world(Blind), Prefill(0, 3))
    assert here.state.seen.snapshot.free_blocks is None
    assert here.state.available == 2
    moved(here, Prefill(1, 4), Decode(0), Decode(0), Release(1))


@pytest.mark.parametrize("wrong", [Misuse(0, "release-duplicate"), Misuse(0, "release-foreign")])
def test_wrong_use_of_a_request_whose_table_is_not_shown_is_tried_all_the_same(wrong):
    # Where only some properties are judged, a history goes on past an empty table.
    here = world(with_snapshot(lambda seen: replace(seen, block_tables={0: (), 1: ()})))
    here.apply(Prefill(0, 1))
    here.apply(Prefill(1, 1))
    assert isinstance(here.apply(wrong).outcome, Refused)


def test_worlds_of_one_kind_share_what_makes_sense_and_others_do_not():
    one, other = world(KVCacheManager), world(KVCacheManager)
    assert one.candidates() is other.candidates()
    one.apply(Prefill(0, 3))
    assert one.candidates() is not other.candidates()
    other.apply(Prefill(0, 3))
    assert one.candidates() is other.candidates()
    fewer = World(KVCacheManager, one.setting.geometry, requests=1)
    assert fewer.candidates() is not world(KVCacheManager).candidates()
