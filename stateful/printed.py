"""A report as people read it, for a terminal or as plain text.

Nothing is read as markup, and nothing is cut: what a target says is shown as it is.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.properties import OF_ABILITIES, Sometimes
from pagedkv.stateful.exploration import VARIES
from pagedkv.stateful.report import (
    Counterexample,
    Injection,
    PropertyResult,
    Reach,
    Report,
    TargetReport,
    Verdict,
)
from pagedkv.stateful.reproducer import pytest_function
from pagedkv.stateful.text import by_history, counterexamples_text, plain, together
from pagedkv.stateful.trust import UNCOPIED, UNSEEN

_STYLES: dict[Verdict, str] = {
    "passed": "green",
    "violated": "bold red",
    "unknown": "yellow",
    "not_applicable": "dim",
}


def text_of(report: Report) -> str:
    """All that a terminal shows of a report, as plain text; changes nothing."""
    out = StringIO()
    plainly = Console(
        file=out, markup=False, emoji=False, highlight=False, soft_wrap=True, color_system=None
    )
    for target in report.targets:
        show_target(plainly, target)
    _show_summary(plainly, report)
    return out.getvalue()


def show_report(
    console: Console, report: Report, profile: str = "quick", traces: Sequence[Path] = ()
) -> None:
    """Each target with its table and counterexamples, then one line a target and what to do.

    traces: where the counterexamples are written.
    """
    for target in report.targets:
        show_target(console, target)
    _show_summary(console, report)
    for hint in hints(report, profile, traces):
        console.print(f"Next: {hint}")


def show_target(console: Console, target: TargetReport) -> None:
    """One target: headline, table, goals, counterexamples."""
    console.print(_headline(target))
    if target.reason:
        console.print(f"  {plain(target.reason)}")
    if target.coverage.scope:
        console.print(f"  searched: {target.coverage.scope}")
    for name, table in target.tolerances.items():
        console.print(f"  tolerated in {plain(name)}: {plain(', '.join(_declared(table)))}")
    for doubt in target.coverage.doubts:
        console.print(f"  not relied on: {plain(doubt)}")
    if (help_ := _help(target.coverage.doubts)) is not None:
        console.print(f"  what helps: {help_}")
    if target.injection is not None:
        console.print(f"  calls made to fail: {_failed(target.injection)}")
    console.print()
    _show_properties(console, target)
    for group in by_history(target.counterexamples):
        console.print(Text(counterexamples_text(group)))
        console.print("\nAs a test:\n")
        console.print(Text(_test_of(group, target)))


def _help(doubts: Sequence[str]) -> str | None:
    """What makes a state that can't be seen, or copied, cheap again; None where that is no matter.

    What can't be seen can't be copied either, so that the first is asked first.
    """
    if any(doubt.startswith(UNSEEN) for doubt in doubts):
        return (
            "declare it in `meaningless`, with the reason, if no answer depends on it; "
            "else bring `state_key` and `clone`"
        )
    if any(doubt.startswith(UNCOPIED) for doubt in doubts):
        return "bring `clone`; until then each history is run again from its start"
    return None


def _declared(table: Mapping[str, object]) -> list[str]:
    """What somebody declares for a target, each with the reason."""
    reasons = table.get("because", {})
    assert isinstance(reasons, Mapping)
    return [
        f"{name} = {value!r}" + (f" ({reasons[name]})" if name in reasons else "")
        for name, value in table.items()
        if name != "because"
    ]


def _test_of(group: Sequence[Counterexample], target: TargetReport) -> str:
    """One test for counterexamples that have one history.

    For several it judges every property: it fails while any of them is broken.
    """
    if len(group) == 1:
        return pytest_function(group[0], target.target, target.tolerances)
    first, more = group[0], len(group) - 1
    whole = replace(
        together(group),
        property=f"{first.property} and {more} more",
        equation=first.equation,
        message="; ".join(f"{example.property}: {example.message}" for example in group),
    )
    test = pytest_function(whole, target.target, target.tolerances)
    lines = test.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("        property="))


def _headline(target: TargetReport) -> Text:
    unexpected = sum(not example.expected for example in target.counterexamples)
    expected = len(target.counterexamples) - unexpected
    counts = [count(unexpected, "violation")] if unexpected else []
    counts += [count(expected, "expected failure")] if expected else []
    coverage = target.coverage
    facts = [
        *([] if coverage.part is None else [f"shard {coverage.part.shard}"]),
        count(coverage.states, "state"),
        count(coverage.transitions, "transition"),
        "exhausted" if coverage.exhausted else f"stopped ({plain(coverage.stopped or 'early')})",
    ]
    if coverage.random_steps:
        facts.append(count(coverage.random_steps, "random step") + _reach(coverage.reach))
    verdict = _words(target.verdict).upper() + (f" ({', '.join(counts)})" if counts else "")
    return Text.assemble(
        f"{target.target}: ",
        (verdict, _STYLES[target.verdict]),
        f", {', '.join(facts)}, {target.seconds:.1f} s",
    )


def _reach(reach: Reach | None) -> str:
    """How much of the small pools random histories saw."""
    if reach is None:
        return ""
    share = reach.states / reach.of
    return f" through {share:.1%} of the {count(reach.of, 'state')} of small pools"


def _failed(injection: Injection) -> str:
    """What was tried, and all that was not."""
    points, places = count(injection.points, "call"), count(injection.places, "place")
    commands, states = count(injection.commands, "command"), count(injection.states, "state")
    facts = [
        f"{points} of {places}, once and for good, in {commands} from {states}",
        "none left out" if injection.stopped is None else f"stopped ({plain(injection.stopped)})",
    ]
    if injection.spared:
        facts.append(f"{count(injection.spared, 'exit')} of with blocks or locks left alone")
    if injection.retried:
        facts.append(f"{count(injection.retried, 'time')} retried until calls got through again")
    if injection.unseen:
        facts.append(f"{count(injection.unseen, 'failure')} swallowed, what came after not seen")
    return "; ".join(facts)


def _show_properties(console: Console, target: TargetReport) -> None:
    """The table of properties, then the goals: those reached in one line, each other in its own.

    A reason that many share is told once.
    """
    beyond = [result for result in target.properties if _is_beyond(result)]
    results = tuple(result for result in target.properties if not _is_beyond(result))
    shared = {r for r, times in Counter(r.reason for r in results if r.reason).items() if times > 2}
    goals = [result for result in results if _is_goal(result)]
    judged = [result for result in results if not _is_goal(result)]
    if judged:
        rows = [
            ("property", "verdict", "evaluations", ""),
            *(_row(result, shared) for result in judged),
        ]
        _show_table(console, rows, [None, *(result.verdict for result in judged)])
        for reason in sorted(shared - {target.reason}):
            verdict = next(r.verdict for r in results if r.reason == reason)
            console.print(f"  each {_words(verdict)} above: {plain(reason)}")
    reached = [goal.id for goal in goals if goal.verdict == "passed"]
    if goals:
        console.print(f"  goals reached ({len(reached)} of {len(goals)}): {', '.join(reached)}")
    missed = [goal for goal in goals if goal.verdict != "passed"]
    if missed:
        rows = [(goal.id, _words(goal.verdict), "", plain(goal.reason or "")) for goal in missed]
        _show_table(console, rows, [goal.verdict for goal in missed])
    if beyond:
        what = "property" if len(beyond) == 1 else "properties"
        console.print(f"  {len(beyond)} {what} of abilities that it does not declare")
    if results:
        console.print()


def _is_beyond(result: PropertyResult) -> bool:
    """Whether it is about an ability that the target does not have."""
    known = PROPERTIES.get(result.id)
    lacks = result.verdict == "not_applicable" and (result.reason or "").startswith("needs ")
    return lacks and known is not None and not known.needs.isdisjoint(OF_ABILITIES)


def _is_goal(result: PropertyResult) -> bool:
    known = PROPERTIES.get(result.id)
    return known is not None and isinstance(known.expectation, Sometimes)


def _row(result: PropertyResult, shared: Collection[str]) -> tuple[str, str, str, str]:
    reason = "" if result.reason in shared else plain(result.reason or "")
    return (result.id, _words(result.verdict), f"{result.evaluations:,}", reason)


def _show_table(
    console: Console, rows: Sequence[tuple[str, str, str, str]], verdicts: Sequence[Verdict | None]
) -> None:
    """Columns as wide as their widest cell, the third to the right; nothing is cut or folded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for (name, verdict, count, reason), of in zip(rows, verdicts, strict=True):
        cells = [name.ljust(widths[0]), verdict.ljust(widths[1]), count.rjust(widths[2]), reason]
        line = Text("  " + "  ".join(cells if widths[2] else [cells[0], cells[1], reason]))
        if of is None:
            line.stylize("bold")
        else:
            start = 2 + widths[0] + 2
            line.stylize(_STYLES[of], start, start + len(verdict))
        line.rstrip()
        console.print(line)


