"""What a project declares for a target in `[tool.pagedkv]`, wherever that target is driven."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import pagedkv
from pagedkv import Declarations, Raises, Returns, cli
from pagedkv.commands.files import write_traces
from pagedkv.config import BadConfig, read_config
from pagedkv.loading import BadTarget
from pagedkv.stateful.reproducer import pytest_function
from pagedkv.targets import isolated, resolve
from pagedkv.tolerances import BadTolerance, Tolerant, over
from projects import COPY, pytest_in, write

TELLS = '''
from allocators_here import Right


class Tells(Right):
    """Tells by None that blocks ran out."""

    def allocate_for_prefill(self, req):
        return self.tell(super().allocate_for_prefill, req)

    def allocate_for_decode(self, req):
        return self.tell(super().allocate_for_decode, req)

    def tell(self, call, req):
        try:
            call(req)
        except RuntimeError:
            return None
        return True


class Closed(Tells):
    __slots__ = ()
    declares = property(lambda self: Right.declares)
'''
TABLE: dict[str, Any] = {
    "out_of_blocks": [{"returns_none": True}],
    "because": {"out_of_blocks": "tells.py"},
}
SETTINGS = """
    [tool.pagedkv.tolerances."tells:Tells"]
    out_of_blocks = [{ returns_none = true }]
    because = { out_of_blocks = "tells.py" }
"""
POOL = ["--blocks", "1", "--block-size", "1", "--requests", "1"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the allocator and the settings, and the current one."""
    write(tmp_path, {"tells.py": TELLS, "pyproject.toml": SETTINGS})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("tells", "allocators_here"):
        sys.modules.pop(name, None)


# ---------------------------------------------------------------- a table over declarations

DECLARED = Declarations(
    late_calls=1, min_blocks=2, because={"late_calls": "the queue", "min_blocks": "block 0"}
)


def test_each_field_takes_the_place_of_the_declared_one_and_the_others_stay():
    because = {"late_calls": "flush", "refuses_early": "a watermark"}
    changed = over(DECLARED, {"late_calls": 2, "refuses_early": True, "because": because})
    assert (changed.late_calls, changed.refuses_early, changed.min_blocks) == (2, True, 2)
    assert changed.because == {**because, "min_blocks": "block 0"}


def test_an_empty_table_changes_nothing():
    assert over(DECLARED, {}) == DECLARED


def test_a_field_can_be_put_back_to_its_default_without_a_reason():
    changed = over(DECLARED, {"late_calls": 0})
    assert (changed.late_calls, changed.because) == (0, {"min_blocks": "block 0"})


@pytest.mark.parametrize(
    ("way", "meant"),
    [
        ({"raises": "MemoryError", "containing": "x"}, Raises(MemoryError, "x")),
        ({"raises": "json:JSONDecodeError", "containing": ""}, Raises(json.JSONDecodeError, "")),
        ({"returns": False}, Returns(False)),
        ({"returns": -1}, Returns(-1)),
        ({"returns_none": True}, Returns(None)),
    ],
)
def test_each_way_to_say_out_of_blocks_can_be_written(way, meant):
    table = {"out_of_blocks": [way], "because": {"out_of_blocks": "here"}}
    (found,) = over(Declarations(), table).out_of_blocks
    assert found == meant
    assert not isinstance(found, Returns) or found.says(meant.value)


def test_lists_and_tables_are_what_declarations_take():
    table = {
        "block_sizes": [1, 2],
        "wrong_use": {"decode": "noop"},
        "meaningless": {"clock": "a clock"},
        "because": {"block_sizes": "a", "wrong_use": "b"},
    }
    changed = over(Declarations(), table)
    assert changed.block_sizes == (1, 2)
    assert (changed.wrong_use, changed.meaningless) == ({"decode": "noop"}, {"clock": "a clock"})


