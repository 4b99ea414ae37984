"""Admission and release, decode steps, and growth: this package's managers beside others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import numpy as np

from bench.engines import SIZE
from bench.harness import Case, Group, Round, timed
from bench.peers import MADE, Ours, available
from pagedkv import ArrayKVCacheManager

BLOCKS, LIVE, TOKENS = 2**14, 512, 10 * SIZE
"""A pool with this many requests of ten blocks live."""

BATCHES = (64, 512)

PASSES = 20
"""Over all of them in a round: the first is slower, since the cases before took the caches."""


def admission() -> Iterator[Group]:
    """Each live request is released and admitted again, in an order that is drawn once."""
    names, missing = available(*MADE)
    cases = [Case(name, partial(_ring, name), MADE[name][1]) for name in names]
    cases += [
        Case(f"array, batches of {n}", partial(_ring_in_batches, n), "rows, no handles")
        for n in BATCHES
    ]
    yield Group("Admit and release, 10 blocks each", "request", "array", cases, missing)


def _ring(name: str) -> Round:
    peer = MADE[name][0](BLOCKS)
    made = [peer.make(i, TOKENS) for i in range(LIVE)]
    for request in made:
        assert peer.admit(request) is not False, name
    random.Random(0).shuffle(made)

    def work() -> None:
        for _ in range(PASSES):
            for request in made:
                peer.release(request)
                peer.admit(request)

    return lambda: timed(PASSES * LIVE, work)


def _ring_in_batches(size: int) -> Round:
    manager = ArrayKVCacheManager(BLOCKS, SIZE, 1)
    lengths = np.full(size, TOKENS)
    rows = np.random.default_rng(0).permutation(manager.prefill_rows(np.full(LIVE, TOKENS)))
    held = np.split(rows, LIVE // size)

    def work() -> None:
        for _ in range(PASSES):
            for i, batch in enumerate(held):
                manager.release_rows(batch)
                held[i] = manager.prefill_rows(lengths)

    return lambda: timed(PASSES * LIVE, work)


RUNNING = (1, 32, 256, 1024, 8192)


def decoding() -> Iterator[Group]:
    """Steps of all running requests, so many that each crosses the ends of as many blocks."""
    for size in RUNNING:
        names, missing = available(*(name for name in MADE if name != "vLLM's pool"))
        cases = [
            Case(name, partial(_steps, name, size), MADE[name][1])
            for name in names
            if name != "reference" or size <= 1024
        ]
        cases += [
            Case("array, index array", partial(_batched_steps, size, False), "rows each time"),
            Case("array, prepared", partial(_batched_steps, size, True), "the same batch"),
        ]
        title = f"Decode step of {size} running requests"
        yield Group(title, "step", "array, prepared", cases, missing)


STEPS = 8 * SIZE
"""In a round of batches; single calls, a hundred times slower, have an eighth of it."""

ROUNDS = 64
"""At most, warm-ups included: the pools have room for so many."""


def _room(running: int, steps: int) -> int:
    return running * (2 + ROUNDS * steps // SIZE)


def _lengths(running: int) -> list[int]:
    """From 17 to 32 tokens: every place in a block is taken by as many."""
    return [SIZE + 1 + i % SIZE for i in range(running)]


def _steps(name: str, running: int) -> Round:
    peer = MADE[name][0](_room(running, SIZE))
    made = [peer.make(i, n) for i, n in enumerate(_lengths(running))]
    for request in made:
        assert peer.admit(request) is not False, name

    def one() -> float:
        total = 0.0
        for _ in range(SIZE):
            peer.extend(made)
            total += timed(SIZE, lambda: peer.decode(made))
        return total

    return one


def _batched_steps(running: int, prepared: bool) -> Round:
    manager = ArrayKVCacheManager(_room(running, STEPS), SIZE, 1)
    rows = manager.prefill_rows(np.array(_lengths(running)))
    batch = manager.batch(rows)

    def work() -> None:
        for _ in range(STEPS):
            if prepared:
                batch.decode()
            else:
                manager.decode_rows(rows)

    return lambda: timed(STEPS, work)


def growth() -> Iterator[Group]:
    """The same work in ever larger pools, and beside ever more requests that do nothing."""
    pools = tuple(2**n for n in (10, 14, 18, 22, 24))
    idle = (1, 100, 10_000, 100_000)
    for what, start in (("one request", _grown_single), ("a batch of 32", _grown_batch)):
        cases = [Case(f"2^{n.bit_length() - 1} blocks", partial(start, n, 1)) for n in pools]
        title = f"Growth of the pool: {what} admitted, decoded 16 times, released"
        yield Group(title, "request", cases[0].name, cases)
        cases = [Case(f"{n:,} idle", partial(start, 2**18, n)) for n in idle]
        title = f"Growth of the number of requests: {what} admitted, decoded 16 times, released"
        yield Group(title, "request", cases[0].name, cases)


def _with_idle(blocks: int, idle: int) -> ArrayKVCacheManager:
    manager = ArrayKVCacheManager(blocks, SIZE, 1)
    manager.prefill_rows(np.full(idle, SIZE))
    return manager


def _grown_single(blocks: int, idle: int) -> Round:
    manager = _with_idle(blocks, idle)
    peer = Ours(lambda *_: manager, blocks)
    made = peer.make(0, TOKENS)

    def work() -> None:
        for _ in range(50):
            made.seq_len = TOKENS
            peer.admit(made)
            peer.decode([made] * 16)
            peer.release(made)

    return lambda: timed(50, work)


def _grown_batch(blocks: int, idle: int) -> Round:
    manager, lengths = _with_idle(blocks, idle), np.full(32, 2 * SIZE)

    def work() -> None:
        for _ in range(10):
            rows = manager.prefill_rows(lengths)
            for _ in range(16):
                manager.decode_rows(rows)
            manager.release_rows(rows)

    return lambda: timed(320, work)
