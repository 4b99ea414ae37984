"""The catalogue: every ability, every command, every property.

A new ability is one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from pagedkv.declarations import OPERATIONS
from pagedkv.specs.abilities.core import CORE
from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import UNDER_FAULT
from pagedkv.specs.lockstep import LOCKSTEP
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import Need, Property
from pagedkv.specs.steps import State

ABILITIES: tuple[Ability, ...] = (CORE,)

COMMANDS: Mapping[str, type[Command]] = {
    command.op: command for ability in ABILITIES for command in ability.commands
}
PROPERTIES: Mapping[str, Property] = {
    prop.id: prop
    for props in (*(ability.properties for ability in ABILITIES), (LOCKSTEP, UNDER_FAULT))
    for prop in props
}


_EXAMPLE = '{"op": "decode", "request": 0}'


def candidates(model: Model, setting: Setting) -> list[Command]:
    """Every command that makes sense after this history, in canonical order; changes nothing."""
    return [c for ability in ABILITIES for c in ability.candidates(model, setting)]


def command_from_json(data: object) -> Command:
    """The command that `data` describes; changes nothing. Raises ValueError with what is wrong."""
    if not isinstance(data, dict):
        raise ValueError(f"a command is an object like {_EXAMPLE}, not {data!r}")
    op = data.get("op")
    if not isinstance(op, str) or op not in COMMANDS:
        raise ValueError(f"op = {op!r} is none of {', '.join(COMMANDS)}")
    kind = COMMANDS[op]
    names = {f.name for f in fields(kind)}
    if data.keys() - {"op"} != names:
        raise ValueError(f"{op} has the fields {sorted(names)}, got {sorted(data.keys() - {'op'})}")
    values = {name: data[name] for name in names}
    _check_values(kind, values)
    return kind(**values)


def _check_values(kind: type[Command], values: Mapping[str, Any]) -> None:
    hints = get_type_hints(kind)
    for name, value in values.items():
        choices = get_args(hints[name])
        if choices:
            if value not in choices:
                raise ValueError(f"{name} = {value!r} is none of {', '.join(choices)}")
            continue
        least = 0 if name == "request" else 1
        if type(value) is not int or value < least:
            raise ValueError(f"{name} = {value!r} must be an integer >= {least}")


def offered(*states: State) -> frozenset[Need]:
    """What can be observed of a target, from a fresh state of it; changes nothing.

    Two states are those of two targets in lockstep: what both have.
    """
    common = frozenset.intersection(*map(_offered_by, states))
    return common | {Need.PEER} if len(states) > 1 else common


def _offered_by(state: State) -> frozenset[Need]:
    snapshot, declared = state.seen.snapshot, state.setting.declared
    has = {
        Need.FREE_LIST: snapshot.free_blocks is not None,
        Need.COUNTER: snapshot.num_free is not None,
        Need.REF_COUNTS: snapshot.ref_counts is not None,
        Need.REVERSE_MAP: snapshot.reverse_map is not None,
        Need.CAPACITIES: snapshot.capacities is not None,
        Need.PENDING: snapshot.pending is not None,
        Need.LISTED: state.seen.listed() is not None,
        Need.REPORT: state.seen.reports() is not None,
        Need.HANDLE_TABLES: not declared.tables_outside,
        Need.WRONG_USE: any(
            declared.on_wrong_use(operation) != "never" for operation in OPERATIONS
        ),
    }
    return frozenset(need for need, there in has.items() if there)