WRONG = [
    ({"late_call": 2}, "late_call is no declaration; did you mean late_calls"),
    ({"late_calls": 2}, "late_calls is given without a reason; add because.late_calls"),
    ({"late_calls": 2, "because": {"late_calls": " "}}, "late_calls is given without a reason"),
    ({"late_calls": "2"}, "late_calls = '2' must be an integer"),
    ({"late_calls": True}, "late_calls = True must be an integer"),
    ({"late_calls": -1, "because": {"late_calls": "x"}}, "late_calls"),
    ({"refuses_early": 1}, "refuses_early = 1 must be true or false"),
    ({"block_sizes": 2}, "block_sizes = 2 must be a list"),
    ({"block_sizes": ["2"]}, "block_sizes = '2' must be an integer"),
    ({"wrong_use": "noop"}, "wrong_use = 'noop' must be a table"),
    ({"wrong_use": {"decode": "no"}}, "wrong_use.decode = 'no' must be one of error, noop, never"),
    (
        {"wrong_use": {"append": "noop"}, "because": {"wrong_use": "x"}},
        "wrong_use names 'append'",
    ),
    ({"because": {"late_calls": "x"}}, "because names 'late_calls', which is not set beside it"),
    ({"out_of_blocks": []}, "out_of_blocks = [] must be a list like"),
    ({"out_of_blocks": [{"returns": 1, "x": 1}]}, "out_of_blocks = {'returns': 1, 'x': 1} must"),
    ({"out_of_blocks": [{"raises": "MemoryError"}]}, "out_of_blocks = {'raises'"),
    (
        {"out_of_blocks": [{"raises": "NoSuchError", "containing": ""}]},
        "out_of_blocks: raises = 'NoSuchError' is no exception",
    ),
]


@pytest.mark.parametrize(("table", "why"), WRONG)
def test_what_can_not_be_meant_is_one_line_that_names_the_field(table, why):
    with pytest.raises(BadTolerance) as error:
        over(Declarations(), table)
    assert str(error.value).startswith(why)
    assert len(str(error.value).splitlines()) == 1


def test_what_does_not_go_with_the_targets_own_is_said_when_it_is_made():
    with pytest.raises(BadTolerance, match="declare one"):
        over(DECLARED, {"late_blocks": 2, "because": {"late_blocks": "x"}})


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tolerances = 3", "tolerances = 3 must be a table for each target"),
        ('tolerances = { "a:B" = 3 }', "tolerances a:B = 3 must be a table, like"),
        (
            '[tool.pagedkv.tolerances."a:B"]\nlate_call = 3',
            "tolerances of a:B: late_call is no declaration; did you mean late_calls",
        ),
        (
            'targets = ["a:Bee+reference"]\n[tool.pagedkv.tolerances."a:Be"]\nlookahead = 0',
            "tolerances names 'a:Be', which is none of targets; did you mean a:Bee?",
        ),
        ("tolerance = {}", "tolerance is no setting; did you mean tolerances"),
    ],
)
def test_a_setting_that_can_not_be_meant_names_the_file_and_the_key(tmp_path, text, why):
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.pagedkv]\n{text}\n", encoding="utf-8")
    with pytest.raises(BadConfig) as error:
        read_config(file)
    assert str(error.value).startswith(f"{file}: [tool.pagedkv] {why}")


def test_the_settings_are_read_without_importing_anything(tmp_path):
    file = tmp_path / "pyproject.toml"
    way = '[{ raises = "no_such_module:Error", containing = "" }]'
    settings = SETTINGS.replace("[{ returns_none = true }]", way)
    file.write_text(dedent(settings), encoding="utf-8")
    assert list(read_config(file).tolerances) == ["tells:Tells"]


# ---------------------------------------------------------------- wherever it is driven


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", ["tells:Tells", "isolate:tells:Tells", "tells:Tells+reference"])
def test_every_history_is_judged_by_them(project, capsys, name):
    assert cli.main(["explore", name, *POOL]) == 0
    assert "tolerated in " in capsys.readouterr().out
    (project / "pyproject.toml").unlink()
    assert cli.main(["explore", name, *POOL]) == 1


