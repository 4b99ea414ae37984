"""Memory of a search: resident bytes for each state found, and so for a million."""

from __future__ import annotations

import argparse
import resource
import sys
from multiprocessing import get_context

from pagedkv import KVCacheManager
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.world import World

GEOMETRY, REQUESTS = Geometry(6, 4), 3
MIB = 2**20


def resident(states: int) -> tuple[int, int, int]:
    """States and transitions of a search of the reference, and the peak of this process, bytes."""
    needs = offered(*World(KVCacheManager, GEOMETRY, requests=REQUESTS).states)
    found, _ = explore(
        lambda geometry: World(KVCacheManager, geometry, requests=REQUESTS),
        [GEOMETRY],
        lambda: Judge(PROPERTIES.values(), needs),
        Limits(states=states),
    )
    unit = 1 if sys.platform == "darwin" else 1024
    return (
        found.states,
        found.transitions,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=60_000, help="of the longest search")
    most = parser.parse_args().states
    print(f"the reference, {GEOMETRY}, {REQUESTS} requests; each search in a fresh process")
    seen = []
    for states in (most // 4, most // 2, most):
        # A process of its own, used once: the peak of another search must not count.
        with get_context("spawn").Pool(1) as pool:
            seen.append(pool.apply(resident, (states,)))
        print(
            f"{seen[-1][0]:>9,} states {seen[-1][1]:>11,} transitions {seen[-1][2] / MIB:8.1f} MiB"
        )
    # What a search takes once (torch, the menus) is in the first of them already.
    (few, _, low), (many, _, high) = seen[0], seen[-1]
    each = (high - low) / (many - few)
    print(f"{each:.0f} bytes a state, {each * 1e6 / MIB:.0f} MiB a million states,")
    print(f"beside what the process has without any: {(low - each * few) / MIB:.0f} MiB")


if __name__ == "__main__":
    main()
