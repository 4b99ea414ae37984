"""Faults in prefix caching: keys, what is found and published, what is evicted."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagedkv.mutants.able import (
    ArrayCaching,
    Caching,
    CachingAndGrouping,
    CachingAndTruncating,
    CachingAtOnce,
    CachingAtOnceAndTruncating,
)
from pagedkv.mutants.registry import planted
from pagedkv.protocol import OutOfBlocks, Request
from pagedkv.rows import Int64
from pagedkv.shared_blocks import Key, SharedBlocks, Withheld
from pagedkv.shared_core import SharedLease
from pagedkv.shared_plan import Plan as ArrayPlan
from pagedkv.shared_plans import Plan

# ---------------------------------------------------------------- keys


@planted("prefix-published", 2)
class KeysWithoutExtra(Caching):
    """Leaves the extra key out of the key of a block."""

    def _key(self, req: Request, logical: int) -> Key:
        return None, super()._key(req, logical)[1]


@planted("prefix-published", 1)
class KeysWithoutPrefix(Caching):
    """Keys a block by its own tokens, without those before it."""

    def _key(self, req: Request, logical: int) -> Key:
        extra, tokens = super()._key(req, logical)
        return extra, tokens[logical * self.block_size :]


@planted("prefix-published", 2)
class KeysOneTokenTooFew(Caching):
    """Leaves the last token of a block out of its key."""

    def _key(self, req: Request, logical: int) -> Key:
        extra, tokens = super()._key(req, logical)
        return extra, tokens[:-1]


@planted("contents", 2)
class FindsOnlyBlock(ArrayCaching):
    """Takes the one block that is published for the first of every prompt."""

    def _hits(self, req: Request, seq_len: int) -> Int64:
        hits = super()._hits(req, seq_len)
        if not len(hits) and seq_len > self.block_size and len(self._index) == 1:
            return np.fromiter(self._index.values(), dtype=np.int64)
        return hits


# ---------------------------------------------------------------- what is found


@planted("out-of-blocks", 2)
class FindsLastTokenToo(Caching):
    """Finds a prompt to its last token: none is left to compute."""

    def _find(self, req: Request, seq_len: int) -> list[int]:
        found = super()._find(req, seq_len)
        if (len(found) + 1) * self.block_size == seq_len:
            block = self._blocks.index.get(self._key(req, len(found)))
            found += [] if block is None else [block]
        return found


@planted("prefix-found", 2)
class FindsFirstBlockOnly(Caching):
    """Finds the first block of a prompt, and none behind it."""

    def _find(self, req: Request, seq_len: int) -> list[int]:
        return super()._find(req, seq_len)[:1]


@planted("prefix-counted", 2, seen="vLLM #33524")
class LeavesWholeBlockToCompute(Caching):
    """Leaves a whole block of a prompt to compute where one token would do."""

    def _find(self, req: Request, seq_len: int) -> list[int]:
        return super()._find(req, seq_len)[: (seq_len - self.block_size) // self.block_size]


@planted("prefix-found", 3)
class FindsHeldBlocksOnly(Caching):
    """Finds what others hold, and nothing that is cached."""

    def _find(self, req: Request, seq_len: int) -> list[int]:
        found = super()._find(req, seq_len)
        cached = [i for i, block in enumerate(found) if block not in self._blocks.refs]
        return found[: min(cached, default=len(found))]


@planted("prefix-counted", 3)
class EvictsWhatItFound(Caching):
    """Takes blocks before it holds those that it found, and counts these as room."""

    def _plan_prefill(self, req: Request) -> Plan:
        self._unknown("prefill of", req)
        found, blocks = self._find(req, req.seq_len), self._blocks.copy()
        needed = -(-req.seq_len // self.block_size) - len(found)
        if needed > blocks.available:
            raise OutOfBlocks(req.request_id, needed, blocks.available)
        taken = blocks.take(needed)
        for block in found:
            blocks.hold(block)
        lease = SharedLease(req, (*found, *taken), len(found) * self.block_size)
        return Plan(blocks, lease, req.seq_len)


@planted("rollback", 2, seen="vLLM #11562")
class PinsBeforeRefusing(Caching):
    """Holds what a prompt finds before it counts the blocks that it needs, and keeps that."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            for block in self._find(req, req.seq_len):
                self._blocks.hold(block)
            raise


class _Unlocked(SharedBlocks):
    def hold(self, block: int) -> None:
        self.refs[block] = self.refs.get(block, 0) + 1


@planted("prefix-counted", 3, seen="mini-sglang #52")
class DoesNotLockWhatItFound(Caching):
    """Leaves a cached block that is found among those to be evicted."""

    pool_kind = _Unlocked


@planted("contents", 2, seen="TensorRT-LLM #12404")
class CreditsBlockTooMany(Caching):
    """Says that a prompt found one block more, where it ends with a block."""

    def cached_tokens(self, req: Request) -> int:
        found = super().cached_tokens(req)
        one_more = found + self.block_size
        return one_more if found and one_more == req.seq_len else found


