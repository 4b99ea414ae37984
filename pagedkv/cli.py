"""The command line. A command is one function and its options, in a module of its own.

What it works with is imported by its body, so that help is quick.

Exit codes: 0 passed, 1 violated, 2 unknown, wrong usage, or a failure of pagedkv itself.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from pagedkv import __version__
from pagedkv.commands.check import check
from pagedkv.commands.explore import explore
from pagedkv.commands.join import join
from pagedkv.commands.replay import replay
from pagedkv.commands.score import score
from pagedkv.commands.shrink import shrink
from pagedkv.commands.targets import targets


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Writes to stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # What a target says may be in no encoding that the terminal has.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = pagedkv.main(arguments, prog_name="pagedkv", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        click.echo(f"Error: {' '.join(error.format_message().split())}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("Error: interrupted", err=True)
        return 2
    except Exception:  # noqa: BLE001 - Python's own exit code, 1, would say "violated"
        traceback.print_exc()
        click.echo("Error: this is a fault of pagedkv itself; please report it", err=True)
        return 2
    return code if isinstance(code, int) else 0


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="See `pagedkv COMMAND --help` for examples.",
)
@click.version_option(__version__, prog_name="pagedkv")
def pagedkv() -> None:
    """Verify the block manager of a paged KV cache.

    Says of any such allocator whether the invariants hold, and where they do not, prints the
    shortest history that breaks them.
    """


for command in (check, explore, join, replay, score, shrink, targets):
    pagedkv.add_command(command)
