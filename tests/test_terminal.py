"""What a person sees, on a terminal and elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from pagedkv.builtin import Builtin
from pagedkv.commands import progress as running
from pagedkv.commands.progress import progress, watch
from pagedkv.specs.abilities.core import Prefill
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import Progress
from pagedkv.stateful.processes import Update
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    PropertyResult,
    Report,
    Shortest,
    TargetReport,
)
from pagedkv.stateful.reproducer import pytest_function
from pagedkv.stateful.text import counterexample_text, counterexamples_text
from pagedkv.stateful.trust import UNCOPIED, UNSEEN
from pagedkv.terminal import console_on, give_up, hints, show_builtins, show_report


class Tty(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Nothing of the machine that runs the tests changes what is shown."""
    for name in ("TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


EXAMPLE = Counterexample(
    property="conservation",
    statement="Every usable block is free, held or cached.",
    equation="usable = free + held + cached",
    message="free(0) + held(1) + cached(0) != usable(2): leak [of block 1]",
    geometry=Geometry(2, 1),
    commands=(Prefill(0, 1),),
    proof=Shortest(7),
)
COVERAGE = Coverage(3421, 41210, 9, exhausted=True, scope="small pools", random_steps=1500)
RESULTS = (
    PropertyResult("table-valid", "passed", 12345),
    PropertyResult("conservation", "violated", 7),
    PropertyResult("free-count", "not_applicable", 0, "needs [a counter] of free blocks"),
    PropertyResult("pool-full", "passed", 1),
    PropertyResult("oom-hit", "passed", 1),
    PropertyResult("misuse-tried", "not_applicable", 0, "needs a promise about wrong use"),
)


def target(name="mine:M", verdict="violated", **more):
    values = {
        "reason": None,
        "properties": RESULTS,
        "counterexamples": (EXAMPLE,) if verdict == "violated" else (),
        "coverage": COVERAGE,
        "seconds": 12.34,
    } | more
    return TargetReport(target=name, verdict=verdict, **values)


def shown(*targets, stream=None, profile="quick"):
    stream = StringIO() if stream is None else stream
    show_report(console_on(stream), Report(targets), profile)
    return stream.getvalue()


# ---------------------------------------------------------------- the report


def test_the_report_of_a_target_has_headline_table_and_goals():
    lines = shown(target()).splitlines()
    facts = "3,421 states, 41,210 transitions, exhausted, 1,500 random steps, 12.3 s"
    assert lines[:11] == [
        f"mine:M: VIOLATED (1 violation), {facts}",
        "  searched: small pools",
        "",
        "  property      verdict         evaluations",
        "  table-valid   passed               12,345",
        "  conservation  violated                  7",
        "  free-count    not applicable            0  needs [a counter] of free blocks",
        "  goals reached (2 of 3): pool-full, oom-hit",
        "  misuse-tried  not applicable  needs a promise about wrong use",
        "",
        counterexample_text(EXAMPLE).splitlines()[0],
    ]


def test_each_counterexample_is_shown_whole_with_its_test():
    text = shown(target())
    assert counterexample_text(EXAMPLE) in text
    assert pytest_function(EXAMPLE, "mine:M") in text


def test_counterexamples_with_one_history_are_one_block_with_one_test():
    other = replace(EXAMPLE, property="free-count", message="num_free = 0 != 1", blocks=(1,))
    longer = replace(EXAMPLE, property="contents", commands=(Prefill(0, 1), Prefill(1, 1)))
    text = shown(target(counterexamples=(EXAMPLE, longer, other)))
    assert counterexamples_text([EXAMPLE, other]) in text
    assert counterexample_text(longer) in text
    assert text.count("As a test:") == 2
    assert text.count("def test_") == 2
    assert "def test_conservation_and_1_more_holds_for_mine_m():" in text
    assert "VIOLATED (3 violations)" in text


def test_the_one_test_judges_all_that_the_block_shows():
    other = replace(EXAMPLE, property="free-count", message="num_free = 0 != 1")
    together = shown(target(counterexamples=(EXAMPLE, other)))
    assert "        block_size=1,\n    )\n" in together
    words = " ".join(together.split())
    assert "conservation: free(0) + held(1)" in words
    assert "free-count: num_free = 0 != 1" in words
    assert '        property="conservation",\n' in shown(target())


def test_an_expected_failure_stands_alone():
    other = replace(EXAMPLE, property="free-count", expected=True)
    assert shown(target(counterexamples=(EXAMPLE, other))).count("As a test:") == 2


def test_nothing_is_cut_or_folded_where_there_is_no_terminal():
    reason = "because " * 60
    text = shown(target(properties=(PropertyResult("table-valid", "unknown", 1, reason),)))
    assert reason.strip() in text


def test_no_line_of_the_table_ends_in_blanks():
    lines = shown(target()).splitlines()
    assert lines == [line.rstrip() for line in lines]


def test_what_a_target_says_is_never_read_as_markup_or_as_an_escape():
    text = shown(target(verdict="unknown", reason="[red]boom[/] :boom: \x1b[2J"), stream=Tty())
    assert "[red]boom[/] :boom: \\x1b[2J" in text
    assert "\x1b[2J" not in text


def test_a_reason_that_many_share_is_told_once():
    results = tuple(
        PropertyResult(name, "unknown", 1, "stopped early")
        for name in ("table-valid", "table-unique", "conservation", "pool-full")
    )
    text = shown(target(properties=results))
    assert text.count("stopped early") == 2  # below the table, and for the goal
    assert "  each unknown above: stopped early\n" in text
    text = shown(target(verdict="unknown", reason="stopped early", properties=results))
    assert "each unknown above" not in text


def test_a_search_that_stopped_says_why_and_what_was_given_up():
    coverage = Coverage(1, 0, 0, exhausted=False, stopped="no time", doubts=("keys differ",))
    text = shown(target(verdict="unknown", coverage=coverage))
    assert "1 state, 0 transitions, stopped (no time)" in text
    assert "  not relied on: keys differ\n" in text
    assert "what helps" not in text
    assert "searched" not in text
    assert "random" not in text


@pytest.mark.parametrize(
    ("doubts", "helps"),
    [
        ((f"{UNSEEN}: `ids` is a generator", f"{UNCOPIED}: `ids` is a generator"), "`meaningless`"),
        ((f"{UNCOPIED}: `ids` is a generator",), "bring `clone`"),
    ],
)
def test_what_can_not_be_seen_or_copied_is_named_with_what_helps(doubts, helps):
    coverage = Coverage(1, 0, 0, exhausted=False, stopped="no time", doubts=doubts)
    text = shown(target(verdict="unknown", coverage=coverage))
    assert text.count("not relied on: ") == len(doubts)
    (line,) = (line for line in text.splitlines() if line.startswith("  what helps: "))
    assert helps in line


def test_expected_failures_are_counted_beside_the_others():
    expected = replace(EXAMPLE, property="contents", expected=True)
    text = shown(target(counterexamples=(EXAMPLE, expected)))
    assert "VIOLATED (1 violation, 1 expected failure)" in text
    assert "mine:M  violated: conservation, contents (expected)\n" in text
    text = shown(target(verdict="passed", counterexamples=(expected,)))
    assert "PASSED (1 expected failure)" in text


def test_a_target_that_could_not_be_driven_has_no_table():
    nothing = Coverage(0, 0, 0, exhausted=False, stopped="its process died")
    lost = target(verdict="unknown", reason="its process died", properties=(), coverage=nothing)
    lines = shown(lost).splitlines()
    assert lines == [
        "mine:M: UNKNOWN, 0 states, 0 transitions, stopped (its process died), 12.3 s",
        "  its process died",
        "",
        "mine:M  unknown: its process died",
    ]


def test_only_goals_make_a_table_of_goals():
    goals = (PropertyResult("pool-full", "passed", 1),)
    assert "  goals reached (1 of 1): pool-full\n" in shown(target(properties=goals))
    assert "goals" not in shown(target(properties=RESULTS[:2]))


def test_the_end_is_one_line_a_target():
    text = shown(target(), target("reference", "passed"))
    assert "\nmine:M     violated: conservation\nreference  passed\n" in text


@pytest.mark.parametrize(
    ("targets", "profile", "words"),
    [
        ([target()], "quick", ["pagedkv check mine:M --traces DIR", "put the test above into"]),
        ([target(verdict="passed")], "quick", ["--profile ci searches deeper"]),
        ([target(verdict="passed")], "ci", []),
        ([target(verdict="unknown")], "quick", ["give it time: --budget SECONDS"]),
        (
            [target(verdict="unknown"), target(verdict="unknown", reason="not deterministic: no")],
            "quick",
            ["give each manager its own"],
        ),
        ([target(), target(verdict="unknown")], "ci", ["--traces", "put the test", "give it time"]),
        ([], "quick", []),
    ],
)
def test_the_hint_fits_what_happened(targets, profile, words):
    found = hints(Report(tuple(targets)), profile)
    assert [word for word, hint in zip(words, found, strict=True) if word in hint] == words


def test_the_hint_names_the_trace_that_was_written():
    found = hints(Report((target(),)), "quick", [Path("new traces/a.jsonl")])
    assert found[0] == "pagedkv replay 'new traces/a.jsonl', once you have changed something"


def test_a_report_in_python_has_the_text_of_the_terminal_without_hints():
    report = Report((target(), target("reference", "passed")))
    text, whole = report.to_text(), shown(*report.targets)
    assert whole.startswith(text)
    assert text.endswith("\nmine:M     violated: conservation\nreference  passed\n")
    assert "Next: " not in text
    assert "\x1b" not in text


# ---------------------------------------------------------------- colours and pipes


def test_colours_are_for_terminals():
    assert "\x1b[" in shown(target(), stream=Tty())
    assert "\x1b[" not in shown(target())


def test_no_color_is_honoured(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown(target(verdict="passed"), stream=Tty())


def test_a_reader_that_has_gone_changes_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        show_report(console_on(stream), Report((target(),)))
        stream.write("more")


def test_what_is_given_up_goes_nowhere(tmp_path):
    with (tmp_path / "out").open("w") as stream:
        give_up(stream)
        stream.write("x")
    assert (tmp_path / "out").read_text() == ""


# ---------------------------------------------------------------- progress


def update(name, elapsed=2.0, phase="fixed", transitions=4000):
    return Update(name, phase, Progress(1234, transitions, 5, 17), elapsed)


def test_in_ci_a_target_gets_a_line_at_its_start_now_and_then_and_at_its_end(monkeypatch):
    times = iter([0.0, 4.0, 10.0, 10.0, 11.0])
    monkeypatch.setattr(running, "monotonic", lambda: next(times))
    stream = StringIO()
    done: dict[str, TargetReport] = {}
    with progress(stream, ["a"], 20.0, done) as tell:
        for elapsed in (0.0, 4.0, 10.0, 11.0):
            tell(update("a", elapsed, transitions=int(1000 * elapsed)))
        tell(target("a", "passed"))
    assert stream.getvalue().splitlines() == [
        "a: started, at most 20 s",
        "a: fixed, 1,234 states, 10,000 transitions, depth 5, 1,000/s, 10 s left",
        "a: passed in 12.3 s",
    ]
    assert done == {"a": target("a", "passed")}


def test_the_rate_is_that_of_the_phase(monkeypatch):
    monkeypatch.setattr(running, "PLAIN_SECONDS", 0.0)
    stream = StringIO()
    with progress(stream, ["a"], 20.0, {}) as tell:
        tell(update("a", 1.0, transitions=10))
        tell(update("a", 3.0, transitions=50))
        tell(update("a", 4.0, transitions=20))
        tell(update("a", 5.0, transitions=30))
        tell(update("a", 6.0, "resume", transitions=40))
        tell(update("a", 30.0, "resume", transitions=64))
    ends = [line.partition("depth 5, ")[2] for line in stream.getvalue().splitlines()[1:]]
    over = "1/s, past its time, finishing depth 6"
    assert ends == ["20/s, 17 s left", "16 s left", "10/s, 15 s left", "14 s left", over]


def test_a_terminal_shows_a_bar_for_each_target_and_then_nothing():
    stream = Tty()
    done: dict[str, TargetReport] = {}
    with progress(stream, ["a", "[b]"], 20.0, done) as tell:
        tell(update("a"))
        tell(update("[b]", elapsed=0.0))
        tell(target("a", "not_applicable"))
    text = stream.getvalue()
    assert "[b]" in text
    assert "\x1b[" in text
    assert text.rstrip().endswith("\x1b[2K")
    assert list(done) == ["a"]


def test_without_a_budget_nothing_is_said_to_be_left(monkeypatch):
    monkeypatch.setattr(running, "PLAIN_SECONDS", 0.0)
    stream = StringIO()
    with progress(stream, ["a"], None, {}) as tell:
        tell(update("a", 1.0))
        tell(update("a", 2.0))
    words = "a: fixed, 1,234 states, 4,000 transitions, depth 5, 0/s"
    assert stream.getvalue().splitlines() == ["a: started", words]
    stream = Tty()
    with progress(stream, ["a"], None, {}) as tell:
        tell(update("a"))
        tell(target("a", "passed"))
    assert "\x1b[" in stream.getvalue()


def test_work_on_one_history_gets_a_line_now_and_then(monkeypatch):
    now = iter(range(0, 1000, 4))
    monkeypatch.setattr(running, "monotonic", lambda: float(next(now)))
    stream = StringIO()
    with watch(stream, "[a]") as tell:
        for done in (1000, 2000, 3000):
            tell("looking for the fault", done, 4000)
        tell("fixed scope, 7 states", 90, 0)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("[a]: looking for the fault, ")
    assert " of 4,000, " in lines[0]
    assert lines[0].endswith("/s")
    assert lines[-1].startswith("[a]: fixed scope, 7 states, 90 transitions")


def test_work_on_one_history_is_one_line_on_a_terminal():
    stream = Tty()
    with watch(stream, "[a]") as tell:
        tell("cutting", 1, 2)
    assert "[a]: cutting, 1 of 2" in stream.getvalue()


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_a_terminal_that_is_none_gets_lines(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    stream = Tty()
    with progress(stream, ["a"], 20.0, {}) as tell:
        tell(update("a"))
    assert stream.getvalue() == "a: started, at most 20 s\n"


def test_a_budget_of_processor_time_is_said_to_be_one():
    stream = StringIO()
    with progress(stream, ["a"], 30.0, {}, hard=False) as tell:
        tell(update("a"))
    assert stream.getvalue() == "a: started, about 30 s of processor time\n"


# ---------------------------------------------------------------- the list of targets


def test_each_builtin_says_whether_it_can_run_and_else_what_it_takes():
    rows = [
        Builtin("reference", "json:X", "Lists and loops.", "json", "pip install x"),
        Builtin("nope", "nope:X", "An [engine].", "nope", "pip install nope"),
    ]
    stream = StringIO()
    show_builtins(console_on(stream), rows)
    assert stream.getvalue().splitlines() == [
        "reference  can run    Lists and loops.",
        "nope       can't run  An [engine].",
        "           lacks nope: pip install nope",
    ]


def test_what_is_about_abilities_that_a_target_lacks_is_one_line():
    results = (
        PropertyResult("pool-full", "passed", 1),
        PropertyResult("tail-copied", "not_applicable", 0, "needs the ability fork"),
        PropertyResult("prefix-found", "not_applicable", 0, "needs a prefix index in the snapshot"),
        PropertyResult("swapped-in", "not_applicable", 0, "declared: no second pool"),
    )
    told = shown(target(verdict="passed", properties=results, counterexamples=()))
    assert "  2 properties of abilities that it does not declare" in told
    assert "goals reached (1 of 2): pool-full" in told
    assert "swapped-in" in told
    assert "tail-copied" not in told
    assert "prefix-found" not in told
