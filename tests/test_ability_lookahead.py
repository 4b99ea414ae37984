"""Room for tokens to come: exactly as much as is declared, at any time, and all given back."""

from __future__ import annotations

from typing import Any

import pytest

from able import able, after, seen
from allocators import world
from builders import declaring, message, step
from pagedkv import OutOfBlocks, Request
from pagedkv.mutants import growing
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.abilities.finding import judge_counted
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.lengths import judge_cover
from pagedkv.specs.model import EMPTY, Geometry
from pagedkv.specs.properties import HOLDS, Broken
from pagedkv.specs.steps import Grant, HostGrant
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.profiles import Scope
from pagedkv.stateful.subject import Subject
from side_by_side import Both

BOTH = (SharedKVCacheManager, SharedArrayKVCacheManager)
AHEAD = able("append", "truncate", "swap", lookahead_tokens=1)


@pytest.fixture(params=BOTH)
def manager(request):
    return request.param.configured("append", "truncate", lookahead=2)(4, 2, 1)


# ---------------------------------------------------------------- the managers


def test_a_table_has_room_for_the_tokens_to_come_at_any_time(manager):
    req = Request(0, 2)
    manager.allocate_for_prefill(req)
    assert len(req.block_table) == 2
    req.tokens.append(0)
    manager.allocate_for_decode(req)
    assert (req.seq_len, len(req.block_table)) == (3, 3)
    req.tokens.append(0)
    manager.allocate_for_decode(req)
    assert (req.seq_len, len(req.block_table)) == (4, 3)
    manager.truncate_request(req, 3)
    assert len(req.block_table) == 3
    manager.truncate_request(req, 2)
    assert (req.seq_len, len(req.block_table)) == (2, 2)
    manager.release_request(req)
    assert manager.free_blocks == [0, 1, 2, 3]


def test_what_is_reserved_runs_out_like_all_else_and_nothing_has_changed(manager):
    req = Request(0, 4)
    manager.allocate_for_prefill(req)
    table, before = [*req.block_table], manager.state_key({0: 0})
    with pytest.raises(OutOfBlocks, match="needs 2 more "):
        manager.allocate_for_append(req, 4)
    assert (req.seq_len, req.block_table) == (4, table)
    assert before == manager.state_key({0: 0})
    with pytest.raises(OutOfBlocks, match="needs 5 more block"):
        manager.allocate_for_prefill(Request(1, 7))
    manager.allocate_for_append(req, 2)
    assert len(req.block_table) == 4


def test_a_length_that_was_edited_is_told_from_what_is_reserved(manager):
    req = Request(0, 2)
    manager.allocate_for_prefill(req)
    req.seq_len = 3
    with pytest.raises(ValueError, match="was edited, it needs 3 "):
        manager.allocate_for_decode(req)


def grow_into_what_another_found(blocks, size):
    """Request 0 is cut to one token, 1 finds all that it has reserved, and 0 grows again."""
    both = Both((blocks, size), ("append", "prefix", "truncate"), lookahead=2)
    for name, tokens in ((0, [0, 1, 1, 0]), (1, [0, 1, 1, 0, 1])):
        both.handles[name] = [Request(name, len(tokens), tokens) for _ in both.managers]
    assert both.call("allocate_for_prefill", 0) is None
    both.write(0)
    for handle in both.handles[0]:
        del handle.tokens[1:]
    assert both.call("truncate_request", 0, 1) is None
    assert both.call("allocate_for_prefill", 1) is None
    both.write(1, both.managers[0].cached_tokens(both.handles[1][0]))
    both.check()
    for handle in both.handles[0]:
        handle.tokens += [0, 0]
    error = both.call("allocate_for_append", 0, 2)
    return both, error


@pytest.mark.parametrize(("size", "left"), [(1, 1), (2, 0)])
def test_reserved_blocks_that_another_found_are_copied_before_they_are_written(size, left):
    both, error = grow_into_what_another_found(12, size)
    assert error is None
    both.write(0, 1)
    both.check()
    for first, second in zip(both.handles[0], both.handles[1], strict=True):
        shared = {*first.block_table} & {*second.block_table}
        assert len(shared) == left


def test_a_copy_of_what_is_reserved_runs_out_of_blocks_too():
    _, error = grow_into_what_another_found(7, 1)
    assert error == (OutOfBlocks, 0, 4, 0)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("beside", [("fork",), ("window",)])
def test_lookahead_beside_fork_or_window_is_refused(kind, beside):
    window = 2 if beside == ("window",) else None
    with pytest.raises(ValueError, match=f"lookahead = 1 beside {beside[0]}"):
        kind.configured(*beside, window=window, lookahead=1)
    with pytest.raises(ValueError, match="lookahead must be >= 0"):
        kind.configured(lookahead=-1)


@pytest.mark.parametrize("kind", BOTH)
def test_lookahead_is_declared_exactly(kind):
    declared = kind.configured("append", lookahead=3).declares
    assert (declared.lookahead_tokens, declared.lookahead) == (3, 0)
    assert kind.declares.lookahead_tokens == 0


# ---------------------------------------------------------------- what is due


