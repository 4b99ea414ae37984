"""Long histories: found, cut down and replayed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from allocators import Plain
from pagedkv import Declarations, Request
from pagedkv.reference import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.stateful import shrink as module
from pagedkv.stateful.locate import CHUNK
from pagedkv.stateful.replay import MakesNoSense
from pagedkv.stateful.report import OneMinimal, Shortest
from pagedkv.stateful.shrink import rerun, shrink
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.swift import SwiftWorld
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.traces import Trace
from pagedkv.stateful.world import World

POOL = Geometry(32, 4)


class LeaksLarge(KVCacheManager):
    """Loses a block where one of two requests of eight blocks and more is released."""

    def release_request(self, req: Request) -> None:
        large = [lease for lease in self._live.values() if len(lease.blocks) >= 8]
        strikes = len(large) > 1 and len(req.block_table) >= 8
        super().release_request(req)
        if strikes:
            self._free.pop()


class SwapsLarge(KVCacheManager):
    """Exchanges two blocks of a table that grows to nine, and so what it reads back."""

    def allocate_for_decode(self, req: Request) -> None:
        before = len(req.block_table)
        super().allocate_for_decode(req)
        if before == 8 and len(req.block_table) == 9:
            blocks = list(req.block_table)
            blocks[0], blocks[1] = blocks[1], blocks[0]
            self._live[req.request_id] = self._live[req.request_id]._replace(blocks=tuple(blocks))
            req.block_table = blocks


class RefusesLarge(KVCacheManager):
    """Says that blocks ran out where nine blocks are asked for that are there."""

    def allocate_for_prefill(self, req: Request) -> None:
        if req.seq_len > 8 * self.block_size:
            raise RuntimeError("OOM: so many blocks are never there")
        super().allocate_for_prefill(req)


class LeaksOne(KVCacheManager):
    """Loses a block where a request of two blocks is released from a full pool."""

    def release_request(self, req: Request) -> None:
        strikes = not self._free and len(req.block_table) == 2
        super().release_request(req)
        if strikes:
            self._free.pop()


def subject(factory: Any) -> Subject:
    return Subject(factory.__name__, (factory,))


def noise(length: int, seed: int = 0) -> list[Command]:
    """A history of small requests with numbers as an engine gives them; all are gone in the end."""
    rng = random.Random(seed)
    live: dict[int, int] = {}
    commands: list[Command] = []
    made = 1000
    while len(commands) < length:
        action = rng.random()
        if len(live) < 4 and (not live or action < 0.25):
            live[made] = rng.randint(1, 16)
            commands.append(Prefill(made, live[made]))
            made += 1
            continue
        request = rng.choice(list(live))
        if action < 0.5 or live[request] == 24:
            del live[request]
            commands.append(Release(request))
        else:
            live[request] += 1
            commands.append(Decode(request))
    return commands + [Release(request) for request in live]


LARGE = [
    Prefill(1, 25),
    *[Decode(1)] * 10,
    Prefill(2, 20),
    Prefill(3, 1),
    *[Decode(2)] * 14,
    Release(3),
]
STRIKE: dict[Any, tuple[str, list[Command]]] = {
    LeaksLarge: ("conservation", [*LARGE, Release(1), Release(2)]),
    SwapsLarge: ("contents", [*LARGE, Release(2), Release(1)]),
    RefusesLarge: ("out-of-blocks", [Prefill(4, 2), Prefill(5, 60), Release(4)]),
}


@pytest.fixture
def no_fixed_scope(monkeypatch):
    """None of these faults shows there; searching it all would only take long."""
    monkeypatch.setattr(module, "FIXED_SECONDS", 0.2)


# ---------------------------------------------------------------- moving without looking


def test_hurrying_leads_to_where_single_steps_lead():
    commands = [Prefill(0, 5), Prefill(1, 9), *[Decode(0)] * 5, Misuse(1, "release-foreign")]
    commands += [Prefill(2, 999), Release(1), Prefill(1, 3), Misuse(0, "release-free"), Decode(5)]
    swift = SwiftWorld(KVCacheManager, Geometry(8, 2), requests=6, keeps_released=True)
    plain = World(KVCacheManager, Geometry(8, 2), requests=6, keeps_released=True)
    assert swift.hurry(commands)
    for command in commands[:-1]:
        plain.apply(command)
    assert swift.state.model == plain.state.model
    assert swift.state.seen.snapshot == plain.state.seen.snapshot
    assert swift.state.seen.handles == plain.state.seen.handles
    assert swift.read() == plain.read() == plain.state.model.live
    assert swift.key(swift.hooks()) == plain.key(plain.hooks())


def test_hurrying_stops_at_an_answer_that_never_is_right():
    class Silent(Plain):
        def release_request(self, req: Request) -> object:
            return super().release_request(req) if req.block_table else True

    factory: Any = Silent
    world = SwiftWorld(factory, Geometry(4, 1), keeps_released=True)
    assert world.hurry([Prefill(0, 1), Release(0)])
    assert not world.hurry([Misuse(0, "release-released")])


def test_strict_hurrying_stops_at_what_makes_no_sense():
    factory: Any = Plain
    world = SwiftWorld(factory, Geometry(4, 1), keeps_released=True)
    assert world.hurry([Decode(0)])
    assert not world.hurry([Decode(0)], strict=True)


def test_hurrying_writes_where_the_manager_says_that_tokens_are():
    class Mapped(KVCacheManager):
        def slots(self, req: Request) -> list[tuple[int, int, int]]:
            size = self.block_size
            return [(0, req.block_table[p // size], p % size) for p in range(req.seq_len)]

    world = SwiftWorld(Mapped, Geometry(4, 2), keeps_released=True)
    assert world.hurry([Prefill(0, 3), Decode(0), Decode(0)])
    assert world.read() == world.state.model.live


def test_hurrying_stops_where_tokens_have_no_place():
    class Short(Plain):
        def allocate_for_prefill(self, req: Request) -> object:
            req.block_table = []
            return True

    factory: Any = Short
    assert not SwiftWorld(factory, Geometry(4, 2), keeps_released=True).hurry([Prefill(0, 3)])


# ---------------------------------------------------------------- shrinking


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("factory", STRIKE)
def test_twenty_thousand_commands_come_down_to_the_core(factory, no_fixed_scope):
    prop, strike = STRIKE[factory]
    history = (*noise(15_000), *strike, *noise(5_000, 1))
    result = shrink(subject(factory), Trace("x", POOL, history, prop))
    assert result.example is not None
    assert result.unfinished is None
    assert result.example.property == prop
    core = {
        LeaksLarge: (Geometry(16, 1), (Prefill(0, 8), Prefill(1, 8), Release(0))),
        SwapsLarge: (Geometry(9, 1), (Prefill(0, 8), Decode(0))),
        RefusesLarge: (Geometry(9, 1), (Prefill(0, 9),)),
    }
    assert (result.example.geometry, result.example.commands) == core[factory]
    assert isinstance(result.example.proof, OneMinimal)
    assert "fixed scope" in result.example.proof.reason
    assert result.example.frames[-1].command == str(core[factory][1][-1])


def test_a_fault_of_the_fixed_scope_is_proven_shortest_without_running_the_history():
    history = tuple(noise(20_000))  # it does not even strike there
    result = shrink(subject(LeaksOne), Trace("x", POOL, history, "conservation"))
    assert result.example is not None
    assert isinstance(result.example.proof, Shortest)
    assert result.example.commands == (Prefill(0, 2), Release(0))
    assert result.commands is None


def test_what_breaks_is_found_where_the_trace_does_not_say(no_fixed_scope):
    history = (*noise(3_000), *STRIKE[LeaksLarge][1])
    result = shrink(subject(LeaksLarge), Trace("x", POOL, history))
    assert result.example is not None
    assert result.example.property == "conservation"
    assert len(result.example.commands) == 3


def test_a_history_that_breaks_nothing_has_no_core(no_fixed_scope):
    history = tuple(noise(50))
    assert shrink(subject(KVCacheManager), Trace("x", POOL, history)).example is None


def test_a_target_that_can_not_be_copied_is_cut_down_too(no_fixed_scope):
    class Whole(LeaksLarge):
        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            super().__init__(num_blocks, block_size, head_dim)
            self.forever = (n for n in range(3))

    history = (*noise(2 * CHUNK), *STRIKE[LeaksLarge][1])
    result = shrink(subject(Whole), Trace("x", POOL, history, "conservation"))
    assert result.example is not None
    assert result.example.commands == (Prefill(0, 8), Prefill(1, 8), Release(0))


def test_two_targets_in_lockstep_are_cut_down_too(no_fixed_scope):
    pair = Subject("pair", (KVCacheManager, RefusesLarge))
    history = (*noise(100), *STRIKE[RefusesLarge][1])
    result = shrink(pair, Trace("x", POOL, history, "lockstep"))
    assert result.example is not None
    assert result.example.commands == (Prefill(0, 9),)


def test_time_that_runs_out_leaves_the_shortest_so_far(no_fixed_scope):
    history = (*noise(3_000), *STRIKE[LeaksLarge][1])
    trace = Trace("x", POOL, history, "conservation")
    result = shrink(subject(LeaksLarge), trace, seconds=0.0)
    assert result.example is not None
    assert result.unfinished == "the time for cutting was spent"
    assert 3 < len(result.example.commands) <= len(history)
    assert result.commands == len(history) - 1


def test_an_interrupt_leaves_the_shortest_so_far(no_fixed_scope):
    def stop(phase: str, done: int, of: int) -> None:
        if phase == "cutting commands":
            raise KeyboardInterrupt

    history = (*noise(3_000), *STRIKE[LeaksLarge][1])
    trace = Trace("x", POOL, history, "conservation")
    result = shrink(subject(LeaksLarge), trace, tell=stop)
    assert result.unfinished == "interrupted"
    assert result.example is not None
    assert result.example.commands[-1].op == "release"


def test_a_pool_that_the_target_refuses_is_no_history():
    class Small(Plain):
        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            if num_blocks > 8:
                raise ValueError("too large")
            super().__init__(num_blocks, block_size, head_dim)

    with pytest.raises(CannotDrive, match="too large"):
        shrink(subject(Small), Trace("x", POOL, (Prefill(0, 1),)))


# ---------------------------------------------------------------- replaying


@pytest.mark.parametrize("factory", STRIKE)
def test_a_long_history_breaks_at_the_step_where_it_breaks(factory):
    prop, strike = STRIKE[factory]
    history = (*noise(2 * CHUNK), *strike, *noise(CHUNK))
    found = rerun(subject(factory), Trace("x", POOL, history, prop))
    assert found is not None
    assert found.property == prop
    last: dict[Any, str] = {LeaksLarge: "release", SwapsLarge: "decode", RefusesLarge: "prefill"}
    assert found.commands[-1].op == last[factory]
    assert len(history) - len(found.commands) < CHUNK + 60


def test_a_history_that_was_mended_breaks_nothing():
    commands = (Prefill(0, 60), Release(0))
    trace = Trace("x", POOL, commands, "out-of-blocks")
    assert rerun(subject(RefusesLarge), trace) is not None
    assert rerun(subject(KVCacheManager), trace) is None


def test_what_breaks_and_heals_within_a_chunk_is_found(no_fixed_scope):
    class Blinks(KVCacheManager):
        """Loses a block while a request has more than 32 tokens, and finds it again."""

        def allocate_for_decode(self, req: Request) -> None:
            super().allocate_for_decode(req)
            if req.seq_len == 33:
                self.lost = self._free.pop()

        def release_request(self, req: Request) -> None:
            super().release_request(req)
            if req.seq_len >= 33:
                self._free.append(self.lost)

    blink = [Prefill(1, 32), Decode(1), Release(1)]
    history = (*noise(2 * CHUNK), *blink, *noise(10))
    found = rerun(subject(Blinks), Trace("x", POOL, history, "conservation"))
    assert found is not None
    assert found.commands[-1].op == "decode"


@pytest.mark.parametrize("before", [2, 2 * CHUNK + 1])
def test_a_command_that_makes_no_sense_is_named(before):
    history = (*noise(before), Release(7), Prefill(8, 1))
    with pytest.raises(MakesNoSense, match="makes no sense where it stands") as caught:
        rerun(subject(KVCacheManager), Trace("x", POOL, history))
    assert caught.value.index == len(history) - 2


def test_a_target_with_larger_pools_than_those_that_keep_handles_is_cut_down(no_fixed_scope):
    class Wide(LeaksLarge):
        declares = Declarations(min_blocks=4, because={"min_blocks": "its docs"})

    result = shrink(subject(Wide), Trace("x", POOL, tuple(STRIKE[LeaksLarge][1]), "conservation"))
    assert result.example is not None
    assert result.example.property == "conservation"
