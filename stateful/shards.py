"""Exhaustive searches divided over machines that do not talk to each other.

Every machine searches a pool's histories from the shortest on, as if it were alone, until so many
states wait that each can have some; it keeps its own of these and goes on from them alone. So each
transition of the scope is in at least one shard. A state that can be reached from the waiting
states of two shards is searched by both: shards take a large scope deeper in the same time, and
save the less the more of a scope's states can be reached from everywhere.

The waiting states are divided by their place in the order in which they were found: that is the
same on every machine, also for targets without keys or with keys that differ from run to run, and
neighbours in it lead to the same states more often than others do. A digest of their histories
shows whether two machines have divided the same ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from pagedkv.specs.model import Geometry
from pagedkv.stateful.paths import Nodes

WIDTH = 16
"""A pool is divided as soon as so many states wait for each shard.

Measured with four shards: dividing at 4 or 16 costs the longest of them two fifths of the whole
search to depth 7, at 64 three fifths, and 4 leaves some shards next to nothing.
"""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `of` parts, `number` of 1 .. `of`. Raises ValueError for another number."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            most = f"{self.of} are 1/{self.of} to {self.of}/{self.of}" if self.of else "1/1 is all"
            raise ValueError(f"there is no shard {self}; {most}")

    def __str__(self) -> str:
        return f"{self.number} of {self.of}"

    def to_json(self) -> dict[str, int]:
        """The shard as a report has it."""
        return {"number": self.number, "of": self.of}

    @classmethod
    def of_text(cls, text: str) -> Shard:
        """The shard K/N. Raises ValueError for a text that names none."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal()) or len(text) > LONGEST:
            raise ValueError(f"{text!r} is no shard; give K/N, like 2/4 for the second of four")
        return cls(int(number), int(of))


LONGEST = 20
"""No shard is written with more characters."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A pool whose search was divided: after so many commands, with so many states waiting.

    digest: of the histories that lead to them; equal on machines that have divided the same.
    """

    geometry: Geometry
    depth: int
    states: int
    digest: str


class Division:
    """What one shard has divided so far: `cuts` has each pool at most once."""

    def __init__(self, shard: Shard, geometries: Sequence[Geometry]) -> None:
        self._shard, self._geometries = shard, geometries
        self._cut: dict[int, Cut] = {}

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The pools that were divided, in the order in which they were."""
        return tuple(self._cut.values())

    def divide(self, frontier: list[array[int]], nodes: Nodes, depth: int) -> None:
        """Leave of each pool's waiting states this shard's own, once there are enough.

        Mutates `frontier`, which has the states at `depth` of each geometry.
        """
        number, of = self._shard.number - 1, self._shard.of
        for g, waiting in enumerate(frontier):
            if g in self._cut or len(waiting) < WIDTH * of:
                continue
            digest = blake2b(digest_size=16)
            for node in waiting:
                digest.update(repr([c.to_json() for c in nodes.history(node)]).encode())
            size = len(waiting)
            self._cut[g] = Cut(self._geometries[g], depth, size, digest.hexdigest())
            frontier[g] = waiting[size * number // of : size * (number + 1) // of]
