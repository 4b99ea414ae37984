"""Every planted fault from many seeds: found, the same counterexample, proven shortest.

Both ways: the campaign as `pagedkv score` runs it, and chance first, a random history that breaks
the property, which is then cut down. The campaign's searches have nothing random in them, so that
one seed says what all do; `--campaigns` runs more. Long: an hour for 50 seeds on two cores.
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
    runs = score_all(chosen, range(arguments.campaigns))
    chance = by_chance(chosen, range(arguments.seeds))
    width = max(len(mutant.name) for mutant in chosen)
    print("mutant".ljust(width), *(column.rjust(8) for column in COLUMNS))
    rows = [row(runs[mutant.name], chance[mutant.name]) for mutant in chosen]
    totals = (
        *map(sum, zip(*(numbers[:-1] for numbers in rows), strict=True)),
        max(numbers[-1] for numbers in rows),
    )
    names = [*(mutant.name for mutant in chosen), "all"]
    for name, (*counts, slowest) in zip(names, [*rows, totals], strict=True):
        print(name.ljust(width), *(f"{count:8.0f}" for count in counts), f"{slowest:8.2f}")


if __name__ == "__main__":
    main()
