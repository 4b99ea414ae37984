"""The report as SARIF 2.1.0: each violation a result whose rule is its property.

Code scanning shows a result at the allocator's own source where that is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagedkv import __version__
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.stateful.report import Counterexample, Report, TargetReport
from pagedkv.stateful.reports.escape import printable
from pagedkv.stateful.reports.film import is_of_second
from pagedkv.stateful.text import counterexample_text, plain

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
ROOT = "%SRCROOT%"
"""What paths are relative to: the root of the repository."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a class or a function is written.

    uri: relative to the repository's root, or absolute with a scheme. line: counts from 1.
    """

    uri: str
    line: int


@dataclass(frozen=True, slots=True)
class Place:
    """One target, and where it is written; None if that can't be found."""

    name: str
    source: Source | None = None


Places = Mapping[str, Sequence[Place]]
"""By the name in the report: one place, or two of a pair in lockstep."""


def sarif_json(report: Report, places: Places | None = None) -> str:
    """The report as SARIF; changes nothing. A report on nothing has no result."""
    rules = sorted({e.property for target in report.targets for e in target.counterexamples})
    known = places or {}
    run = {
        "tool": {
            "driver": {
                "name": "pagedkv",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(name) for name in rules],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": [
            _result(target, example, rules.index(example.property), where)
            for target in report.targets
            for where in [known.get(target.target) or [Place(target.target)]]
            for example in target.counterexamples
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(name: str) -> dict[str, Any]:
    prop = PROPERTIES[name]
    text = (
        f"{prop.statement}\n\nIt must hold that {prop.equation}\n\n"
        f"The message is the same with the numbers of the last step. `pagedkv check --traces DIR` "
        f"keeps the history as a file, `pagedkv replay FILE` runs it again."
    )
    markdown = text.replace(prop.equation, f"\n\n```\n{prop.equation}\n```")
    return {
        "id": name,
        "name": "".join(part.capitalize() for part in name.split("-")),
        "shortDescription": {"text": prop.statement},
        "fullDescription": {"text": prop.equation},
        "help": {"text": text, "markdown": markdown},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["kv-cache", "allocator"], "precision": "very-high"},
    }


def _invocation(report: Report) -> dict[str, Any]:
    """How the run went: what could not be judged is told here, as it is no result."""
    told = [
        {
            "level": "error" if target.verdict == "violated" else "warning",
            "message": {"text": printable(f"{plain(target.target)}: {plain(target.reason or '')}")},
        }
        for target in report.targets
        if target.reason is not None
    ]
    return {
        "executionSuccessful": report.exit_code != 2,
        "exitCode": report.exit_code,
        "toolExecutionNotifications": told,
    }


def _result(
    target: TargetReport, example: Counterexample, rule: int, places: Sequence[Place]
) -> dict[str, Any]:
    name = plain(target.target)
    text = f"{name}: {plain(example.message)}\n\n{counterexample_text(example)}"
    ordered = places[::-1] if is_of_second(example) else places
    guilty, *others = map(_location, ordered)
    result: dict[str, Any] = {
        "ruleId": example.property,
        "ruleIndex": rule,
        "kind": "fail",
        "level": "note" if example.expected else "error",
        "message": {"text": printable(text)},
        "locations": [guilty],
        "partialFingerprints": {"targetAndProperty/v1": _fingerprint(name, example.property)},
        "properties": example.to_json(),
    }
    if others:
        result["relatedLocations"] = others
    if example.expected:
        reason = next((r.reason for r in target.properties if r.id == example.property), None)
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": plain(reason or "expected")}
        ]
    return result


def _location(place: Place) -> dict[str, Any]:
    name = plain(place.name)
    location: dict[str, Any] = {"logicalLocations": [{"name": name, "fullyQualifiedName": name}]}
    source = place.source
    if source is not None:
        artifact = {"uri": source.uri}
        if "://" not in source.uri:
            artifact["uriBaseId"] = ROOT
        location["physicalLocation"] = {
            "artifactLocation": artifact,
            "region": {"startLine": source.line},
        }
    return location


def _fingerprint(target: str, prop: str) -> str:
    """The same fault in the next run, however its shortest history looks by then."""
    return hashlib.sha256(f"{target}\n{prop}".encode()).hexdigest()
