"""The report as SARIF 2.1.0: the fields that its schema requires, and what code scanning reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from faults import FreeTwice, KeepsLast
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.stateful.report import Report
from pagedkv.stateful.reports import Place, Source, sarif_json
from report_examples import LEAK, TWICE, examples_of, hostile_report, report, target

PLACES = {
    "mine:FreeTwice": (Place("mine:FreeTwice", Source("src/mine.py", 12)),),
    "reference+mine:EarlyOut": (
        Place("reference", Source("file:///opt/reference.py", 3)),
        Place("mine:EarlyOut", Source("src/mine.py", 40)),
    ),
}


def run_of(of: Report, places: Any = None) -> dict[str, Any]:
    log = json.loads(sarif_json(of, places))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    return dict(run)


def results_of(of: Report, name: str, places: Any = None) -> list[dict[str, Any]]:
    every = run_of(of, places)["results"]
    return [result for result in every if result["message"]["text"].startswith(f"{name}: ")]


@pytest.mark.parametrize("of", [report(), hostile_report(), Report()], ids=["all", "odd", "none"])
def test_what_the_schema_requires_is_there(of):
    run = run_of(of, PLACES)
    assert run["tool"]["driver"]["name"] == "pagedkv"
    rules = run["tool"]["driver"]["rules"]
    for rule in rules:
        assert rule["id"]
        for part in ("shortDescription", "fullDescription", "help"):
            assert rule[part]["text"]
    for result in run["results"]:
        assert result["message"]["text"]
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "note"}
        for place in result["locations"]:
            assert place["logicalLocations"][0]["fullyQualifiedName"]
    for invocation in run["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)


def test_the_property_is_the_rule():
    rules = {rule["id"]: rule for rule in run_of(report())["tool"]["driver"]["rules"]}
    assert set(rules) == {e.property for t in report().targets for e in t.counterexamples}
    rule, prop = rules["free-valid"], PROPERTIES["free-valid"]
    assert rule["shortDescription"]["text"] == prop.statement
    assert rule["fullDescription"]["text"] == prop.equation
    assert prop.equation in rule["help"]["markdown"]
    assert rule["name"] == "FreeValid"


def test_each_violation_is_an_error_with_its_history():
    results = results_of(report(), "mine:FreeTwice", PLACES)
    assert [result["ruleId"] for result in results] == ["conservation", "free-valid"]
    (result,) = [result for result in results if result["ruleId"] == "free-valid"]
    assert result["level"] == "error"
    text = result["message"]["text"]
    assert text.startswith("mine:FreeTwice: free_blocks names block 0 2 times\n\n")
    assert "   3  release(0)     done" in text
    assert result["properties"]["commands"][-1] == {"op": "release", "request": 0}
    assert "suppressions" not in result


def test_an_expected_failure_is_a_note_that_is_suppressed():
    (result,) = results_of(report(), "mine:WrongReport")
    assert result["level"] == "note"
    assert result["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "expected: issue 12"}
    ]


def test_a_result_stands_at_the_targets_own_source():
    first = results_of(report(), "mine:FreeTwice", PLACES)[0]
    (place,) = first["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "src/mine.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }


def test_without_a_source_the_targets_name_is_the_place():
    first = results_of(report(), "mine:FreeTwice")[0]
    name = "mine:FreeTwice"
    assert first["locations"] == [
        {"logicalLocations": [{"name": name, "fullyQualifiedName": name}]}
    ]


def test_of_a_pair_the_one_that_breaks_comes_first():
    results = {r["ruleId"]: r for r in results_of(report(), "reference+mine:EarlyOut", PLACES)}

    def names(result, key):
        return [place["logicalLocations"][0]["name"] for place in result[key]]

    second = results["out-of-blocks"]
    assert second["properties"]["message"].startswith("the second target: ")
    assert names(second, "locations") == ["mine:EarlyOut"]
    assert names(second, "relatedLocations") == ["reference"]
    assert names(results["lockstep"], "locations") == ["reference"]
    uri = results["lockstep"]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert uri == {"uri": "file:///opt/reference.py"}


def test_a_fingerprint_is_the_targets_and_the_propertys_alone():
    def prints(of):
        return {r["ruleId"]: r["partialFingerprints"] for r in run_of(of)["results"]}

    both = prints(Report((target("mine:M", examples_of(FreeTwice, TWICE)),)))
    assert both["conservation"] != both["free-valid"]
    leak = examples_of(KeepsLast, LEAK)
    another_history = prints(Report((target("mine:M", leak),)))
    assert another_history["conservation"] == both["conservation"]
    another_target = prints(Report((target("mine:Other", leak),)))
    assert another_target["conservation"] != both["conservation"]


def test_what_could_not_be_judged_is_told_beside_the_results():
    (invocation,) = run_of(report())["invocations"]
    assert invocation["exitCode"] == 1
    assert invocation["executionSuccessful"]
    (told,) = invocation["toolExecutionNotifications"]
    assert told == {"level": "warning", "message": {"text": "mine:Gone: it died (signal 11)"}}


def test_odd_text_is_escaped():
    text = sarif_json(hostile_report())
    text.encode("ascii")
    (result,) = run_of(hostile_report())["results"]
    assert "\\x1b" in result["message"]["text"]
    assert all(c == "\n" or c.isprintable() for c in result["message"]["text"])
