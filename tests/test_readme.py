"""Every command and every example of the README is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pagedkv.stateful import profiles

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(mark: str) -> list[str]:
    """The fenced blocks that stand right after `<!-- mark -->`."""
    pattern = rf"^<!-- {re.escape(mark)} -->\n```\w+\n(.*?)^```$"
    return re.findall(pattern, TEXT, re.MULTILINE | re.DOTALL)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # What these commands cover is covered elsewhere; traced, a campaign takes three times as long.
    kept = {k: value for k, value in os.environ.items() if not k.startswith("COVERAGE_PROCESS_")}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=kept, timeout=300
    )


@pytest.fixture
def example(tmp_path):
    (source,) = blocks("file: mymodule.py")
    (tmp_path / "mymodule.py").write_text(source, encoding="utf-8")
    return tmp_path


def test_the_example_breaks_as_the_readme_shows(example):
    (command,) = blocks("run: violated")
    program, *arguments = command.split()
    assert program == "pagedkv"
    done = run([sys.executable, "-m", "pagedkv", *arguments], example)
    assert done.returncode == 1, done.stderr
    (shown,) = blocks("output")
    printed = {without_counts(line) for line in done.stdout.splitlines()}
    for line in shown.splitlines():
        assert without_counts(line) in printed
    assert "pagedkv.assert_holds(" in done.stdout


def test_the_picture_is_of_the_example(example):
    check = [sys.executable, "-m", "pagedkv", "check", "mymodule:MyManager", "--budget", "10"]
    run([*check, "--property", "table-cover", "--traces", "traces"], example)
    (trace,) = (example / "traces").iterdir()
    done = run(
        [sys.executable, "-m", "pagedkv", "replay", str(trace), "--svg", "picture.svg"], example
    )
    assert done.returncode == 1, done.stderr
    (shown,) = re.findall(r"!\[[^]]*\]\((.*?)\)", TEXT)
    assert (README.parent / shown).read_text() == (example / "picture.svg").read_text()


def without_counts(line: str) -> str:
    return re.sub(r"\d+ state\(s\) searched", "N states", line)


@pytest.mark.usefixtures("unmeasured")
def test_the_example_is_right_once_it_is_mended(example):
    module = example / "mymodule.py"
    wrong = "(req.seq_len + 1) % self.block_size == 1"
    right = "req.seq_len == len(req.block_table) * self.block_size"
    source = module.read_text(encoding="utf-8")
    assert source.count(wrong) == 1
    module.write_text(source.replace(wrong, right), encoding="utf-8")
    pool = ["mymodule:MyManager", "--blocks", "4", "--block-size", "1"]
    done = run([sys.executable, "-m", "pagedkv", "explore", *pool], example)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("source", blocks("run-python"))
def test_each_python_example_runs(source, monkeypatch):
    monkeypatch.setattr(profiles, "FIXED", profiles.FIXED[:6])  # the others are tested elsewhere
    exec(compile(source, str(README), "exec"), {"__name__": "example"})


def test_the_hypothesis_example_passes_under_pytest(tmp_path):
    (source,) = blocks("pytest")
    (tmp_path / "test_example.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_two_commands_are_there_and_alone():
    for mark in ("check-command", "test-command"):
        (command,) = blocks(mark)
        assert command.count("\n") == 1
        assert "-c constraints.txt" in command


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (README.parent / target).exists(), target
