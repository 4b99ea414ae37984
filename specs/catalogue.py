"""The catalogue: every ability, every command, every property.

A new ability is one line here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pagedkv.abilities import ABILITY_NAMES, AbilityName
from pagedkv.declarations import OPERATIONS
from pagedkv.specs.abilities.append import APPEND
from pagedkv.specs.abilities.ask import ASK
from pagedkv.specs.abilities.core import CORE
from pagedkv.specs.abilities.fork import FORK
from pagedkv.specs.abilities.group import GROUP
from pagedkv.specs.abilities.prefix import PREFIX
from pagedkv.specs.abilities.swap import SWAP
from pagedkv.specs.abilities.truncate import TRUNCATE
from pagedkv.specs.abilities.window import WINDOW
from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command
from pagedkv.specs.faults import UNDER_FAULT
from pagedkv.specs.lockstep import LOCKSTEP
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import Need, Property
from pagedkv.specs.steps import State

ABILITIES: tuple[Ability, ...] = (CORE, APPEND, TRUNCATE, FORK, PREFIX, SWAP, WINDOW, ASK, GROUP)

COMMANDS: Mapping[str, type[Command]] = {
    command.op: command for ability in ABILITIES for command in ability.commands
}
PROPERTIES: Mapping[str, Property] = {
    prop.id: prop
    for props in (*(ability.properties for ability in ABILITIES), (LOCKSTEP, UNDER_FAULT))
    for prop in props
}


def ops_of(abilities: Set[AbilityName]) -> tuple[str, ...]:
    """The ops of the core and of these abilities, in canonical order; changes nothing."""
    tried = (ability for ability in ABILITIES if ability is CORE or ability.id in abilities)
    return tuple(command.op for ability in tried for command in ability.commands)


def used_by(commands: Iterable[Command]) -> frozenset[AbilityName]:
    """The abilities that these are commands of, the core not among them; changes nothing."""
    kinds = {type(command) for command in commands}
    return frozenset(
        name
        for ability in ABILITIES
        for name in ABILITY_NAMES
        if name == ability.id and kinds.intersection(ability.commands)
    )


_EXAMPLE = '{"op": "decode", "request": 0}'


def candidates(model: Model, setting: Setting) -> list[Command]:
    """Every command that makes sense after this history, in canonical order; changes nothing."""
    abilities = ABILITIES if setting.active else (CORE,)
    return [c for ability in abilities for c in ability.candidates(model, setting)]


def command_from_json(data: object) -> Command:
    """The command that `data` describes; changes nothing. Raises ValueError with what is wrong."""
    if not isinstance(data, dict):
        raise ValueError(f"a command is an object like {_EXAMPLE}, not {data!r}")
    op = data.get("op")
    if not isinstance(op, str) or op not in COMMANDS:
        raise ValueError(f"op = {op!r} is none of {', '.join(COMMANDS)}")
    kind = COMMANDS[op]
    names = {f.name for f in fields(kind) if f.init}
    if data.keys() - {"op"} != names:
        raise ValueError(f"{op} has the fields {sorted(names)}, got {sorted(data.keys() - {'op'})}")
    values = {name: data[name] for name in names}
    _check_values(kind, values)
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return kind(**given)


def _check_values(kind: type[Command], values: Mapping[str, Any]) -> None:
    hints = get_type_hints(kind)
    for name, value in values.items():
        choices = get_args(hints[name]) if get_origin(hints[name]) is Literal else ()
        if choices:
            if value not in choices:
                raise ValueError(f"{name} = {value!r} is none of {', '.join(choices)}")
            continue
        if hints[name] is not int:
            if not isinstance(value, list) or any(type(item) is not int for item in value):
                raise ValueError(f"{name} = {value!r} must be a list of integers")
            continue
        least = 1 if name in kind.sizes else 0
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
        Need.LAZY_FORK: "fork" in declared.abilities and not declared.forks_eagerly,
        Need.INDEX: "prefix" in declared.abilities and snapshot.index is not None,
        Need.LATE_PREFIX: "prefix" in declared.abilities and not declared.publishes_at_once,
        Need.EVICTION: declared.evicts is not None and snapshot.eviction_order is not None,
        Need.NULLS: "window" in declared.abilities and declared.null_block is not None,
        Need.RING: declared.ring,
        Need.HOST: (
            "swap" in declared.abilities
            and snapshot.swapped is not None
            and snapshot.host_free is not None
        ),
        **{Need[name.upper()]: name in declared.abilities for name in ABILITY_NAMES},
        Need.WRONG_USE: any(
            declared.on_wrong_use(operation) != "never" for operation in OPERATIONS
        ),
    }
    return frozenset(need for need, there in has.items() if there)
