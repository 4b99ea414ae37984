"""How long it takes to bring a history of a million commands down to its core.

    python bench/shrink.py [COMMANDS]

Two faults, one that shows in the fixed scope and one that takes tables too large for it. Each
history is made at random so that the fault strikes once, near its end. Times are also given as
multiples of what the manager's calls alone take for the same history.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from pagedkv import Request
from pagedkv.reference import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.stateful.naming import renamed
from pagedkv.stateful.shrink import shrink
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.traces import Trace, read_trace, write_trace

GEOMETRY = Geometry(64, 4)
LONGEST = 24
"""Tokens of a request in the part of the history where the fault can't strike."""


class LeaksScattered(KVCacheManager):
    """Loses a block where two blocks that are no neighbours are released from a full pool."""

    def release_request(self, req: Request) -> None:
        table = req.block_table
        strikes = not self._free and len(table) == 2 and table[1] != table[0] + 1
        super().release_request(req)
        if strikes:
            self._free.pop()


class LeaksLarge(KVCacheManager):
    """Loses a block where a request of nine blocks or more is released beside such another."""

    def release_request(self, req: Request) -> None:
        large = [lease for lease in self._live.values() if len(lease.blocks) >= 9]
        strikes = len(large) > 1 and len(req.block_table) >= 9
        super().release_request(req)
        if strikes:
            self._free.pop()


FAULTS = {"leaks scattered": LeaksScattered, "leaks large": LeaksLarge}


NUMBERS = GEOMETRY.num_blocks + 10
"""Requests that `_strike` may number."""


def recorded(length: int, seed: int = 0) -> Iterator[Command]:
    """A history of so many commands in which each fault strikes shortly before the end.

    Requests are numbered as an engine does: no number comes twice.
    """
    rng = random.Random(seed)
    live: dict[int, int] = {}
    made = done = 0
    strike = length - length // 200 - 300

    while done < length:
        if done == strike:
            for command in _strike(made, live):
                yield command
                done += 1
            made += NUMBERS
            continue
        room = min(LONGEST, _room(live))
        action = rng.random()
        if room > 0 and (not live or action < 0.2):
            live[made] = rng.randint(1, room)
            yield Prefill(made, live[made])
            made += 1
        elif action < 0.4 or room <= 4:
            request = rng.choice(list(live))
            del live[request]
            yield Release(request)
        else:
            request = rng.choice(list(live))
            if live[request] >= LONGEST:
                continue
            live[request] += 1
            yield Decode(request)
        done += 1


def _room(live: dict[int, int]) -> int:
    """Tokens that fit into the pool, but for its last four blocks."""
    held = sum(GEOMETRY.blocks_for(n) for n in live.values())
    return (GEOMETRY.num_blocks - held - 4) * GEOMETRY.block_size


def _strike(made: int, live: dict[int, int]) -> Iterator[Command]:
    """All go, two large ones come and go, and a full pool has a request of blocks 0 and 2."""
    for request in list(live):
        del live[request]
        yield Release(request)
    for request in (made, made + 1):
        yield Prefill(request, 30)
        for _ in range(8):
            yield Decode(request)
    yield Release(made)
    yield Release(made + 1)
    size = GEOMETRY.block_size
    one, two, scattered, *rest = range(made + 2, made + 5 + (GEOMETRY.num_blocks - 3))
    yield Prefill(one, size)
    yield Prefill(two, size)
    yield Release(one)
    yield Prefill(scattered, 2 * size)
    for request in rest:
        yield Prefill(request, size)
    for request in (scattered, two, *rest):
        yield Release(request)


def alone(commands: tuple[Command, ...]) -> float:
    """Seconds that the manager's calls alone take."""
    manager = KVCacheManager(GEOMETRY.num_blocks, GEOMETRY.block_size, 1)
    handles: dict[int, Request] = {}
    start = perf_counter()
    for command in commands:
        if isinstance(command, Prefill):
            request = handles[command.request] = Request(command.request, command.tokens)
            manager.allocate_for_prefill(request)
        elif isinstance(command, Decode):
            manager.allocate_for_decode(handles[command.request])
        else:
            manager.release_request(handles[command.request])
    return perf_counter() - start


def main(length: int) -> None:
    """Make, read, run and shrink; print seconds and ratios."""
    commands = tuple(recorded(length))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.jsonl"
        write_trace(path, Trace("reference", GEOMETRY, commands, "conservation"))
        start = perf_counter()
        trace = read_trace(path)
        reading = perf_counter() - start
    base = alone(renamed(trace.commands))
    print(f"{len(commands):,} commands: reading {reading:.2f} s, the calls alone {base:.2f} s")
    for name, factory in FAULTS.items():
        start = perf_counter()
        result = shrink(Subject(name, (factory,)), trace)
        took = perf_counter() - start
        example = result.example
        assert example is not None, f"{name}: not found"
        print(
            f"{name}: {took:.1f} s, {took / base:.1f} x the calls alone; "
            f"{len(example.commands)} commands in {example.geometry}; {example.proof}"
        )
        print("    " + ", ".join(map(str, example.commands[:8])))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
