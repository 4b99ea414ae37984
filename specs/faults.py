"""Rollback under failure: what a call leaves behind when something inside it fails.

call k of n inside a command fails, once or from then on
    =>  granted: the state is a right one;  else: snapshot, handles, contents before = after
    =>  what follows is answered as if the command had not been tried

SQLite tests running out of memory like this: the 1st, the 2nd, ... allocation inside one statement
fails, once and for good, until the statement gets through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from pagedkv.specs.properties import EveryStep, Need, Property
from pagedkv.specs.rollback import judge_unchanged

Mode = Literal["once", "persistent"]
"""Whether the one call fails, or every one from it on."""
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Fault:
    """Which call fails: the `call`-th inside the `step`-th command of a history, both from 1."""

    step: int
    call: int
    mode: Mode

    def to_json(self) -> dict[str, Any]:
        """`{"step": 2, "call": 3, "mode": "once"}`."""
        return {"step": self.step, "call": self.call, "mode": self.mode}


def fault_from_json(data: object) -> Fault:
    """The fault that `data` describes; changes nothing. Raises ValueError with what is wrong."""
    if not isinstance(data, dict) or set(data) != {"step", "call", "mode"}:
        raise ValueError(f"a fault is an object of step, call and mode, not {data!r}")
    for name in ("step", "call"):
        if type(data[name]) is not int or data[name] < 1:
            raise ValueError(f"{name} = {data[name]!r} must be an integer >= 1")
    if data["mode"] not in MODES:
        raise ValueError(f"mode = {data['mode']!r} is none of {', '.join(MODES)}")
    return Fault(**data)


UNDER_FAULT = Property(
    "rollback-under-fault",
    "A call inside which something fails changes nothing, and the manager goes on as before.",
    "call k of n fails, not granted => before = after, and so is all that follows",
    EveryStep(judge_unchanged),
    frozenset({Need.FAULTS}),
)
