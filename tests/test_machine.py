"""The Hypothesis machine: it passes the right ones, finds the wrong ones, and says so readably."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, Verbosity, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.stateful import run_state_machine_as_test

from faults import Boundary, LeakWhenOut
from pagedkv import ArrayKVCacheManager, Declarations, KVCacheManager, OutOfBlocks, Request
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill
from pagedkv.specs.catalogue import PROPERTIES, offered, ops_of
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Sometimes
from pagedkv.stateful.draws import Make, boundary_first, drawable
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.machine import (
    Falsified,
    SearchResult,
    machine_for,
    search,
    settings_for,
)
from pagedkv.stateful.replay import replay
from pagedkv.stateful.settings import no_constants_of_others
from pagedkv.stateful.target import CannotDrive, Factory
from pagedkv.stateful.world import World


def worlds(factory: Factory) -> Make:
    return lambda geometry: World(factory, geometry, requests=4, keeps_released=True)


def pairs(left: Factory, right: Factory) -> Make:
    def make(geometry: Geometry) -> Lockstep:
        one, other = (
            World(factory, geometry, requests=4, keeps_released=True) for factory in (left, right)
        )
        return Lockstep(one, other)

    return make


def judge_for(make: Make, *, peer: bool = False) -> Judge:
    return Judge(PROPERTIES.values(), offered(*make(Geometry(1, 1)).states))


def searched(make: Make, seed: int | None = None, *, examples=100, **kwargs) -> SearchResult:
    judge = judge_for(make, peer=isinstance(make(Geometry(1, 1)), Lockstep))
    chosen = settings(settings_for("quick"), max_examples=examples)
    return search(make, judge=judge, settings=chosen, seed=seed, **kwargs)


# ---------------------------------------------------------------- planted faults


class DoubleFree(KVCacheManager):
    """A released request may be released again, and its blocks are free twice."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        self.freed: dict[int, list[int]] = {}

    def release_request(self, req: Request) -> None:
        if not req.block_table and req.request_id in self.freed:
            self._free = sorted([*self._free, *self.freed[req.request_id]])
            return
        blocks = list(req.block_table)
        super().release_request(req)
        self.freed[req.request_id] = blocks


class WrongReport(KVCacheManager):
    """Counts one token too many in its report, and nowhere else."""

    def allocation_report(self, req: Request) -> dict[str, float]:
        report = super().allocation_report(req)
        return {**report, "logical_tokens": report["logical_tokens"] + 1}


class EagerDecode(KVCacheManager):
    """Refuses the last block of the pool to a decode."""

    def allocate_for_decode(self, req: Request) -> None:
        if len(self._free) == 1 and req.seq_len == len(req.block_table) * self.block_size:
            raise OutOfBlocks(req.request_id, 1, 1)
        super().allocate_for_decode(req)


class Fickle(KVCacheManager):
    """Behaves differently every fifth time that one is made."""

    made = 0

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        type(self).made += 1
        self.fails = type(self).made % 5 == 4

    def allocate_for_decode(self, req: Request) -> None:
        if self.fails:
            raise KeyError("fickle")
        super().allocate_for_decode(req)


FAULTS = {
    Boundary: "out-of-blocks",
    LeakWhenOut: "rollback",
    DoubleFree: "misuse-refused",
    WrongReport: "report-agrees",
    EagerDecode: "out-of-blocks",
}


# ---------------------------------------------------------------- the search


@pytest.fixture(scope="module")
def on_the_reference() -> SearchResult:
    return searched(worlds(KVCacheManager))


def test_the_reference_passes(on_the_reference):
    assert (on_the_reference.falsified, on_the_reference.nondeterministic) == (None, None)
    assert on_the_reference.steps > 1000


def test_every_command_and_every_goal_is_reached(on_the_reference):
    judge = on_the_reference.judge
    assert set(ops_of(frozenset())) == set(judge.commands)
    # A goal that needs what this target doesn't show is none of its.
    goals = [p.id for p in judge.properties if isinstance(p.expectation, Sometimes)]
    assert len(goals) >= 9
    assert dict.fromkeys(goals, 1) == {goal: judge.evaluations[goal] for goal in goals}


