"""`pagedkv score`: the suite against allocators with a planted fault each."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import Refused
from pagedkv.commands.files import STDOUT, check_writable, put

if TYPE_CHECKING:
    from pagedkv.mutants import Mutant
    from pagedkv.stateful.score import Run, Summary

_EXAMPLES = """\b
Examples:
  pagedkv score
  pagedkv score --list
  pagedkv score reads-ascending leaks-at-third-release
  pagedkv score --seeds 10 --json score.json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Of the random histories; without it they are the quick profile's.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Run so many seeds, from --seed or 0 on.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the scores as JSON too; - is stdout, and the text then goes to stderr.",
)
@click.option(
    "--list", "only_list", is_flag=True, help="List them, or those named, and run nothing."
)
def score(
    *,
    names: tuple[str, ...],
    seed: int | None,
    seeds: int,
    json_file: Path | None,
    only_list: bool,
) -> int:
    """Measure what the suite finds of faults that are known.

    Runs the quick profile against allocators with exactly one planted fault each, all of them or
    those named, each until the first violation is proven shortest. The searches have nothing
    random in them: a seed only matters where they end without one.

    Exits with 0 if every fault is found in as few commands as it can be, else with 1.
    """
    from pagedkv.mutants import mutants
    from pagedkv.stateful.score import summary_of
    from pagedkv.terminal import console_on

    if json_file is not None:
        check_writable(json_file, "--json")
    chosen = _chosen(names, mutants())
    if only_list:
        _list(chosen)
        return 0
    drawn = [seed] if seeds == 1 else [(seed or 0) + k for k in range(seeds)]
    runs = _run(chosen, drawn)
    summary = summary_of([run for of_one in runs.values() for run in of_one])
    console = console_on(sys.stderr if json_file == STDOUT else sys.stdout)
    for line in _table(runs):
        console.print(line)
    console.print(_summed(summary, len(chosen)))
    if json_file is not None:
        put(json.dumps(_to_json(chosen, runs, summary), indent=2) + "\n", json_file, "--json")
    return 0 if summary.all_at_optimum else 1


def _chosen(names: Sequence[str], known: Mapping[str, Mutant]) -> list[Mutant]:
    """The mutants of these names, each once; all for none."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            where = f"`pagedkv score --list` shows all {len(known)}"
            raise Refused(f"{name!r} is no mutant; {hint}{where}")
    return [known[name] for name in dict.fromkeys(names)] or list(known.values())


def _list(chosen: Sequence[Mutant]) -> None:
    """A line for each: its name, the property that it breaks, and what is wrong with it."""
    from pagedkv.terminal import console_on

    console = console_on(sys.stdout)
    name, breaks = (max(len(getattr(m, of)) for m in chosen) for of in ("name", "breaks"))
    for mutant in chosen:
        console.print(f"{mutant.name:{name}}  {mutant.breaks:{breaks}}  {mutant.statement}")


def _run(chosen: Sequence[Mutant], seeds: Sequence[int | None]) -> dict[str, list[Run]]:
    """Every mutant with every seed, several at once, by mutant."""
    from pagedkv.scoring import score_all

    total = len(chosen) * len(seeds)
    silent = not sys.stderr.isatty()
    with click.progressbar(length=total, label="Scoring", file=sys.stderr, hidden=silent) as bar:
        return score_all(chosen, seeds, lambda: bar.update(1))


def _table(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """A heading, and a line for each mutant: of several seeds the worst run."""
    rows = [("mutant", "found", "by", "steps", "optimum", "proof", "seconds")]
    notes = []
    for name, of_one in runs.items():
        worst = min(of_one, key=lambda run: (run.found, run.at_optimum, -run.seconds))
        found = sum(run.found for run in of_one)
        some = "yes" if found else "no"
        more = f" and {len(worst.by) - 1} more" if len(worst.by) > 1 else ""
        rows.append(
            (
                name,
                some if len(of_one) == 1 else f"{found} of {len(of_one)}",
                worst.by[0] + more if worst.by else "",
                "" if worst.steps is None else str(worst.steps),
                str(worst.fault.optimum),
                worst.proof or "",
                f"{max(run.seconds for run in of_one):.2f}",
            )
        )
        if not worst.at_optimum:
            due = f"{worst.fault.breaks} in {worst.fault.optimum} command(s) was due"
            notes.append(f"{name}: {due}{f'; {worst.reason}' if worst.reason else ''}")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return [*map(str.rstrip, lines), "", *notes]


def _summed(summary: Summary, mutants: int) -> str:
    seeds = summary.runs // mutants
    return (
        f"found {summary.found} of {summary.runs}"
        f"{f' ({mutants} mutants, {seeds} seeds)' if seeds > 1 else ''}, "
        f"{summary.at_optimum} at their optimum; "
        f"median {summary.median_seconds:.2f} s, longest {summary.max_seconds:.2f} s"
    )


def _to_json(
    chosen: Sequence[Mutant], runs: Mapping[str, Sequence[Run]], summary: Summary
) -> dict[str, object]:
    from pagedkv.stateful.score import SCHEMA

    return {
        "schema": SCHEMA,
        "summary": summary.to_json(),
        "mutants": [
            {
                "name": mutant.name,
                "statement": mutant.statement,
                "breaks": mutant.breaks,
                "optimum": mutant.optimum,
                "seen": mutant.seen,
                "target": mutant.target,
                "runs": [run.to_json() for run in runs[mutant.name]],
            }
            for mutant in chosen
        ],
    }
