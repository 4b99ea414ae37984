"""What stands in the zoo: a correct allocator of an unusual kind, and how its oddity is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from pagedkv import Declarations

Factory = Callable[[int, int, int], Any]
"""As a target: an animal has what it needs of the protocol, and often not all of it."""


@dataclass(frozen=True, slots=True)
class Animal:
    """A correct allocator and one sentence on what is odd about it."""

    name: str
    statement: str
    factory: Factory

    @property
    def declares(self) -> Declarations:
        """What it declares; the factory has it, as a class has."""
        declared = getattr(self.factory, "declares", None)
        return declared if isinstance(declared, Declarations) else Declarations()


def odd(reason: str, **declarations: Any) -> Declarations:
    """Declarations whose one reason is `reason`."""
    own = ("meaningless", "never_reached")
    because = dict.fromkeys((name for name in declarations if name not in own), reason)
    return Declarations(**declarations, because=because)


def spoilt(animal: Animal, field: str) -> Factory:
    """The same allocator, which no longer declares `field`."""
    default = {f.name: getattr(Declarations(), f.name) for f in fields(Declarations)}[field]
    because = {name: why for name, why in animal.declares.because.items() if name != field}
    poorer = replace(animal.declares, **{field: default}, because=because)

    def make(num_blocks: int, block_size: int, head_dim: int) -> Any:
        manager: Any = animal.factory(num_blocks, block_size, head_dim)
        manager.declares = poorer
        return manager

    return make