def test_only_what_is_exact_is_declared_in_tokens():
    with pytest.raises(ValueError, match="is declared beside lookahead"):
        declaring(lookahead_tokens=1, lookahead=1)
    with pytest.raises(ValueError, match="declared beside fork"):
        declaring(lookahead_tokens=1, abilities={"fork"})
    with pytest.raises(ValueError, match="lookahead_tokens must be >= 0"):
        declaring(lookahead_tokens=-1)


def test_the_demand_is_exact():
    two = after(AHEAD, Prefill(0, 2))
    assert Grant(2, 2) == Prefill(0, 2).expect(EMPTY, AHEAD)
    assert Grant(0, 0) == Decode(0).expect(two, AHEAD)
    assert Grant(1, 1) == Append(0, 2).expect(two, AHEAD)
    assert HostGrant(2, 2) == SwapOut(0).expect(two, AHEAD)
    assert Grant(2, 2) == SwapIn(0).expect(after(AHEAD, SwapOut(0), start=two), AHEAD)


def test_the_cover_is_exact():
    two = after(AHEAD, Prefill(0, 2))
    assert judge_cover(seen(AHEAD, two, {0: (0, 1)})) is HOLDS
    for table in ((0,), (0, 1, 2)):
        expected = f"len(block_table[0]) = {len(table)} != 2 = ceil((2 + 1 tokens) / block_size 2)"
        assert Broken(expected, table, (0,)) == judge_cover(seen(AHEAD, two, {0: table}))


def test_a_free_block_is_forged_only_while_what_is_reserved_leaves_one():
    wrong = Misuse(0, "release-free")
    assert wrong.enabled(after(AHEAD, Prefill(0, 5)), AHEAD)
    assert not wrong.enabled(after(AHEAD, Prefill(0, 6)), AHEAD)


@pytest.mark.parametrize("beside", ["fork", "window"])
def test_what_may_be_reserved_beside_forks_and_windows_may_be_all_there_is(beside):
    window: dict[str, Any] = {"window": 1} if beside == "window" else {}
    within = able(beside, blocks=2, size=1, lookahead=1, **window)
    wrong = Misuse(0, "release-free")
    assert not wrong.enabled(after(within, Prefill(0, 1)), within)
    larger = able(beside, blocks=3, size=1, lookahead=1, **window)
    assert wrong.enabled(after(larger, Prefill(0, 1)), larger)


def test_a_fork_may_reserve_blocks_of_its_own():
    within = able("fork", blocks=4, size=2, lookahead=2, forks_eagerly=True)
    assert Grant(0, 2) == Fork(1, 0).expect(after(within, Prefill(0, 2)), within)
    assert Grant(1, 3) == Fork(1, 0).expect(after(within, Prefill(0, 1)), within)


def test_each_reserved_block_that_others_hold_and_is_written_needs_a_copy():
    within = able("append", "prefix", "truncate", blocks=7, size=1, lookahead_tokens=2)
    cut = after(within, Prefill(0, 3), Prefill(1, 4), Truncate(0, 1))
    held = {0: (0, 1, 2), 1: (0, 1, 2, 3)}
    assert Grant(2, 4) == Append(0, 2).expect(cut, within)
    there = seen(within, cut, held, index={"a": 0, "b": 1, "c": 2}, free_blocks=(4, 5, 6))
    grown = seen(within, after(within, Append(0, 2), start=cut), held)
    judgement = judge_counted(step(Append(0, 2), there, grown))
    assert message(judgement).startswith("append(0, 2) granted: needed(4) > available(3)")
    alone = seen(within, after(within, Prefill(0, 3), Truncate(0, 1)), {0: (0, 1, 2)})
    assert judge_counted(step(Append(0, 2), alone, alone)) is HOLDS


# ---------------------------------------------------------------- faults that only it shows

PLANTED = (
    growing.ReservesAtAdmissionOnly,
    growing.CutsWhatIsReserved,
    growing.LosesWhatIsReserved,
    growing.ReservesAfterTaking,
)


def broken(kind) -> set[str]:
    scope = Scope("lookahead", (Geometry(3, 1),), 2)
    subject = Subject("one", (kind,))
    here = subject.world(scope, scope.geometries[0])
    everything = Scope("a", scope.geometries, 2, abilities=here.setting.declared.abilities)
    done, _ = explore(
        lambda geometry: subject.world(everything, geometry),
        everything.geometries,
        lambda: Judge(PROPERTIES.values(), offered(*here.states)),
        Limits(depth=2),
    )
    return {*done.found}


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_without_lookahead_the_fault_does_not_show(kind):
    assert broken(kind)
    assert broken(type("Without", (kind,), {"lookahead": 0})) == set()


@pytest.mark.parametrize("kind", BOTH)
def test_a_world_follows_what_is_reserved(kind):
    here = world(kind.configured("append", "truncate", lookahead=1), 3, 1)
    for command in (Prefill(0, 2), Truncate(0, 1), Append(0, 1), Release(0)):
        assert here.apply(command).granted
    assert here.state.seen.snapshot.block_tables == {}
