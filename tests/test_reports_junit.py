"""The report as JUnit XML: what Jenkins' schema (junit-10) allows, and what it counts."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

from pagedkv.stateful.report import Report
from pagedkv.stateful.reports import junit_xml
from report_examples import HOSTILE, PASSED, hostile_report, report, target

# Of junit-10.xsd: the attributes of each element, the required ones first, and its children.
SHAPE: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped"},
        {"properties", "testcase"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name"}, {"classname", "time"}, {"skipped", "error", "failure"}),
    "skipped": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "failure": (set(), {"type", "message"}, set()),
}


def parsed(of: Report) -> ET.Element:
    return ET.fromstring(junit_xml(of).encode("utf-8"))


def suite(root: ET.Element, name: str) -> ET.Element:
    (found,) = [s for s in root if s.get("name") == name]
    return found


def case(root: ET.Element, name: str, prop: str) -> ET.Element:
    (found,) = [c for c in suite(root, name).iter("testcase") if c.get("name") == prop]
    return found


def what(of: ET.Element) -> list[tuple[str, str | None]]:
    return [(child.tag, child.get("message")) for child in of]


def test_every_element_and_attribute_is_one_that_the_schema_has():
    for root in (parsed(report()), parsed(hostile_report()), parsed(Report())):
        assert root.tag == "testsuites"
        for element in root.iter():
            required, optional, children = SHAPE[element.tag]
            assert required <= set(element.attrib) <= required | optional, element.tag
            assert {child.tag for child in element} <= children, element.tag


def test_each_suite_has_the_profile_and_the_seed():
    for seed, told in ((7, "7"), (None, "")):
        of = suite(parsed(replace(report(), profile="nightly", seed=seed)), "reference")
        about = {p.get("name"): p.get("value") for p in of.iter("property")}
        assert (about["profile"], about["seed"]) == ("nightly", told)


def test_each_suite_counts_its_own_and_the_whole_counts_all():
    root = parsed(report())
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for of in root:
        counts = {
            "tests": len(of.findall("testcase")),
            "failures": len(of.findall("testcase/failure")),
            "errors": len(of.findall("testcase/error")),
            "skipped": len(of.findall("testcase/skipped")),
        }
        assert {name: int(of.attrib[name]) for name in counts} == counts
        totals = {name: totals[name] + counts[name] for name in totals}
    assert totals == {"tests": 11, "failures": 5, "errors": 2, "skipped": 2}
    assert {name: int(root.attrib[name]) for name in ("tests", "failures", "errors")} == {
        name: totals[name] for name in ("tests", "failures", "errors")
    }


def test_a_violation_is_a_failure_with_the_counterexample():
    failing = case(parsed(report()), "mine:FreeTwice", "free-valid")
    assert what(failing) == [("failure", "free_blocks names block 0 2 times")]
    text = failing[0].text or ""
    assert "   3  release(0)     done" in text
    assert "pagedkv.assert_holds(" in text


def test_what_holds_says_nothing():
    assert what(case(parsed(report()), "reference", PASSED.id)) == []


def test_unknown_is_an_error_with_its_reason():
    unknown = case(parsed(report()), "mine:FreeTwice", "block-reused")
    assert what(unknown) == [("error", "never reached")]


def test_not_applicable_is_skipped_with_its_reason():
    skipped = case(parsed(report()), "mine:FreeTwice", "ref-counts")
    assert what(skipped) == [("skipped", "needs reference counts")]


def test_an_expected_failure_is_skipped_with_its_reason_and_history():
    skipped = case(parsed(report()), "mine:WrongReport", "report-agrees")
    assert what(skipped) == [("skipped", "expected: issue 12")]
    assert "prefill(0, 1)" in (skipped[0].text or "")


def test_a_target_that_could_not_be_driven_is_an_error_of_its_own():
    root = parsed(report())
    assert what(case(root, "mine:Gone", "verdict")) == [("error", "it died (signal 11)")]
    assert [c.get("name") for c in suite(root, "reference").iter("testcase")] == [PASSED.id]


def test_an_expected_failure_that_held_is_a_failure():
    reason = "expected to fail, but did not: contents"
    of = Report((target("mine:M", [], reason=reason, results=(PASSED,)),))
    assert what(case(parsed(of), "mine:M", "verdict")) == [("failure", reason)]


def test_text_that_xml_can_not_hold_is_shown_as_its_escape():
    text = junit_xml(hostile_report())
    assert "\x00" not in text
    assert "\x1b" not in text
    root = parsed(hostile_report())
    (of,) = root
    shown = HOSTILE.replace("\x00", "\\x00").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    shown = shown.replace("\ud800", "\\ud800").replace("\uffff", "\\uffff")
    assert of.get("name") == shown
    assert ("failure", shown) in [(c.tag, c.get("message")) for c in of.iter("failure")]


def test_no_target_is_an_empty_report():
    assert parsed(Report()).attrib == {
        "name": "pagedkv",
        "tests": "0",
        "failures": "0",
        "errors": "0",
        "time": "0.000",
    }
