"""The report as one HTML page that needs nothing else: no network, no fonts, no other file.

Every word of a target's goes through the template's escaping; the page's policy lets no script
run but its own. Without JavaScript it shows the same pictures, and the last step of each.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pagedkv import __version__
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.properties import Sometimes
from pagedkv.stateful.report import Counterexample, PropertyResult, Report, TargetReport, Verdict
from pagedkv.stateful.reports.escape import counted, printable
from pagedkv.stateful.reports.film import Film, film_of
from pagedkv.stateful.reports.picture import svg_of
from pagedkv.stateful.reproducer import pytest_function
from pagedkv.stateful.text import by_history, counterexamples_text, plain

MARKS: dict[Verdict, str] = {
    "passed": "✓",
    "violated": "✕",
    "unknown": "?",
    "not_applicable": "-",
}


def html_page(report: Report) -> str:
    """The report as a page; changes nothing. A report on nothing says that nothing was checked."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    names = ("page.html", "page.css", "page.js", "picture.css")
    texts = {name: files(__package__).joinpath(name).read_text(encoding="utf-8") for name in names}
    environment = Environment(
        loader=DictLoader({"page.html": texts["page.html"]}),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    styles, script = texts["page.css"] + texts["picture.css"], texts["page.js"]
    examples = _examples(report)
    return environment.get_template("page.html").render(
        version=__version__,
        headline=headline(report),
        how=how(report),
        report=report,
        examples=examples,
        films=[example.film.to_json() for example in examples if example.film is not None],
        links={(e.target, name): e.ident for e in examples for name in e.properties},
        rows=_rows(report),
        marks=MARKS,
        figures=figures,
        styles=_unchanged(styles),
        script=_unchanged(script),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(styles)}; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
    )


def headline(report: Report) -> str:
    """The run's verdict in a few words; changes nothing."""
    count = len(report.targets)
    of = f"of {count} target{'' if count == 1 else 's'}"
    violated = sum(target.verdict == "violated" for target in report.targets)
    unknown = sum(target.verdict == "unknown" for target in report.targets)
    if not count:
        return "Nothing was checked"
    if violated:
        return f"Violated: {violated} {of}"
    return f"Unknown: {unknown} {of}" if unknown else f"Passed: {count} {of}"


def how(report: Report) -> str:
    """The profile and the seed in a few words; changes nothing. Empty where there is neither."""
    if report.profile is None:
        return ""
    seed = "the profile's own seed" if report.seed is None else f"seed {report.seed}"
    return f"profile {report.profile}, {seed}"


def _shown(value: object) -> object:
    """What the template shows of a value: never a control character."""
    return printable(value) if type(value) is str else value


def _unchanged(text: str) -> object:
    """Our own files and pictures, as they are: nothing of a target's is markup in them."""
    from markupsafe import Markup

    return Markup(text)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# ---------------------------------------------------------------- counterexamples


@dataclass(frozen=True, slots=True)
class _Example:
    """Counterexamples with one history, as the page shows them."""

    ident: str
    target: str
    broken: Sequence[Counterexample]
    film: Film | None
    picture: Any
    text: str
    test: str

    @property
    def properties(self) -> list[str]:
        return [example.property for example in self.broken]

    @property
    def first(self) -> Counterexample:
        return self.broken[0]

    @property
    def facts(self) -> list[str]:
        geometry, fault = self.first.geometry, self.first.fault
        blocks = counted(geometry.num_blocks, "block")
        facts = [
            f"pool of {blocks} of {counted(geometry.block_size, 'token')}",
            counted(len(self.first.commands), "command"),
            f"call {fault.call} inside command {fault.step} fails, {fault.mode}" if fault else "",
            str(self.first.proof),
        ]
        return [fact for fact in facts if fact]


def _examples(report: Report) -> list[_Example]:
    found: list[_Example] = []
    for target in report.targets:
        for group in by_history(target.counterexamples):
            ident, film = f"example-{len(found) + 1}", film_of(group, target.target)
            names = ", ".join(example.property for example in group)
            title = f"The pool over time, as {plain(target.target)} breaks {names}"
            found.append(
                _Example(
                    ident=ident,
                    target=target.target,
                    broken=group,
                    film=film,
                    picture=None if film is None else _unchanged(svg_of(film, ident, title)),
                    text=counterexamples_text(group),
                    test=pytest_function(group[0], target.target, target.tolerances),
                )
            )
    return found


# ---------------------------------------------------------------- the matrix


@dataclass(frozen=True, slots=True)
class _Row:
    """One property over all targets: for each its result, None where it was not judged."""

    id: str
    statement: str
    equation: str
    goal: bool
    results: Sequence[PropertyResult | None]

    @property
    def violated(self) -> bool:
        return any(result is not None and result.verdict == "violated" for result in self.results)


def _rows(report: Report) -> list[_Row]:
    """What must hold before the goals; of each what is violated first, as in the catalogue."""
    columns = [{result.id: result for result in target.properties} for target in report.targets]
    rows = [
        _Row(
            name,
            prop.statement,
            prop.equation,
            isinstance(prop.expectation, Sometimes),
            [column.get(name) for column in columns],
        )
        for name, prop in PROPERTIES.items()
        if any(name in column for column in columns)
    ]
    return sorted(rows, key=lambda row: (row.goal, not row.violated))


def figures(target: TargetReport) -> list[tuple[str, str]]:
    """How much of a target was tried, each figure with its name; changes nothing."""
    coverage = target.coverage
    injected = target.injection
    return [
        ("states", f"{coverage.states:,}"),
        ("transitions", f"{coverage.transitions:,}"),
        ("depth", f"{coverage.depth:,}"),
        ("random steps", f"{coverage.random_steps:,}"),
        ("evaluations", f"{sum(result.evaluations for result in target.properties):,}"),
        *([] if injected is None else [("failures injected", f"{injected.failures:,}")]),
        ("seconds", f"{target.seconds:.1f}"),
    ]
