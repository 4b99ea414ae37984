"""One step as data: what was seen, the command, what was due, what came, what is seen now.

What is made anew at every step is a named tuple: a frozen dataclass takes four times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pagedkv.protocol import Snapshot
from pagedkv.specs.model import Model, Setting

if TYPE_CHECKING:
    from pagedkv.specs.commands import Command


@dataclass(frozen=True, slots=True)
class Grant:
    """The call must take between `low` and `high` blocks if they are there.

    Out of blocks if low > available; granted if high <= available; either in between.
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class HostGrant(Grant):
    """The same of the second pool."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Wrong use: a ValueError, or, where declared, silence (`noop`). Nothing may change."""

    noop: bool
    why: str


Expected = Grant | Refuse


@dataclass(frozen=True, slots=True)
class Done:
    """The call returned and did not say that blocks ran out.

    value: what it returned, in words, where that may have been meant as an answer.
    """

    value: str | None = None

    def __str__(self) -> str:
        return "done"


@dataclass(frozen=True, slots=True)
class NoBlocks:
    """The call said that blocks ran out, in one of the declared ways."""

    message: str

    def __str__(self) -> str:
        return f"out of blocks ({self.message})"


@dataclass(frozen=True, slots=True)
class Refused:
    """The call raised a ValueError."""

    message: str

    def __str__(self) -> str:
        return f"refused ({self.message})"


@dataclass(frozen=True, slots=True)
class Raised:
    """The call raised something that is neither."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"raised {self.kind}: {self.message}"


Outcome = Done | NoBlocks | Refused | Raised
DONE = Done()


class Handle(NamedTuple):
    """A request's fields at one moment."""

    request_id: int
    seq_len: int
    block_table: tuple[int, ...]
    tokens: tuple[int, ...]
    prompt_len: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A read of a live request's cache failed."""

    message: str


class Asked(NamedTuple):
    """What the manager said when it was asked whether it would grant the call that follows.

    changed: the snapshots before and after asking, where they differ.
    """

    answer: object
    changed: tuple[Snapshot, Snapshot] | None = None


Contents = Mapping[int, tuple[float, ...] | Unreadable]
Report = Mapping[str, float]


class Observation(NamedTuple):
    """What is seen of a manager between two commands.

    `snapshot` and `handles` are values. The rest asks the manager itself, and must be called
    before it moves on: the world judges a state before it applies the next command.
    read: what each live request reads back. reports: the allocation reports. again: another
    snapshot. listed: the manager's `free_blocks`, beside its snapshot. None where there is none.
    ends: where blocks are shared by content, what the last slot of each held or cached block has.
    """

    snapshot: Snapshot
    handles: Mapping[int, Handle]
    read: Callable[[], Contents]
    reports: Callable[[], Mapping[int, Report | Unreadable] | None]
    again: Callable[[], Snapshot | Unreadable | None] = lambda: None
    listed: Callable[[], tuple[int, ...] | Unreadable | None] = lambda: None
    ends: Mapping[int, float] = MappingProxyType({})

    @property
    def tables(self) -> Mapping[int, tuple[int, ...]]:
        """The block tables of the live requests, by request."""
        return self.snapshot.block_tables

    @property
    def held(self) -> frozenset[int]:
        """Blocks that some table names, that of a window's null block among them."""
        return frozenset(block for table in self.tables.values() for block in table)


class State(NamedTuple):
    """The model and the observation at one moment."""

    setting: Setting
    model: Model
    seen: Observation

    @property
    def available(self) -> int:
        """Blocks that can be handed out, by the free list, else the counter, else the tables."""
        snapshot = self.seen.snapshot
        if snapshot.free_blocks is not None:
            if not snapshot.cached:
                return len(set(snapshot.free_blocks))
            return len(snapshot.cached.union(snapshot.free_blocks))
        late = (*(snapshot.pending or ()), *(snapshot.withheld or ()))
        left = len(self.setting.usable.difference(self.seen.held, late))
        if snapshot.num_free is None:
            return left
        # A counter counts the cached blocks, or leaves them out.
        counted = snapshot.num_free + len(snapshot.cached)
        return counted if counted == left else snapshot.num_free

    def available_to(self, due: Grant) -> int:
        """Blocks that what is due can be taken from."""
        if isinstance(due, HostGrant):
            return len(self.seen.snapshot.host_free or ())
        return self.available


class Step(NamedTuple):
    """One command and what it did.

    `given` is the handle as the call received it, `returned` as the call left it. `reused` are
    the blocks handed out that this history had freed before. `peer` is the same step of the
    other target where two run in lockstep. `observed` is whether the manager could be looked at
    after the call; if not, `after` is what was seen before. `asked` is what the manager had said
    that it would do, where it can be asked. `early` are blocks that could be newly found after the
    call and before its tokens were written to them; None where it has written none.
    """

    index: int  # type: ignore[assignment]  # nobody looks for a value in a step
    command: Command
    expected: Expected
    outcome: Outcome
    given: Handle
    returned: Handle
    before: State
    after: State
    reused: frozenset[int] = frozenset()
    peer: Step | None = None
    observed: bool = True
    asked: Asked | None = None
    early: frozenset[int] | None = None

    @property
    def granted(self) -> bool:
        """Whether the call did what it was asked, where that was allowed."""
        return isinstance(self.outcome, Done) and isinstance(self.expected, Grant)
