"""What every allocator under test shares: requests, the manager protocol, snapshots and errors.

This module stands at the bottom: it imports neither a manager nor torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsIndex, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


def method_of(owner: object, name: str) -> Callable[..., Any] | None:
    """The optional method of this name; None where there is none, or an attribute that is none."""
    found = getattr(owner, name, None)
    return found if callable(found) else None


def as_int(name: str, value: SupportsIndex, *, minimum: int) -> int:
    """Return `value` as an int of at least `minimum`; changes nothing.

    Numpy integers and other integer scalars are taken. Raises TypeError for booleans and for
    anything that is not an integer (floats included), ValueError below `minimum`.
    """
    if type(value) is int and value >= minimum:
        return value
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        raise TypeError(f"{name} must be an integer, got the boolean {value!r}; pass a number")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}; "
            f"convert it with int() if that is what you mean"
        ) from None
    if number < minimum:
        raise ValueError(f"{name} must be >= {minimum}, got {number}")
    return number


class OutOfBlocks(RuntimeError):
    """A call needs more blocks than there are; it has changed nothing.

    `request_id` is None where a whole batch needs them.
    """

    def __init__(self, request_id: int | None, needed: int, available: int) -> None:
        super().__init__(request_id, needed, available)
        self.request_id = request_id
        self.needed = needed
        self.available = available

    def __str__(self) -> str:
        who = "the batch" if self.request_id is None else f"request {self.request_id}"
        return (
            f"OOM: {who} needs {self.needed} more block(s), "
            f"{self.available} available; release a request or use a larger pool"
        )


class MisuseError(ValueError):
    """A call that the protocol does not allow; it has changed nothing."""


class AlreadyHolding(MisuseError):
    """Prefill of a request that holds blocks, or of an id that another live request has."""


class HoldsNothing(MisuseError):
    """Decode or release of a request that holds no blocks."""


class InvalidBlockTable(MisuseError):
    """A table with a duplicate, out-of-range, free or foreign block, or of the wrong length."""


class Request:
    """One sequence, as its caller sees it: a handle that the manager fills in.

    `seq_len` counts logical tokens and starts at `prompt_len`. `block_table[i]` is the physical
    block of logical block i; empty means that the request holds nothing. `tokens` are token ids,
    zeros unless given; the caller appends the new one before a decode and takes it back after a
    refusal. `extra_key` is what its cached blocks are told apart by besides their tokens, an
    adapter or a salt. Raises ValueError for a negative id, a length below 1, or `tokens` of another
    length; TypeError for booleans and floats.
    """

    def __init__(
        self,
        request_id: SupportsIndex,
        prompt_len: SupportsIndex,
        tokens: Sequence[int] | None = None,
        *,
        extra_key: Hashable = None,
    ) -> None:
        self.extra_key = extra_key
        self.request_id = as_int("request_id", request_id, minimum=0)
        self.prompt_len = as_int("prompt_len", prompt_len, minimum=1)
        if tokens is not None and len(tokens) != self.prompt_len:
            raise ValueError(
                f"len(tokens) = {len(tokens)} != {self.prompt_len} = prompt_len; "
                f"give one token id for each position of the prompt"
            )
        self.seq_len = self.prompt_len
        self.block_table: list[int] = []
        self.tokens: list[int] = [0] * self.prompt_len if tokens is None else list(tokens)

    def __repr__(self) -> str:
        return (
            f"Request(request_id={self.request_id}, seq_len={self.seq_len}, "
            f"block_table={self.block_table})"
        )


class Owned(NamedTuple):
    """One entry of a reverse map: block `block` is logical block `logical` of `owner`.

    `owner` is a live request's id, or a label such as "row 2" for a row no live request has.
    """

    owner: int | str
    logical: int
    block: int


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Snapshot:
    """What an observer may see of a manager: a value, never a view.

    Read live from the manager's real structures. Containers are copied on construction, so a
    later change of the manager does not show.

    block_tables, seq_lens: live requests only, by request id.
    free_blocks: what the next call can hand out, in hand-out order; None when it can't be seen.
    blocks: all usable ids; None for 0 .. num_blocks - 1 without the reserved.
    num_free: the manager's own counter, if it keeps one; where free_blocks can't be seen, with the
        cached blocks or without.
    ref_counts: references per block, if kept; a block that is not named has none.
    cached: blocks kept for reuse that no live request holds.
    pending: blocks given back that the next call can't hand out yet, each with how many more calls
        or blocks it waits for at most (`Declarations.late_calls`, `late_blocks`); None if there
        never are any.
    reserved: blocks that are never handed out.
    reverse_map: every entry of a physical-to-logical map, if kept.
    capacities: allocated tokens per owner, if kept; owners as in `Owned`.
    index: the block that each key of a prefix cache finds, if there is one; keys are the target's.
        Where several have the same content, the first that is named is found first.
    withheld: blocks given back inside a group that is open; None outside any.
    swapped: what requests that are swapped out hold of the second pool, by request id.
    host_free: the free blocks of the second pool, in hand-out order; None where there is none.
    eviction_order: cached, the next to be evicted first (`Declarations.evicts`); None where that
        can't be seen.
    """

    block_tables: Mapping[int, tuple[int, ...]]
    seq_lens: Mapping[int, int]
    free_blocks: tuple[int, ...] | None
    blocks: frozenset[int] | None = None
    num_free: int | None = None
    ref_counts: Mapping[int, int] | None = None
    cached: frozenset[int] = frozenset()
    pending: Mapping[int, int] | None = None
    reserved: frozenset[int] = frozenset()
    reverse_map: frozenset[Owned] | None = None
    capacities: Mapping[int | str, int] | None = None
    index: Mapping[Hashable, int] | None = None
    withheld: frozenset[int] | None = None
    swapped: Mapping[int, tuple[int, ...]] | None = None
    host_free: tuple[int, ...] | None = None
    eviction_order: tuple[int, ...] | None = None

    def __init__(  # noqa: PLR0913 - one for each field, all by name
        self,
        *,
        block_tables: Mapping[int, Iterable[int]],
        seq_lens: Mapping[int, int],
        free_blocks: Iterable[int] | None,
        blocks: Iterable[int] | None = None,
        num_free: int | None = None,
        ref_counts: Mapping[int, int] | None = None,
        cached: Iterable[int] = frozenset(),
        pending: Mapping[int, int] | None = None,
        reserved: Iterable[int] = frozenset(),
        reverse_map: Iterable[Owned] | None = None,
        capacities: Mapping[int | str, int] | None = None,
        index: Mapping[Hashable, int] | None = None,
        withheld: Iterable[int] | None = None,
        swapped: Mapping[int, Iterable[int]] | None = None,
        host_free: Iterable[int] | None = None,
        eviction_order: Iterable[int] | None = None,
    ) -> None:
        # By hand: one is made at every step of every search, and what a dataclass writes sets
        # each field twice where it is copied.
        put = object.__setattr__
        put(self, "block_tables", {r: plain_ints(table) for r, table in block_tables.items()})
        put(self, "seq_lens", _plain_values(seq_lens))
        put(self, "free_blocks", free_blocks if free_blocks is None else plain_ints(free_blocks))
        put(self, "blocks", blocks if blocks is None else frozenset(plain_ints(blocks)))
        put(self, "num_free", num_free if num_free is None else plain_ints((num_free,))[0])
        put(self, "ref_counts", ref_counts if ref_counts is None else _plain_counts(ref_counts))
        put(self, "cached", frozenset(plain_ints(cached)))
        put(self, "pending", pending if pending is None else _plain_counts(pending))
        put(self, "reserved", frozenset(plain_ints(reserved)))
        put(self, "reverse_map", reverse_map if reverse_map is None else frozenset(reverse_map))
        put(self, "capacities", capacities if capacities is None else _plain_values(capacities))
        put(self, "index", index if index is None else _plain_values(index))
        put(self, "withheld", withheld if withheld is None else frozenset(plain_ints(withheld)))
        out = swapped if swapped is None else {r: plain_ints(held) for r, held in swapped.items()}
        put(self, "swapped", out)
        put(self, "host_free", host_free if host_free is None else plain_ints(host_free))
        order = eviction_order if eviction_order is None else plain_ints(eviction_order)
        put(self, "eviction_order", order)


Key = TypeVar("Key")


def plain_ints(numbers: Iterable[int]) -> tuple[int, ...]:
    """The numbers as Python's own, whatever tensor or array they come from; what is none stays."""
    found = tuple(numbers)
    return found if _INTS.issuperset(map(type, found)) else tuple(map(_plainly, found))


