"""Which commands a machine has rules for."""

from __future__ import annotations

from pagedkv.abilities import ABILITY_NAMES
from pagedkv.specs.catalogue import COMMANDS, ops_of


def test_without_abilities_only_the_core_is_tried():
    assert ops_of(frozenset()) == ("decode", "prefill", "release", "resume", "misuse")


def test_an_ability_brings_its_own_commands_and_all_bring_all():
    assert ops_of({"fork", "ask"}) == (*ops_of(frozenset()), "fork")
    assert ops_of(frozenset(ABILITY_NAMES)) == tuple(COMMANDS)
