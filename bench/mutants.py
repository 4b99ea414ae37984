"""Every planted fault from many seeds: found, the same counterexample, proven shortest.

Both ways: the campaign as `pagedkv score` runs it, and chance first, a random history that breaks
the property, which is then cut down. The campaign's searches have nothing random in them, so that
one seed says what all do; `--campaigns` runs more. Long: an hour for 50 seeds on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

from pagedkv.mutants import Mutant, mutants
from pagedkv.scoring import by_chance, cut_down, score_all
from pagedkv.specs.catalogue import used_by
from pagedkv.stateful.crew import Lost, run_jobs
from pagedkv.stateful.report import Counterexample
from pagedkv.stateful.score import Run
from pagedkv.stateful.shrink import Shrunk
from pagedkv.stateful.traces import Trace

SECONDS = 300.0
AT_ONCE = 30
"""So many mutants are run before their lines are printed."""
COLUMNS = ("runs", "found", "same", "shortest", "chance", "same", "shortest", "slowest")


def from_chance(
    chosen: Sequence[Mutant], seeds: Sequence[int]
) -> dict[str, list[Counterexample | None]]:
    """What each seed's random history came down to, by mutant; None where there is none."""
    jobs = list(product(chosen, seeds))
    traces = run_jobs(by_chance, jobs, seconds=SECONDS)
    cores = cut_all([trace for trace in traces if isinstance(trace, Trace)])
    found: dict[str, list[Counterexample | None]] = {mutant.name: [] for mutant in chosen}
    for (mutant, _), trace in zip(jobs, traces, strict=True):
        found[mutant.name].append(next(cores) if isinstance(trace, Trace) else None)
    return found


def cut_all(traces: Sequence[Trace]) -> Iterator[Counterexample | None]:
    """The core of each history, in their order.

    The search that comes first sees of a history only which abilities it uses: what that finds, one
    of several alike has found for all. What is cut out of a history itself is cut out of each.
    """
    kinds = [(trace.target, used_by(trace.commands)) for trace in traces]
    firsts = dict(zip(reversed(kinds), reversed(traces), strict=True))
    first = dict(zip(firsts, run_jobs(cut_down, [*firsts.values()], seconds=SECONDS), strict=True))
    rest = [trace for trace, kind in zip(traces, kinds, strict=True) if not _searched(first[kind])]
    others = iter(run_jobs(cut_down, rest, seconds=SECONDS))
    for kind in kinds:
        core = first[kind] if _searched(first[kind]) else next(others)
        yield core.example if isinstance(core, Shrunk) else None


def _searched(core: Shrunk | Lost) -> bool:
    """Whether it was found without looking at the history."""
    return isinstance(core, Shrunk) and core.commands is None and core.example is not None


def row(runs: Sequence[Run], chance: Sequence[Counterexample | None]) -> tuple[float, ...]:
    """The numbers of one mutant; the same are those like the first seed's campaign."""
    first = runs[0]
    due = (first.geometry, first.commands)
    cut = [example for example in chance if example is not None]
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
        chance = from_chance(some, range(arguments.seeds))
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