_INTS = frozenset({int})


def _plainly(number: int) -> int:
    try:
        return operator.index(number)
    except TypeError:  # It is to be judged, and not to end the look at it.
        return number


def _plain_values(numbers: Mapping[Key, int]) -> dict[Key, int]:
    found = dict(numbers)
    if not _INTS.issuperset(map(type, found.values())):
        found = {key: _plainly(number) for key, number in found.items()}
    return found


def _plain_counts(counts: Mapping[int, int]) -> dict[int, int]:
    found = _plain_values(counts)
    if not _INTS.issuperset(map(type, found)):
        found = {_plainly(block): count for block, count in found.items()}
    return found


class PagedKVManager(Protocol):
    """A paged KV-cache allocator: `(num_blocks, block_size, head_dim)`, all > 0, else ValueError.

    Only the three allocation calls are needed to be checked; what else is there is used.
    Optional beside these, and checked before they are relied on:
    declares: a `Declarations`.
    state_key(names): nested tuples of ints, strings and None that equal another's only if both
        managers behave alike from here on; `names[r]` is what request id r is to be called in it,
        so that states that differ in names only have one key. The handles' seq_len, block_table
        and tokens are compared beside it; a manager that reads prompt_len puts that in. Used only
        where the manager's own class has it; else the whole object is looked at.
    clone(requests): a copy of the manager and of those handles, in one: (manager, {name: handle}).
    slots(req): the (group, block, offset) of each position, in order; group counts the tables that
        a request has (`Declarations.windows`), from 0.
    computed(req): told after the tokens of a call were written.
    """

    num_blocks: int
    block_size: int
    head_dim: int

    @property
    def physical_kv_cache(self) -> Tensor:
        """The pool, `[num_blocks, block_size, head_dim]`."""

    @property
    def free_blocks(self) -> list[int]:
        """The free physical blocks, ascending; a fresh list."""

    def allocate_for_prefill(self, req: Request) -> object:
        """Take ceil(seq_len / block_size) blocks for `req`, all or nothing. Mutates both.

        Raises OutOfBlocks, or MisuseError while `req` holds blocks; nothing has changed then.
        """

    def allocate_for_decode(self, req: Request) -> object:
        """Make room for one more token: one more block only at a block boundary. Mutates both.

        Raises OutOfBlocks, or MisuseError if `req` holds nothing; nothing has changed then.
        """

    def release_request(self, req: Request) -> object:
        """Give all blocks of `req` back; the table is emptied, `seq_len` kept. Mutates both.

        Raises MisuseError if `req` holds nothing or carries a table it was not given.
        """

    def allocation_report(self, req: Request) -> Mapping[str, float]:
        """`logical_tokens`, `allocated_tokens`, `unused_tail_tokens`, `utilization`."""

    def get_physical_cache(self, req: Request) -> Tensor:
        """The `[seq_len, head_dim]` rows that the request's table names, in logical order."""

    def snapshot(self) -> Snapshot:
        """What an observer may see, read live from the real structures; changes nothing."""
