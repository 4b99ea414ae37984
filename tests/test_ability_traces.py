"""Histories with abilities in files: read, replayed, renamed and cut down as any other."""

from __future__ import annotations

import json
import random
from functools import partial

import pytest

import engines_alike as alike
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import COMMANDS, PROPERTIES, command_from_json, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful import shrink as shrinking
from pagedkv.stateful.minimise import Case, Minimiser, _rank
from pagedkv.stateful.naming import renamed
from pagedkv.stateful.profiles import EVERY
from pagedkv.stateful.replay import MakesNoSense, replay
from pagedkv.stateful.shrink import rerun, shrink
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.swift import SwiftWorld
from pagedkv.stateful.traces import Trace, read_trace, write_trace
from pagedkv.stateful.world import World

POOL = Geometry(12, 2)
EVERYTHING: tuple[Command, ...] = (
    *(Prefill(0, 3), Admit(1, (1, 0, 0), 0), Fork(2, 0), Decode(2), Append(1, 3)),
    *(Truncate(1, 2), SwapOut(0), Decode(2), SwapIn(0), GroupBegin(), Release(2)),
    *(Release(1), GroupEnd(), Admit(1, (1, 0, 0), 0), Release(0), Release(1)),
)


def make(factory, geometry=POOL):
    return World(factory, geometry, requests=4, keeps_released=True, abilities=EVERY)


def judge(factory) -> Judge:
    return Judge(PROPERTIES.values(), offered(*make(factory).states))


def judging(factory, name) -> Judge:
    return Judge([PROPERTIES[name]], offered(*make(factory).states))


@pytest.mark.parametrize("factory", [SharedKVCacheManager, SharedArrayKVCacheManager])
def test_a_history_of_every_ability_is_replayed_from_its_file(tmp_path, factory):
    write_trace(tmp_path / "t.jsonl", Trace("x", POOL, EVERYTHING))
    read = read_trace(tmp_path / "t.jsonl")
    assert read.commands == EVERYTHING
    ran = replay(lambda: make(factory), read.commands, judge(factory), strict=True)
    assert (ran.commands, ran.violations) == (EVERYTHING, ())


def test_lines_that_differ_in_the_request_only_are_read_as_what_they_are(tmp_path):
    commands = tuple(Fork(child, parent) for child in range(1, 4) for parent in range(4))
    write_trace(tmp_path / "t.jsonl", Trace("x", POOL, commands))
    assert read_trace(tmp_path / "t.jsonl").commands == commands


def test_a_fork_of_nobody_can_not_be_replayed():
    factory = SharedKVCacheManager
    history = (Prefill(0, 1), Release(0), Fork(1, 0))
    ran = replay(lambda: make(factory), history, judge(factory))
    assert ran.commands == history[:2]
    with pytest.raises(MakesNoSense, match=r"^fork\(1, 0\) makes no sense where it stands"):
        replay(lambda: make(factory), history, judge(factory), strict=True)


def test_the_same_history_by_other_names_does_the_same():
    def strange(name):
        return 50 - 7 * name

    names = {r: strange(r) for r in range(4)}
    other = tuple(command.renamed(names) for command in EVERYTHING)
    assert renamed(other) == EVERYTHING

    def tables(commands):
        world = SwiftWorld(SharedKVCacheManager, POOL, requests=60, keeps_released=True)
        assert world.hurry(commands, strict=True)
        return world.state.seen.snapshot.free_blocks, world.state.seen.snapshot.cached

    assert tables(other) == tables(EVERYTHING)


# ---------------------------------------------------------------- cutting down


class DropsTheIndexTwice(SharedKVCacheManager.configured("prefix", "truncate", "group")):  # type: ignore[misc]
    """A hit of two blocks with an extra key pins only the first of them."""

    def allocate_for_prefill(self, req):
        super().allocate_for_prefill(req)
        if req.extra_key is not None and self._live[req.request_id].cached_tokens > self.block_size:
            del self._blocks.refs[req.block_table[1]]
            self._blocks.free = sorted([*self._blocks.free, req.block_table[1]])


class ForgetsSome(alike.Forking):
    """Copies nothing into a tail that three share."""

    def ask_for(self, source, there):
        if self.refs[source] < 3:
            super().ask_for(source, there)


class LosesAGroup(alike.Grouping):
    """Loses a block of a group of three."""

    def free_group_end(self):
        if len(self.withheld or ()) > 2:
            self.withheld = (self.withheld or [])[1:]
        super().free_group_end()


