"""The report as JUnit XML: one suite a target, one case a property.

As Jenkins' schema (junit-10) and GitLab read it: a violation is a failure, what is unknown an
error, what is expected or not applicable is skipped, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from pagedkv.stateful.report import Counterexample, PropertyResult, Report, TargetReport
from pagedkv.stateful.reports.escape import printable
from pagedkv.stateful.reproducer import pytest_function
from pagedkv.stateful.text import counterexample_text, plain

_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def junit_xml(report: Report) -> str:
    """The report as JUnit XML; changes nothing. A report on nothing has no suite."""
    root = ET.Element("testsuites", {"name": "pagedkv"})
    for target in report.targets:
        root.append(_suite(target, report))
    seconds = sum(target.seconds for target in report.targets)
    root.attrib |= {"tests": str(len(root.findall(".//testcase"))), "time": f"{seconds:.3f}"}
    for name in ("failures", "errors"):
        root.set(name, str(len(root.findall(f".//{_COUNTED[name]}"))))
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(target: TargetReport, report: Report) -> ET.Element:
    name = plain(target.target)
    suite = ET.Element("testsuite", {"name": name})
    properties = ET.SubElement(suite, "properties")
    coverage = {f"coverage.{key}": value for key, value in target.coverage.to_json().items()}
    if target.coverage.part is not None:
        coverage["coverage.shard"] = str(target.coverage.part.shard)
    for key, value in {"profile": report.profile, "seed": report.seed, **coverage}.items():
        told = "; ".join(value) if isinstance(value, list) else value
        about = {"name": key, "value": "" if told is None else plain(str(told))}
        ET.SubElement(properties, "property", about)
    for result in target.properties:
        case = ET.SubElement(suite, "testcase", {"name": result.id, "classname": name})
        broken = [e for e in target.counterexamples if e.property == result.id]
        _judge(case, target, result, broken)
    if (whole := _of_the_whole(target)) is not None:
        case = ET.SubElement(suite, "testcase", {"name": "verdict", "classname": name})
        _say(case, whole, target.verdict, target.reason or "", "")
    suite.attrib |= {"tests": str(len(suite.findall("testcase"))), "time": f"{target.seconds:.3f}"}
    for count, tag in _COUNTED.items():
        suite.set(count, str(len(suite.findall(f".//{tag}"))))
    return suite


def _judge(
    case: ET.Element, target: TargetReport, result: PropertyResult, broken: list[Counterexample]
) -> None:
    """What came of one property; nothing is added where it holds."""
    match result.verdict:
        case "passed":
            return
        case "violated":
            expected = bool(broken) and all(example.expected for example in broken)
            message = "; ".join(example.message for example in broken)
            said = result.reason if expected else message
            tag = "skipped" if expected else "failure"
            _say(case, tag, result.id, said or result.reason or "", _history(broken, target))
        case "unknown":
            _say(case, "error", "unknown", result.reason or "", "")
        case "not_applicable":
            _say(case, "skipped", "not applicable", result.reason or "", "")


def _history(broken: Iterable[Counterexample], target: TargetReport) -> str:
    texts = (
        f"{counterexample_text(example)}\n\nAs a test:\n\n"
        f"{pytest_function(example, target.target, target.tolerances)}"
        for example in broken
    )
    return "\n\n".join(texts)


def _say(case: ET.Element, tag: str, kind: str, message: str, text: str) -> None:
    element = ET.SubElement(case, tag, {"type": kind, "message": plain(message)})
    element.text = printable(text) or None


def _of_the_whole(target: TargetReport) -> str | None:
    """How the target's own verdict shows, where no property's does; None where one does."""
    verdicts = {result.verdict for result in target.properties}
    unexpected = any(not example.expected for example in target.counterexamples)
    if target.verdict == "violated" and not unexpected:
        return "failure"
    if target.verdict == "unknown" and "unknown" not in verdicts:
        return "error"
    return None