def _show_summary(console: Console, report: Report) -> None:
    width = max((len(target.target) for target in report.targets), default=0)
    for target in report.targets:
        broken = [e.property + (" (expected)" * e.expected) for e in target.counterexamples]
        why = ", ".join(broken) or plain(target.reason or "")
        console.print(
            Text.assemble(
                f"{target.target.ljust(width)}  ",
                (_words(target.verdict), _STYLES[target.verdict]),
                f": {why}" if why else "",
            )
        )


def outcome(target: TargetReport) -> str:
    """A target's verdict and time, in a few words; changes nothing."""
    return f"{_words(target.verdict)} in {target.seconds:.1f} s"


def hints(report: Report, profile: str, traces: Sequence[Path] = ()) -> list[str]:
    """What to do next, for each kind of outcome that there was; changes nothing."""
    verdicts = {target.verdict for target in report.targets}
    found = []
    broken = [t for t in report.targets if any(not e.expected for e in t.counterexamples)]
    if broken:
        name = shlex.quote(broken[0].target)
        again = f"pagedkv check {name} --traces DIR, to keep the history in a file for replay"
        if traces:
            again = f"pagedkv replay {shlex.quote(str(traces[0]))}, once you have changed something"
        found.append(again)
        found.append(
            "put the test above into your suite, it fails until the fault is gone; "
            "a fault to live with goes into --expected-failures, as `property-id: reason`"
        )
    unknown = [target for target in report.targets if target.verdict == "unknown"]
    if any((target.reason or "").startswith(VARIES) for target in unknown):
        found.append(
            "two runs that differ share something: a class attribute, a mutable default argument, "
            "a module's variable, a clock, random numbers; give each manager its own"
        )
    elif any(target.coverage.states for target in unknown):
        found.append("for more than unknown, give it time: --budget SECONDS, or --profile nightly")
    if verdicts == {"passed"} and profile == "quick":
        found.append("--profile ci searches deeper, --profile nightly for ten minutes")
    return found


def _words(verdict: Verdict) -> str:
    return verdict.replace("_", " ")


def count(number: int, what: str) -> str:
    """A number with its noun, in the plural where it takes one."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
