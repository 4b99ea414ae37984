"""`pagedkv shrink`: a recorded history, brought down to the shortest that breaks the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import Refused
from pagedkv.commands.defaults import config_option
from pagedkv.commands.files import STDOUT, check_writable, put, read
from pagedkv.commands.replay import subject_of

if TYPE_CHECKING:
    from pagedkv.config import Config
    from pagedkv.stateful.shrink import Shrunk
    from pagedkv.stateful.subject import Subject
    from pagedkv.stateful.traces import Trace


_EXAMPLES = """\b
Examples:
  pagedkv shrink trace.jsonl
  pagedkv shrink trace.jsonl --output short.jsonl
  pagedkv shrink trace.jsonl --target mymodule:MyManager
"""


@click.command(epilog=_EXAMPLES)
@click.argument("file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--target", metavar="TARGET", help="Run it on this one instead of the recorded one.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the short history as a trace too; - is stdout, and the text then goes to stderr.",
)
@config_option
def shrink(config: Config, file: Path, target: str | None, output: Path | None) -> int:
    """Cut a recorded history down to the shortest that breaks the same property.

    Exits with 1 if there is one, with 0 if the history breaks nothing, and with 2 if it can't be
    run.
    """
    from pagedkv.commands.progress import watch
    from pagedkv.stateful.shrink import shrink as shrunk
    from pagedkv.stateful.target import CannotDrive
    from pagedkv.stateful.traces import Trace, text_of

    if output is not None:
        check_writable(output, "--output")
    trace = read(file)
    subject = subject_of(trace, target, file, config)
    try:
        with watch(sys.stderr, subject.name) as tell:
            result = shrunk(subject, trace, tell=tell)
    except CannotDrive as error:
        raise Refused(f"{file}: can't be run: {error}") from error
    _show(subject, trace, result, to_stdout=output == STDOUT)
    example = result.example
    if example is None:
        return 0
    if output is not None:
        short = Trace(subject.name, example.geometry, example.commands, example.property)
        put("".join(text_of(short)), output, "--output")
    return 1


def _show(subject: Subject, trace: Trace, result: Shrunk, *, to_stdout: bool) -> None:
    from pagedkv.stateful.reproducer import pytest_function
    from pagedkv.stateful.text import counterexample_text
    from pagedkv.terminal import console_on, count

    console = console_on(sys.stderr if to_stdout else sys.stdout)
    name = subject.name
    commands, example = count(len(trace.commands), "command"), result.example
    if example is None:
        what = f"no longer breaks {trace.breaks}" if trace.breaks else "breaks nothing"
        console.print(f"FIXED: {name} {what}; {commands}, nothing to cut down")
        return
    short = count(len(example.commands), "command")
    console.print(f"{name}: {example.property}, from {commands} down to {short}\n")
    how = result.unfinished and f"may be cut further: {result.unfinished}"
    console.print(counterexample_text(example, how))
    if len(example.commands) <= LONGEST_TEST:
        console.print("\nAs a test:\n")
        console.print(pytest_function(example, name, subject.tolerances))


LONGEST_TEST = 60
"""Nobody pastes a test of more commands into a suite."""
