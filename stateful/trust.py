"""What a search may rely on: keys that tell states apart, copies that are copies.

Both are the target's own where it brings them, generic where not, and both are checked against
plain replays while the search runs. What fails the check is given up, never argued with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

from pagedkv.protocol import Snapshot
from pagedkv.specs.commands import Command
from pagedkv.specs.growth import outlived
from pagedkv.specs.model import Setting
from pagedkv.specs.steps import Grant, State, Step, Unreadable

Key = Literal["own", "whole", "all", "none"]
_LESS: dict[Key, Key] = {"own": "whole", "whole": "all", "all": "none", "none": "none"}


@dataclass(frozen=True, slots=True)
class Trust:
    """Which key and which copy are used: the target's own, the generic one, or none.

    key: "whole" is the whole state less what is declared meaningless, "all" is all of it.
    """

    key: Key = "own"
    clone: Literal["own", "deep", "none"] = "own"


class Distrust(Exception):
    """Something that was relied on did not hold: the key, or the copy."""

    def __init__(self, what: Literal["key", "clone"], reason: str) -> None:
        super().__init__(reason)
        self.what, self.reason = what, reason

    def less(self, trust: Trust) -> Trust:
        """`trust` without what failed; changes nothing."""
        if self.what == "key":
            return replace(trust, key=_LESS[trust.key])
        return replace(trust, clone="deep" if trust.clone == "own" else "none")


UNSEEN = "the whole state of the target can't be seen"
UNCOPIED = "copying failed"
"""How the reasons begin for which keys and copies are given up at once."""


class NotDeterministic(Exception):
    """The same commands on a fresh target did something else the second time."""


class System(Protocol):
    """What a driver needs of a world, or of two in lockstep."""

    @property
    def setting(self) -> Setting:
        """What stays the same through a history."""

    @property
    def states(self) -> tuple[State, ...]:
        """What is known and seen now, of each target."""

    @property
    def state(self) -> State:
        """The first target's state."""

    def candidates(self) -> list[Command]:
        """Every command that makes sense now, in canonical order; changes nothing."""

    def apply(self, command: Command) -> Step:
        """Run one command. Mutates the system."""

    def hooks(self) -> Trust:
        """What the target brings of its own, where there is nothing yet to distrust."""

    def clone(self, trust: Trust) -> Self:
        """A system of its own in the same state; changes nothing."""

    def order(self, trust: Trust) -> tuple[int, ...]:
        """The requests with a handle, in an order that their names have no part in.

        Names are interchangeable, so states that differ in names only are merged - where the
        target's own `state_key` can be told the names; else the order is that of the names.
        """

    def key(self, trust: Trust) -> bytes | None:
        """A digest that two systems share only if they behave alike from here on."""

    def unseen(self, trust: Trust) -> str | None:
        """Why the key can't be taken, for a reader; None if it can. Changes nothing."""


def key_of(system: System, trust: Trust) -> bytes | None:
    """The key, or None if none is to be taken; raises Distrust where it can't be."""
    key = system.key(trust)
    if key is None and trust.key != "none":
        raise Distrust("key", system.unseen(trust) or UNSEEN)
    return key


Names = Mapping[int, int]


def _pairing(a: System, b: System, trust: Trust) -> Names:
    """Which request of `b` stands for which of `a`: by order, then the unused names."""
    first, second = _order(a, trust), _order(b, trust)
    every = range(a.setting.names)
    first += tuple(r for r in every if r not in first)
    second += tuple(r for r in every if r not in second)
    return dict(zip(first, second, strict=True))


def _order(system: System, trust: Trust) -> tuple[int, ...]:
    order = system.order(trust)
    return order + outlived(system.state.model, system.setting, order)


def _renamed(command: Command, names: Names) -> Command:
    return command.renamed(names)


