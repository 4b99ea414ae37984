"""`pagedkv join`: the reports of all shards, as the one of the whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import Refused
from pagedkv.commands.files import STDOUT, check_writable, put, reason_of

if TYPE_CHECKING:
    from pagedkv.stateful.report import Report

_EXAMPLES = """\b
Examples:
  pagedkv join 1.json 2.json 3.json 4.json
  pagedkv join shards/*.json --json report.json
"""


@click.command(epilog=_EXAMPLES)
@click.argument(
    "files", metavar="REPORT...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the joined report as JSON too; - is stdout, and the text then goes to stderr.",
)
def join(files: tuple[Path, ...], json_file: Path | None) -> int:
    """Join what --json wrote for each shard of a run into one verdict.

    All shards must be there, each once, of the same targets, profile and version. A property that
    one of them breaks is violated; nothing passes but what passed in each.

    Exits with 0 if all passed, 1 if one is violated, and 2 if one is unknown or can't be joined.
    """
    from pagedkv.stateful.joining import CannotJoin, joined
    from pagedkv.terminal import console_on, show_report

    if json_file is not None:
        check_writable(json_file, "--json")
    try:
        report = joined([_read(file) for file in files])
    except CannotJoin as error:
        raise Refused(str(error)) from error
    console = console_on(sys.stderr if json_file == STDOUT else sys.stdout)
    show_report(console, report, report.profile or "")
    if json_file is not None:
        put(json.dumps(report.to_json(), indent=2) + "\n", json_file, "--json")
    return report.exit_code


def _read(file: Path) -> Report:
    from pagedkv.stateful.reading import BadReport, report_from_json

    try:
        return report_from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise Refused(f"{file}: can't be read: {reason_of(error)}") from error
    except BadReport as error:
        raise Refused(f"{file}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"{file}: is not JSON: {error}") from error
