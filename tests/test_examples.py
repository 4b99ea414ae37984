"""The drivers in examples/: the right ones pass, the planted faults are proven shortest."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pagedkv import targets
from pagedkv.api import subject
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.specs.commands import Command
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import PROFILES
from pagedkv.stateful.report import Shortest, TargetReport

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SMALL = replace(PROFILES["quick"], depth=3, examples=20, steps=30)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is here")


def python_driver(*arguments: str) -> str:
    return "exec:" + shlex.join([sys.executable, str(EXAMPLES / "driver.py"), *arguments])


def c_driver(folder: Path, *flags: str) -> str:
    assert COMPILER is not None
    program = folder / "driver"
    warnings = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    command = [COMPILER, *warnings, *flags, "-o", str(program), str(EXAMPLES / "driver.c")]
    subprocess.run(command, check=True)
    return "exec:" + shlex.quote(str(program))


def report_of(target: str) -> TargetReport:
    return run_campaign(subject(targets.resolve(target)), Plan(SMALL, 8.0))


def assert_shortest(report: TargetReport, prop: str, *commands: Command) -> None:
    assert report.verdict == "violated"
    found = {example.property: example for example in report.counterexamples}
    assert found[prop].commands == commands
    assert isinstance(found[prop].proof, Shortest)


@pytest.mark.usefixtures("unmeasured")
def test_the_python_driver_passes():
    report = report_of(python_driver())
    assert (report.verdict, report.reason) == ("passed", None)
    assert report.coverage.doubts == ()


@pytest.mark.usefixtures("unmeasured")
def test_the_fault_of_the_python_driver_is_found_in_two_commands():
    report = report_of(python_driver("--fault"))
    assert_shortest(report, "table-cover", Prefill(0, 1), Decode(0))


@pytest.mark.usefixtures("unmeasured")
@needs_compiler
def test_the_c_driver_passes(tmp_path):
    report = report_of(c_driver(tmp_path))
    assert (report.verdict, report.reason) == ("passed", None)
    assert report.coverage.doubts == ()


@pytest.mark.usefixtures("unmeasured")
@needs_compiler
def test_the_fault_of_the_c_driver_is_found_in_one_command(tmp_path):
    report = report_of(c_driver(tmp_path, "-DFAULT"))
    assert_shortest(report, "conservation", Prefill(0, 2))


@pytest.mark.usefixtures("unmeasured")
def test_the_command_line_checks_a_program_and_keeps_a_trace_that_can_be_run_again(tmp_path):
    target, traces, file = python_driver("--fault"), tmp_path / "traces", tmp_path / "report.json"
    pagedkv = [sys.executable, "-m", "pagedkv"]
    options = ["--budget", "4", "--json", str(file), "--traces", str(traces)]
    checked = subprocess.run([*pagedkv, "check", target, *options], capture_output=True, text=True)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    (one,) = json.loads(file.read_text(encoding="utf-8"))["targets"]
    assert (one["target"], one["verdict"]) == (target, "violated")
    trace = str(min(traces.glob("*table-cover.jsonl")))
    again = [*pagedkv, "replay", trace, "--target"]
    assert subprocess.run([*again, target], capture_output=True).returncode == 1
    assert subprocess.run([*again, python_driver()], capture_output=True).returncode == 0
