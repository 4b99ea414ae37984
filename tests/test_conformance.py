"""docs/conformance.md: from reports and back; each engine has a row, each row a command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from types import ModuleType

import pytest

from pagedkv.builtin import BUILTINS
from pagedkv.commands.expected import file_of, read_expected_failures
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.model import Geometry
from pagedkv.stateful.report import (
    Counterexample,
    Coverage,
    OneMinimal,
    PropertyResult,
    Report,
    TargetReport,
    Verdict,
)
from projects import ROOT, environment

ENGINES = [builtin for builtin in BUILTINS if builtin.where.startswith("pagedkv.engines.")]
EXPECTED = ROOT / "tests" / "engines"


@pytest.fixture(scope="module")
def conformance() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance", ROOT / "docs" / "conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(name, *, expected):
    words = ("", "", "message")
    proof = OneMinimal("a test")
    return Counterexample(name, *words, Geometry(1, 1), (), proof, expected=expected)


def report(target="torch", version="torch 2.13.0", *, exhausted=True):
    results = (
        PropertyResult("conservation", "passed", 1234),
        PropertyResult("contents", "violated", 12),
        PropertyResult("reverse-map", "violated", 7, "expected: upstream 12"),
        PropertyResult("ref-counts", "not_applicable", 0, "needs ref_counts"),
        PropertyResult("rollback", "unknown", 3, "3 < 100 evaluations"),
        PropertyResult("pool-full", "passed", 5),
    )
    examples = example("contents", expected=False), example("reverse-map", expected=True)
    stopped = None if exhausted else "the budget | ended"
    coverage = Coverage(5, 9, 2, exhausted=exhausted, stopped=stopped)
    reason = None if exhausted else "stopped at\ndepth 3"
    verdict: Verdict = "violated" if exhausted else "unknown"
    one = TargetReport(target, verdict, reason, results, examples, coverage, 1.0, None, version)
    return Report((one,), "quick").to_json()


def test_a_row_says_of_each_property_what_the_report_says(conformance):
    (row,) = conformance.rows_of(report())
    assert {name: str(cell) for name, cell in row.cells.items()} == {
        "conservation": "passed 1234",
        "contents": "**violated** 12",
        "reverse-map": "expected 7",
        "ref-counts": "n/a",
        "rollback": "**unknown** 3",
        "pool-full": "passed 5",
    }
    assert (row.target, row.version, row.verdict) == ("torch", "torch 2.13.0", "violated")
    assert (row.states, row.transitions, row.exhausted) == (5, 9, "yes")


def test_what_was_not_exhausted_says_why_in_words_that_a_table_can_have(conformance):
    (row,) = conformance.rows_of(report(exhausted=False))
    assert row.exhausted == "no: the budget / ended"
    assert row.verdict == "unknown: stopped at depth 3"


def test_from_reports_to_the_page_and_back(conformance):
    reports = [report(), report("torch", "torch 2.6.0", exhausted=False), report("mine:M", None)]
    rows = [row for one in reports for row in conformance.rows_of(one)]
    text = conformance.page(rows)
    assert sorted(map(repr, conformance.read(text))) == sorted(map(repr, rows))
    assert conformance.page(conformance.read(text)) == text
    assert conformance.page(reversed(rows)) == text


def test_every_property_has_its_column_once(conformance):
    text = conformance.page(conformance.rows_of(report()))
    heads = [line for line in text.splitlines() if line.startswith("| target ")]
    columns = [cell.strip(" `") for line in heads[1:] for cell in line.strip("| ").split("|")[2:]]
    assert sorted(columns) == sorted(PROPERTIES)


def test_a_report_replaces_the_row_of_its_target_and_version_only(conformance):
    old = [*conformance.rows_of(report()), *conformance.rows_of(report("torch", "torch 2.6.0"))]
    (new,) = conformance.rows_of(report(exhausted=False))
    assert conformance.merged(old, [new]) == [new, old[1]]


def test_the_command_adds_the_reports_to_the_page(tmp_path):
    source = (ROOT / "docs" / "conformance.py").read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    script = tmp_path / "docs" / "conformance.py"
    script.write_text(source, encoding="utf-8")
    page = script.with_suffix(".md")
    for version in ("torch 2.6.0", "torch 2.13.0"):
        file = tmp_path / "report.json"
        file.write_text(json.dumps(report(version=version)), encoding="utf-8")
        command = [sys.executable, str(script), str(file)]
        subprocess.run(command, check=True, env=environment(tmp_path), cwd=tmp_path)
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if "`torch`" in line]
    assert [row.split(" | ")[1] for row in rows] == ["torch 2.13.0", "torch 2.6.0"] * 4


# ---------------------------------------------------------------- what is committed


def test_the_page_is_as_the_command_writes_it(conformance):
    text = conformance.PAGE.read_text(encoding="utf-8")
    assert conformance.page(conformance.read(text)) == text, "run `python docs/conformance.py`"


def test_each_engine_has_a_row_and_an_environment_that_makes_it_again(conformance):
    rows = conformance.read(conformance.PAGE.read_text(encoding="utf-8"))
    assert {row.target for row in rows} == {engine.name for engine in ENGINES}
    for row in rows:
        assert row.again == conformance.again(row.target)
        assert row.again.startswith("tox -e engine-")


def test_a_target_without_an_environment_is_checked_by_hand(conformance):
    assert conformance.again("mine:M") == "pagedkv check mine:M"


@pytest.mark.parametrize("file", sorted(EXPECTED.glob("*.expected")), ids=lambda file: file.name)
def test_each_file_of_known_failures_is_of_an_engine(file):
    assert file.name in {file_of(engine.name) for engine in ENGINES}
    assert read_expected_failures(file)


def test_what_the_page_says_is_expected_stands_in_the_file_of_its_target(conformance):
    for row in conformance.read(conformance.PAGE.read_text(encoding="utf-8")):
        file = EXPECTED / file_of(row.target)
        known = read_expected_failures(file) if file.exists() else {}
        shown = {name for name, cell in row.cells.items() if cell.word == "expected"}
        assert shown == set(known), row.target
