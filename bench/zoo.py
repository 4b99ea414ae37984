"""Every correct oddity of tests/zoo: the check, small pools to their end, random steps.

One line each. Exits with 1 if any of them is accused, with 2 if any verdict is unknown. As it runs
for hours with a million steps, it can be given the names of some, and resumed from one.

    python bench/zoo.py --steps 10000
    python bench/zoo.py --no-check --blocks 0 stack buddy
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import monotonic

import torch

from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.stateful.campaign import run_campaign
from pagedkv.stateful.exploration import Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.profiles import PROFILES, Scope, fixed_scope
from pagedkv.stateful.subject import Subject

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from zoo import ANIMALS, BY_NAME, Animal
from zoo.walk import walk


def checked(animal: Animal, profile: str, seconds: float | None) -> tuple[str, str]:
    """The verdict of the check, and a line about it."""
    profiled = PROFILES[profile]
    plan = Plan(profiled, profiled.seconds if seconds is None else seconds)
    target = run_campaign(Subject(animal.name, (animal.factory,)), plan)
    seen = target.coverage
    line = (
        f"{target.verdict:9} {seen.states:7,} states {seen.transitions:9,} transitions "
        f"depth {seen.depth:2} {'exhausted' if seen.exhausted else '-':9} {target.seconds:6.1f} s"
    )
    notes = [f"{e.property}: {e.message}" for e in target.counterexamples]
    notes += [target.reason] if target.reason else []
    return target.verdict, "\n    ".join([line, *notes])


def exhausted(animal: Animal, blocks: int, seconds: float) -> tuple[str, str]:
    """The verdict of every history of pools of up to so many blocks, and a line about it."""
    start = monotonic()
    subject = Subject(animal.name, (animal.factory,))
    declared = subject.probe().setting.declared
    pools = tuple(
        pool
        for pool in fixed_scope(declared).geometries
        if pool.num_blocks <= blocks and pool.block_size <= 2
    )
    if not pools:
        return "passed", "no such pools"
    scope, judged = Scope("small", pools, 3), offered(subject.probe().state)
    found, _ = explore(
        lambda pool: subject.world(scope, pool),
        pools,
        lambda: Judge(PROPERTIES.values(), judged),
        Limits(hard_seconds=seconds),
    )
    reach = "all" if found.exhausted else f"depth {found.depth}, {found.stopped}"
    line = f"{found.states:7,} states of {len(pools)} pools, {reach:3} {monotonic() - start:6.1f} s"
    notes = [f"{name}: {one.violation.broken.message}" for name, one in found.found.items()]
    return "violated" if notes else "passed", "\n    ".join([line, *notes])


def walked(animal: Animal, steps: int, seed: int) -> tuple[str, str]:
    """The verdict of random steps, and a line about it."""
    start = monotonic()
    result = walk(animal.factory, animal.declares, steps, seed)
    line = f"{result.steps:9,} random steps {monotonic() - start:7.1f} s"
    notes = [f"{violation} after {result.commands}" for violation in result.violations]
    return "violated" if notes else "passed", "\n    ".join([line, *notes])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="none: all")
    parser.add_argument("--steps", type=int, default=1_000_000, help="random steps of each")
    parser.add_argument("--seed", type=int, default=0, help="of the random steps")
    parser.add_argument("--profile", default="quick", help="of the check")
    parser.add_argument(
        "--seconds", type=float, help="of the check; it tries its depth all the same"
    )
    parser.add_argument("--no-check", action="store_true", help="leave out the check")
    parser.add_argument("--blocks", type=int, default=3, help="of the pools tried to their end")
    parser.add_argument("--at-most", type=float, default=120, help="seconds for these pools")
    parser.add_argument("--start", choices=list(BY_NAME), help="leave out those before it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    unknown = set(options.names) - BY_NAME.keys()
    if unknown:
        parser.error(
            f"no such animal: {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}"
        )
    names = options.names or list(BY_NAME)
    if options.start:
        names = [
            name
            for name in names
            if list(BY_NAME).index(name) >= list(BY_NAME).index(options.start)
        ]
    verdicts = []
    for name in names:
        animal = BY_NAME[name]
        parts = [] if options.no_check else [checked(animal, options.profile, options.seconds)]
        if options.blocks:
            parts += [exhausted(animal, options.blocks, options.at_most)]
        parts += [walked(animal, options.steps, options.seed)] if options.steps else []
        verdicts += [verdict for verdict, _ in parts]
        print(f"{name:20} {' | '.join(line for _, line in parts)}", flush=True)
    accused = verdicts.count("violated")
    unsure = verdicts.count("unknown")
    print(f"{len(names)} of {len(ANIMALS)} animals: {accused} accused, {unsure} unknown")
    return 1 if accused else 2 if unsure else 0


if __name__ == "__main__":
    sys.exit(main())
