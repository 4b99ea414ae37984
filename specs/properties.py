"""Properties as values, and what judging one gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from pagedkv.specs.steps import State, Step


class Need(Enum):
    """What must be observable for a property to say anything."""

    FREE_LIST = "a visible free list"
    COUNTER = "a counter of free blocks"
    REF_COUNTS = "reference counts"
    REVERSE_MAP = "a reverse map"
    CAPACITIES = "capacities"
    PENDING = "pending blocks"
    REPORT = "allocation_report"
    LISTED = "free_blocks beside a snapshot"
    HANDLE_TABLES = "tables in the handles"
    WRONG_USE = "a promise about wrong use"
    PEER = "a second target in lockstep"
    APPEND = "the ability append"
    TRUNCATE = "the ability truncate"
    FORK = "the ability fork"
    LAZY_FORK = "the ability fork, with copies at the first write"
    PREFIX = "the ability prefix"
    INDEX = "a prefix index in the snapshot"
    LATE_PREFIX = "the ability prefix, with blocks found only once they are computed"
    EVICTION = "a declared order of eviction, and that order in the snapshot"
    SWAP = "the ability swap"
    HOST = "swapped and host_free in the snapshot"
    WINDOW = "the ability window"
    NULLS = "the ability window, with null entries for what it leaves behind"
    RING = "the ability window, with a ring"
    ASK = "the ability ask"
    GROUP = "the ability group"
    FAULTS = "injected failure (--faults, one target at a time)"


OF_ABILITIES = frozenset(
    {
        Need.APPEND,
        Need.TRUNCATE,
        Need.FORK,
        Need.LAZY_FORK,
        Need.PREFIX,
        Need.INDEX,
        Need.EVICTION,
        Need.LATE_PREFIX,
    }
    | {Need.SWAP, Need.HOST, Need.WINDOW, Need.NULLS, Need.RING, Need.ASK, Need.GROUP}
)
"""What only a target that declares an ability can offer."""


class Verdictless(Enum):
    """The two judgements that carry nothing: it holds, or there was nothing to judge."""

    HOLDS = auto()
    VACUOUS = auto()


HOLDS, VACUOUS = Verdictless.HOLDS, Verdictless.VACUOUS


@dataclass(frozen=True, slots=True)
class Broken:
    """The equation with its numbers and names, and the blocks and requests it is about."""

    message: str
    blocks: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()


Judgement = Verdictless | Broken


@dataclass(frozen=True, slots=True)
class EveryState:
    """Must hold of every state; `judge` is pure, and is called once per distinct state."""

    judge: Callable[[State], Judgement]


@dataclass(frozen=True, slots=True)
class EveryStep:
    """Must hold of every step; `judge` is pure."""

    judge: Callable[[Step], Judgement]


@dataclass(frozen=True, slots=True)
class Sometimes:
    """Must be reached at least once, or the run has shown too little."""

    reached: Callable[[Step], bool]


Expectation = EveryState | EveryStep | Sometimes


@dataclass(frozen=True, slots=True)
class Property:
    """One thing that must hold: a sentence, its equation, and the function that judges it.

    redundant: it is about a copy of what the tables say, on which nothing that is due later
    depends: once it is reported a history may go on past it, so that it hides no other fault.
    """

    id: str
    statement: str
    equation: str
    expectation: Expectation
    needs: frozenset[Need] = frozenset()
    redundant: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that one step (or the fresh state, at step 0) broke."""

    property: Property
    broken: Broken
    step: int

    def __str__(self) -> str:
        return f"{self.property.id}: {self.broken.message}"
