"""What a target can do and what it does on purpose, as one frozen value.

A deviation that stands here is judged as declared; one that does not is a violation. Nothing is
ever decided by a target's name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Literal, get_args

from pagedkv.abilities import ABILITY_NAMES, AbilityName
from pagedkv.protocol import as_int

WrongUse = Literal["error", "noop", "never"]
"""What wrong use gets: a ValueError, silence without an effect, or no promise (not tried)."""

Eviction = Literal["lru", "lru-tail-first"]
"""Which cached block is evicted: the longest unheld; of one request's, the last logical one too."""

OPERATIONS = ("prefill", "decode", "release")

_LEAST = dict.fromkeys(("lookahead", "lookahead_tokens", "late_calls", "late_blocks"), 0)
_LEAST["pool_multiple"] = 1
"""The least value of each number."""

_IN_ANY_TABLE = frozenset({"append", "window", "ask", "group"})
"""Abilities that are understood of rings, and where a request has several tables."""


@dataclass(frozen=True, slots=True)
class Raises:
    """Out of blocks is told by raising `exception` with `containing` in its message.

    Give a message that no other failure has: an AssertionError alone says nothing.
    """

    exception: type[BaseException]
    containing: str


@dataclass(frozen=True, slots=True)
class Returns:
    """Out of blocks is told by returning exactly `value` (success returns something else)."""

    value: Hashable

    def says(self, value: object) -> bool:
        """Whether a call that returned `value` said so: same type, equal; changes nothing."""
        return type(value) is type(self.value) and value == self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """Everything a target declares; the default is the core protocol, strictly.

    `because` names, for each field that differs from its default, the place in the source or
    documentation that says so. Raises ValueError where one is missing, or names no such field.

    out_of_blocks: how a call says that blocks ran out.
    wrong_use: per operation ("prefill", "decode", "release"); what is not named gets "error".
    lookahead: blocks a table may hold beyond ceil(seq_len / block_size).
    lookahead_tokens: tokens to come that every table has room for: it holds exactly
        ceil((seq_len + lookahead_tokens) / block_size) blocks.
    refuses_early: out of blocks may be said though enough blocks are free (watermark, runs).
    reorders_free: a refusal may change the order of the free list, not its content.
    late_calls: a block given back may be pending, and is free again at most so many granted calls
        later; a refused call may let time pass too. late_blocks: the same, once at most so many
        more blocks came back. The snapshot says which blocks are pending. 0 is at once.
    tables_outside: request.block_table is not filled in; the snapshot has the tables.
    resumes: a released request may be prefilled again through the same handle.
    block_sizes, min_blocks, max_blocks: what the target can be made with; None is "any".
    pool_multiple: the number of blocks must be a multiple of this.
    engine: a step costs hundreds of microseconds, so that the quick profile searches the
        smaller scope of engines.
    never_reached: `sometimes` goals that this target can't reach, each with the reason.
    abilities: what it can do beyond the core (`pagedkv.abilities`); needs no reason.
    forks_eagerly: a fork copies a partly filled tail at once, not at the first write.
    publishes_at_once: a block can be found again from the call that took it, not only once it is
        computed.
    keeps_duplicates: of two blocks with the same content, one may be cached and found though a
        live request holds the other.
    forgets_unheld: what nobody holds is not found again: a prefix is shared by live requests only.
    evicts_cached: a refusal may evict cached blocks.
    evicts: which cached block is evicted first: "lru", that which nobody has held for longest, or
        "lru-tail-first", and of those that one call let go the last logical one; and none that is
        not handed out. None is no promise. Judged where the snapshot has `eviction_order`.
    window: how many tokens back a request reads; None is all.
    null_block: what stands in a table for a block that the window left behind.
    ring: what the window leaves behind is overwritten in place: position p lies at p % window, and
        a table takes at most ceil(window / block_size) blocks, which it keeps.
    windows: a request has so many tables, each for layers that read so far back (None is all),
        which stand one behind the other in block_table. `slots(req)` says where tokens lie in each.
    window_of_first: a call for several tokens gives back what the first of them leaves behind its
        window, and the rest at the next call; else what the last leaves behind.
    drops_behind_window: a refused call may give back what no token to come of its request reads.
    meaningless: fields of hidden state that change nothing ("attribute" or "Class.attribute"),
        each with the reason; they are left out of the state key.
    """

    out_of_blocks: tuple[Raises | Returns, ...] = (Raises(RuntimeError, "OOM"),)
    wrong_use: Mapping[str, WrongUse] = field(default_factory=dict)
    lookahead: int = 0
    lookahead_tokens: int = 0
    refuses_early: bool = False
    reorders_free: bool = False
    late_calls: int = 0
    late_blocks: int = 0
    tables_outside: bool = False
    resumes: bool = True
    block_sizes: tuple[int, ...] | None = None
    min_blocks: int = 1
    max_blocks: int | None = None
    pool_multiple: int = 1
    engine: bool = False
    abilities: Set[AbilityName] = frozenset()
    forks_eagerly: bool = False
    publishes_at_once: bool = False
    keeps_duplicates: bool = False
    forgets_unheld: bool = False
    evicts_cached: bool = False
    evicts: Eviction | None = None
    window: int | None = None
    null_block: int | None = None
    ring: bool = False
    windows: tuple[int | None, ...] = ()
    window_of_first: bool = False
    drops_behind_window: bool = False
    never_reached: Mapping[str, str] = field(default_factory=dict)
    meaningless: Mapping[str, str] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("wrong_use", "never_reached", "meaningless", "because"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        for name, least in _LEAST.items():
            as_int(name, getattr(self, name), minimum=least)
        if self.late_calls and self.late_blocks:
            raise ValueError(
                f"late_calls = {self.late_calls} and late_blocks = {self.late_blocks} are both "
                f"declared; pending blocks wait for calls or for blocks: declare one"
            )
        for operation, use in self.wrong_use.items():
            if operation not in OPERATIONS:
                raise ValueError(
                    f"wrong_use names {operation!r}; the operations are {', '.join(OPERATIONS)}"
                )
            if use not in ("error", "noop", "never"):
                raise ValueError(f"wrong_use[{operation!r}] = {use!r}; use error, noop or never")
        if self.evicts is not None and self.evicts not in get_args(Eviction):
            kinds = ", ".join(get_args(Eviction))
            raise ValueError(f"evicts = {self.evicts!r}; use one of {kinds}, or leave it out")
        object.__setattr__(self, "abilities", frozenset(self.abilities))
        object.__setattr__(self, "windows", tuple(self.windows))
        self._check_abilities()
        self._check_reasons()

    def _check_abilities(self) -> None:
        for name in sorted(self.abilities - {*ABILITY_NAMES}):
            raise ValueError(
                f"abilities name {name!r}; the abilities are {', '.join(ABILITY_NAMES)}"
            )
        self._check_windows()
        if self.lookahead_tokens and (beside := self._not_beside_lookahead()):
            raise ValueError(
                f"lookahead_tokens = {self.lookahead_tokens} is declared beside {beside}, where it "
                f"is not exact; declare lookahead, the most blocks that there may be"
            )

    def _check_windows(self) -> None:
        given = [window for window in self.each_window if window is not None]
        if ("window" in self.abilities) != bool(given):
            said = f"windows = {self.windows}" if self.windows else f"window = {self.window}"
            raise ValueError(
                f"{said} and abilities = {sorted(self.abilities)}; "
                f"the ability window and its length are declared together"
            )
        for window in given:
            as_int("window", window, minimum=1)
        if self.windows and self.window is not None:
            raise ValueError(
                f"window = {self.window} and windows = {self.windows} are both declared; "
                f"give the window of each table in windows, or of the only one in window"
            )
        if given and self.null_block is None and not self.ring:
            raise ValueError(
                f"windows {self.each_window} with neither null_block nor ring: declare what stands "
                f"in a table for a block that went back, or that it is written over"
            )
        if self.ring and (self.null_block is not None or not given):
            raise ValueError(
                f"ring = True with null_block = {self.null_block} and windows {self.each_window}; "
                f"a ring is behind a window, and what it overwrites leaves no entry"
            )
        if (self.ring or self.windows) and (others := self.abilities - _IN_ANY_TABLE):
            raise ValueError(
                f"ring or windows beside {', '.join(sorted(others))}: what that means for a ring, "
                f"or for several tables, is not known; declare one or the other"
            )
        if self.windows and (ahead := self.lookahead or self.lookahead_tokens):
            raise ValueError(
                f"windows = {self.windows} with a lookahead of {ahead}: which of the tables has "
                f"the blocks beyond its tokens is not known; declare one or the other"
            )

    def _not_beside_lookahead(self) -> str:
        there = {"lookahead": self.lookahead} | {
            name: name in self.abilities for name in ("fork", "window")
        }
        return " and ".join(name for name, given in there.items() if given)

    def _check_reasons(self) -> None:
        # `never_reached` and `meaningless` carry a reason in each entry already.
        own = {"abilities", "because", "never_reached", "meaningless"}
        default = {
            f.name: f.default if f.default_factory is MISSING else f.default_factory()
            for f in fields(self)
            if f.name not in own
        }
        for name, value in default.items():
            if getattr(self, name) != value and not self.because.get(name):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} is declared without a reason; "
                    f"add because={{{name!r}: 'where this is stated'}}"
                )
        for name in self.because:
            if name not in default:
                raise ValueError(f"because names {name!r}, which is no declaration")

    @property
    def each_window(self) -> tuple[int | None, ...]:
        """The window of each table that a request has."""
        return self.windows or (self.window,)

    def on_wrong_use(self, operation: str) -> WrongUse:
        """What wrong use of `operation` gets; changes nothing."""
        return self.wrong_use.get(operation, "error")

    def supports(self, num_blocks: int, block_size: int) -> bool:
        """Whether the target can be made with this geometry; changes nothing."""
        most = num_blocks if self.max_blocks is None else self.max_blocks
        return (
            self.min_blocks <= num_blocks <= most
            and num_blocks % self.pool_multiple == 0
            and (self.block_sizes is None or block_size in self.block_sizes)
        )


NOT_TRIED: Mapping[str, WrongUse] = MappingProxyType(dict.fromkeys(OPERATIONS, "never"))
"""`wrong_use` of an engine that promises nothing about wrong use."""


STRICT = Declarations()
"""The core protocol, strictly: of a target that declares nothing."""


def declared_by(factory: object) -> Declarations:
    """What a factory declares of the managers it makes, as far as it says so before it made one."""
    declared = getattr(factory, "declares", None)
    return declared if isinstance(declared, Declarations) else STRICT
