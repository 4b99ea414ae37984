"""Correct allocators of unusual kinds, none of which may ever be accused.

None shares code with the managers that pagedkv brings along: what the suite takes for granted of
those shows here.
"""

from __future__ import annotations

from zoo import answers, hidden, late, orders, runs, shapes, tables
from zoo.animal import Animal, spoilt

ANIMALS: tuple[Animal, ...] = (
    *orders.ANIMALS,
    *runs.ANIMALS,
    *late.ANIMALS,
    *answers.ANIMALS,
    *shapes.ANIMALS,
    *tables.ANIMALS,
    *hidden.ANIMALS,
)
BY_NAME = {animal.name: animal for animal in ANIMALS}

__all__ = ["ANIMALS", "BY_NAME", "Animal", "spoilt"]
