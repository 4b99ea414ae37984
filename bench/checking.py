"""What checking costs: the search, the machine, each property, and the start of the command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage

from bench.by_hand import BLOCKS, REQUESTS, SIZE, as_both_run
from bench.explorer import machine, plain_loop
from bench.harness import Case, Group, Round, timed
from pagedkv import KVCacheManager
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.machine import search
from pagedkv.stateful.world import World

GEOMETRY = Geometry(BLOCKS, SIZE)


def checking() -> Iterator[Group]:
    cases = [
        Case("search, all properties", lambda: _search(None, 1000), "1000 states"),
        Case("search, no property", lambda: _search("", 1000), "1000 states"),
        Case("machine, all properties", lambda: _machine, "Hypothesis"),
        Case("machine by hand", lambda: lambda: _per(machine(30)), "Hypothesis, bench/by_hand"),
        Case("plain loop", lambda: lambda: _per(plain_loop(20_000)), "no check at all"),
    ]
    yield Group("Checking the reference", "step", "machine by hand", cases)
    needs = offered(World(KVCacheManager, GEOMETRY, requests=REQUESTS).state)
    judged = [name for name, one in PROPERTIES.items() if one.needs <= needs]
    cases = [Case("no property", lambda: _search(""))]
    cases += [Case(name, partial(_search, name)) for name in judged]
    yield Group("Search with one property", "transition", "no property", cases)
    commands = {
        "python, import torch": ["-c", "import torch"],
        "python alone": ["-c", ""],
        "pagedkv --help": ["-m", "pagedkv", "--help"],
        "pagedkv targets": ["-m", "pagedkv", "targets"],
    }
    cases = [Case(name, partial(_starting, call)) for name, call in commands.items()]
    yield Group("Start of a command", "start", "python alone", cases)


def _per(counted: tuple[int, float]) -> float:
    steps, seconds = counted
    return seconds / steps


def _search(chosen: str | None, states: int = 100) -> Round:
    """A search that is cut; of one property, of none (""), or of all (None)."""
    properties = [one for name, one in PROPERTIES.items() if chosen is None or name == chosen]
    needs = offered(World(KVCacheManager, GEOMETRY, requests=REQUESTS).state)

    def one() -> float:
        transitions = 0

        def work() -> None:
            nonlocal transitions
            result, _ = explore(
                lambda geometry: World(KVCacheManager, geometry, requests=REQUESTS),
                [GEOMETRY],
                lambda: Judge(properties, needs),
                Limits(states=states),
            )
            transitions = result.transitions

        seconds = timed(1, work)
        return seconds / transitions

    return one


def _keeping(geometry: Geometry) -> World:
    """A world in which released requests can be resumed and misused, as by hand."""
    return World(KVCacheManager, geometry, requests=REQUESTS, keeps_released=True)


def _machine() -> float:
    """The generated machine, with what `machine` is given."""
    steps = 0

    def work() -> None:
        nonlocal steps
        result = search(
            _keeping,
            [GEOMETRY],
            judge=Judge(PROPERTIES.values(), offered(_keeping(GEOMETRY).state)),
            settings=as_both_run(30),
        )
        steps = result.steps

    return timed(1, work) / steps


def _starting(call: list[str]) -> Round:
    return lambda: _started(call)


def _started(call: list[str]) -> float:
    def used() -> float:
        seen = getrusage(RUSAGE_CHILDREN)
        return seen.ru_utime + seen.ru_stime

    before = used()
    subprocess.run([sys.executable, *call], check=True, capture_output=True)
    return used() - before
