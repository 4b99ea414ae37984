"""`pagedkv targets`: what can be checked by name."""

from __future__ import annotations

import sys

import click

_EXAMPLES = """\b
Examples:
  pagedkv targets
"""


@click.command(epilog=_EXAMPLES)
def targets() -> None:
    """List the built-in targets.

    Says of each whether it can run here, and how to install what it lacks.
    """
    from pagedkv.builtin import BUILTINS
    from pagedkv.terminal import console_on, show_builtins

    show_builtins(console_on(sys.stdout), BUILTINS)