def test_no_class_of_commands_crowds_out_the_others(on_the_reference):
    commands = on_the_reference.judge.commands
    assert min(commands.values()) > 0.03 * commands.total()
    assert max(commands.values()) < 0.6 * commands.total()


def test_no_history_is_given_up_for_want_of_a_command(on_the_reference):
    lengths = [len(commands) for _, commands in on_the_reference.histories]
    # Hypothesis itself cuts a few of the first ones.
    assert sum(length < max(lengths) for length in lengths) < 0.05 * len(lengths)


def test_some_histories_do_without_a_command_that_others_use_often(on_the_reference):
    used = [Counter(c.op for c in commands) for _, commands in on_the_reference.histories]
    for op in set(ops_of(frozenset())) - {"prefill"}:  # without one nothing makes sense
        shares = [ops[op] / ops.total() for ops in used]
        assert min(shares) == 0
        assert max(shares) > 0.3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_faults_are_found(fault, seed):
    found = searched(worlds(fault), seed).falsified
    assert found is not None
    assert FAULTS[fault] in [violation.property.id for violation in found.violations]


def test_what_is_found_breaks_again_when_it_is_replayed():
    make = worlds(DoubleFree)
    found = searched(make, 1).falsified
    assert found is not None
    again = replay(lambda: make(found.geometry), found.commands, judge_for(make))
    assert (found.commands, found.violations) == (again.commands, again.violations)


def test_a_property_that_is_looked_past_ends_no_history():
    result = searched(worlds(WrongReport), examples=20, look_past={"report-agrees"})
    assert result.falsified is None
    assert result.judge.evaluations["report-agrees"] > 100


def test_the_reference_and_the_array_go_in_lockstep():
    result = searched(pairs(KVCacheManager, ArrayKVCacheManager), examples=20)
    assert result.falsified is None
    assert result.judge.evaluations["lockstep"] > 200


def test_a_divergence_of_two_in_lockstep_is_found():
    found = searched(pairs(KVCacheManager, EagerDecode)).falsified
    assert found is not None
    assert "lockstep" in [violation.property.id for violation in found.violations]


