"""The commands, files, settings and recipes of docs/ are run, and show what the pages show."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

import pagedkv
from counting import counted
from pagedkv.config import read_config
from pagedkv.specs.abilities.core import KINDS
from pagedkv.specs.catalogue import ABILITIES, PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Need
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.profiles import PROFILES
from pagedkv.stateful.subject import Subject
from pagedkv.tolerances import over
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
FINDINGS = sorted(path.name for path in (ROOT / "docs/findings").glob("*.md"))


@pytest.mark.parametrize("name", [*PAGES, *(f"docs/findings/{name}" for name in FINDINGS)])
def test_every_linked_file_exists(name):
    for target in re.findall(r"\]\(([^)#:]+)\)", page(name)):
        assert ((ROOT / name).parent / target).exists(), target


def test_the_page_of_properties_is_what_the_catalogue_says():
    written = runpy.run_path(str(ROOT / "docs/properties.py"))["page"]()
    assert page("docs/properties.md") == written, "run `python docs/properties.py`"


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"\((\w[\w-]*\.md)\)", page("docs/README.md"))
    assert sorted(["docs/README.md", *(f"docs/{name}" for name in listed)]) == PAGES


def test_every_finding_is_in_their_table_of_contents():
    listed = re.findall(
        r"^- \[([\w-]+\.md)\]\(\1\): ", page("docs/findings/README.md"), re.MULTILINE
    )
    assert sorted(["README.md", *listed]) == FINDINGS


def test_the_page_of_properties_has_every_wrong_use():
    rows = re.findall(
        r"^\| `([\w-]+)` \| (\w+) \| .+ \|$", page("docs/properties.md"), re.MULTILINE
    )
    assert rows == [(kind, kind.partition("-")[0]) for kind in KINDS]


# ---------------------------------------------------------------- docs/your-allocator.md


YOURS = page("docs/your-allocator.md")


def rows_of(cls: type) -> list[tuple[list[str], str, str]]:
    """The names, the default and the words of each row of its table."""
    _, _, rest = YOURS.partition(f"<!-- fields: {cls.__name__} -->\n")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    cells = [re.fullmatch(r"\| (.+?) \| (.+?) \| (.+) \|", line) for line in table]
    return [(re.findall(r"`(\w+)`", row[1]), row[2], row[3]) for row in cells if row]


@pytest.mark.parametrize("cls", [pagedkv.Snapshot, pagedkv.Declarations])
def test_each_field_has_its_row_with_the_words_of_the_docstring(cls):
    rows = rows_of(cls)
    assert sorted(name for names, _, _ in rows for name in names) == sorted(
        field.name for field in fields(cls)
    )
    # `because` comes last in its table, and first in its docstring.
    told = [f"{', '.join(names)}: {words}" for names, _, words in rows if names != ["because"]]
    said = " ".join(cls.__doc__.split())
    assert said.endswith(" ".join(told))
    assert all(f"`because` {words}" in said for names, _, words in rows if names == ["because"])


@pytest.mark.parametrize("cls", [pagedkv.Snapshot, pagedkv.Declarations])
def test_each_field_has_its_default(cls):
    default = {field.name: default_of(field) for field in fields(cls)}
    names_in_use = {"Raises": pagedkv.Raises, "needed": MISSING}
    for names, shown, _ in rows_of(cls):
        told = re.findall(r"`(.+?)`|(needed)", shown)
        values = [eval(code or word, names_in_use) for code, word in told]
        assert dict(zip(names, values, strict=True)) == {name: default[name] for name in names}


def default_of(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    """The module of the example."""
    for name in ("theirs.py", "adapter.py", "shorter.py"):
        (tmp_path / name).write_text(the(YOURS, f"file: {name}"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("adapter")
    for name in ("theirs", "adapter", "shorter"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("unmeasured")
def test_the_adapter_of_the_example_passes(adapter):
    report = pagedkv.check(adapter.Adapter, budget=8)
    assert report.passed, report.to_json()


@pytest.mark.usefixtures("adapter")
def test_the_shorter_adapter_is_exhausted_by_its_own_key_and_copies():
    shorter = importlib.import_module("shorter").Shorter
    needs = frozenset({Need.FREE_LIST, Need.HANDLE_TABLES})
    assert counted(shorter, Geometry(3, 2), needs) == (14, 66)


@pytest.mark.parametrize("name", ["out_of_blocks", "tables_outside", "min_blocks", "wrong_use"])
def test_each_declaration_of_the_example_needs_its_reason(adapter, name):
    declared = {
        field.name: getattr(adapter.Adapter.declares, field.name)
        for field in fields(pagedkv.Declarations)
    }
    del declared["because"][name]
    with pytest.raises(ValueError, match=f"{name} = .* is declared without a reason"):
        pagedkv.Declarations(**declared)


def test_what_the_page_says_of_leaving_something_out(adapter):
    base: Any = adapter.Adapter

    class NotDeclared(base):  # type: ignore[misc]
        declares = pagedkv.Declarations(tables_outside=True, because={"tables_outside": "here"})

    class NotReserved(base):  # type: ignore[misc]
        def snapshot(self):
            seen = super().snapshot()
            return pagedkv.Snapshot(
                block_tables=seen.block_tables,
                seq_lens=seen.seq_lens,
                free_blocks=seen.free_blocks,
            )

    pool: Any = {"num_blocks": 2, "block_size": 1}
    prefill = {"op": "prefill", "request": 0, "tokens": 2}
    pagedkv.assert_holds(adapter.Adapter, [prefill], **pool)
    with pytest.raises(AssertionError, match=r"declare Returns\(False\)"):
        pagedkv.assert_holds(NotDeclared, [prefill], property="out-of-blocks", **pool)
    with pytest.raises(AssertionError, match="leak, block 0 belongs to nobody"):
        pagedkv.assert_holds(NotReserved, [], property="conservation", **pool)


def test_the_declarations_from_outside_are_declarations(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text(the(YOURS, "file: pyproject.toml"), encoding="utf-8")
    table = read_config(file).tolerances["mymodule:MyManager"]
    declared = over(pagedkv.Declarations(), table)
    assert (declared.refuses_early, declared.late_calls) == (True, 2)
    assert declared.out_of_blocks == (
        pagedkv.Raises(MemoryError, "pool"),
        pagedkv.Returns(False),
        pagedkv.Returns(None),
    )


# ---------------------------------------------------------------- docs/abilities.md


ABLE = page("docs/abilities.md")
FORKED = [
    {"op": "prefill", "request": 0, "tokens": 1},
    {"op": "fork", "request": 1, "parent": 0},
    {"op": "decode", "request": 0},
]


@pytest.fixture
def forking(tmp_path, monkeypatch):
    """The class of the example, and the one that leaves the line out."""
    source = the(ABLE, "file: forking.py")
    for name, text in {
        "forking": source,
        "leaking": source.replace("self.drop(tail)", "pass"),
    }.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield [importlib.import_module(name).Forking for name in ("forking", "leaking")]
    for name in ("forking", "leaking"):
        sys.modules.pop(name)


@pytest.mark.usefixtures("unmeasured")
def test_the_forking_example_passes_every_history_of_the_fork_scope(forking):
    right, _ = forking
    declared = right.declares
    (scope,) = [s for s in PROFILES["quick"].scopes(declared, pair=False) if s.name == "fork"]
    done, judge = explore(
        lambda geometry: Subject("forking", (right,)).world(scope, geometry),
        scope.geometries,
        lambda: Judge(PROPERTIES.values(), offered(*Subject("f", (right,)).probe().states)),
        Limits(),
    )
    assert (done.found, done.exhausted, done.doubts) == ({}, True, ())
    assert judge.evaluations["tail-copied"] == judge.evaluations["block-shared"] == 1


def test_the_forking_example_leaks_without_the_line_that_the_page_names(forking):
    right, leaking = forking
    pool: Any = {"num_blocks": 2, "block_size": 2, "property": "ref-counts"}
    pagedkv.assert_holds(right, FORKED, **pool)
    *_, says = the(ABLE, r"shows: without self.drop\(tail\)").splitlines()
    with pytest.raises(AssertionError, match=re.escape(says.strip())):
        pagedkv.assert_holds(leaking, FORKED, **pool)


def test_the_page_of_abilities_has_them_all():
    named = re.findall(r"^\| `(\w+)` \| .+ \| .+ \| .+ \|$", ABLE, re.MULTILINE)
    assert named == [ability.id for ability in ABILITIES if ability.id != "core"]


# ---------------------------------------------------------------- docs/pytest.md


PYTEST = page("docs/pytest.md")
EXPECTED = {"table-cover", "out-of-blocks", "contents"}
"""What the fault of the README's example breaks."""


