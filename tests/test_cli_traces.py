"""Traces on the command line: written by check, run again, cut down; and one pool explored."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from pagedkv import api, cli
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.model import Geometry
from pagedkv.stateful import onepool, shrink
from pagedkv.stateful.report import Counterexample, Coverage, Report, Shortest, TargetReport
from pagedkv.stateful.traces import Trace, read_trace, write_trace

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
SOURCE = """
    from pagedkv.reference import KVCacheManager

    class Right(KVCacheManager):
        pass

    class Leaky(KVCacheManager):
        def release_request(self, req):
            super().release_request(req)
            self._free.pop()

    class Small(KVCacheManager):
        def __init__(self, num_blocks, block_size, head_dim):
            if num_blocks > 4:
                raise ValueError("at most 4 blocks")
            super().__init__(num_blocks, block_size, head_dim)
"""
HISTORY = (Prefill(0, 1), Decode(0), Prefill(1, 1), Release(1), Release(0))
BROKEN = Trace("allocs:Leaky", Geometry(4, 1), HISTORY, "conservation")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of its own, with allocators to check."""
    (tmp_path / "allocs.py").write_text(dedent(SOURCE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "allocs", raising=False)
    write_trace(tmp_path / "broken.jsonl", BROKEN)
    return tmp_path


def run(capsys, *arguments):
    """Exit code and both streams of a command."""
    code = cli.main(list(arguments))
    return (code, *capsys.readouterr())


def refused(capsys, *arguments):
    """The one line of a command that is refused."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


# ---------------------------------------------------------------- replay


def test_a_history_that_still_breaks_is_failed_and_shown(capsys):
    code, out, err = run(capsys, "replay", "broken.jsonl")
    assert (code, err) == (1, "")
    assert out.startswith("FAILED: allocs:Leaky breaks conservation, after 4 of 5 commands\n")
    assert (
        "    free(1) + held(2) + cached(0) != usable(4): leak, block 3 belongs to nobody\n" in out
    )
    assert "pool of 4 blocks of 1 token; 4 commands; as recorded" in out
    assert "   4  release(1)" in out
    assert out.endswith("Next: pagedkv shrink broken.jsonl, for a shorter history of this\n")


def test_a_history_that_breaks_no_more_is_fixed(capsys):
    code, out, _ = run(capsys, "replay", "broken.jsonl", "--target", "allocs:Right")
    assert (code, out) == (0, "FIXED: allocs:Right no longer breaks conservation; 5 commands\n")


def test_nothing_is_drawn_of_a_history_that_breaks_no_more_and_it_is_said(capsys):
    arguments = ["replay", "broken.jsonl", "--target", "allocs:Right", "--svg", "pool.svg"]
    code, _, err = run(capsys, *arguments)
    assert (code, err) == (0, "--svg pool.svg: nothing to draw: it no longer breaks\n")
    assert not Path("pool.svg").exists()


def test_a_history_without_an_expectation_breaks_nothing(capsys):
    write_trace(Path("t.jsonl"), Trace("reference", Geometry(4, 1), HISTORY))
    code, out, _ = run(capsys, "replay", "t.jsonl")
    assert (code, out) == (0, "FIXED: reference breaks nothing; 5 commands\n")


def test_several_traces_are_one_line_each_and_the_worst_counts(capsys):
    write_trace(Path("fine.jsonl"), Trace("reference", Geometry(4, 1), HISTORY))
    fixed = "fine.jsonl: FIXED: reference breaks nothing; 5 commands\n"
    failed = "broken.jsonl: FAILED: allocs:Leaky breaks conservation, after 4 of 5 commands\n"
    again = "Next: pagedkv replay broken.jsonl, for what happens in it\n"
    lost = "Error: no.jsonl: can't be read: No such file or directory\n"
    assert run(capsys, "replay", "fine.jsonl", "fine.jsonl") == (0, fixed + fixed, "")
    code, out, err = run(capsys, "replay", "fine.jsonl", "broken.jsonl", "no.jsonl")
    assert (code, out, err) == (1, fixed + failed + again, lost)
    code, out, err = run(capsys, "replay", "no.jsonl", "fine.jsonl")
    assert (code, out, err) == (2, fixed, lost)


def test_of_several_traces_none_is_drawn(capsys):
    line = refused(capsys, "replay", "broken.jsonl", "broken.jsonl", "--svg", "a.svg")
    assert line == "--svg a.svg: draws one history; give one trace"


def test_another_property_than_the_recorded_one_is_failed_too(capsys):
    write_trace(Path("t.jsonl"), Trace("allocs:Leaky", Geometry(4, 1), HISTORY, "contents"))
    code, out, _ = run(capsys, "replay", "t.jsonl")
    assert code == 1
    assert "breaks conservation first, where contents was recorded, after 4 of 5" in out


def test_a_trace_that_can_not_be_read_is_one_line(capsys):
    assert refused(capsys, "replay", "no.jsonl").startswith("no.jsonl: can't be read: No such")
    Path("bad.jsonl").write_text('{"pagedkv-trace": 9}\n', encoding="utf-8")
    for command in ("replay", "shrink"):
        assert refused(capsys, command, "bad.jsonl").startswith("bad.jsonl:1: version 9 is newer")


def test_a_command_that_makes_no_sense_is_named_with_its_line(capsys):
    history = (Prefill(0, 1), Release(0), Decode(0))
    write_trace(Path("t.jsonl"), Trace("reference", Geometry(4, 1), history))
    line = refused(capsys, "replay", "t.jsonl")
    assert line.startswith("t.jsonl:4: decode(0) makes no sense where it stands: a call before it")


@pytest.mark.usefixtures("unmeasured")
def test_a_pool_that_the_target_refuses_is_one_line(capsys):
    write_trace(Path("t.jsonl"), Trace("allocs:Small", Geometry(5, 1), HISTORY))
    assert "t.jsonl: can't be replayed: " in refused(capsys, "replay", "t.jsonl")
    assert "at most 4 blocks" in refused(capsys, "shrink", "t.jsonl")


def test_a_target_that_is_not_there_is_one_line_and_says_whose_it_is(capsys):
    write_trace(Path("t.jsonl"), Trace("nosuch:M", Geometry(5, 1), HISTORY))
    line = refused(capsys, "replay", "t.jsonl")
    assert line.startswith("t.jsonl:1: target 'nosuch:M': no module nosuch")
    assert line.endswith("; name another one with --target")
    line = refused(capsys, "replay", "broken.jsonl", "--target", "refrence")
    assert line.startswith("target 'refrence': no such target")


def test_a_program_that_a_trace_names_is_not_run(capsys):
    write_trace(Path("t.jsonl"), Trace("exec:touch ran", Geometry(4, 1), HISTORY))
    line = refused(capsys, "replay", "t.jsonl")
    assert line.startswith("t.jsonl:1: its target is a program, 'exec:touch ran'; if you want")
    assert not Path("ran").exists()


# ---------------------------------------------------------------- shrink


@pytest.mark.usefixtures("unmeasured")
def test_a_history_is_cut_down_and_written_as_a_trace(capsys):
    code, out, err = run(capsys, "shrink", "broken.jsonl", "-o", "short.jsonl")
    assert (code, err) == (1, "")
    assert out.startswith("allocs:Leaky: conservation, from 5 commands down to 2 commands\n")
    assert "2 commands; proven shortest" in out
    assert "def test_conservation_holds_for_allocs_leaky():" in out
    trace = read_trace(Path("short.jsonl"))
    short = (Prefill(0, 1), Release(0))
    assert trace == Trace("allocs:Leaky", Geometry(1, 1), short, "conservation")
    assert run(capsys, "replay", "short.jsonl")[0] == 1


def test_the_short_history_can_go_to_stdout_alone(capsys):
    code, out, err = run(capsys, "shrink", "broken.jsonl", "-o", "-")
    assert code == 1
    assert json.loads(out.splitlines()[0])["breaks"] == "conservation"
    assert "down to 2 commands" in err


def test_a_history_that_breaks_no_more_is_not_cut_down(capsys, monkeypatch):
    monkeypatch.setattr(shrink, "FIXED_SECONDS", 0.1)
    arguments = ["shrink", "broken.jsonl", "--target", "allocs:Right", "-o", "short.jsonl"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert out == (
        "FIXED: allocs:Right no longer breaks conservation; 5 commands, nothing to cut down\n"
    )
    assert not Path("short.jsonl").exists()


def test_a_place_that_can_not_be_written_is_refused_before_the_work(capsys):
    line = refused(capsys, "shrink", "broken.jsonl", "-o", "no/short.jsonl")
    assert "--output" in line
    assert "there is no folder" in line


def test_what_could_be_cut_further_is_said_to_be(capsys, monkeypatch):
    example = shrink.Shrunk(
        Counterexample("contents", "S.", "e", "m", Geometry(2, 1), HISTORY * 20, Shortest(1)),
        5,
        "interrupted",
    )
    monkeypatch.setattr(shrink, "shrink", lambda *_, **__: example)
    code, out, _ = run(capsys, "shrink", "broken.jsonl")
    assert code == 1
    assert "100 commands; may be cut further: interrupted" in out
    assert "As a test" not in out


# ---------------------------------------------------------------- check --traces


def example(prop):
    return Counterexample(prop, "S.", "e", "m", Geometry(4, 1), HISTORY, Shortest(1))


@pytest.fixture
def found(monkeypatch):
    """A check that finds something."""
    coverage = Coverage(1, 1, 1, exhausted=True)
    names = ("contents", "conservation")

    def check_targets(targets, options, on_progress):
        return Report(
            tuple(
                TargetReport(
                    target.name, "violated", None, (), tuple(map(example, names)), coverage, 1.0
                )
                for target in targets
            )
        )

    monkeypatch.setattr(api, "check_targets", check_targets)


@pytest.mark.usefixtures("unmeasured")
def test_check_writes_each_counterexample_as_a_trace(found, capsys):
    code, out, _ = run(capsys, "check", "allocs:Leaky", "--traces", "new/traces")
    assert code == 1
    names = ["allocs-Leaky-conservation.jsonl", "allocs-Leaky-contents.jsonl"]
    assert sorted(path.name for path in Path("new/traces").iterdir()) == names
    trace = read_trace(Path("new/traces/allocs-Leaky-conservation.jsonl"))
    assert trace == BROKEN
    assert "Next: pagedkv replay new/traces/allocs-Leaky-contents.jsonl, once you" in out
    assert out.endswith("2 traces in new/traces\n")
    assert run(capsys, "replay", f"new/traces/{names[0]}")[0] == 1


def test_a_folder_for_traces_that_can_not_be_is_refused_before_the_run(found, capsys):
    Path("file").write_text("", encoding="utf-8")
    assert refused(capsys, "check", "reference", "--traces", "file") == (
        "--traces file: can't be written: is a file; name a folder"
    )
    assert "can't be written: Not a directory" in refused(
        capsys, "check", "reference", "--traces", "file/more"
    )


def test_a_trace_that_can_not_be_written_is_one_line_after_the_report(found, capsys, monkeypatch):
    def full(path, trace):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pagedkv.stateful.traces.write_trace", full)
    code, out, err = run(capsys, "check", "reference", "--traces", "t")
    assert code == 2
    assert "reference: VIOLATED" in out
    assert err.endswith("reference-contents.jsonl: can't be written: No space left on device\n")


# ---------------------------------------------------------------- explore


def test_one_pool_is_exhausted(capsys):
    arguments = ["explore", "reference", "--blocks", "2", "--block-size", "1", "--requests", "2"]
    code, out, _ = run(capsys, *arguments, "--json", "out.json")
    assert code == 0
    assert re.match(r"reference: PASSED, \d+ states, \d+ transitions, exhausted, ", out)
    assert "  searched: exactly a pool of 2 block(s) of 1 token(s), 2 request(s)\n" in out
    (target,) = json.loads(Path("out.json").read_text(encoding="utf-8"))["targets"]
    assert target["coverage"]["exhausted"] is True
    assert {p["verdict"] for p in target["properties"]} == {"passed", "not_applicable"}


def test_a_search_to_a_depth_passes_if_it_came_so_far(capsys):
    code, out, _ = run(capsys, "explore", "reference", "--depth", "2")
    assert code == 0
    assert "stopped (depth limit of 2)" in out


@pytest.mark.usefixtures("unmeasured")
def test_what_one_pool_shows_is_told_as_check_does(capsys):
    code, out, _ = run(capsys, "explore", "allocs:Leaky", "--json", "-")
    assert code == 1
    (target,) = json.loads(out)["targets"]
    assert target["verdict"] == "violated"
    assert target["counterexamples"][0]["steps"] == 2
    code, out, _ = run(capsys, "explore", "allocs:Leaky")
    assert "allocs:Leaky: VIOLATED (1 violation)" in out
    assert "   2  release(0)" in out


def test_a_pool_that_can_not_be_is_one_line(capsys):
    assert "at most 4 blocks" in refused(capsys, "explore", "allocs:Small", "--blocks", "5")
    assert "no such target" in refused(capsys, "explore", "refrence")
    assert "--blocks" in refused(capsys, "explore", "reference", "--blocks", "0")


def test_a_declared_impossible_pool_is_one_line(capsys, here):
    (here / "sized.py").write_text(
        "from pagedkv import Declarations\nfrom pagedkv.reference import KVCacheManager\n"
        "class M(KVCacheManager):\n"
        "    declares = Declarations(block_sizes=(16,), because={'block_sizes': 'test'})\n",
        encoding="utf-8",
    )
    line = refused(capsys, "explore", "sized:M", "--block-size", "2")
    assert "it declares that it can't have 3 block(s) of 2 token(s)" in line


def test_a_search_that_was_interrupted_is_unknown(capsys, monkeypatch):
    def interrupt(_progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(onepool, "_paced", lambda _tell: interrupt)
    code, out, _ = run(capsys, "explore", "reference", "--depth", "3")
    assert code == 2
    assert "reference: UNKNOWN" in out
    assert "stopped (interrupted)" in out


# Where the tests run in the background SIGINT is ignored, and children inherit that.
HEARING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("pagedkv", run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to send")
def test_ctrl_c_ends_a_long_search_with_what_is_known():
    arguments = ["explore", "reference", "--blocks", "8", "--block-size", "4"]
    with subprocess.Popen(
        [sys.executable, "-c", HEARING, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as child:
        try:
            assert child.stderr is not None
            assert child.stderr.readline() == "reference: started\n"
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert "Traceback" not in err
    assert (child.returncode, "stopped (interrupted)" in out) == (2, True)