def test_a_fresh_state_is_judged():
    class BornLeaky(KVCacheManager):
        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            super().__init__(num_blocks, block_size, head_dim)
            self._free = self._free[1:]

    found = searched(worlds(BornLeaky)).falsified
    assert found is not None
    assert found.commands == ()
    assert "no command at all" in str(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_search_ends_at_its_time_limit(seed):
    result = searched(worlds(KVCacheManager), seed, examples=10_000, seconds=0.2)
    assert result.out_of_time
    assert result.nondeterministic is None
    assert result.examples < 10_000


def test_a_target_that_contradicts_itself_is_told_as_data():
    result = searched(worlds(Fickle))
    assert result.nondeterministic is not None
    assert "once and not again: " in result.nondeterministic


def test_a_target_whose_choices_contradict_themselves_is_told_as_data():
    made = []

    def moody(geometry: Geometry) -> World:
        made.append(geometry)
        return World(KVCacheManager, geometry, requests=1 + len(made) % 4, keeps_released=True)

    result = searched(moody)
    assert result.nondeterministic is not None
    assert "went on differently" in result.nondeterministic


def test_a_target_that_cant_be_made_is_said_to_be_so():
    def broken(*_: int) -> KVCacheManager:
        raise OSError("no device")

    with pytest.raises(CannotDrive, match="no device"):
        search(
            worlds(broken),
            judge=judge_for(worlds(KVCacheManager)),
            settings=settings_for("quick"),
        )


def test_an_interrupt_gets_through():
    class Interrupted(KVCacheManager):
        def release_request(self, req: Request) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(worlds(Interrupted))


def test_a_history_without_a_next_command_is_over():
    class Once(KVCacheManager):
        declares = Declarations(
            resumes=False,
            wrong_use=dict.fromkeys(("prefill", "decode", "release"), "never"),
            because={"resumes": "its docs", "wrong_use": "its docs"},
        )

    assert searched(worlds(Once), examples=20).falsified is None


# ---------------------------------------------------------------- what is drawn


def test_lengths_at_the_edges_of_the_pool_and_of_blocks_come_first():
    state = World(KVCacheManager, Geometry(2, 4)).state
    drawn = boundary_first([Prefill(0, n) for n in range(1, 10)], state)
    assert drawn[:5] == [Prefill(0, n) for n in (8, 9, 1, 4, 5)]
    times = Counter(drawn)
    assert {command for command in drawn if times[command] == 1} == {
        Prefill(0, n) for n in (2, 3, 6, 7)
    }
    assert {command for command in drawn if times[command] == 3} == {Prefill(0, 8), Prefill(0, 9)}


def test_lengths_that_are_all_too_long_have_no_edge_of_the_pool():
    world = World(KVCacheManager, Geometry(1, 2))
    world.apply(Prefill(0, 2))
    drawn = boundary_first([Prefill(1, 1), Prefill(1, 3)], world.state)
    assert [Prefill(1, 1), Prefill(1, 3)] * 2 == drawn


def test_commands_without_a_size_are_drawn_in_canonical_order():
    world = World(KVCacheManager, Geometry(3, 2))
    for command in (Prefill(0, 1), Prefill(1, 2)):
        world.apply(command)
    decodes = [Decode(0), Decode(1)]
    wrong = [Misuse(0, "prefill-live"), Misuse(0, "release-duplicate")]
    assert (decodes, wrong) == (
        boundary_first(decodes, world.state),
        boundary_first(wrong, world.state),
    )


def test_tiny_pools_are_those_that_the_target_declares():
    everything = drawable(Declarations())
    assert (110, Geometry(1, 1, 1), Geometry(70, 16, 2)) == (
        len(everything),
        everything[0],
        everything[-1],
    )
    assert sorted(everything) == list(everything)
    large = Declarations(
        block_sizes=(64, 16, 32), max_blocks=2, because={"block_sizes": "x", "max_blocks": "x"}
    )
    assert {(blocks, size) for blocks in (1, 2) for size in (16, 32, 64)} == {
        (g.num_blocks, g.block_size) for g in drawable(large)
    }
    huge = Declarations(block_sizes=(256, 512, 1024, 64), because={"block_sizes": "x"})
    assert {g.block_size for g in drawable(huge)} == {64, 256}
    assert {g.num_blocks for g in drawable(huge) if g.block_size == 64} == {*range(1, 9), 12}
    assert {g.num_blocks for g in drawable(huge) if g.block_size == 256} == {*range(1, 9)}


def test_the_smallest_pool_has_no_part_in_which_block_sizes_are_tiny():
    two = Declarations(min_blocks=2, because={"min_blocks": "its docs"})
    assert [g for g in drawable(Declarations()) if g.num_blocks > 1] == list(drawable(two))


def test_a_target_with_large_blocks_only_is_driven_with_these():
    class Large(KVCacheManager):
        declares = Declarations(block_sizes=(16,), because={"block_sizes": "its docs"})

        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            if block_size != 16:
                raise ValueError("block_size must be 16")
            super().__init__(num_blocks, block_size, head_dim)

    judge = judge_for(worlds(KVCacheManager))
    few = settings(settings_for("quick"), max_examples=5)
    result = search(worlds(Large), judge=judge, settings=few)
    assert result.falsified is None
    assert result.steps > 10


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("profile", ["quick", "ci", "nightly", "debug"])
def test_every_field_of_the_settings_is_stated(profile, monkeypatch):
    stated = repr(settings_for(profile))
    other = settings(
        max_examples=3,
        derandomize=False,
        database=InMemoryExampleDatabase(),
        verbosity=Verbosity.debug,
        phases=(Phase.explain,),
        stateful_step_count=2,
        report_multiple_bugs=profile == "debug",
        suppress_health_check=(),
        deadline=1,
        print_blob=True,
    )
    current = settings.get_current_profile_name()
    settings.register_profile("hostile", other)
    settings.load_profile("hostile")
    try:
        assert stated == repr(settings_for(profile))
    finally:
        settings.load_profile(current)


def test_settings_of_an_unknown_profile_are_refused():
    with pytest.raises(ValueError, match="'quik' is none of quick"):
        settings_for("quik")


def test_a_database_is_for_profiles_that_are_not_derandomised():
    database = InMemoryExampleDatabase()
    assert database is settings_for("nightly", database=database).database
    with pytest.raises(ValueError, match="derandomised"):
        settings_for("quick", database=database)


# ---------------------------------------------------------------- from outside


def python(script: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


HISTORIES = """
import hashlib
from hypothesis import settings
from pagedkv import KVCacheManager
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.machine import search, settings_for
from pagedkv.stateful.world import World

seen = hashlib.sha256()
class Watched(World):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        seen.update(repr(self.setting.geometry).encode())
    def apply(self, command):
        seen.update(str(command).encode())
        return super().apply(command)
def make(geometry):
    return Watched(KVCacheManager, geometry, requests=4, keeps_released=True)
few = settings(settings_for("quick"), max_examples=30)
for seed in (None, 0):
    judge = Judge(PROPERTIES.values(), offered(make(Geometry(1, 1)).state))
    result = search(make, judge=judge, settings=few, seed=seed)
    print(seed, result.steps, seen.hexdigest())
"""
# Two hundred constants that Hypothesis would draw now and then, were it let.
LOADED_TOO = "\n".join(f"C{n} = {n}" for n in range(100, 300))


@pytest.mark.usefixtures("unmeasured")
def test_the_same_histories_come_whatever_the_hash_seed_ci_and_other_modules(tmp_path):
    (tmp_path / "loaded_too.py").write_text(LOADED_TOO)
    one = python(HISTORIES, tmp_path, PYTHONHASHSEED="1", CI="")
    other = python("import loaded_too\n" + HISTORIES, tmp_path, PYTHONHASHSEED="2", CI="true")
    assert one == other
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".py") == ["loaded_too.py"]
    assert not (tmp_path / ".hypothesis").exists()


# One name only: a subclass beside it would run the machine twice.
MODULE = """
from pagedkv import KVCacheManager
from pagedkv.stateful.machine import machine_for
from pagedkv.stateful.world import World

class Faulty(KVCacheManager):
    def allocate_for_decode(self, req):
        if self.block_size == 1 and req.block_table:
            req.seq_len += 1
        else:
            super().allocate_for_decode(req)

TestGood = machine_for(lambda geometry: World(KVCacheManager, geometry)).TestCase
TestFaulty = machine_for(lambda geometry: World(Faulty, geometry)).TestCase
"""


@pytest.mark.usefixtures("unmeasured")
def test_a_test_case_fails_readably_on_a_fault_and_passes_without(tmp_path):
    (tmp_path / "test_mine.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    shown = done.stdout
    assert "1. prefill(0, 1)" in shown
    assert "2. decode(0)" in shown
    assert "out-of-blocks: decode(0) granted: needed(1) > available(0)" in shown
    assert "in a fresh pool of 1 block(s) of 1 token(s), head_dim 1:" in shown
    assert "state.apply(command=Decode(request=0))" in shown
    assert max(map(len, shown.splitlines())) < 300


def test_a_machine_raises_what_it_found_with_its_trace():
    machine = machine_for(worlds(Boundary), geometries=[Geometry(1, 1)])
    with no_constants_of_others(), pytest.raises(Falsified) as caught:
        run_state_machine_as_test(machine, settings=settings_for("quick"))
    found = caught.value
    assert Geometry(1, 1) == found.geometry
    assert (Prefill(0, 1), Decode(0)) == found.commands
    assert {1} == {len(str(v.step)) for v in found.violations}