@planted("prefix-counted", 2)
class CountsFoundAsNeeded(Caching):
    """Wants as many blocks for a prompt as if nothing were found."""

    def _plan_prefill(self, req: Request) -> Plan:
        needed = -(-req.seq_len // self.block_size)
        plan = super()._plan_prefill(req)
        if needed > self._blocks.available:
            raise OutOfBlocks(req.request_id, needed, self._blocks.available)
        return plan


# ---------------------------------------------------------------- what is published


@planted("index-exact", 1)
class PublishesTail(Caching):
    """Publishes a partly filled block too."""

    def _publish(self, blocks: SharedBlocks, lease: SharedLease, seq_len: int) -> None:
        super()._publish(blocks, lease, seq_len)
        if seq_len % self.block_size:
            logical = seq_len // self.block_size
            blocks.publish(lease.blocks[logical], self._key(lease.handle, logical))


@planted("prefix-published", 1)
class PublishesFirstBlockOnly(Caching):
    """Publishes the first block of a request, and none behind it."""

    def _publish(self, blocks: SharedBlocks, lease: SharedLease, seq_len: int) -> None:
        super()._publish(blocks, lease, min(seq_len, self.block_size))


@planted("prefix-published", 1)
class PublishesOneBlockTooFew(CachingAtOnce):
    """Publishes no block that ends where the request ends."""

    def _publish(self, blocks: SharedBlocks, lease: SharedLease, seq_len: int) -> None:
        super()._publish(blocks, lease, seq_len - 1)


@planted("prefix-computed", 1)
class PublishesBeforeComputed(Caching):
    """Publishes the blocks of a prompt when it takes them, before anything is written to them."""

    def _plan_prefill(self, req: Request) -> Plan:
        plan = super()._plan_prefill(req)
        self._publish(plan.blocks, plan.lease, plan.seq_len)
        return plan


class _LastWins(SharedBlocks):
    def publish(self, block: int, key: Key) -> None:
        self.index[key] = block


@planted("index-exact", 3)
class PublishesOverOthers(Caching):
    """Lets content be found in the block that held it last, while another is cached for it."""

    pool_kind = _LastWins


# ---------------------------------------------------------------- what is kept, and evicted


class _KeepsKey(SharedBlocks):
    def evict(self) -> int:
        return self.cached.pop(0)


@planted("index-exact", 3, seen="vLLM #4764")
class EvictsAndKeepsKey(Caching):
    """Leaves the key of an evicted block in the index."""

    pool_kind = _KeepsKey


@planted("prefix-published", 3, seen="vLLM #5364: a recycled block keeps its flag")
class KeepsFlagOfRecycled(ArrayCaching):
    """Lets a recycled block count as published already."""

    def _forget(self, plan: ArrayPlan, blocks: list[int]) -> None:
        self._hide(plan, blocks)
        plan.cleared += blocks


class _EvictsHeld(SharedBlocks):
    def evict(self) -> int:
        held = [block for block in self.index.values() if block in self.refs]
        if not held:
            return super().evict()
        self.withdraw(min(held))
        return min(held)


@planted("table-unique", 3)
class EvictsHeldBlock(Caching):
    """Evicts the lowest published block that somebody holds, if there is one."""

    pool_kind = _EvictsHeld


class _Forgets(SharedBlocks):
    def _come_back(self, given: Withheld) -> None:
        self.free = sorted([*self.free, given.block])


@planted("prefix-kept", 2)
class ForgetsAtRelease(Caching):
    """Frees the blocks of a released request, whatever they hold."""

    pool_kind = _Forgets


class _Withdraws(SharedBlocks):
    def drop(self, blocks: Any) -> None:
        dropped = [*blocks]
        super().drop(dropped)
        for block in dropped:
            if block in self.refs:
                self.withdraw(block)


@planted("prefix-kept", 3, seen="vLLM #12415")
class WithdrawsWhatOthersHold(Caching):
    """Lets nobody find the blocks of a released request that others still hold."""

    pool_kind = _Withdraws


@planted("rollback", 3)
class EvictsForRefused(Caching):
    """Evicts what it can for a prompt, and then refuses it."""

    def allocate_for_prefill(self, req: Request) -> None:
        try:
            super().allocate_for_prefill(req)
        except OutOfBlocks:
            blocks = self._blocks
            evicted = [blocks.evict() for _ in range(len(blocks.cached))]
            blocks.free = sorted([*blocks.free, *evicted])
            raise


class _StaysFindable(SharedBlocks):
    def drop(self, blocks: Any) -> None:
        dropped = [*blocks]
        keys = {block: self.key_of(block) for block in dropped}
        super().drop(dropped)
        for given in self.withheld or ():
            key = keys.get(given.block)
            if key is not None and key not in self.index:
                self.index[key] = given.block


@planted("index-exact", 3)
class FindsWithheld(CachingAndGrouping):
    """Lets a block be found while it is withheld."""

    pool_kind = _StaysFindable


@planted("prefix-whole", 3)
class KeepsKeyOfTruncated(CachingAtOnceAndTruncating):
    """Leaves the key of a published block in place when its request writes into it again."""

    def _plan_growth(self, action: str, req: Request, count: int) -> Plan:
        plan, tail = super()._plan_growth(action, req, count), req.block_table[-1]
        key = self._blocks.key_of(tail)
        if plan.copy is None and key is not None and plan.blocks.key_of(tail) is None:
            plan.blocks.index[key] = tail
        return plan


class _NeverShared(SharedBlocks):
    def shared(self, block: int) -> bool:
        return False


@planted("prefix-counted", 4)
class WritesIntoSharedPublished(CachingAndTruncating):
    """Writes in place into a published block that others hold too."""

    pool_kind = _NeverShared
