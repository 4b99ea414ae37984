"""`pagedkv check`: allocators, checked, and what breaks, shown."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import (
    Refused,
    check_properties,
    complete_target,
    resolve_all,
    shard_option,
)
from pagedkv.commands.defaults import config_option
from pagedkv.commands.expected import read_expected_failures, read_expected_folder
from pagedkv.commands.files import check_folder, places_of_traces, write_traces
from pagedkv.commands.reports import Files, report_options

if TYPE_CHECKING:
    from pagedkv.api import Options
    from pagedkv.config import Config
    from pagedkv.stateful.report import Report
    from pagedkv.stateful.shards import Shard
    from pagedkv.targets import Pair, Target

PROFILES = ("quick", "ci", "nightly")


def _read_budget(
    _context: click.Context, _parameter: click.Parameter, value: float | None
) -> float | None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise click.BadParameter(f"{value} is no number of seconds > 0; give one, like 30")
    return value


# After \b click keeps the lines as they are.
_CHECK_EXAMPLES = """\b
Examples:
  pagedkv check
  pagedkv check mymodule:MyManager
  pagedkv check reference+mymodule:MyManager --profile ci
  pagedkv check torch --property conservation --json out.json
  pagedkv check mymodule:MyManager --traces traces
  pagedkv check mymodule:MyManager --html report.html --junit junit.xml
  pagedkv check mymodule:MyManager --faults
  pagedkv check mymodule:MyManager --isolate
  pagedkv check "exec:./driver --fast"
  pagedkv check mymodule:MyManager --profile nightly --shard 2/4 --json 2.json
"""


@click.command(epilog=_CHECK_EXAMPLES)
@click.argument("names", metavar="[TARGET]...", nargs=-1, shell_complete=complete_target)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default="quick",
    show_default=True,
    help="How much is tried: half a minute a target, a minute or two, or ten.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Of the random histories; quick and ci have a fixed one.",
)
@click.option(
    "--budget",
    type=float,
    metavar="SECONDS",
    callback=_read_budget,
    help="Time for each target, instead of the profile's.",
)
@click.option(
    "--property", "properties", multiple=True, metavar="ID", help="Judge this one only; repeatable."
)
@click.option(
    "--expected-failures",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Known failures, one `property-id: reason` a line; one that holds is a violation. "
    "A folder has TARGET.expected for each target.",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Run Python targets in processes of their own, so that a crash is traced to its call.",
)
@click.option(
    "--faults",
    is_flag=True,
    help="Make each call inside the target fail, one at a time, for as much time again.",
)
@shard_option
@click.option(
    "--traces",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each counterexample into this folder too, as a trace for `pagedkv replay`.",
)
@report_options
@config_option
def check(
    *,
    config: Config,
    names: tuple[str, ...],
    profile: str,
    seed: int | None,
    budget: float | None,
    properties: tuple[str, ...],
    expected_failures: Path | None,
    isolate: bool,
    faults: bool,
    shard: Shard | None,
    traces: Path | None,
    files: Files,
) -> int:
    """Check allocators and show what breaks.

    Without TARGET: those of [tool.pagedkv] in pyproject.toml, which may give most options too, or
    else reference and array, each and in lockstep.

    A TARGET is a built-in name (see `pagedkv targets`), or module:attribute, a callable
    (num_blocks, block_size, head_dim) -> manager, looked up with the current folder on the path,
    or exec:COMMAND, a program that speaks the line protocol (docs/driver-protocol.md). Two of them
    joined by + run in lockstep.

    Exits with 0 if all passed, 1 if one is violated, and 2 if one is unknown or the usage wrong.
    """
    from pagedkv.api import Options
    from pagedkv.specs.faults import UNDER_FAULT
    from pagedkv.targets import default_targets, is_apart

    check_properties(properties)
    files.check()
    if traces is not None:
        check_folder(traces)
    wanted = names or config.targets
    known, known_of = config.expected_failures, config.expected_of
    if expected_failures is not None and expected_failures.is_dir():
        everything = wanted or [target.name for target in default_targets()]
        known, known_of = {}, read_expected_folder(expected_failures, everything)
    elif expected_failures is not None:
        known, known_of = read_expected_failures(expected_failures), {}
    judged = tuple(dict.fromkeys(properties))
    if faults and isolate:
        raise Refused("--faults: calls can't be made to fail behind --isolate; leave one out")
    if shard is not None and (faults or UNDER_FAULT.id in judged):
        raise Refused("--shard: calls made to fail are not divided; check those without it")
    options = Options(profile, seed, budget, judged, known, known_of, isolate, faults, shard)
    options = replace(options, tolerances=config.tolerances).seeded()
    if options.seed != seed:
        click.echo(f"random histories of --seed {options.seed}", err=True)
    if faults and (apart := [name for name in wanted if is_apart(name)]):
        raise Refused(f"--faults: {apart[0]} runs in a process of its own; check it without")
    chosen = resolve_all(wanted, config.tolerances, isolate=isolate)
    report = _run(chosen, options)
    _show(report, profile, traces, on_stdout=files.on_stdout)
    files.write(report, chosen, isolated=isolate)
    return report.exit_code


def _run(chosen: Sequence[Target | Pair], options: Options) -> Report:
    """Check them all; what is known already if even a second Ctrl-C came."""
    from pagedkv.api import check_targets
    from pagedkv.commands.progress import progress
    from pagedkv.stateful.report import Coverage, TargetReport

    done: dict[str, TargetReport] = {}
    names = [target.name for target in chosen]
    try:
        plan = options.plan()
        with progress(sys.stderr, names, plan.seconds, done, hard=plan.hard) as show:
            return check_targets(chosen, options, show)
    except KeyboardInterrupt:
        nothing = Coverage(0, 0, 0, exhausted=False, stopped="interrupted")
        return options.report(
            done.get(name) or TargetReport(name, "unknown", "interrupted", (), (), nothing, 0.0)
            for name in names
        )


def _show(report: Report, profile: str, traces: Path | None, *, on_stdout: bool) -> None:
    """Show the report before any is written: a full disk must not cost the text.

    on_stdout: that is taken by a report.
    """
    from pagedkv.terminal import console_on, count, show_report

    console = console_on(sys.stderr if on_stdout else sys.stdout)
    places = [] if traces is None else places_of_traces(traces, report)
    show_report(console, report, profile, places)
    if traces is not None and write_traces(traces, report):
        console.print(f"{count(len(places), 'trace')} in {traces}")
