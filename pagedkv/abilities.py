"""What engines do beyond prefill, decode and release: the calls of each ability.

A target declares the abilities it has (`Declarations.abilities`); each switches on its own
commands and properties. What `PagedKVManager` says holds of every call here too: all or nothing,
OutOfBlocks or a MisuseError with nothing changed, handles known by identity.

append: many tokens at once (chunked prefill, multi-token decode).
truncate: the last tokens go (rejected drafts). With `lookahead_tokens` every call that takes blocks
    takes those for so many tokens to come too, and a truncation keeps these.
fork: a second request over the same blocks, by reference count. A partly filled tail that several
    requests hold is copied before the first write by any of them: at that write, which then needs
    one block more, or, with `forks_eagerly`, at the fork. A block is free again when nobody holds
    it. A write is a granted decode or append that puts a token into the tail block. Source: Kwon
    et al., PagedAttention (SOSP 2023), section 4.4.
prefix: full blocks are found again by their tokens and all tokens before them, and the request's
    extra key. Published by `computed(req)`, or, with `publishes_at_once`, by the call that took
    the block. A prompt's last token is never found, so that there is one to compute. Blocks that
    are published and that nobody holds stay, cached, until they are evicted to be handed out, the
    longest unheld first, and of one release the last logical block first (declared as `evicts`,
    judged where the snapshot has `eviction_order`). Hits are taken out of
    the cached before blocks are counted. Content that is published already is not published
    again: the block that holds it a second time is free once nobody holds it. A published block
    that only one request holds is withdrawn before that request writes into it; one that several
    hold is copied. Source: SGLang, RadixAttention (NeurIPS 2024); vLLM V1, KVCacheManager.
swap: preemption to a second pool, and back. Every block of the request is moved by content: one
    that others hold too stays theirs.
window: only the last `window` tokens are read. Before a decode or append takes blocks, those
    behind the window that it leaves go back, and count as available to it; their entries become
    `null_block`. A prefill takes every block. Of a ring (`Declarations.ring`) no block goes back:
    position p is written where p - window was.
ask: whether a call would be granted, without making it.
group: blocks released inside a group come back when it ends, not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Literal, Protocol, get_args, runtime_checkable

from pagedkv.protocol import Request

AbilityName = Literal["append", "truncate", "fork", "prefix", "swap", "window", "ask", "group"]
ABILITY_NAMES: tuple[AbilityName, ...] = get_args(AbilityName)


@runtime_checkable
class Appends(Protocol):
    """Ability append."""

    def allocate_for_append(self, req: Request, count: int) -> object:
        """Make room for `count` >= 1 more tokens, all or nothing. Mutates both.

        The caller puts the tokens behind `req.tokens` before, and takes them back after a refusal.
        Raises OutOfBlocks, HoldsNothing, InvalidBlockTable; ValueError for a count below 1.
        """


@runtime_checkable
class Truncates(Protocol):
    """Ability truncate."""

    def truncate_request(self, req: Request, seq_len: int) -> object:
        """Keep the first `seq_len` tokens, 1 <= seq_len <= req.seq_len. Mutates both.

        Whole blocks beyond ceil(seq_len / block_size) go back, the tail's block stays. The caller
        cuts `req.tokens` before it, and puts them back after a refusal. Never out of blocks. Raises
        HoldsNothing, InvalidBlockTable; ValueError for another length.
        """


@runtime_checkable
class Forks(Protocol):
    """Ability fork."""

    def fork_request(self, req: Request, child: Request) -> object:
        """Let `child`, a fresh handle of the same length, hold what `req` holds. Mutates both.

        Raises OutOfBlocks where the tail is copied at once; HoldsNothing, InvalidBlockTable for
        `req`, AlreadyHolding for `child`; ValueError where their lengths differ.
        """


@runtime_checkable
class CachesPrefixes(Protocol):
    """Ability prefix."""

    def cached_tokens(self, req: Request) -> int:
        """How many tokens of a live request its prefill found; a multiple of the block size."""


@runtime_checkable
class Swaps(Protocol):
    """Ability swap. The second pool has `num_host_blocks` blocks.

    `host_kv_cache` is its tensor, like `physical_kv_cache`, where the target keeps one.
    """

    num_host_blocks: int

    def swap_out(self, req: Request) -> object:
        """Move what `req` holds to the second pool; its table is emptied, its length kept.

        Raises OutOfBlocks where the second pool has too few; HoldsNothing, InvalidBlockTable. A
        request that was swapped out can be released; any other call is an AlreadyHolding (prefill)
        or HoldsNothing.
        """

    def swap_in(self, req: Request) -> object:
        """Move it back: ceil(seq_len / block_size) blocks. Mutates both.

        Raises OutOfBlocks, or HoldsNothing if `req` is not swapped out.
        """


@runtime_checkable
class Asks(Protocol):
    """Ability ask. With append there is also `can_append(req, count)`, and so on for each call
    that may run out of blocks: `can_fork(req)`, `can_swap_out(req)`, `can_swap_in(req)`.
    """

    def can_prefill(self, req: Request) -> bool:
        """Whether `allocate_for_prefill` would find the blocks; changes nothing."""

    def can_decode(self, req: Request) -> bool:
        """Whether `allocate_for_decode` would find the blocks; changes nothing.

        `req.tokens` holds the new token already, as it does when the call is made.
        """


@runtime_checkable
class GroupsFree(Protocol):
    """Ability group."""

    def free_group_begin(self) -> object:
        """Blocks that come back from now on are withheld; MisuseError inside a group."""

    def free_group_end(self) -> object:
        """The withheld blocks are free, or cached where published; MisuseError outside a group."""


PROTOCOLS: Mapping[AbilityName, type] = MappingProxyType(
    {
        "append": Appends,
        "truncate": Truncates,
        "fork": Forks,
        "prefix": CachesPrefixes,
        "swap": Swaps,
        "ask": Asks,
        "group": GroupsFree,
    }
)
"""What a target that declares the ability must have; `window` has no call of its own."""


def missing(manager: object, abilities: Set[AbilityName]) -> list[AbilityName]:
    """The declared abilities that the manager has no calls for, in canonical order."""
    return [
        name
        for name in ABILITY_NAMES
        if name in abilities and name in PROTOCOLS and not isinstance(manager, PROTOCOLS[name])
    ]
