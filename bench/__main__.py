"""All benchmarks, or those that are named: ratios taken in one run.

python -m bench
python -m bench admission decoding --rounds 15 --json out.json
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bench.checking import checking
from bench.harness import Group, Row, benchmarks, measure, table
from bench.managers import admission, decoding, growth
from bench.reading import reading
from bench.serving import serving

GROUPS: dict[str, Callable[[], Iterator[Group]]] = {
    "admission": admission,
    "decoding": decoding,
    "serving": serving,
    "growth": growth,
    "reading": reading,
    "reading-all": lambda: reading(2**30),
    "checking": checking,
}
UNASKED = [name for name in GROUPS if name != "reading-all"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; none: {len(UNASKED)}"
    )
    parser.add_argument("--rounds", type=int, default=9, help="of each case, after two to warm up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the values, as pyperf has them")
    options = parser.parse_args()
    if unknown := set(options.groups) - GROUPS.keys():
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # One core, and always the same; not every system can.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    done = list[tuple[Group, list[Row]]]()
    for name in options.groups or UNASKED:
        for group in GROUPS[name]():
            rows = measure(group, options.rounds)
            print(table(group, rows), flush=True)
            done.append((group, rows))
    if options.json:
        import pyperf

        values = [one for group, rows in done for one in benchmarks(group, rows)]
        pyperf.BenchmarkSuite(values).dump(str(options.json), replace=True)
        print(f"values: {options.json}")


if __name__ == "__main__":
    main()
