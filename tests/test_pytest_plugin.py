"""pytest's door: in projects outside our tree, alone and with several workers, in any order."""

from __future__ import annotations

import importlib
import tomllib

import pytest

from pagedkv.api import Options
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.stateful.outcomes import check_ids
from projects import LEAK, ROOT, pytest_in, write

TESTS = """
    import pagedkv
    from allocators_here import Leaks

    HELD = {"conservation": "issue 12"}
    SOME = ["conservation", "rollback", "lockstep", "pool-full"]


    @pagedkv.parametrize_with_checks("allocators_here:Right", properties=SOME)
    def test_right(check):
        check()


    class TestLeaks:
        @pagedkv.parametrize_with_checks(Leaks, properties=SOME)
        def test_leaks(self, check):
            check()

        @pagedkv.parametrize_with_checks(Leaks, properties=SOME, expected_failures=HELD)
        def test_known(self, check):
            check()


    @pagedkv.parametrize_with_checks(
        "allocators_here:Right", properties=SOME, expected_failures=HELD
    )
    def test_mended(check):
        check()


    @pagedkv.parametrize_with_checks("no_such_module:Manager", properties=["conservation"])
    def test_missing(check):
        check()
"""
REVERSED = """
    def pytest_collection_modifyitems(items):
        items.reverse()
"""
ALL = check_ids(Options().plan().chosen())
OUTCOMES = {
    "test_it::test_right[conservation]": "passed",
    "test_it::test_right[rollback]": "passed",
    "test_it::test_right[lockstep]": "skipped",
    "test_it::test_right[pool-full]": "passed",
    "test_it::test_right[explorer]": "passed",
    "test_it::test_right[random]": "passed",
    "test_it.TestLeaks::test_leaks[conservation]": "failure",
    "test_it.TestLeaks::test_leaks[rollback]": "passed",
    "test_it.TestLeaks::test_leaks[lockstep]": "skipped",
    "test_it.TestLeaks::test_leaks[pool-full]": "passed",
    "test_it.TestLeaks::test_leaks[explorer]": "passed",
    "test_it.TestLeaks::test_leaks[random]": "skipped",
    "test_it.TestLeaks::test_known[conservation]": "xfailed",
    "test_it.TestLeaks::test_known[rollback]": "passed",
    "test_it.TestLeaks::test_known[lockstep]": "skipped",
    "test_it.TestLeaks::test_known[pool-full]": "passed",
    "test_it.TestLeaks::test_known[explorer]": "passed",
    "test_it.TestLeaks::test_known[random]": "skipped",
    "test_it::test_mended[conservation]": "failure",
    "test_it::test_mended[rollback]": "passed",
    "test_it::test_mended[lockstep]": "skipped",
    "test_it::test_mended[pool-full]": "passed",
    "test_it::test_mended[explorer]": "passed",
    "test_it::test_mended[random]": "passed",
}
CAMPAIGNS = 4  # two tests are about the same name


def campaigns(out):
    """The lines that tell of campaigns."""
    _, _, rest = out.partition("= pagedkv =")
    return [line for line in rest.splitlines() if line.partition(": ")[0].count(":") == 1]


# ---------------------------------------------------------------- tests with a parameter `check`


@pytest.mark.parametrize(
    "arguments", [("-p", "no:cacheprovider"), ("-n", "2")], ids=["alone", "two workers"]
)
def test_each_property_is_one_test_and_all_share_one_campaign(tmp_path, arguments):
    if "-n" in arguments:
        write(tmp_path, {"conftest.py": REVERSED})
    write(tmp_path, {"test_it.py": TESTS})
    ran = pytest_in(tmp_path, *arguments)
    assert ran.code == 1, ran.out
    missing = {name: of for name, of in ran.tests.items() if "test_missing" in name}
    others = {name: of for name, of in ran.outcomes().items() if name not in missing}
    assert others == OUTCOMES, ran.out
    assert len(campaigns(ran.out)) == CAMPAIGNS, ran.out
    text = ran.tests["test_it.TestLeaks::test_leaks[conservation]"][1]
    assert text.startswith(f"conservation: {PROPERTIES['conservation'].statement}")
    assert LEAK in text
    assert "   2  release(0)     done     ?" in text
    assert ran.tests["test_it.TestLeaks::test_known[conservation]"][1] == "issue 12"
    assert ran.tests["test_it::test_mended[conservation]"][1] == (
        "expected to fail (issue 12), but passed; take it off the expected failures"
    )
    # What can't be run fails once, not once a property.
    assert sorted(outcome for outcome, _ in missing.values()) == ["failure", "skipped", "skipped"]
    ((name, why),) = ((name, text) for name, (of, text) in missing.items() if of == "failure")
    assert why.startswith("unknown: target 'no_such_module:Manager': no module no_such_module")
    assert "\n" not in why
    says = f"it could not be run: see {name.partition('[')[2].removesuffix(']')}"
    assert all(says in text for of, text in missing.values() if of == "skipped")
    for frame in ("suite.py", "pytest_plugin.py", "check()", "Traceback"):
        assert frame not in ran.out


