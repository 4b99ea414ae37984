"""The command line, end to end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from pagedkv import __version__, api, cli
from pagedkv.builtin import BUILTINS
from pagedkv.commands import check, progress
from pagedkv.commands.expected import file_of
from pagedkv.stateful.profiles import PROFILES
from pagedkv.stateful.report import Coverage, PropertyResult, Report, TargetReport

# Commands run in other folders, on the same copy of pagedkv.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
COVERAGE = Coverage(5, 9, 2, exhausted=True)
VERDICTS = {"passed": 0, "violated": 1, "unknown": 2}


def done(name, verdict="passed"):
    results = (PropertyResult("conservation", "passed", 123),)
    return TargetReport(name, verdict, None, results, (), COVERAGE, 1.0)


class Checked(list[tuple[list[str], api.Options]]):
    """The calls of a `check_targets` that does nothing, and what they are to answer."""

    verdict = "passed"

    def __call__(self, targets, options, on_progress):
        names = [target.name for target in targets]
        self.append((names, options))
        for name in names:
            on_progress(done(name, self.verdict))
        return Report(tuple(done(name, self.verdict) for name in names))


@pytest.fixture
def checked(monkeypatch):
    calls = Checked()
    monkeypatch.setattr(api, "check_targets", calls)
    return calls


@pytest.fixture
def refused(checked, capsys):
    """Runs a command that is refused before anything is checked; gives the one line."""

    def run(*arguments):
        assert cli.main(list(map(str, arguments))) == 2
        assert checked == []
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("Error: ")
        return line

    return run


def run(*arguments, cwd=None, program=("-m", "pagedkv")):
    """The command, as a shell would run it."""
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT,
    )


# ---------------------------------------------------------------- help


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["-h"], ["check", "--help"], ["targets", "--help"], ["--version"]]
    + [[command, "--help"] for command in ("explore", "replay", "shrink")],
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from pagedkv.cli import main; assert main(sys.argv[1:]) == 0; "
        "print({'torch', 'hypothesis', 'numpy', 'rich'} & set(sys.modules))"
    )
    ran = run(*arguments, program=("-c", code))
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[-1] == "set()"


def test_help_has_examples(capsys):
    assert cli.main(["check", "--help"]) == 0
    text = capsys.readouterr().out
    assert "\n    pagedkv check mymodule:MyManager\n" in text
    for option in ("--profile", "--seed", "--budget", "--property", "--expected-failures"):
        assert option in text


@pytest.mark.parametrize("command", ["check", "explore", "replay", "score", "shrink", "targets"])
def test_each_command_has_examples_that_click_takes(command, capsys):
    assert cli.main([command, "--help"]) == 0
    examples = capsys.readouterr().out.partition("Examples:\n")[2].splitlines()
    assert examples
    for line in examples:
        program, named, *arguments = shlex.split(line)
        assert (program, named) == ("pagedkv", command)
        cli.pagedkv.commands[command].make_context(command, arguments)


def test_help_lists_the_commands_that_there_are(capsys):
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == [
        "check",
        "explore",
        "join",
        "replay",
        "score",
        "shrink",
        "targets",
    ]


def test_the_version_is_told(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pagedkv, version {__version__}\n"


def test_no_command_shows_the_help_and_is_wrong_usage(capsys):
    assert cli.main([]) == 2
    assert "Usage:" in capsys.readouterr().err


def test_the_profiles_are_those_of_the_campaign():
    assert tuple(PROFILES) == check.PROFILES


# ---------------------------------------------------------------- what is passed on


def test_without_a_target_reference_and_array_are_checked_each_and_in_lockstep(checked):
    assert cli.main(["check"]) == 0
    ((names, options),) = checked
    assert names == ["reference", "array", "reference+array"]
    assert options == api.Options()


def test_every_option_is_passed_on(checked, tmp_path):
    known = tmp_path / "known.txt"
    known.write_text("# ours\n\nrollback:  order changes: see bug 7 # here \n", encoding="utf-8")
    command = "check reference --profile ci --seed 7 --budget 1.5 --property rollback --property"
    arguments = [*command.split(), "contents", "--property", "rollback"]
    assert cli.main([*arguments, "--expected-failures", str(known)]) == 0
    ((_, options),) = checked
    assert options == api.Options(
        profile="ci",
        seed=7,
        budget=1.5,
        properties=("rollback", "contents"),
        expected_failures={"rollback": "order changes: see bug 7 # here"},
    )


def test_a_target_that_is_given_twice_is_checked_once(checked):
    assert cli.main(["check", "array", "reference", "array"]) == 0
    assert checked[0][0] == ["array", "reference"]


@pytest.mark.parametrize(("verdict", "code"), VERDICTS.items())
def test_the_exit_code_is_the_verdict(checked, verdict, code):
    checked.verdict = verdict
    assert cli.main(["check", "reference"]) == code


def test_the_report_goes_to_stdout_and_progress_to_stderr(checked, capsys):
    assert cli.main(["check", "reference"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("reference: PASSED, 5 states")
    assert err == "reference: passed in 1.0 s\n"


def test_targets_lists_the_builtin_ones(capsys):
    assert cli.main(["targets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert names == [builtin.name for builtin in BUILTINS]


# ---------------------------------------------------------------- bad input


def test_an_unknown_command_is_one_line(refused):
    assert "No such command 'chek'" in refused("chek")


def test_an_unknown_option_is_one_line(refused):
    assert "--profle" in refused("check", "--profle", "ci")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--profile", "fast", "'fast' is not one of 'quick', 'ci', 'nightly'"),
        ("--seed", "-1", "-1 is not in the range x>=0"),
        ("--seed", "x", "'x' is not a valid integer"),
        ("--budget", "0", "0.0 is no number of seconds > 0; give one, like 30"),
        ("--budget", "nan", "nan is no number of seconds > 0"),
        ("--budget", "inf", "inf is no number of seconds > 0"),
        ("--budget", "soon", "'soon' is not a valid float"),
        ("--property", "conservaton", "'conservaton' is no property; did you mean conservation?"),
        ("--property", "xyz", "'xyz' is no property; use table-valid, "),
    ],
)
def test_a_bad_value_is_named_with_what_to_do(refused, option, value, says):
    line = refused("check", option, value)
    assert option in line
    assert says in line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("refrence", "target 'refrence': no such target; your own allocator is module:attribute"),
        ("nosuchmodule:M", "target 'nosuchmodule:M': no module nosuchmodule"),
        ("json:dumpz", "target 'json:dumpz': module json has no attribute dumpz"),
        ("json:__name__", "target 'json:__name__': is of type str, not a callable"),
    ],
)
def test_a_bad_target_is_one_line(refused, name, says):
    assert says in refused("check", "reference", name)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("os._exit(0)", "its process was ended (exit code 0, as by os._exit)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process died (SIGSEGV)"),
    ],
)
def test_a_target_that_ends_its_process_is_never_a_pass(refused, tmp_path, monkeypatch, line, says):
    (tmp_path / "deadly.py").write_text(f"import os, signal\n{line}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    told = refused("check", "deadly:Manager")
    assert f"target 'deadly:Manager': {says} when it was imported and made once" in told


def test_a_bad_target_leaves_no_traceback_in_a_shell(tmp_path):
    (tmp_path / "mine.py").write_text("import nosuchlibrary", encoding="utf-8")
    ran = run("check", "mine:M", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "Error: target 'mine:M': importing mine failed at mine.py:1: "
        "No module named 'nosuchlibrary'; install it, or mend that\n"
    )


# ---------------------------------------------------------------- expected failures


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# fine\nrolback: bug 7", "known.txt:2: 'rolback' is no property; did you mean rollback?"),
        ("rollback", "known.txt:1: rollback has no reason; write `rollback: why it fails`"),
        ("rollback: \n", "known.txt:1: rollback has no reason"),
        (": bug 7", "known.txt:1: '' is no property"),
        ("rollback: a\ncontents: b\nrollback: c", "known.txt:3: rollback stands there twice"),
    ],
)
def test_a_bad_line_of_expected_failures_is_named(refused, tmp_path, text, says):
    (tmp_path / "known.txt").write_text(text, encoding="utf-8")
    assert says in refused("check", "--expected-failures", tmp_path / "known.txt")


def test_expected_failures_that_can_not_be_read_say_why(refused, tmp_path):
    assert "can't be read: No such file" in refused("check", "--expected-failures", tmp_path / "no")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "can't be read: 'utf-8'" in refused("check", "--expected-failures", tmp_path / "binary")


def test_a_folder_has_a_file_for_each_target_that_is_known_to_fail(checked, tmp_path):
    (tmp_path / "array.expected").write_text("rollback: bug 7", encoding="utf-8")
    (tmp_path / "reference+array.expected").write_text("lockstep: bug 8", encoding="utf-8")
    (tmp_path / "torch.expected").write_text("contents: bug 9", encoding="utf-8")
    for names in ([], ["array", "reference"]):
        assert cli.main(["check", *names, "--expected-failures", str(tmp_path)]) == 0
    both, one = {"rollback": "bug 7"}, {"lockstep": "bug 8"}
    assert [options.expected_of for _, options in checked] == [
        {"array": both, "reference+array": one},
        {"array": both},
    ]
    assert all(options.expected_failures == {} for _, options in checked)


def test_a_bad_line_in_a_folder_is_named(refused, tmp_path):
    (tmp_path / "array.expected").write_text("rolback: bug 7", encoding="utf-8")
    says = f"{tmp_path / 'array.expected'}:1: 'rolback' is no property; did you mean rollback?"
    assert says in refused("check", "array", "--expected-failures", tmp_path)


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("vllm-sliding", "vllm-sliding.expected"),
        ("mine.pool:A.B", "mine.pool-A.B.expected"),
        ("exec:../bin/driver --fast", "exec-..-bin-driver-fast.expected"),
        ("../../x", "x.expected"),
    ],
)
def test_a_file_of_known_failures_is_named_after_its_target(target, file):
    assert file_of(target) == file


def test_only_a_budget_that_was_given_is_of_the_clock(checked, monkeypatch):
    told, show = [], progress.progress

    def seen(*arguments, hard):
        told.append(hard)
        return show(*arguments, hard=hard)

    monkeypatch.setattr(progress, "progress", seen)
    assert cli.main(["check", "reference"]) == 0
    assert cli.main(["check", "reference", "--budget", "5"]) == 0
    assert told == [False, True]


# ---------------------------------------------------------------- JSON


def test_json_is_written_beside_the_text(checked, tmp_path, capsys):
    checked.verdict = "violated"
    assert cli.main(["check", "reference", "--json", str(tmp_path / "out.json")]) == 1
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report == Report((done("reference", "violated"),)).to_json()
    assert "reference: VIOLATED" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_dash_is_stdout_with_nothing_else_on_it(checked, capsys):
    assert cli.main(["check", "reference", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == 1
    assert "reference: PASSED" in err


def test_an_old_report_is_replaced_and_a_link_to_it_kept(checked, tmp_path):
    (tmp_path / "real.json").write_text("old", encoding="utf-8")
    (tmp_path / "link.json").symlink_to("real.json")
    assert cli.main(["check", "reference", "--json", str(tmp_path / "link.json")]) == 0
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text(encoding="utf-8").startswith("{")


def test_a_device_is_written_to_and_not_replaced(checked):
    assert cli.main(["check", "reference", "--json", os.devnull]) == 0
    assert not Path(os.devnull).is_file()


def test_a_place_that_can_not_be_written_is_refused_before_the_run(refused, tmp_path):
    assert f"there is no folder {tmp_path / 'no'}; make it" in refused(
        "check", "--json", tmp_path / "no" / "out.json"
    )
    assert "is a folder; name a file in it" in refused("check", "--json", tmp_path)
    assert "can't be written: " in refused("check", "--json", tmp_path / ("x" * 300))


def test_a_report_that_can_not_be_written_is_shown_still(checked, tmp_path, monkeypatch, capsys):
    def gone(path, text, encoding):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", gone)
    assert cli.main(["check", "reference", "--json", str(tmp_path / "out.json")]) == 2
    out, err = capsys.readouterr()
    assert "reference: PASSED" in out
    assert err.endswith("out.json: can't be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- ends that are none


def test_an_interrupt_ends_with_what_is_known(monkeypatch, capsys):
    def stopped(targets, options, on_progress):
        on_progress(done("reference"))
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "check_targets", stopped)
    assert cli.main(["check", "reference", "array"]) == 2
    out = capsys.readouterr().out
    assert "reference: PASSED" in out
    assert "array      unknown: interrupted" in out


def test_an_interrupt_before_the_run_is_one_line(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "Options", stopped)
    assert cli.main(["check"]) == 2
    assert capsys.readouterr().err.split() == ["Error:", "interrupted"]


def test_a_fault_of_our_own_is_not_a_violation(monkeypatch, capsys):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(api, "check_targets", broken)
    assert cli.main(["check", "reference"]) == 2
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert err.endswith("Error: this is a fault of pagedkv itself; please report it\n")


def test_a_reader_that_has_gone_does_not_change_the_exit_code(tmp_path):
    code = (
        "import sys; from pagedkv import api, cli; from pagedkv.stateful.report import Report\n"
        "api.check_targets = lambda *_: Report()\n"
        "code = cli.main(sys.argv[1:])\n"
        "print(code, file=sys.stderr); sys.exit(code)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        ran = subprocess.run(
            [sys.executable, "-c", code, "check", "reference", "--json", "-"],
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    assert ran.stderr.splitlines()[-1] == "2"
    assert "BrokenPipe" not in ran.stderr
    assert ran.returncode == 2


# ---------------------------------------------------------------- the whole of it

BOUNDARY = """
    class MyManager:
        def __init__(self, num_blocks, block_size, head_dim):
            self.block_size = block_size
            self.free_blocks = list(range(num_blocks))

        def take(self, req, n):
            if n > len(self.free_blocks):
                raise RuntimeError("OOM")
            req.block_table = req.block_table + self.free_blocks[:n]
            del self.free_blocks[:n]

        def allocate_for_prefill(self, req):
            if req.block_table:
                raise ValueError("holds blocks")
            self.take(req, -(-req.seq_len // self.block_size))

        def allocate_for_decode(self, req):
            if not req.block_table:
                raise ValueError("holds nothing")
            if (req.seq_len + 1) % self.block_size == 1:
                self.take(req, 1)
            req.seq_len += 1

        def release_request(self, req):
            if not req.block_table:
                raise ValueError("holds nothing")
            self.free_blocks = sorted(self.free_blocks + req.block_table)
            req.block_table = []
"""


def test_a_wrong_boundary_is_found_from_a_shell_in_two_commands(tmp_path):
    (tmp_path / "mymodule.py").write_text(dedent(BOUNDARY), encoding="utf-8")
    ran = run(
        *("check", "mymodule:MyManager", "--property", "table-cover", "--budget", "5"),
        *("--json", "out.json"),
        cwd=tmp_path,
    )
    assert ran.returncode == 1, ran.stderr
    assert "mymodule:MyManager: VIOLATED (1 violation)" in ran.stdout
    assert "mymodule:MyManager: started, at most 5 s" in ran.stderr
    (target,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["targets"]
    (example,) = target["counterexamples"]
    assert example["property"] == "table-cover"
    assert example["geometry"]["block_size"] == 1
    assert [command["op"] for command in example["commands"]] == ["prefill", "decode"]
    source = ran.stdout[ran.stdout.index("import pagedkv") :].partition("\n    )\n")
    (tmp_path / "test_it.py").write_text("".join(source[:2]), encoding="utf-8")
    again = run("-q", "-p", "no:cacheprovider", cwd=tmp_path, program=("-m", "pytest"))
    assert again.returncode == 1
    assert "table-cover: " + example["message"] in again.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_what_completes(shell):
    told = subprocess.run(
        [sys.executable, "-m", "pagedkv"],
        env={**ENVIRONMENT, "_PAGEDKV_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert f"_PAGEDKV_COMPLETE={shell}_complete" in told.stdout


def test_built_in_targets_complete():
    told = subprocess.run(
        [sys.executable, "-m", "pagedkv"],
        env={
            **ENVIRONMENT,
            "_PAGEDKV_COMPLETE": "bash_complete",
            "COMP_WORDS": "pagedkv check ref",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
    )
    names = ["plain,reference", "plain,reference-shared", "plain,reference-window"]
    assert told.stdout.split() == names, told.stderr
