"""Reports as they were written, read again: what `Report.to_json` leaves out stays empty."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, get_args

from pagedkv import __version__
from pagedkv.specs.catalogue import PROPERTIES, command_from_json
from pagedkv.specs.faults import fault_from_json
from pagedkv.specs.model import Geometry
from pagedkv.stateful.report import (
    SCHEMA,
    Counterexample,
    Coverage,
    OneMinimal,
    Part,
    Proof,
    PropertyResult,
    Reach,
    Report,
    Shortest,
    TargetReport,
    Unfinished,
    Verdict,
)
from pagedkv.stateful.shards import Cut, Shard

T = TypeVar("T")


class BadReport(ValueError):
    """What is no report of this version of pagedkv; the message is one line."""


def report_from_json(data: object) -> Report:
    """The report that `Report.to_json` gave, without pictures and without injected failure.

    Changes nothing. Raises BadReport, for a report of another version too.
    """
    if not isinstance(data, dict) or "targets" not in data:
        raise BadReport("is no report of pagedkv; give what --json wrote")
    version = (data.get("schema"), data.get("pagedkv"))
    if version != (SCHEMA, __version__):
        raise BadReport(f"is of pagedkv {version[1]}, this is {__version__}; use one for all")
    try:
        return Report(
            tuple(map(_target, data["targets"])),
            _maybe(data["profile"], str),
            _maybe(data["seed"], int),
            _maybe(data["budget"], float),
            _maybe(data.get("shard"), _shard),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BadReport(f"is no report as pagedkv {__version__} writes it ({what})") from error


def _maybe(value: Any, read: Callable[[Any], T]) -> T | None:
    return None if value is None else read(value)


def _verdict(value: object) -> Verdict:
    if value not in get_args(Verdict):
        raise ValueError(f"{value!r} is no verdict")
    return cast(Verdict, value)


def _target(data: Mapping[str, Any]) -> TargetReport:
    return TargetReport(
        target=str(data["target"]),
        verdict=_verdict(data["verdict"]),
        reason=_maybe(data["reason"], str),
        properties=tuple(
            PropertyResult(
                str(one["id"]),
                _verdict(one["verdict"]),
                int(one["evaluations"]),
                _maybe(one["reason"], str),
            )
            for one in data["properties"]
        ),
        counterexamples=tuple(map(_counterexample, data["counterexamples"])),
        coverage=_coverage(data["coverage"]),
        seconds=float(data["seconds"]),
        tolerances={name: dict(table) for name, table in data.get("tolerances", {}).items()},
    )


def _counterexample(data: Mapping[str, Any]) -> Counterexample:
    prop = PROPERTIES[data["property"]]
    return Counterexample(
        property=prop.id,
        statement=prop.statement,
        equation=prop.equation,
        message=str(data["message"]),
        geometry=_geometry(data["geometry"]),
        commands=tuple(command_from_json(command) for command in data["commands"]),
        proof=_proof(data["proof"], data["proof_detail"]),
        expected=bool(data["expected"]),
        fault=_maybe(data.get("fault"), fault_from_json),
    )


def _geometry(data: Mapping[str, Any]) -> Geometry:
    return Geometry(data["num_blocks"], data["block_size"], data.get("head_dim", 1))


def _proof(name: str, detail: str) -> Proof:
    for kind in (OneMinimal, Unfinished):
        if name == kind.name:
            return kind(detail.removeprefix(str(kind(""))))
    if name != Shortest.name or not (states := re.search(r"(\d+) state", detail)):
        raise ValueError(f"{name!r}, {detail!r} is no proof")
    return Shortest(int(states[1]))


def _coverage(data: Mapping[str, Any]) -> Coverage:
    return Coverage(
        states=int(data["states"]),
        transitions=int(data["transitions"]),
        depth=int(data["depth"]),
        exhausted=bool(data["exhausted"]),
        scope=str(data["scope"]),
        stopped=_maybe(data["stopped"], str),
        random_steps=int(data["random_steps"]),
        reach=_maybe(data.get("reach"), _reach),
        doubts=tuple(map(str, data["doubts"])),
        part=_maybe(data.get("shard"), _part),
    )


def _reach(data: Mapping[str, Any]) -> Reach:
    return Reach(int(data["states"]), int(data["of"]))


def _shard(data: Mapping[str, Any]) -> Shard:
    return Shard(int(data["number"]), int(data["of"]))


def _part(data: Mapping[str, Any]) -> Part:
    cuts = [
        (str(cut["scope"]), Cut(_geometry(cut), cut["depth"], cut["states"], cut["digest"]))
        for cut in data["cuts"]
    ]
    return Part(_shard(data), tuple(cuts), tuple(map(str, data["unseen"])))
