"""What a person sees on a terminal.

Nothing is read as markup, and nothing is cut: what a target says is shown as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from rich.console import Console

from pagedkv.stateful.printed import count, hints, outcome, show_report, show_target

if TYPE_CHECKING:
    from pagedkv.builtin import Builtin

__all__ = [
    "console_on",
    "count",
    "give_up",
    "hints",
    "outcome",
    "show_builtins",
    "show_report",
    "show_target",
]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        self.quiet = True
        give_up(self.file)


def give_up(stream: IO[str]) -> None:
    """Send the rest nowhere: a reader that has gone, as in `| head`, does not change a verdict."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def console_on(stream: IO[str]) -> Console:
    """A console that shows text literally, with colours only on a terminal without NO_COLOR."""
    return _Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show_builtins(console: Console, builtins: Iterable[Builtin]) -> None:
    """The built-in targets, one a line, and below one that can't run here what it takes."""
    rows = [(b, "can run" if b.installed else "can't run") for b in builtins]
    width = max(len(b.name) for b, _ in rows)
    for b, state in rows:
        console.print(f"{b.name.ljust(width)}  {state.ljust(9)}  {b.statement}")
        if state != "can run":
            console.print(f"{' ' * width}  lacks {b.needs}: {b.install}")