@pytest.mark.usefixtures("unmeasured")
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
        "out-of-blocks": "issue 12",
        "contents": "issue 12",
    }


@pytest.fixture
def as_the_page_says(tmp_path):
    """Its test file and its settings beside the allocator, in one folder."""
    files = {name: the(PYTEST, f"file: {name}") for name in ("test_allocator.py", "pyproject.toml")}
    write(tmp_path, {"mymodule.py": the(page("README.md"), "file: mymodule.py"), **files})
    return tmp_path


@pytest.mark.usefixtures("unmeasured")
def test_the_test_file_and_the_settings_go_together(as_the_page_says):
    # Of the profile, the smaller: what the settings' own would try takes a slow machine a minute.
    outcomes = pytest_in(as_the_page_says, "--pagedkv-profile", "quick").outcomes()
    broken = {f"test_allocator::test_my_allocator[{name}]" for name in EXPECTED}
    assert {name for name, outcome in outcomes.items() if outcome == "xfailed"} == broken
    assert set(outcomes.values()) <= {"passed", "skipped", "xfailed"}, outcomes


@pytest.mark.usefixtures("unmeasured")
def test_the_test_file_does_without_the_settings(as_the_page_says):
    (as_the_page_says / "pyproject.toml").unlink()
    outcomes = pytest_in(as_the_page_says).outcomes()
    assert set(outcomes.values()) == {"passed", "skipped", "xfailed"}, outcomes


