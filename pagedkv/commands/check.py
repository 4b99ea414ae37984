"""`pagedkv check`: allocators, checked, and what breaks, shown."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import Refused, check_properties, resolve_all
from pagedkv.commands.files import (
    STDOUT,
    check_folder,
    check_writable,
    put,
    reason_of,
    write_traces,
)

if TYPE_CHECKING:
    from pagedkv.api import Options
    from pagedkv.stateful.report import Report
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
"""


@click.command(epilog=_CHECK_EXAMPLES)
@click.argument("names", metavar="[TARGET]...", nargs=-1)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default="quick",
    show_default=True,
    help="How much is tried: half a minute a target, under a minute, or ten minutes.",
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
    help="Known failures, one `property-id: reason` a line; one that holds is a violation.",
)
@click.option(
    "--traces",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each counterexample into this folder too, as a trace for `pagedkv replay`.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report as JSON too; - is stdout, and the text then goes to stderr.",
)
def check(
    names: tuple[str, ...],
    profile: str,
    seed: int | None,
    budget: float | None,
    properties: tuple[str, ...],
    expected_failures: Path | None,
    traces: Path | None,
    json_file: Path | None,
) -> int:
    """Check allocators and show what breaks.

    Without TARGET: reference and array, each and in lockstep.

    A TARGET is a built-in name (see `pagedkv targets`), or module:attribute, a callable
    (num_blocks, block_size, head_dim) -> manager, looked up with the current folder on the path.
    Two of them joined by + run in lockstep.

    Exits with 0 if all passed, 1 if one is violated, and 2 if one is unknown or the usage wrong.
    """
    from pagedkv.api import Options

    check_properties(properties)
    if json_file is not None:
        check_writable(json_file, "--json")
    if traces is not None:
        check_folder(traces)
    known = {} if expected_failures is None else read_expected_failures(expected_failures)
    options = Options(profile, seed, budget, tuple(dict.fromkeys(properties)), known)
    report = _run(resolve_all(names), options)
    _show(report, json_file, profile, traces)
    return report.exit_code


def _run(chosen: Sequence[Target | Pair], options: Options) -> Report:
    """Check them all; what is known already if even a second Ctrl-C came."""
    from pagedkv.api import check_targets
    from pagedkv.commands.progress import progress
    from pagedkv.stateful.report import Coverage, Report, TargetReport

    done: dict[str, TargetReport] = {}
    names = [target.name for target in chosen]
    try:
        with progress(sys.stderr, names, options.plan().seconds, done) as show:
            return check_targets(chosen, options, show)
    except KeyboardInterrupt:
        nothing = Coverage(0, 0, 0, exhausted=False, stopped="interrupted")
        return Report(
            tuple(
                done.get(name) or TargetReport(name, "unknown", "interrupted", (), (), nothing, 0.0)
                for name in names
            )
        )


def _show(report: Report, json_file: Path | None, profile: str, traces: Path | None) -> None:
    """Show the report, and then write it: a full disk must not cost the text."""
    from pagedkv.terminal import console_on, count, show_report

    console = console_on(sys.stderr if json_file == STDOUT else sys.stdout)
    show_report(console, report, profile)
    if traces is not None:
        written = write_traces(traces, report)
        if written:
            again = f"pagedkv replay {shlex.quote(str(written[0]))}"
            console.print(f"{count(len(written), 'trace')} in {traces}; to run one again: {again}")
    if json_file is not None:
        put(json.dumps(report.to_json(), indent=2) + "\n", json_file, "--json")


def read_expected_failures(path: Path) -> dict[str, str]:
    """Property id -> reason, from lines `id: reason`; blank lines and `#` lines say nothing.

    Raises Refused, with file and line, for anything else: an expectation that is misspelt would
    excuse nothing and nobody would see it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--expected-failures {path}: can't be read: {reason_of(error)}") from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, _, reason = map(str.strip, line.partition(":"))
        where = f"{path}:{number}"
        check_properties([name], where)
        if not reason:
            raise Refused(f"{where}: {name} has no reason; write `{name}: why it fails`")
        if name in reasons:
            raise Refused(f"{where}: {name} stands there twice; keep one line of the two")
        reasons[name] = reason
    return reasons
