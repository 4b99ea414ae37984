"""Checked transitions per second: the search, a hand-written Hypothesis machine, a plain loop.

And the calls alone: what the search asks of the manager, copies and keys included, with nothing
looked at and nothing checked. Whatever checks this manager can't be faster than that.
"""

from __future__ import annotations

import argparse
import marshal
import random
import tracemalloc
from collections.abc import Mapping
from hashlib import blake2b
from time import process_time

import torch
from hypothesis.stateful import run_state_machine_as_test

from bench.by_hand import BLOCKS, CAPACITY, REQUESTS, SIZE, ByHand, as_both_run
from pagedkv import KVCacheManager, MisuseError, OutOfBlocks, Request
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.world import World


def searched(geometry: Geometry, states: int | None = None) -> tuple[int, int, float]:
    """States and transitions of one search, and the seconds it took."""
    world = World(KVCacheManager, geometry, requests=REQUESTS)
    needs = offered(world.state)
    start = process_time()
    result, _ = explore(
        lambda g: World(KVCacheManager, g, requests=REQUESTS),
        [geometry],
        lambda: Judge(PROPERTIES.values(), needs),
        Limits(states=states),
    )
    return result.states, result.transitions, process_time() - start


def machine(examples: int) -> tuple[int, float]:
    """Steps of the hand-written machine, and seconds."""
    ByHand.steps = 0
    start = process_time()
    run_state_machine_as_test(ByHand, settings=as_both_run(examples))
    return ByHand.steps, process_time() - start


def plain_loop(steps: int) -> tuple[int, float]:
    """Random calls without any check, and seconds."""
    draw = random.Random(0)
    manager, live = KVCacheManager(BLOCKS, SIZE, 1), dict[int, Request]()
    start = process_time()
    for _ in range(steps):
        name = draw.randrange(REQUESTS)
        try:
            if name not in live:
                req = Request(name, draw.randrange(1, CAPACITY + 2))
                manager.allocate_for_prefill(req)
                live[name] = req
            elif draw.random() < 0.3:
                manager.release_request(live.pop(name))
            else:
                manager.allocate_for_decode(live[name])
        except OutOfBlocks:
            pass
    return steps, process_time() - start


def calls_alone(geometry: Geometry, states: int = 400) -> tuple[int, float]:
    """Every command of so many states, as a search gives them, and the seconds of the manager."""
    draw, calls, seconds = random.Random(0), 0, 0.0
    for _ in range(states):
        world = World(KVCacheManager, geometry, requests=REQUESTS)
        for _ in range(draw.randrange(1, 8)):
            world.apply(draw.choice(world.candidates()))
        menu, state = world.candidates(), world.state
        names = {r: i for i, r in enumerate(world.handles)}
        start = process_time()
        manager, handles = world.manager.clone(world.handles)
        for command in menu:
            undo = command.prepare(handles, state)
            try:
                command.perform(manager, handles)
            except (OutOfBlocks, MisuseError):
                undo()
                _digest(manager, names)
            else:
                _digest(manager, {**names, command.request: len(names)})
                manager, handles = world.manager.clone(world.handles)
        seconds += process_time() - start
        calls += len(menu)
    return calls, seconds


def _digest(manager: KVCacheManager, names: Mapping[int, int]) -> bytes:
    return blake2b(marshal.dumps(manager.state_key(names), 0), digest_size=16).digest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--states", type=int, default=100_000, help="for the memory of a state")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"pool of {BLOCKS} blocks x {SIZE} tokens, {REQUESTS} requests, reference manager")
    ratios = []
    for _ in range(options.rounds):
        states, transitions, seconds = searched(Geometry(BLOCKS, SIZE))
        search = transitions / seconds
        steps, took = machine(200)
        by_hand = steps / took
        calls, took = plain_loop(100_000)
        plain = calls / took
        calls, took = calls_alone(Geometry(BLOCKS, SIZE))
        alone = calls / took
        ratios.append(search / by_hand)
        print(
            f"search {search:10,.0f} checked transitions/s ({states:,} states, "
            f"{states / seconds:,.0f} states/s) | by hand {by_hand:8,.0f} steps/s | "
            f"plain loop {plain:10,.0f} calls/s | search / by hand {search / by_hand:5.1f} | "
            f"plain / search {plain / search:5.1f} | calls alone {alone:10,.0f} calls/s | "
            f"alone / search {alone / search:5.1f}"
        )
    print(f"search / by hand, median of {options.rounds}: {sorted(ratios)[len(ratios) // 2]:.1f}")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    states, _, _ = searched(Geometry(6, 4), options.states)
    peak = tracemalloc.get_traced_memory()[1]
    print(f"memory: {(peak - before) / states:,.0f} bytes per state over {states:,} states")


if __name__ == "__main__":
    main()