@pytest.mark.usefixtures("unmeasured")
def test_a_check_with_the_settings_passes_and_keeps_traces(as_the_page_says, shell):
    done = shell("pagedkv check --profile quick")
    assert done.returncode == 0, done.stdout
    kept = {file.name for file in (as_the_page_says / "traces").iterdir()}
    assert kept == {f"mymodule-MyManager-{name}.jsonl" for name in EXPECTED}


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


def test_the_shards_of_the_server_are_all_there_and_joined():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    jobs = yaml.safe_load(the(CI, "yaml: shards"))
    numbers = jobs["night"]["strategy"]["matrix"]["shard"]
    (check,) = [s["run"] for s in jobs["night"]["steps"] if "--shard" in s.get("run", "")]
    (join,) = [s["run"] for s in jobs["verdict"]["steps"] if "join" in s.get("run", "")]
    each = [check.replace('"', "").replace("${{ matrix.shard }}", str(k)) for k in numbers]
    told = [line.split(" --shard ")[1].split()[0] for line in each]
    assert told == [f"{k}/{len(numbers)}" for k in range(1, len(numbers) + 1)]
    wrote = [line.split(" --json ")[1] for line in each]
    assert join.split(" --json ")[0] == f"pagedkv join {' '.join(wrote)}"
    first, _, last = the(CI, "shell: shards").splitlines()
    assert each[0].replace("/4", "/2") == first
    assert last.startswith("pagedkv join 1.json 2.json ")


@pytest.mark.usefixtures("unmeasured")
def test_the_shards_of_the_page_are_joined_into_one_verdict(shell, tmp_path):
    write(tmp_path, {"mymodule.py": "from allocators_here import Leaks as MyManager\n"})
    *shards, join = the(CI, "shell: shards").splitlines()
    assert [shell(line).returncode for line in shards] == [1, 1]
    done = shell(join)
    assert done.returncode == 1, done.stdout
    assert "in 2 shards" in done.stdout
    assert "conservation" in (tmp_path / "report.json").read_text(encoding="utf-8")


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


@pytest.mark.usefixtures("unmeasured")
def test_from_a_failing_engine_to_one_command_and_back(shell, tmp_path):
    for name in ("recorder.py", "mymodule.py", "engine.py"):
        (tmp_path / name).write_text(the(DEBUGGING, f"file: {name}"), encoding="utf-8")
    lines = re.findall(r"^<!-- run: (\d) -->\n```console\n(.*?)\n```$", DEBUGGING, re.MULTILINE)
    outputs = blocks(DEBUGGING, "output")
    assert len(lines) == len(outputs) == 5
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
