"""Write properties.md from the catalogue: `python docs/properties.py`, after a property changed."""

from __future__ import annotations

from pathlib import Path

from pagedkv.declarations import Declarations
from pagedkv.specs.abilities.core import KINDS, Misuse
from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.model import Geometry, Model, Setting
from pagedkv.specs.properties import EveryState, EveryStep, Expectation, Sometimes
from pagedkv.specs.steps import Refuse

PAGE = Path(__file__).with_suffix(".md")

_INTRO = """\
# Properties

What `pagedkv check` judges. This page is written from the catalogue (`python docs/properties.py`).
How to read a message of each: [debugging.md](debugging.md#how-to-read-a-message).

A *need* is what the target must show for a property to say anything; without it the property is
not applicable. A property marked *beside* is about a copy of what the tables say, on which nothing
that is due later depends: a history goes on past it, so that it hides no other fault.

`held` are the blocks that tables name, `free` those of the free list, `usable` all that can ever be
handed out; `before` and `after` are what is seen around one command.
"""

_GOALS = """\
## Goals

Each must be reached at least once, or the run has shown too little and the verdict is unknown; one
that the exhausted scope shows unreachable is not applicable.
"""

_WRONG_USES = """\
## Wrong uses

What `misuse-refused` is about. Each is a call that must be answered by a `ValueError` and change
nothing; or by silence, or is not tried, where `wrong_use` declares that of its call.
"""


def page() -> str:
    """The whole page; changes nothing."""
    states = _section("## Of every state\n", EveryState)
    steps = _section("## Of every step\n", EveryStep)
    goals = _section(_GOALS, Sometimes)
    return "\n".join([_INTRO, *states, *steps, *goals, *_wrong_uses()])


def _section(title: str, kind: type[Expectation]) -> list[str]:
    lines = [title, "| id | what | equation | needs |", "|---|---|---|---|"]
    for prop in PROPERTIES.values():
        if not isinstance(prop.expectation, kind):
            continue
        needs = [need.value for need in sorted(prop.needs, key=lambda need: need.name)]
        notes = ", ".join([*needs, *(["*beside*"] if prop.redundant else [])])
        equation = prop.equation.replace("|", "\\|")
        lines.append(f"| `{prop.id}` | {prop.statement} | `{equation}` | {notes} |")
    return [*lines, ""]


def _wrong_uses() -> list[str]:
    lines = [_WRONG_USES, "| kind | call | wrong because |", "|---|---|---|"]
    setting = Setting(Geometry(1, 1), Declarations(), frozenset({0}), requests=1)
    for kind in KINDS:
        misuse = Misuse(0, kind)
        expected = misuse.expect(Model({}, {}), setting)
        if not isinstance(expected, Refuse):
            raise TypeError(f"{kind} is no wrong use: {expected} is expected of it")
        lines.append(f"| `{kind}` | {misuse.operation} | {expected.why} |")
    return [*lines, ""]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
