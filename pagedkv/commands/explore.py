"""`pagedkv explore`: every history of one pool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import Refused, complete_target, shard_option, subject_of
from pagedkv.commands.defaults import config_option
from pagedkv.commands.files import STDOUT, check_writable, put

if TYPE_CHECKING:
    from pagedkv.config import Config
    from pagedkv.stateful.shards import Shard

_EXAMPLES = """\b
Examples:
  pagedkv explore reference
  pagedkv explore mymodule:MyManager --blocks 5 --block-size 1
  pagedkv explore reference+array --requests 2 --depth 8
  pagedkv explore reference --blocks 6 --depth 9 --shard 2/4 --json 2.json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--blocks", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--block-size", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many are live at once.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    help="Histories of up to so many commands; without it, all there are.",
)
@shard_option
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report as JSON too; - is stdout, and the text then goes to stderr.",
)
@config_option
def explore(
    *,
    config: Config,
    name: str,
    blocks: int,
    block_size: int,
    requests: int,
    depth: int | None,
    shard: Shard | None,
    json_file: Path | None,
) -> int:
    """Try every history of one pool, and show the shortest that breaks something.

    Exits with 0 if nothing breaks, in all there are or in those of up to --depth commands, with 1
    if something does, and with 2 if the search ended before that.
    """
    from pagedkv.commands.progress import progress
    from pagedkv.specs.model import Geometry
    from pagedkv.stateful.onepool import explore_pool
    from pagedkv.stateful.processes import Update
    from pagedkv.stateful.report import Report
    from pagedkv.stateful.target import CannotDrive
    from pagedkv.terminal import console_on, show_target

    if json_file is not None:
        check_writable(json_file, "--json")
    checked = subject_of(name, config)
    try:
        with progress(sys.stderr, [checked.name], None, {}) as show:
            target = explore_pool(
                checked,
                Geometry(blocks, block_size),
                requests,
                depth,
                lambda at, elapsed: show(Update(checked.name, "all histories", at, elapsed)),
                shard,
            )
    except CannotDrive as error:
        raise Refused(f"target {name!r}: {error}") from error
    show_target(console_on(sys.stderr if json_file == STDOUT else sys.stdout), target)
    report = Report((target,), shard=shard)
    if json_file is not None:
        put(json.dumps(report.to_json(), indent=2) + "\n", json_file, "--json")
    return report.exit_code
