"""The commands, files, settings and recipes of docs/ are run, and show what the pages show."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagedkv.config import read_config
from pagedkv.specs.catalogue import PROPERTIES
from projects import ROOT, environment, pytest_in, write


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, mark: str) -> list[str]:
    """The fenced blocks that stand right after `<!-- mark -->`."""
    pattern = rf"^<!-- {mark} -->\n```\w+\n(.*?)^```$"
    return re.findall(pattern, text, re.MULTILINE | re.DOTALL)


def the(text: str, mark: str) -> str:
    (block,) = blocks(text, mark)
    return block


def settled(text: str) -> list[str]:
    """Its lines without what may differ: numbers of states and tests, and how a proof went."""
    text = re.sub(r"(; \d+ commands?); (proven|one-minimal).*", r"\1", text)
    text = re.sub(r"\[ *\d+%\]|\d+ (items|deselected|selected)|\(\d+ state", "N", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def assert_shows(out: str, shown: str) -> None:
    """Each line that the page shows was printed."""
    printed = set(settled(out))
    assert [line for line in settled(shown) if line not in printed] == [], out


@pytest.fixture
def shell(tmp_path):
    """Runs a line in a folder in which `python`, `pytest` and `pagedkv` are ours."""
    programs = tmp_path / ".programs"
    programs.mkdir()
    for name, start in {"python": "", "pytest": "-m pytest", "pagedkv": "-m pagedkv"}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n', encoding="utf-8")
        program.chmod(0o755)

    def run(line: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = environment(tmp_path) | more
        env["PATH"] = f"{programs}:{env['PATH']}"
        return subprocess.run(
            ["/bin/sh", "-ec", line],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )

    return run


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", PAGES)
def test_every_linked_file_exists(name):
    for target in re.findall(r"\]\(([^)#:]+)\)", page(name)):
        assert ((ROOT / name).parent / target).exists(), target


def test_the_page_of_properties_is_what_the_catalogue_says():
    written = runpy.run_path(str(ROOT / "docs/properties.py"))["page"]()
    assert page("docs/properties.md") == written, "run `python docs/properties.py`"


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"\((\w[\w-]*\.md)\)", page("docs/README.md"))
    assert sorted(["docs/README.md", *(f"docs/{name}" for name in listed)]) == PAGES


# ---------------------------------------------------------------- docs/pytest.md


PYTEST = page("docs/pytest.md")


def test_a_target_without_and_with_a_test_file_is_checked_as_the_page_shows(tmp_path):
    program, *arguments = the(PYTEST, "run: pytest").replace('"', "").strip().split(" ", 1)
    assert program == "pytest"
    target, _, chosen = arguments[0].partition(" -k ")
    test = the(PYTEST, "file: test_allocator.py")
    module = the(page("README.md"), "file: mymodule.py")
    write(tmp_path, {"mymodule.py": module, "test_allocator.py": test})
    picked = ("-k", chosen.removesuffix(" -rs"), "-rs", "--pagedkv-budget", "2")
    ran = pytest_in(tmp_path, *target.split(), *picked)
    assert ran.outcomes() == {
        "pagedkv.mymodule:MyManager::table-cover": "failure",
        "pagedkv.mymodule:MyManager::lockstep": "skipped",
        "test_allocator::test_my_allocator[table-cover]": "xfailed",
        "test_allocator::test_my_allocator[lockstep]": "skipped",
    }
    assert_shows(ran.out, "\n".join(the(PYTEST, "output: pytest").splitlines()[1:]))


def test_the_settings_that_the_page_shows_are_settings(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text(the(PYTEST, "file: pyproject.toml"), encoding="utf-8")
    config = read_config(file)
    assert config.targets == ("mymodule:MyManager",)
    assert config.expected("mymodule:MyManager") == {
        "table-cover": "issue 12",
        "rollback": "issue 13",
    }


# ---------------------------------------------------------------- docs/ci.md


CI = page("docs/ci.md")
RECIPES = ("github", "gitlab")


def recipe(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    return yaml.safe_load(the(CI, f"yaml: {name}"))


def lines_of(name: str) -> list[str]:
    """What each job of a recipe runs, but for installing."""
    if name == "github":
        steps = [step for job in recipe(name)["jobs"].values() for step in job["steps"]]
        lines = [step["run"] for step in steps if "run" in step]
    else:
        lines = [line for job in recipe(name).values() for line in job["script"]]
    return [line for line in lines if line.startswith("pagedkv")]


CHANGE, NIGHT, TESTS = (the(CI, f"shell: {job}").strip() for job in ("change", "night", "tests"))


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_of_the_servers_run_the_lines_of_the_shell(name):
    change, night = lines_of(name)
    assert change == CHANGE
    assert night.replace(' --seed "$SEED"', "") == NIGHT


def test_each_recipe_keeps_what_its_lines_write():
    jobs = recipe("github")["jobs"].values()
    kept = [job["steps"][-1]["with"]["path"].split() for job in jobs]
    kept += [job["artifacts"]["paths"] for job in recipe("gitlab").values()]
    assert kept == [["traces", "report.json"]] * 4


def test_the_seed_of_each_machine_is_an_integer_of_its_own():
    seed = recipe("github")["jobs"]["night"]["env"]["SEED"]
    assert seed == "${{ github.run_number }}${{ matrix.shard }}"
    (export,) = [line for line in recipe("gitlab")["allocator night"]["script"] if "SEED=" in line]
    assert export == 'export SEED="$CI_PIPELINE_IID$CI_NODE_INDEX"'


@pytest.mark.parametrize(
    ("line", "wrote"),
    [
        (CHANGE, "report.json"),
        (NIGHT.replace("nightly", 'nightly --seed "$SEED"'), "report.json"),
        (TESTS, "report.xml"),
    ],
    ids=["change", "night", "tests"],
)
def test_each_line_fails_its_job_for_a_violation_and_leaves_the_trace(shell, tmp_path, line, wrote):
    write(tmp_path, {"mymodule.py": "from allocators_here import Leaks as MyManager\n"})
    done = shell(line, SEED="1023")
    assert done.returncode == 1, done.stdout
    assert (tmp_path / "traces" / "mymodule-MyManager-conservation.jsonl").is_file()
    assert "conservation" in (tmp_path / wrote).read_text(encoding="utf-8")


def test_the_machine_of_the_night_keeps_its_examples(shell, tmp_path):
    test = the(CI, r"file: test_night\.py")
    write(tmp_path, {"mymodule.py": "from allocators_here import Right as MyManager\n"})
    show = "settings = TestMyManager.settings\nprint(settings.max_examples, settings.database)\n"
    (tmp_path / "show.py").write_text(test + show, encoding="utf-8")
    done = shell("python show.py")
    assert done.stdout.startswith("5000 DirectoryBasedExampleDatabase("), done.stdout


# ---------------------------------------------------------------- docs/debugging.md


DEBUGGING = page("docs/debugging.md")


def test_from_a_failing_engine_to_one_command_and_back(shell, tmp_path):
    for name in ("recorder.py", "mymodule.py", "engine.py"):
        (tmp_path / name).write_text(the(DEBUGGING, f"file: {name}"), encoding="utf-8")
    lines = re.findall(r"^<!-- run: (\d) -->\n```console\n(.*?)\n```$", DEBUGGING, re.MULTILINE)
    outputs = blocks(DEBUGGING, "output")
    assert len(lines) == len(outputs) == 4
    for (code, line), shown in zip(lines, outputs, strict=True):
        if line == "pagedkv replay short.jsonl":
            mend(tmp_path / "mymodule.py", the(DEBUGGING, "mend"))
        done = shell(line)
        assert done.returncode == int(code), done.stdout
        assert_shows(done.stdout, shown)


def mend(module: Path, method: str) -> None:
    """Put the method in the place of the one that has its name."""
    old = module.read_text(encoding="utf-8")
    name = method.partition("(")[0]
    start = old.index(f"{name}(")
    end = old.index("\n\n", start) + 1
    module.write_text(old[:start] + method + old[end:], encoding="utf-8")


def test_every_property_has_its_paragraph_and_nothing_else_has():
    told = re.findall(r"^### `(.+)`\n\n(.)", DEBUGGING, re.MULTILINE)
    assert sorted(name for name, _ in told) == sorted(PROPERTIES)
    assert all(first not in "#\n" for _, first in told)