@pytest.mark.usefixtures("children_unmeasured")
@pytest.mark.parametrize("isolate", [False, True])
def test_a_check_judges_by_them_in_its_children(project, capsys, isolate):
    options = ["--budget", "1", "--json", "-", *(["--isolate"] if isolate else [])]
    cli.main(["check", "tells:Tells", *options])
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert target["counterexamples"] == []
    assert target["coverage"]["states"] > 5
    assert target["tolerances"] == {"tells:Tells": TABLE}


@pytest.mark.usefixtures("unmeasured")
def test_replay_and_shrink_judge_by_them(project):
    Path("none.toml").write_text("[tool.pagedkv]\n", encoding="utf-8")
    report = pagedkv.check("tells:Tells", budget=1)
    written = write_traces(project, report)
    assert cli.main(["replay", str(written[0])]) == 0
    assert cli.main(["replay", str(written[0]), "--config", "none.toml"]) == 1
    assert cli.main(["shrink", str(written[0])]) == 0
    assert cli.main(["shrink", str(written[0]), "--config", "none.toml"]) == 1


def test_the_pytest_plugin_judges_by_them(project):
    done = pytest_in(project, "--pagedkv", "tells:Tells", "--pagedkv-budget", "1", "-k", "out-of")
    (text,) = (text for _, text in done.tests.values())
    assert text == "" or text.startswith("unknown: ")  # on a slow machine too little is judged


def test_python_takes_the_same_tables(project):
    name = {"tells:Tells": TABLE}
    cell: dict[str, Any] = {"num_blocks": 1, "block_size": 1, "property": "out-of-blocks"}
    steps = [{"op": "prefill", "request": 0, "tokens": 2}]
    pagedkv.assert_holds("tells:Tells", steps, **cell, tolerances=name)
    with pytest.raises(AssertionError):
        pagedkv.assert_holds("tells:Tells", steps, **cell)
    import tells  # type: ignore[import-not-found]

    pagedkv.assert_holds(tells.Tells, steps, **cell, tolerances=name)
    report = pagedkv.check(tells.Tells, budget=1, tolerances=name)
    assert report.targets[0].counterexamples == ()
    assert report.targets[0].tolerances == name


def test_the_test_of_a_counterexample_declares_them_too(project):
    (example, *_) = pagedkv.check("tells:Tells", budget=1).targets[0].counterexamples
    source = pytest_function(example, "tells:Tells", {"tells:Tells": TABLE})
    names: dict[str, Any] = {}
    exec(source, names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test()  # judged by the tolerances, the history breaks nothing
    assert 'tolerances={"tells:Tells": {"out_of_blocks": [{"returns_none": True}]' in source


# ---------------------------------------------------------------- programs, and what can't be


def test_a_program_is_declared_for_too(project):
    name = f"exec:{sys.executable} -m pagedkv.driver.server allocators_here:Right"
    table = {"max_blocks": 1, "because": {"max_blocks": "here"}}
    target: Any = resolve(name, {name: table})
    assert isinstance(target.factory, Tolerant)
    declared = target.factory(1, 1, 1).declares
    assert (declared.max_blocks, declared.block_sizes) == (1, (1,))
    with pytest.raises(BadTarget, match="a program says out_of_blocks by the outcome of that name"):
        resolve(name, {name: TABLE})


@pytest.fixture(autouse=True)
def our_copy(monkeypatch):
    """What is started in another folder works with the copy that is tested."""
    monkeypatch.setenv("PYTHONPATH", str(COPY))


@pytest.mark.parametrize("made", [resolve, isolated])
@pytest.mark.parametrize(
    ("name", "table", "why"),
    [
        ("tells:Closed", TABLE, "a Closed takes no attribute declares"),
        (
            "tells:Tells",
            {**TABLE, "out_of_blocks": [{"raises": "no_such:Error", "containing": ""}]},
            "out_of_blocks: raises = 'no_such:Error' can't be imported",
        ),
    ],
)
def test_a_target_that_can_not_be_declared_for_is_one_line(project, made, name, table, why):
    with pytest.raises(BadTarget) as error:
        made(name, {name: table})
    assert f"{name}': [tool.pagedkv] tolerances: {why}" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
