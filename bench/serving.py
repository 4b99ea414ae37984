"""A serving-like mix: requests of very different lengths come, run, and go; the last is preempted.

Lengths are drawn once, log-normal with the means of ShareGPT's prompts and outputs as Kwon et al.
(SOSP 2023, figure 11) give them, 161 and 338 tokens. Everybody plays the same script: admit in
order while there is room for the prompt and a tenth of the pool is free, decode all that run, and
where that would not fit, give the newest back, to be admitted again from its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Any, Protocol

import numpy as np

from bench.engines import SIZE
from bench.harness import Case, Group, Round
from bench.peers import MADE, available
from pagedkv import ArrayKVCacheManager
from pagedkv.ledger import contiguous_waste

BLOCKS, REQUESTS, LONGEST = 8192, 1000, 2048


@dataclass(frozen=True)
class Wish:
    """One request of the script: tokens of its prompt, and tokens when it is done."""

    name: int
    prompt: int
    total: int


def wishes() -> list[Wish]:
    """The recorded lengths."""
    draw = np.random.default_rng(0)

    def lengths(mean: float) -> Sequence[int]:
        drawn = draw.lognormal(np.log(mean) - 0.5, 1.0, REQUESTS)
        numbers: list[int] = np.clip(drawn, 2, LONGEST // 2).astype(int).tolist()
        return numbers

    both = zip(lengths(161), lengths(338), strict=True)
    return [Wish(i, prompt, prompt + output) for i, (prompt, output) in enumerate(both)]


class Server(Protocol):
    """A manager that plays the script; `spent` are CPU seconds in the manager's own calls."""

    spent: float

    def admit(self, coming: Sequence[Wish]) -> Sequence[Any]: ...
    def decode(self, running: Sequence[Any]) -> None: ...
    def release(self, going: Sequence[Any]) -> None: ...


class OneByOne:
    """Any of the peers."""

    def __init__(self, name: str) -> None:
        self.peer, self.spent, self.made = MADE[name][0](BLOCKS), 0.0, 0

    def admit(self, coming: Sequence[Wish]) -> Sequence[Any]:
        # A request that comes again is a new one: some engines can't take tokens back.
        made = [self.peer.make(self.made + i, wish.prompt) for i, wish in enumerate(coming)]
        self.made += len(made)
        with self.clock():
            for request in made:
                assert self.peer.admit(request) is not False
        return made

    def decode(self, running: Sequence[Any]) -> None:
        self.peer.extend(running)
        with self.clock():
            assert self.peer.decode(running)

    def release(self, going: Sequence[Any]) -> None:
        with self.clock():
            for request in going:
                self.peer.release(request)

    @contextmanager
    def clock(self) -> Iterator[None]:
        start = process_time()
        yield
        self.spent += process_time() - start


class InBatches:
    """The array-backed manager by rows; the running batch is prepared anew when it changes."""

    def __init__(self) -> None:
        self.manager, self.spent = ArrayKVCacheManager(BLOCKS, SIZE, 1), 0.0
        self.batch = self.manager.batch(np.array([], dtype=int))
        self.running: Sequence[int] = []

    def admit(self, coming: Sequence[Wish]) -> Sequence[int]:
        lengths = np.array([wish.prompt for wish in coming], dtype=int)
        start = process_time()
        rows: list[int] = self.manager.prefill_rows(lengths).tolist()
        self.spent += process_time() - start
        return rows

    def decode(self, running: Sequence[int]) -> None:
        start = process_time()
        if running != self.running:
            self.batch, self.running = self.manager.batch(np.array(running)), running
        self.batch.decode()
        self.spent += process_time() - start

    def release(self, going: Sequence[int]) -> None:
        start = process_time()
        self.manager.release_rows(np.array(going, dtype=int))
        self.spent += process_time() - start


def played(server: Server) -> float:
    """CPU seconds in the manager for each token that it was scheduled for."""
    waiting, running = wishes()[::-1], list[tuple[Wish, Any, int]]()
    free, tokens = BLOCKS, 0
    while waiting or running:
        coming = []
        while waiting and free - _blocks(waiting[-1].prompt) >= BLOCKS // 10 * bool(running):
            coming.append(waiting.pop())
            free -= _blocks(coming[-1].prompt)
        made = server.admit(coming)
        running += [(wish, it, wish.prompt) for wish, it in zip(coming, made, strict=True)]
        preempted = []
        while sum(length % SIZE == 0 for *_, length in running) > free:
            preempted.append(running.pop())
            free += _blocks(preempted[-1][2])
            waiting.append(preempted[-1][0])
        server.release([it for _, it, _ in preempted])
        server.decode([it for _, it, _ in running])
        free -= sum(length % SIZE == 0 for *_, length in running)
        tokens += sum(wish.prompt for wish in coming) + len(running)
        running = [(wish, it, length + 1) for wish, it, length in running]
        done = [one for one in running if one[2] >= one[0].total]
        running = [one for one in running if one[2] < one[0].total]
        free += sum(_blocks(length) for *_, length in done)
        server.release([it for _, it, _ in done])
    return server.spent / tokens


def _blocks(tokens: int) -> int:
    return -(-tokens // SIZE)


def serving() -> Iterator[Group]:
    """Seconds per scheduled token, prompts included."""
    names, missing = available(*(name for name in MADE if name != "vLLM's pool"))
    cases = [
        Case(name, partial(_playing, partial(OneByOne, name)), MADE[name][1]) for name in names
    ]
    cases.append(Case("array, batched", partial(_playing, InBatches), _waste()))
    yield Group(f"{REQUESTS} requests served", "token", "array, batched", cases, missing)


def _playing(server: Callable[[], Server]) -> Round:
    return lambda: played(server())


def _waste() -> str:
    """What the last row says beside: the memory that paging wastes, and a reservation."""
    paged = contiguous_waste([wish.total for wish in wishes()], LONGEST, SIZE, 1)
    return (
        f"tokens wasted: paged {1 - paged['paged_utilization']:.1%}, "
        f"reserved at {LONGEST} {1 - paged['contiguous_utilization']:.1%}"
    )
