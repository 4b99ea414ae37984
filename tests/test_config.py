"""`[tool.pagedkv]`: found, read, overridden; whatever can't be meant is an error that names it."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from pagedkv import api, cli
from pagedkv.config import (
    KEYS,
    PROFILES,
    BadConfig,
    Config,
    nearest,
    nearest_config,
    read_config,
)
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.stateful import profiles
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.report import Coverage, Report, TargetReport
from pagedkv.stateful.subject import Subject
from projects import ALLOCATORS

WHOLE = """
    [tool.pagedkv]
    targets = ["array", "reference"]
    profile = "ci"
    seed = 7
    budget = 60
    properties = ["conservation", "rollback"]
    traces = "found/traces"

    [tool.pagedkv.expected-failures]
    rollback = "issue 12"

    [tool.pagedkv.expected-failures.array]
    conservation = "issue 13"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes a pyproject.toml and goes to its folder."""
    monkeypatch.chdir(tmp_path)

    def write(text, folder=tmp_path):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "pyproject.toml"
        file.write_text(dedent(text), encoding="utf-8")
        return file

    return write


# ---------------------------------------------------------------- found and read


def test_everything_that_is_said_is_read(project):
    file = project(WHOLE)
    assert read_config(file) == Config(
        targets=("array", "reference"),
        profile="ci",
        seed=7,
        budget=60,
        properties=("conservation", "rollback"),
        traces=file.parent / "found/traces",
        expected_failures={"rollback": "issue 12"},
        expected_of={"array": {"conservation": "issue 13"}},
    )


def test_what_is_expected_of_a_target_is_its_own_and_that_of_all(project):
    config = read_config(project(WHOLE))
    assert config.expected("array") == {"rollback": "issue 12", "conservation": "issue 13"}
    assert config.expected("reference") == {"rollback": "issue 12"}


def test_the_nearest_file_that_has_the_table_is_meant(project, tmp_path):
    project("[tool.pagedkv]\nseed = 1\n")
    project("[tool.other]\nx = 1\n", tmp_path / "a")
    project("[tool.pagedkv]\nseed = 2\n", tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "c").mkdir()
    assert nearest_config(tmp_path / "a").seed == 1
    assert nearest_config(tmp_path / "a" / "b" / "c").seed == 2


def test_nothing_said_is_nothing_changed(project, tmp_path):
    project("[tool.pagedkv]\n")
    assert nearest_config(tmp_path) == Config()


def test_the_profiles_are_those_that_there_are():
    assert tuple(profiles.PROFILES) == PROFILES


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[tool.pagedkv]\nprofil = 'ci'",
            "[tool.pagedkv] profil is no setting; did you mean profile?",
        ),
        ("[tool.pagedkv]\nexpected_failures = {}", "did you mean expected-failures?"),
        ("[tool.pagedkv]\nxyz = 1", f"xyz is no setting; use one of {', '.join(KEYS)}"),
        ("[tool.pagedkv]\nprofile = 'quik'", "profile = 'quik' is no profile; did you mean quick?"),
        ("[tool.pagedkv]\nprofile = 3", 'profile = 3 must be a text, like profile = "ci"'),
        ("[tool.pagedkv]\nseed = -1", "seed = -1 must be an integer >= 0"),
        ("[tool.pagedkv]\nseed = true", "seed = True must be an integer >= 0"),
        ("[tool.pagedkv]\nseed = '7'", "seed = '7' must be an integer >= 0"),
        ("[tool.pagedkv]\nfaults = 1", "faults = 1 must be true or false"),
        ("[tool.pagedkv]\nfaults = true\nisolate = true", "as little as --faults with --isolate"),
        ("[tool.pagedkv]\nbudget = 0", "budget = 0 must be a number of seconds > 0"),
        ("[tool.pagedkv]\nbudget = inf", "budget = inf must be a number of seconds > 0"),
        ("[tool.pagedkv]\nbudget = nan", "budget = nan must be a number of seconds > 0"),
        ("[tool.pagedkv]\ntargets = 'a:B'", "targets = 'a:B' must be a list of texts, like"),
        ("[tool.pagedkv]\ntargets = ['']", "targets = [''] must be a list of texts"),
        ("[tool.pagedkv]\ntraces = ''", "traces = '' must be a text"),
        (
            "[tool.pagedkv]\nproperties = ['conservatoin']",
            "properties names 'conservatoin', which is no property; did you mean conservation?",
        ),
        ("[tool.pagedkv]\nexpected-failures = 3", "expected-failures = 3 must be a table"),
        (
            "[tool.pagedkv.expected-failures]\nrolback = 'x'",
            "expected-failures names 'rolback', which is no property; did you mean rollback?",
        ),
        (
            "[tool.pagedkv.expected-failures]\nrollback = ' '",
            "expected-failures rollback = ' ' must be the reason",
        ),
        (
            "[tool.pagedkv.expected-failures.'a:B']\nrolback = 'x'",
            "expected-failures of a:B names 'rolback', which is no property",
        ),
        (
            "[tool.pagedkv]\ntargets = ['mine:A']\n[tool.pagedkv.expected-failures.'mine:B']",
            "expected-failures names 'mine:B', which is none of targets; did you mean mine:A?",
        ),
        ("[tool]\npagedkv = 3", "tool.pagedkv = 3 must be a table [tool.pagedkv]"),
        ("[tool.pagedkv", "is not TOML: "),
    ],
)
def test_what_can_not_be_meant_names_the_file_the_key_and_its_cure(project, text, said):
    file = project(text)
    with pytest.raises(BadConfig) as caught:
        nearest_config(file.parent)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


def test_a_file_that_is_named_must_have_the_table(project, tmp_path):
    file = project("[tool.other]\n")
    with pytest.raises(BadConfig, match=r"has no \[tool\.pagedkv\]"):
        read_config(file)
    with pytest.raises(BadConfig, match="can't be read: No such file"):
        read_config(tmp_path / "missing.toml")


def test_a_hint_names_the_nearest_or_all():
    assert nearest("rolback", PROPERTIES).startswith("did you mean rollback")
    assert nearest("xyz", ["ab", "cd"]) == "use one of ab, cd"


# ---------------------------------------------------------------- the command line


@pytest.fixture
def checked(monkeypatch):
    """Checks nothing; gives the names and options of each call."""
    calls = []

    def check_targets(targets, options, _on_progress):
        names = [target.name for target in targets]
        calls.append((names, options))
        nothing = Coverage(1, 1, 1, exhausted=True)
        return Report(
            tuple(TargetReport(name, "passed", None, (), (), nothing, 1.0) for name in names)
        )

    monkeypatch.setattr(api, "check_targets", check_targets)
    return calls


def test_the_command_takes_from_the_file_what_it_is_not_told(project, checked, tmp_path):
    project(WHOLE)
    assert cli.main(["check"]) == 0
    [(names, options)] = checked
    assert names == ["array", "reference"]
    assert (options.profile, options.seed, options.budget) == ("ci", 7, 60)
    assert options.properties == ("conservation", "rollback")
    plan = options.plan()
    assert plan.of("array").expected == {"rollback": "issue 12", "conservation": "issue 13"}
    assert plan.of("reference").expected == {"rollback": "issue 12"}
    assert (tmp_path / "found" / "traces").is_dir()


def test_the_command_line_goes_before_the_file(project, checked, tmp_path):
    project(WHOLE)
    (tmp_path / "known.txt").write_text("seq-len: issue 1\n", encoding="utf-8")
    arguments = ["--profile", "quick", "--seed", "9", "--budget", "3", "--property", "seq-len"]
    more = ["--traces", "elsewhere", "--expected-failures", "known.txt"]
    assert cli.main(["check", "reference", *arguments, *more]) == 0
    [(names, options)] = checked
    assert names == ["reference"]
    assert (options.profile, options.seed, options.budget) == ("quick", 9, 3)
    assert options.properties == ("seq-len",)
    assert options.plan().of("array").expected == {"seq-len": "issue 1"}
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "found").exists()


def test_another_file_can_be_named(project, checked, tmp_path):
    project(WHOLE)
    other = project("[tool.pagedkv]\nseed = 8\n", tmp_path / "other")
    assert cli.main(["check", "reference", "--config", str(other)]) == 0
    [(_, options)] = checked
    assert (options.profile, options.seed) == ("quick", 8)


@pytest.mark.parametrize("flag", ["isolate", "faults"])
def test_a_flag_of_the_file_is_that_of_the_command(project, checked, flag):
    project(f"[tool.pagedkv]\n{flag} = true\n")
    assert cli.main(["check", "reference"]) == 0
    [(_, options)] = checked
    assert getattr(options, flag) is True


def test_a_file_that_is_wrong_stops_the_check_and_not_the_help(project, checked, capsys):
    file = project("[tool.pagedkv]\nprofil = 'ci'\n")
    assert cli.main(["check", "reference"]) == 2
    assert checked == []
    line = f"Error: {file}: [tool.pagedkv] profil is no setting; did you mean profile?\n"
    assert capsys.readouterr() == ("", line)
    assert cli.main(["check", "--help"]) == 0
    assert "--config FILE" in capsys.readouterr().out


def test_a_nightly_run_draws_a_seed_and_prints_it(project, checked, capsys):
    project("[tool.pagedkv]\nprofile = 'nightly'\n")
    assert cli.main(["check", "reference"]) == 0
    [(_, options)] = checked
    assert f"random histories of --seed {options.seed}\n" in capsys.readouterr().err
    assert cli.main(["check", "reference", "--seed", "5"]) == 0
    assert "--seed" not in capsys.readouterr().err
    assert cli.main(["check", "reference", "--profile", "ci"]) == 0
    assert checked[-1][1].seed is None


def test_an_expected_failure_of_one_target_excuses_no_other():
    options = api.Options(expected_of={"mine": {"rollback": "issue 1"}})
    assert options.plan().of("mine").expected == {"rollback": "issue 1"}
    assert options.plan().of("yours").expected == {}
    with pytest.raises(ValueError, match="'rolback' is no property"):
        api.Options(expected_of={"mine": {"rolback": "x"}})


@pytest.mark.usefixtures("unmeasured")
def test_a_campaign_excuses_what_is_expected_of_its_target():
    module: dict[str, Any] = {"__name__": "mine"}
    exec(ALLOCATORS, module)
    options = api.Options(properties=("conservation",), expected_of={"mine": {"conservation": "x"}})
    for name, expected in (("mine", True), ("yours", False)):
        found = run_campaign(Subject(name, (module["Leaks"],)), options.plan())
        assert [example.expected for example in found.counterexamples] == [expected]
        assert found.verdict == ("passed" if expected else "violated")
