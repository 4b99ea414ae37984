"""Allocators with one planted fault each, to measure what a suite finds.

Each is a few lines over a correct manager, in a module of its kind. `mutants()` has them all;
`pagedkv score` runs the suite against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from pagedkv.mutants.registry import PLANTED, Mutant

__all__ = ["KINDS", "Mutant", "mutants"]

KINDS = (
    "free_list",
    "tables",
    "lengths",
    "rollback",
    "admission",
    "misuse",
    "contents",
    "index",
    "delayed",
    "sharing",
    "prefixes",
    "evicting",
    "growing",
    "moving",
    "asking",
)
"""The modules, in the order in which the mutants are listed."""


def mutants() -> Mapping[str, Mutant]:
    """All mutants by name. Imports their modules, and torch with them."""
    modules = [f"{__name__}.{kind}" for kind in KINDS]
    for module in modules:
        import_module(module)
    order = sorted(PLANTED.values(), key=lambda m: modules.index(_module_of(m)))
    return {mutant.name: mutant for mutant in order if _module_of(mutant) in modules}


def _module_of(mutant: Mutant) -> str:
    return mutant.target.rpartition("+")[2].partition(":")[0]