def test_one_test_alone_runs_only_its_campaign(tmp_path):
    write(tmp_path, {"test_it.py": TESTS})
    ran = pytest_in(tmp_path, "-k", "test_known and conservation", "--runxfail")
    assert ran.outcomes() == {"test_it.TestLeaks::test_known[conservation]": "failure"}
    assert LEAK in ran.out
    assert len(campaigns(ran.out)) == 1
    again = pytest_in(tmp_path, "--lf", "--runxfail")
    assert again.outcomes() == ran.outcomes()


def test_without_the_plugin_the_checks_run_all_the_same(tmp_path):
    write(tmp_path, {"test_it.py": TESTS})
    ran = pytest_in(tmp_path, "-p", "no:pagedkv", "-k", "test_known")
    known = {name: outcome for name, outcome in OUTCOMES.items() if "test_known" in name}
    assert ran.outcomes() == known
    assert "pagedkv: a check" not in ran.out


def test_workers_that_die_over_a_campaign_leave_the_others_waiting_for_nothing(tmp_path):
    dying = """
        import ctypes
        import pagedkv
        from allocators_here import Right


        class Dies(Right):
            def allocate_for_decode(self, req):
                ctypes.CDLL(None)._exit(7)


        @pagedkv.parametrize_with_checks(Dies)
        def test_dies(check):
            check()
    """
    write(tmp_path, {"test_it.py": dying})
    ran = pytest_in(tmp_path, "-n", "2", "-p", "no:cacheprovider")
    assert ran.code == 1
    crashed = [text for _, text in ran.tests.values() if "crashed while running" in text]
    assert len(crashed) == 2
    lost = [text for _, text in ran.tests.values() if "the campaign came to no end" in text]
    assert len(lost) >= len(ALL) - 2
    assert all("died over it" in text for text in lost)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "expected_failures={'conservatoin': 'x'}",
            "no property that is judged here; did you mean",
        ),
        (
            "properties=['rolback']",
            "names 'rolback', which is no property that is judged here; did",
        ),
        ("properties=['rollback'], expected_failures={'seq-len': 'x'}", "use one of rollback"),
        ("profile='quik'", "profile = 'quik' is no profile; did you mean quick?"),
        ("seed=-1", "seed = -1 must be an integer >= 0"),
        ("budget=0", "budget = 0 must be a number of seconds > 0"),
    ],
)
def test_what_can_not_be_meant_stops_the_file_with_one_line(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pytest.Collector.CollectError) as caught:
        exec(
            "import pagedkv\n"
            f"@pagedkv.parametrize_with_checks('a:B', {arguments})\n"
            "def test_it(check): check()\n",
            {"__name__": "example"},
        )
    assert str(caught.value).startswith("parametrize_with_checks: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_is_a_name_or_a_callable():
    import pagedkv

    with pytest.raises(pytest.Collector.CollectError, match="a name or a callable, not 3"):
        pagedkv.parametrize_with_checks(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- without a test file


def test_a_target_is_checked_without_a_test_file(tmp_path):
    write(tmp_path, {})
    ran = pytest_in(
        tmp_path, "--pagedkv", "allocators_here:Leaks", "--pagedkv-traces", "traces", measured=True
    )
    assert ran.code == 1
    names = [f"pagedkv.allocators_here:Leaks::{name}" for name in ALL]
    assert list(ran.tests) == names
    kinds = {ran.tests[name][0] for name in names}
    assert kinds == {"passed", "failure", "skipped"}
    outcome, text = ran.tests["pagedkv.allocators_here:Leaks::conservation"]
    assert outcome == "failure"
    assert LEAK in text
    trace = "traces/allocators_here-Leaks-conservation.jsonl"
    assert text.endswith(f"To run it again: pagedkv replay {trace}")
    assert (tmp_path / trace).exists()
    # One fault ends many histories: what was judged too seldom is told, neither passed nor failed.
    few = ran.tests["pagedkv.allocators_here:Leaks::table-valid"]
    assert few[0] == "skipped"
    assert "unknown while conservation is violated: " in few[1]
    assert "every history ends at its first violation" in few[1]
    assert f"collected {len(names)} items" in ran.out


def test_the_configuration_is_used_and_the_command_line_goes_before_it(tmp_path):
    write(
        tmp_path,
        {
            "pyproject.toml": """
                [tool.pagedkv]
                properties = ["conservation"]
                seed = 5
                [tool.pagedkv.expected-failures."allocators_here:Leaks"]
                conservation = "issue 13"
            """
        },
    )
    target = ("--pagedkv", "allocators_here:Leaks")
    settings = ("--pagedkv-seed", "6", "--pagedkv-budget", "20", "-m", "pagedkv", "-n", "1")
    ran = pytest_in(tmp_path, *target, *settings, measured=True)
    assert ran.outcomes() == {
        "pagedkv.allocators_here:Leaks::conservation": "xfailed",
        "pagedkv.allocators_here:Leaks::explorer": "passed",
        "pagedkv.allocators_here:Leaks::random": "skipped",
    }
    assert ran.code == 0
    assert "profile quick, seed 6" in ran.out


def test_collecting_imports_no_target_and_runs_nothing(tmp_path):
    test = """
        import pagedkv

        @pagedkv.parametrize_with_checks("allocators_here:Right")
        def test_it(check):
            raise AssertionError("nothing is run")
    """
    write(tmp_path, {"test_it.py": test})
    module = tmp_path / "allocators_here.py"
    module.write_text("raise SystemExit('it is imported')\n", encoding="utf-8")
    ran = pytest_in(
        tmp_path,
        "--collect-only",
        "-q",
        "--pagedkv",
        "allocators_here:Right",
        "-p",
        "no:cacheprovider",
    )
    assert ran.code == 0
    for name in ALL:
        assert f"test_it.py::test_it[{name}]" in ran.out
        assert f"pagedkv::allocators_here:Right::{name}" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pagedkv-profile", "slow"), "invalid choice: 'slow'"),
        (("--pagedkv-seed", "-1"), "'-1' is no integer >= 0"),
        (("--pagedkv-budget", "none"), "'none' is no number of seconds > 0"),
        (("--pagedkv", "a:B"), "[tool.pagedkv] profil is no setting; did you mean profile?"),
    ],
)
def test_wrong_options_and_settings_are_refused_at_once(tmp_path, arguments, said):
    write(tmp_path, {"pyproject.toml": "[tool.pagedkv]\nprofil = 'ci'\n"})
    ran = pytest_in(tmp_path, *arguments, measured=True)
    assert ran.code == 4
    assert said in ran.out
    assert "Traceback" not in ran.out


# ---------------------------------------------------------------- unused


def test_a_run_that_does_not_use_it_imports_nothing_of_it(tmp_path):
    test = """
        import sys

        def test_it():
            ours = {name for name in sys.modules if name.split(".")[0] == "pagedkv"}
            assert ours == {"pagedkv", "pagedkv.plugin"}
            assert not {"numpy", "torch", "rich"} & set(sys.modules)
    """
    write(tmp_path, {"test_it.py": test})
    ran = pytest_in(tmp_path, "-p", "no:hypothesispytest")
    assert ran.code == 0, ran.out
    assert "= pagedkv =" not in ran.out


def test_the_entry_point_leads_to_the_options():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    where = table["project"]["entry-points"]["pytest11"]["pagedkv"]
    assert callable(importlib.import_module(where).pytest_addoption)
