"""Every planted fault from many seeds: found, the same counterexample, proven shortest.

Both ways: the campaign as `pagedkv score` runs it, and chance first, a random history that breaks
the property, which is then cut down. The campaign's searches have nothing random in them, so that
one seed says what all do; `--campaigns` runs more. Long: two hours for 50 seeds on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

from pagedkv.mutants import Mutant, mutants
from pagedkv.scoring import cut_down, score_all
from pagedkv.stateful.crew import Lost, run_jobs
from pagedkv.stateful.report import Counterexample
from pagedkv.stateful.score import Run

SECONDS = 300.0
AT_ONCE = 10
"""So many mutants are run before their lines are printed."""
COLUMNS = ("runs", "found", "same", "shortest", "chance", "same", "shortest", "slowest")


def by_chance(
    chosen: Sequence[Mutant], seeds: Sequence[int]
) -> dict[str, list[Counterexample | Lost | None]]:
    """What each seed's random history came down to, by mutant."""
    jobs = list(product(chosen, seeds))
    found: dict[str, list[Counterexample | Lost | None]] = {mutant.name: [] for mutant in chosen}
    for (mutant, _), end in zip(jobs, run_jobs(cut_down, jobs, seconds=SECONDS), strict=True):
        found[mutant.name].append(end)
    return found


def row(runs: Sequence[Run], chance: Sequence[Counterexample | Lost | None]) -> tuple[float, ...]:
    """The numbers of one mutant; the same are those like the first seed's campaign."""
    first = runs[0]
    due = (first.geometry, first.commands)
    cut = [example for example in chance if isinstance(example, Counterexample)]
    return (
        len(runs),
        sum(run.found for run in runs),
        sum((run.geometry, run.commands) == due for run in runs),
        sum(run.at_optimum for run in runs),
        len(cut),
        sum((example.geometry, example.commands) == due for example in cut),
        sum(example.proof.name == "shortest" for example in cut),
        max(run.seconds for run in runs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; all without")
    parser.add_argument("--seeds", type=int, default=50, help="of chance")
    parser.add_argument("--campaigns", type=int, default=1, help="so many seeds of the campaign")
    arguments = parser.parse_args()
    known = mutants()
    chosen = [known[name] for name in arguments.names] or list(known.values())
    width = max(len(mutant.name) for mutant in chosen)
    print("mutant".ljust(width), *(column.rjust(8) for column in COLUMNS))
    rows = list[tuple[float, ...]]()
    for at in range(0, len(chosen), AT_ONCE):  # A line is there as soon as it is known.
        some = chosen[at : at + AT_ONCE]
        runs = score_all(some, range(arguments.campaigns))
        chance = by_chance(some, range(arguments.seeds))
        for mutant in some:
            rows.append(row(runs[mutant.name], chance[mutant.name]))
            tell(mutant.name.ljust(width), rows[-1])
    sums = map(sum, zip(*(numbers[:-1] for numbers in rows), strict=True))
    tell("all".ljust(width), (*sums, max(numbers[-1] for numbers in rows)))


def tell(name: str, numbers: tuple[float, ...]) -> None:
    """One line of the table."""
    *counts, slowest = numbers
    print(name, *(f"{count:8.0f}" for count in counts), f"{slowest:8.2f}", flush=True)


if __name__ == "__main__":
    main()