def noise(factory, tries, seed):
    """A random history that breaks nothing, of candidates that are granted."""
    rng, world, judged = random.Random(seed), make(factory), judge(factory)
    history: list[Command] = []
    for _ in range(tries):
        before = world.clone(world.hooks())
        command = rng.choice([c for c in world.candidates() if c.op != "misuse"])
        step = world.apply(command)
        if not step.granted or judged.step(step) + judged.reached(step):
            world = before
        else:
            history.append(command)
    return history


CASES = {
    ForgetsSome: (
        "contents",
        (Prefill(0, 1), Fork(1, 0), Fork(2, 0), Decode(0)),
        Geometry(2, 2),
    ),
    LosesAGroup: (
        "withheld",
        (Prefill(0, 3), GroupBegin(), Release(0), GroupEnd()),
        Geometry(3, 1),
    ),
    DropsTheIndexTwice: (
        "conservation",
        (Admit(0, (0, 0), 1), Admit(1, (0, 0, 0), 1)),
        Geometry(3, 1),
    ),
}


@pytest.fixture
def no_fixed_scope(monkeypatch):
    """Cut the history itself: the fixed scope has no abilities, and finds nothing here."""
    monkeypatch.setattr(shrinking, "FIXED_SECONDS", 0.1)


def ending(factory, commands, seed):
    """The commands behind noise, by names that the noise has not."""
    history = noise(factory, 50, seed)
    free = 1 + max((command.request for command in history), default=0)
    over: list[Command] = [Release(r) for r in make_after(factory, history)]
    names = {r: free + 2 * r for r in range(9)}
    opened = sum(isinstance(c, GroupBegin) for c in history)
    closed = sum(isinstance(c, GroupEnd) for c in history)
    over += [GroupEnd()] * (opened - closed)
    return (*history, *over, *(command.renamed(names) for command in commands))


def make_after(factory, history):
    world = make(factory)
    for command in history:
        world.apply(command)
    model = world.state.model
    return [*model.live, *model.swapped]


@pytest.mark.parametrize("factory", CASES, ids=lambda factory: factory.__name__)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_long_history_is_cut_to_the_few_commands_that_matter(
    factory, seed, no_fixed_scope, tmp_path
):
    name, few, geometry = CASES[factory]
    longer = [command.scaled(1, 2, full=True) for command in few]
    history = ending(factory, longer if geometry.block_size == 1 else few, seed)
    write_trace(tmp_path / "t.jsonl", Trace("x", POOL, history, name))
    trace = read_trace(tmp_path / "t.jsonl")
    subject = Subject("x", (factory,))
    result = shrink(subject, trace)
    assert result.example is not None
    assert result.example.commands == few
    assert result.example.geometry == geometry
    short = Trace("x", geometry, result.example.commands, name)
    again = rerun(subject, short)
    assert again is not None
    assert again.property == name


def one_minimal(factory, name, geometry, commands) -> Case:
    cut = Minimiser(partial(make, factory), partial(judge, factory), name)
    case = cut.one_minimal(geometry, commands)
    assert case is not None
    return case


def test_prompts_lose_tokens_ones_and_extra_keys_while_it_still_breaks():
    long = (Admit(0, (1, 0, 0, 0, 1, 0), 1), Admit(1, (1, 0, 0, 0, 1, 0, 0), 1))
    case = one_minimal(DropsTheIndexTwice, "conservation", Geometry(8, 2), long)
    assert case.commands == CASES[DropsTheIndexTwice][1]
    assert case.geometry == Geometry(3, 1)


def test_requests_of_a_fork_are_called_as_they_first_appear():
    history = (Prefill(3, 1), Fork(1, 3), Fork(2, 1), Decode(2))
    case = one_minimal(ForgetsSome, "contents", Geometry(4, 2), history)
    assert case.commands == (Prefill(0, 1), Fork(1, 0), Fork(2, 1), Decode(2))


def test_the_order_of_commands_is_total_and_puts_short_prompts_first():
    ordered = [
        *(Decode(0), Prefill(0, 2), Prefill(0, 10), Prefill(1, 1), Append(0, 1)),
        *(Fork(1, 0), Fork(2, 1), Admit(0, (0, 0), 1), Admit(0, (1, 0), 0)),
        *(Admit(0, (0, 0, 0, 0, 0, 0, 0), 0), GroupBegin(), GroupEnd()),
    ]
    shuffled = random.Random(0).sample(ordered, len(ordered))
    by_op = {op: rank for rank, op in enumerate(COMMANDS)}
    assert sorted(shuffled, key=_rank) == sorted(ordered, key=lambda c: by_op[c.op])


@pytest.mark.parametrize("command", EVERYTHING, ids=str)
def test_every_command_of_the_history_survives_its_json(command):
    assert command == command_from_json(json.loads(json.dumps(command.to_json())))
