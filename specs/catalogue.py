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
    for props in (*(ability.properties for ability in ABILITIES), (LOCKSTEP,))
    for prop in props
}


def candidates(model: Model, setting: Setting) -> list[Command]:
    """Every command that makes sense after this history, in canonical order; changes nothing."""
    return [c for ability in ABILITIES for c in ability.candidates(model, setting)]


def command_from_json(data: object) -> Command:
    """The command that `data` describes; changes nothing. Raises ValueError with what is wrong."""
    if not isinstance(data, dict):
        raise ValueError(f"a command is an object with an op, like decode, not {data!r}")
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
        elif type(value) is not int or value < 0:
            raise ValueError(f"{name} = {value!r} must be an integer >= 0")


def offered(state: State, *, peer: bool) -> frozenset[Need]:
    """What can be observed of a target, from a fresh state of it; changes nothing."""
    snapshot, declared = state.seen.snapshot, state.setting.declared
    has = {
        Need.FREE_LIST: snapshot.free_blocks is not None,
        Need.COUNTER: snapshot.num_free is not None,
        Need.REF_COUNTS: snapshot.ref_counts is not None,
        Need.REVERSE_MAP: snapshot.reverse_map is not None,
        Need.CAPACITIES: snapshot.capacities is not None,
        Need.REPORT: state.seen.reports() is not None,
        Need.PEER: peer,
        Need.HANDLE_TABLES: not declared.tables_outside,
        Need.WRONG_USE: any(
            declared.on_wrong_use(operation) != "never" for operation in OPERATIONS
        ),
    }
    return frozenset(need for need, there in has.items() if there)