def _told(step: Step, names: Names) -> tuple[object, ...]:
    """Everything that an observer sees of a step, with its requests called by other names."""
    seen, stride = step.after.seen, step.after.setting.stride
    snapshot, handles, contents = seen.snapshot, seen.handles, seen.read()
    if any(old != new for old, new in names.items()):
        snapshot = _renamed_snapshot(snapshot, names)
        handles = {names[r]: handle for r, handle in handles.items()}
        contents = {
            names[r]: read
            if isinstance(read, Unreadable) or step.after.setting.by_content
            else tuple(_tag(value, stride, names) for value in read)
            for r, read in contents.items()
        }
    shown = {r: handle[1:4] for r, handle in handles.items()}
    # A value that is not a number does not equal itself, and its words do.
    own = (type(step.outcome), step.returned[1:4], snapshot, shown, repr(sorted(contents.items())))
    return own if step.peer is None else (*own, _told(step.peer, names))


def _renamed_snapshot(snapshot: Snapshot, names: Names) -> Snapshot:
    entries, capacities, out = snapshot.reverse_map, snapshot.capacities, snapshot.swapped
    return replace(
        snapshot,
        block_tables={names.get(r, r): table for r, table in snapshot.block_tables.items()},
        seq_lens={names.get(r, r): seq_len for r, seq_len in snapshot.seq_lens.items()},
        reverse_map=entries
        and frozenset(entry._replace(owner=_owner(entry.owner, names)) for entry in entries),
        swapped=out and {names.get(r, r): blocks for r, blocks in out.items()},
        capacities=capacities and {_owner(owner, names): n for owner, n in capacities.items()},
    )


def _tag(value: float, stride: int, names: Names) -> float:
    """The tag of the same token, its request called by another name; what is no tag stays."""
    if not 1 <= value < 1 + len(names) * stride or value != int(value):
        return value
    request, position = divmod(int(value) - 1, stride)
    return type(value)(1 + names[request] * stride + position)


def _owner(owner: int | str, names: Names) -> int | str:
    return names.get(owner, owner) if isinstance(owner, int) else owner


def same_from_here(
    one: Callable[[], System], other: Callable[[], System], trust: Trust
) -> str | None:
    """Continue two makers' systems alike; None if they agree, else the first difference.

    Every command that makes sense is tried on each, and a few longer walks.
    """
    a, b = one(), other()
    names = _pairing(a, b, trust)
    same = {r: r for r in range(a.setting.requests)}
    commands = a.candidates()
    if {_renamed(command, names) for command in commands} != set(b.candidates()):
        return "they allow different commands"
    for command in commands:
        a, b = one(), other()
        if _told(a.apply(command), names) != _told(b.apply(_renamed(command, names)), same):
            return f"they answer {command} differently"
        if a.key(trust) != b.key(trust):
            return f"they differ after {command}"
    for stride in STRIDES:
        difference = _walk(one(), other(), names, stride)
        if difference is not None:
            return difference
    return None


STRIDES = (1, 3, 7)
WALK = 12


def _walk(a: System, b: System, names: Names, stride: int) -> str | None:
    """Move both alike for a while, by commands that are granted where there are any."""
    same = {r: r for r in range(a.setting.requests)}
    for i in range(WALK):
        commands = a.candidates()
        model, setting = a.state.model, a.setting
        useful = [c for c in commands if isinstance(c.expect(model, setting), Grant)] or commands
        if not useful:
            return None
        command = useful[(stride * i + stride) % len(useful)]
        twin = _renamed(command, names)
        if not twin.enabled(b.state.model, b.setting):
            return f"only one allows {command} after {i} more commands"
        one, other = a.apply(command), b.apply(twin)
        if _told(one, names) != _told(other, same):
            return f"they answer {command} differently after {i} more commands"
        if not one.observed:
            return None
    return None


def varies(one: Callable[[], System], other: Callable[[], System]) -> str | None:
    """Why two fresh systems are not the same, by what they answer; None if nothing was seen."""
    a = one()
    same = {r: r for r in range(a.setting.requests)}
    for stride in (*STRIDES, 2, 5):
        difference = _walk(one(), other(), same, stride)
        if difference is not None:
            return difference
    return None
