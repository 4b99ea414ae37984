"""--isolate: a call that ends its process is an answer, with its shortest history."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import pagedkv
from pagedkv.api import Options, check_targets
from pagedkv.driver.client import HUNG_SECONDS, Driver
from pagedkv.loading import BadTarget
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.steps import Raised
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.report import Shortest
from pagedkv.stateful.world import World
from pagedkv.targets import Target, isolated, resolve

HERE = __file__.rpartition("/")[0]
LINUX = sys.platform == "linux"


@pytest.fixture(autouse=True)
def found_by_servers(monkeypatch):
    """The processes look modules up in the current folder, as users have theirs."""
    monkeypatch.chdir(HERE)


POOLS = (Geometry(1, 1), Geometry(2, 1))


def explored(name: str, limits: Limits) -> Exploration:
    target = isolated(f"misbehaving:{name}")
    assert isinstance(target, Target)
    offers = offered(*World(target.factory, POOLS[0]).states)
    result, _ = explore(
        lambda geometry: World(target.factory, geometry, requests=2),
        POOLS,
        lambda: Judge(PROPERTIES.values(), offers),
        limits,
    )
    return result


def test_a_call_that_hangs_is_an_answer_too():
    driver = Driver([sys.executable, "-m", "pagedkv.driver.server", "misbehaving:Hangs"], seconds=3)
    world = World(driver, Geometry(1, 1))
    world.apply(Prefill(0, 1))
    step = world.apply(Release(0))
    assert isinstance(step.outcome, Raised)
    assert step.outcome.kind == "NoAnswer"
    assert HUNG_SECONDS <= driver.seconds < 3
    other = World(driver, Geometry(1, 1))
    other.apply(Prefill(0, 1))
    again = other.apply(Release(0)).outcome
    assert isinstance(again, Raised)
    less = f"no answer within {driver.seconds:g} s"
    assert again.message == f"{less}; one before had not come within 3 s"
    driver.close()


THREADED = ["threaded:Pooled", "threaded:Looped", "threaded_later:MakesItsPool"]
NATIVE = pytest.param(
    "threaded_later:Native", marks=pytest.mark.skipif(not LINUX, reason="threads can't be seen")
)


@pytest.mark.usefixtures("children_unmeasured")
@pytest.mark.parametrize("name", [*THREADED, NATIVE])
def test_threads_of_a_target_are_there_when_it_is_called(name):
    command = [sys.executable, "-m", "pagedkv.driver.server", name]
    driver = Driver(command, seconds=3)
    assert str(World(driver, Geometry(1, 1)).apply(Prefill(0, 1)).outcome) == "done"
    driver.close()


@pytest.mark.usefixtures("children_unmeasured")
def test_a_target_with_threads_that_dies_is_told_so_and_goes_on_in_another_process():
    driver = Driver([sys.executable, "-m", "pagedkv.driver.server", "threaded:Dies"], seconds=3)
    world = World(driver, Geometry(1, 1))
    world.apply(Prefill(0, 1))
    outcome = world.apply(Release(0)).outcome
    assert isinstance(outcome, Raised)
    assert (outcome.kind, outcome.message) == ("Died", "its process died (exit code 7)")
    assert str(World(driver, Geometry(1, 1)).apply(Prefill(0, 1)).outcome) == "done"
    driver.close()


@pytest.mark.usefixtures("children_unmeasured")
def test_a_target_s_own_interrupt_and_exit_are_answers():
    for name, kind in (("Interrupts", "KeyboardInterrupt"), ("Leaves", "SystemExit")):
        target = resolve(f"isolate:misbehaving:{name}")
        assert isinstance(target, Target)
        world = World(target.factory, Geometry(1, 1))
        world.apply(Prefill(0, 1))
        outcome = world.apply(Release(0)).outcome
        assert isinstance(outcome, Raised)
        assert outcome.kind == kind


@pytest.mark.usefixtures("children_unmeasured")
def test_what_a_target_prints_is_not_in_the_protocol():
    target = resolve("isolate:misbehaving:Prints")
    assert isinstance(target, Target)
    world = World(target.factory, Geometry(1, 1))
    assert str(world.apply(Prefill(0, 1)).outcome) == "done"


@pytest.mark.usefixtures("unmeasured")
def test_a_good_target_keeps_its_name_and_is_not_accused():
    assert isolated("misbehaving:Good").name == "misbehaving:Good"
    result = explored("Good", Limits(depth=2))
    assert (result.found, result.doubts) == ({}, ())


@pytest.mark.usefixtures("unmeasured")
def test_a_call_that_ends_its_process_is_a_violation_that_is_proven_shortest(monkeypatch):
    options = Options(budget=150.0, isolate=True, properties=("answered",))
    target = isolated("misbehaving:Dies")
    plan = replace(options.plan(), until="first")
    monkeypatch.setattr(Options, "plan", lambda _: plan)
    (one,) = check_targets([target], options).targets
    assert (one.target, one.verdict) == ("misbehaving:Dies", "violated")
    (example,) = one.counterexamples
    assert example.commands == (Prefill(0, 2), Decode(0))
    assert "its process died (exit code 7)" in example.message
    assert isinstance(example.proof, Shortest)
    assert len(example.frames) == 3


def test_a_history_that_kills_can_stand_in_a_test():
    with pytest.raises(AssertionError, match=r"its process died \(exit code 7\)"):
        pagedkv.assert_holds(
            "isolate:misbehaving:Dies",
            [
                {"op": "prefill", "request": 0, "tokens": 2},
                {"op": "decode", "request": 0},
            ],
            num_blocks=3,
            block_size=1,
        )


@pytest.mark.usefixtures("children_unmeasured")
@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("isolate:", "isolates nothing"),
        ("isolate:exec:./driver", "isolates nothing"),
        ("isolate:misbehaving:Goood", "has no attribute Goood; did you mean Good"),
        ("isolate:no_such_module:X", "no module no_such_module"),
    ],
)
def test_a_target_that_can_t_be_isolated_gets_one_line(spec, line):
    with pytest.raises(BadTarget) as caught:
        resolve(spec)
    assert line in str(caught.value)
    assert str(caught.value).startswith(f"target {spec!r}: ")
    assert "\n" not in str(caught.value)


def test_the_command_line_runs_none_of_the_target_s_code(tmp_path):
    (tmp_path / "deadly.py").write_text("import os\nos._exit(7)\n", encoding="utf-8")
    command = [sys.executable, "-m", "pagedkv", "check", "deadly:X", "--isolate"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "its process died (exit code 7)" in done.stderr
