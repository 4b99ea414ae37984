"""Write conformance.md: `python docs/conformance.py REPORT.json ...`, from `pagedkv check --json`.

The row of a target and version that a report has is replaced; the others stay as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pagedkv.builtin import BUILTINS
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.properties import EveryState, EveryStep, Expectation, Sometimes

PAGE = Path(__file__).with_suffix(".md")
TOX = Path(__file__).parents[1] / "tox.ini"

_INTRO = """\
# Conformance

What `pagedkv check` says of the allocators of real engines, a row for each target and version,
written from its reports: `python docs/conformance.py REPORT.json ...`. The command in the column
*again* makes the row again: it installs the tested versions and runs the tests of the adapter and
`pagedkv check TARGET --expected-failures tests/engines --budget 600`, which alone will do where the
engine is installed (`pagedkv targets` says how).

*expected* is a violation that is known: its reason stands in `tests/engines/TARGET.expected`, its
cause in [findings/](findings/README.md). A violation ends the histories in which it shows, so that
the other properties are judged on what comes before it; one of a copy of the tables is gone past
([properties.md](properties.md)). *exhausted* is a search that saw every state and every transition
of its scope. *n/a* is not applicable: the target shows or declares nothing that the property could
judge, or an exhausted search showed a goal to be out of reach. The number beside a word counts the
evaluations that had something to judge.

## Verdicts

"""
_SECTIONS: tuple[tuple[str, type[Expectation]], ...] = (
    ("## Of every state", EveryState),
    ("## Of every step", EveryStep),
    ("## Goals", Sometimes),
)
_HEAD = ("target", "version", "verdict", "profile", "states", "transitions", "exhausted", "again")


@dataclass(frozen=True, slots=True)
class Cell:
    """One property: passed, violated, expected, n/a or unknown, and on how much."""

    word: str
    evaluations: int

    def __str__(self) -> str:
        word = f"**{self.word}**" if self.word in ("violated", "unknown") else self.word
        return f"{word} {self.evaluations}" if self.evaluations else word


@dataclass(frozen=True, slots=True)
class Row:
    """All that the page says of one target and version; `cells` by property."""

    target: str
    version: str
    verdict: str
    profile: str
    states: int
    transitions: int
    exhausted: str
    again: str
    cells: Mapping[str, Cell]


# ---------------------------------------------------------------- from a report


def rows_of(report: Mapping[str, Any]) -> list[Row]:
    """A row for each target of a report, as JSON has it; changes nothing."""
    return [_row(target, report["profile"]) for target in report["targets"]]


def _row(target: Mapping[str, Any], profile: str) -> Row:
    reason = f": {target['reason']}" if target["reason"] else ""
    coverage = target["coverage"]
    known = {example["property"] for example in target["counterexamples"] if example["expected"]}
    return Row(
        target=target["target"],
        version=target["version"] or "-",
        verdict=_plain(target["verdict"].replace("_", " ") + reason),
        profile=profile,
        states=coverage["states"],
        transitions=coverage["transitions"],
        exhausted=_plain("yes" if coverage["exhausted"] else f"no: {coverage['stopped']}"),
        again=again(target["target"]),
        cells={result["id"]: _cell(result, known) for result in target["properties"]},
    )


def _cell(result: Mapping[str, Any], known: Iterable[str]) -> Cell:
    word = {"not_applicable": "n/a"}.get(result["verdict"], result["verdict"])
    expected = word == "violated" and result["id"] in known
    return Cell("expected" if expected else word, result["evaluations"])


def _plain(text: str) -> str:
    """Words that can stand in a cell."""
    return " ".join(text.replace("|", "/").split())


def again(target: str) -> str:
    """The command that checks this target again, with its engine installed; changes nothing."""
    config = ConfigParser(interpolation=None)
    config.read(TOX, encoding="utf-8")
    for section in config.sections():
        lines = config[section].get("commands", "").replace("\\\n", " ").splitlines()
        if any(f" {target} " in f"{line} " for line in lines if "check" in line):
            return f"tox -e {section.removeprefix('testenv:')}"
    return f"pagedkv check {target}"


# ---------------------------------------------------------------- the page


def page(rows: Iterable[Row]) -> str:
    """The whole page; changes nothing."""
    known = [builtin.name for builtin in BUILTINS]
    order = {name: place for place, name in enumerate(known)}
    ordered = sorted(rows, key=lambda row: (order.get(row.target, len(known)), *_key(row)))
    parts = [_INTRO + "\n".join(_table(_HEAD, map(_head, ordered)))]
    for title, kind in _SECTIONS:
        ids = [name for name, prop in PROPERTIES.items() if isinstance(prop.expectation, kind)]
        head = ("target", "version", *(f"`{name}`" for name in ids))
        cells = ([*_key(row), *(_shown(row, name) for name in ids)] for row in ordered)
        parts.append("\n".join([title, "", *_table(head, cells)]))
    return "\n\n".join(parts) + "\n"


def _key(row: Row) -> tuple[str, str]:
    return f"`{row.target}`", row.version


def _head(row: Row) -> list[str]:
    counts = (str(row.states), str(row.transitions))
    return [*_key(row), row.verdict, row.profile, *counts, row.exhausted, f"`{row.again}`"]


def _shown(row: Row, name: str) -> str:
    return str(row.cells[name]) if name in row.cells else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def read(text: str) -> list[Row]:
    """The rows of a page that `page` wrote; changes nothing."""
    rows: dict[tuple[str, str], Row] = {}
    head: list[str] = []
    for line in text.splitlines():
        if not line.startswith("| ") or line.startswith("| ---"):
            continue
        target, version, *cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        key = target.strip("`"), version
        if target == "target":
            head = [name.strip("`") for name in cells]
        elif key not in rows:
            verdict, profile, states, transitions, exhausted, command = cells
            counts = int(states), int(transitions)
            rows[key] = Row(*key, verdict, profile, *counts, exhausted, command.strip("`"), {})
        else:
            more = {name: _read(cell) for name, cell in zip(head, cells, strict=True) if cell}
            rows[key] = replace(rows[key], cells={**rows[key].cells, **more})
    return list(rows.values())


def _read(cell: str) -> Cell:
    word, _, number = cell.replace("**", "").partition(" ")
    return Cell(word, int(number or 0))


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """All rows; of two of the same target and version, the new one; changes nothing."""
    return list({(row.target, row.version): row for row in (*old, *new)}.values())


if __name__ == "__main__":
    rows = read(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else []
    for file in sys.argv[1:]:
        rows = merged(rows, rows_of(json.loads(Path(file).read_text(encoding="utf-8"))))
    PAGE.write_text(page(rows), encoding="utf-8")
