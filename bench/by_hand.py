"""The Hypothesis machine that an engineer writes for this one allocator, as a yardstick.

It has the rules of the generated machine (prefill, decode, release, resume, each kind of wrong
use) and its checks, written for one manager of one size and with no message of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from pagedkv import KVCacheManager, MisuseError, OutOfBlocks, Request

BLOCKS, SIZE, REQUESTS = 4, 3, 3
CAPACITY = BLOCKS * SIZE

Fields = tuple[object, ...]
FORGED = ("duplicate", "out-of-range", "negative", "free", "foreign")


def any_choice() -> st.SearchStrategy[int]:
    """Which of the requests that a rule may take, modulo their number."""
    return st.integers(0, REQUESTS - 1)


def fields(req: Request) -> Fields:
    """What a handle says, as a value."""
    return (req.request_id, req.seq_len, tuple(req.block_table), tuple(req.tokens), req.prompt_len)


class ByHand(RuleBasedStateMachine):
    """Rules, a dense cache beside the paged one, and what must hold after every step."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.manager = KVCacheManager(BLOCKS, SIZE, 1)
        self.live: dict[int, Request] = {}
        self.released: dict[int, Request] = {}
        self.dense: dict[int, list[float]] = {}

    # ------------------------------------------------------------ one call, and what it may do

    def granted(self, call: Callable[[Request], None], req: Request) -> None:
        """The call must go through, and leave all other requests alone."""
        type(self).steps += 1
        others = self.others(req)
        call(req)
        assert self.others(req) == others

    def others(self, req: Request) -> tuple[dict[int, Fields], dict[int, tuple[int, ...]]]:
        handles = {**self.live, **self.released}
        seen = {name: fields(other) for name, other in handles.items() if other is not req}
        tables = self.manager.snapshot().block_tables
        return seen, {name: tables[name] for name in seen if name in tables}

    def refused(
        self, call: Callable[[Request], None], req: Request, error: type[Exception]
    ) -> None:
        """The call must raise this, and change nothing."""
        type(self).steps += 1
        others, snapshot, own = self.others(req), self.manager.snapshot(), fields(req)
        try:
            call(req)
        except error:
            assert (self.others(req), self.manager.snapshot()) == (others, snapshot)
            assert fields(req) == own
        else:
            raise AssertionError("not refused")

    def admit(self, req: Request) -> None:
        """Prefill, granted exactly if the blocks are there."""
        name = req.request_id
        if -(-req.seq_len // SIZE) > len(self.manager.free_blocks):
            self.refused(self.manager.allocate_for_prefill, req, OutOfBlocks)
            return
        seq_len = req.seq_len
        self.granted(self.manager.allocate_for_prefill, req)
        assert (req.request_id, req.seq_len) == (name, seq_len)
        self.released.pop(name, None)
        self.live[name], self.dense[name] = req, []
        self.write(req)

    def write(self, req: Request) -> None:
        """Put the tags of the new tokens where the table says."""
        dense = self.dense[req.request_id]
        for p in range(len(dense), req.seq_len):
            tag = req.request_id * 100 + p
            self.manager.physical_kv_cache[req.block_table[p // SIZE], p % SIZE] = tag
            dense.append(tag)

    def a_live(self, choice: int) -> Request:
        return self.live[sorted(self.live)[choice % len(self.live)]]

    def a_released(self, choice: int) -> Request:
        return self.released[sorted(self.released)[choice % len(self.released)]]

    def has_name(self) -> bool:
        return len(self.live) + len(self.released) < REQUESTS

    def a_name(self) -> int:
        return min(set(range(REQUESTS)) - set(self.live) - set(self.released))

    # ------------------------------------------------------------ the rules

    @precondition(lambda self: self.has_name())
    @rule(tokens=st.integers(1, CAPACITY + 1))
    def prefill(self, tokens: int) -> None:
        self.admit(Request(self.a_name(), tokens))

    @precondition(lambda self: self.released)
    @rule(choice=any_choice())
    def resume(self, choice: int) -> None:
        self.admit(self.a_released(choice))

    @precondition(lambda self: self.live)
    @rule(choice=any_choice())
    def decode(self, choice: int) -> None:
        req = self.a_live(choice)
        full = req.seq_len == len(req.block_table) * SIZE
        req.tokens.append(0)
        if full and not self.manager.free_blocks:
            self.refused(self.manager.allocate_for_decode, req, OutOfBlocks)
            req.tokens.pop()
            return
        seq_len = req.seq_len
        self.granted(self.manager.allocate_for_decode, req)
        assert req.seq_len == seq_len + 1
        self.write(req)

    @precondition(lambda self: self.live)
    @rule(choice=any_choice())
    def release(self, choice: int) -> None:
        req = self.a_live(choice)
        self.granted(self.manager.release_request, req)
        self.released[req.request_id] = self.live.pop(req.request_id)

    @precondition(lambda self: self.live)
    @rule(choice=any_choice())
    def prefill_live(self, choice: int) -> None:
        self.refused(self.manager.allocate_for_prefill, self.a_live(choice), MisuseError)

    @precondition(lambda self: self.has_name())
    @rule(call=st.sampled_from(["allocate_for_decode", "release_request"]))
    def use_fresh(self, call: str) -> None:
        self.refused(getattr(self.manager, call), Request(self.a_name(), 1), MisuseError)

    @precondition(lambda self: self.released)
    @rule(
        call=st.sampled_from(["allocate_for_decode", "release_request"]),
        choice=any_choice(),
    )
    def use_released(self, call: str, choice: int) -> None:
        self.refused(getattr(self.manager, call), self.a_released(choice), MisuseError)

    @precondition(lambda self: self.live and self.has_name())
    @rule(choice=any_choice())
    def release_stolen(self, choice: int) -> None:
        req = Request(self.a_name(), 1)
        req.block_table = list(self.a_live(choice).block_table)
        self.refused(self.manager.release_request, req, MisuseError)

    @precondition(lambda self: self.live)
    @rule(choice=any_choice(), flaw=st.sampled_from(FORGED))
    def release_forged(self, choice: int, flaw: str) -> None:
        req = self.a_live(choice)
        right = req.block_table
        others = [b for other in self.live.values() if other is not req for b in other.block_table]
        more = {
            "duplicate": right[:1],
            "out-of-range": [BLOCKS],
            "negative": [-1],
            "free": self.manager.free_blocks[:1] or [BLOCKS],
            "foreign": others[:1] or [BLOCKS],
        }
        req.block_table = [*right, *more[flaw]]
        self.refused(self.manager.release_request, req, MisuseError)
        req.block_table = right

    # ------------------------------------------------------------ what must hold after each step

    @invariant()
    def tables_and_free_list_partition_the_pool(self) -> None:
        snapshot = self.manager.snapshot()
        held = [b for table in snapshot.block_tables.values() for b in table]
        assert snapshot.free_blocks is not None
        assert sorted([*held, *snapshot.free_blocks]) == list(range(BLOCKS))
        assert self.manager.free_blocks == sorted(snapshot.free_blocks)

    @invariant()
    def lengths_and_tables_agree(self) -> None:
        snapshot = self.manager.snapshot()
        assert snapshot.block_tables == {n: tuple(r.block_table) for n, r in self.live.items()}
        assert snapshot.seq_lens == {n: len(self.dense[n]) for n in self.live}
        for name, req in self.live.items():
            assert req.seq_len == len(self.dense[name])
            assert len(req.block_table) == -(-req.seq_len // SIZE)
        for name, req in self.released.items():
            assert (req.seq_len, req.block_table) == (len(self.dense[name]), [])

    @invariant()
    def cache_and_reports_read_back_and_reading_changes_nothing(self) -> None:
        before = self.manager.snapshot()
        for name, req in self.live.items():
            dense = self.dense[name]
            assert self.manager.get_physical_cache(req).flatten().tolist() == dense
            allocated = len(req.block_table) * SIZE
            assert self.manager.allocation_report(req) == {
                "logical_tokens": len(dense),
                "allocated_tokens": allocated,
                "unused_tail_tokens": allocated - len(dense),
                "utilization": len(dense) / allocated,
            }
        assert self.manager.snapshot() == before


def as_both_run(examples: int) -> settings:
    """What both machines run with: so many histories of 50 steps, none of them shrunk."""
    return settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
