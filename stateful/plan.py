"""How a target is checked: profile, budget, seed, properties, known failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.specs.properties import Property
from pagedkv.stateful.profiles import Profile
from pagedkv.stateful.shards import Shard

Until = Literal["all", "first"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a subject is checked.

    seconds: the budget. hard: it holds even if the profile's depth was not reached by then.
    properties: ids to judge; empty is all. until: "first" ends with one shortest history that
    breaks something, and looks for nothing else that is broken.
    expected: known failures, property id -> reason. expected_of: further ones, of the target that
    is named. faults: calls inside the target are made to fail too, for as much time again, or half
    of a hard budget. shard: of the exhaustive searches only this part is done.
    """

    profile: Profile
    seconds: float
    hard: bool = False
    seed: int | None = None
    properties: tuple[str, ...] = ()
    until: Until = "all"
    expected: Mapping[str, str] = field(default_factory=dict)
    expected_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    faults: bool = False
    shard: Shard | None = None

    def of(self, target: str) -> Plan:
        """The plan for this target, all of whose known failures are `expected`."""
        expected = {**self.expected, **self.expected_of.get(target, {})}
        return replace(self, expected=expected, expected_of={})

    def chosen(self) -> tuple[Property, ...]:
        """The properties to judge."""
        return tuple(
            p for p in PROPERTIES.values() if not self.properties or p.id in self.properties
        )
