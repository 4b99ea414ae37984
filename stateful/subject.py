"""What is checked: one factory, or two in lockstep, and what makes their worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagedkv.declarations import declared_by
from pagedkv.specs.model import Geometry
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.profiles import FIXED, Scope
from pagedkv.stateful.target import CannotDrive, Factory
from pagedkv.stateful.trust import System
from pagedkv.stateful.world import World


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: one factory, or two in lockstep. maker: of their worlds.

    tolerances: what the factories declare by somebody else's word, by the name of the target.
    """

    name: str
    factories: tuple[Factory, ...]
    maker: Callable[..., World] = World
    tolerances: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def world(self, scope: Scope, geometry: Geometry) -> System:
        """A fresh system for one geometry of a scope. Raises CannotDrive."""
        worlds = [
            self.maker(
                factory,
                geometry,
                requests=scope.requests,
                keeps_released=scope.keeps_released,
                abilities=scope.abilities,
                varied=scope.varied,
            )
            for factory in self.factories
        ]
        return worlds[0] if len(worlds) == 1 else Lockstep(*worlds)

    def probe(self) -> System:
        """A fresh system of the smallest geometry that the target can have.

        Raises CannotDrive, with what the smallest said, if it can have none that is tried.
        """
        refused: CannotDrive | None = None
        declared = declared_by(self.factories[0])
        own = [Geometry(declared.min_blocks, size) for size in sorted(declared.block_sizes or (1,))]
        for geometry in (*own, *FIXED, Geometry(4, 16)):
            try:
                return self.world(Scope("probe", (geometry,), 1), geometry)
            except CannotDrive as error:
                refused = refused or error
        assert refused is not None
        raise refused
