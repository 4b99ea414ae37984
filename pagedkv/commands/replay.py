"""`pagedkv replay`: whether a recorded history still breaks what it broke."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands.common import Refused, resolve_one
from pagedkv.commands.files import STDOUT, check_writable, put, read

if TYPE_CHECKING:
    from pagedkv.stateful.report import Counterexample
    from pagedkv.stateful.subject import Subject
    from pagedkv.stateful.traces import Trace


_EXAMPLES = """\b
Examples:
  pagedkv replay traces/conservation.jsonl
  pagedkv replay trace.jsonl --target mymodule:MyManager
  pagedkv replay trace.jsonl --svg trace.svg
"""


@click.command(epilog=_EXAMPLES)
@click.argument("file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--target", metavar="TARGET", help="Run it on this one instead of the recorded one.")
@click.option(
    "--svg",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the pool step by step, for an issue; - is stdout, and the text goes to stderr.",
)
def replay(file: Path, target: str | None, svg: Path | None) -> int:
    """Run a recorded history again.

    Says FAILED and exits with 1 if it still breaks something, says FIXED and exits with 0 if not,
    and exits with 2 if it can't be run.
    """
    from pagedkv.commands.progress import watch
    from pagedkv.stateful.replay import MakesNoSense
    from pagedkv.stateful.shrink import rerun
    from pagedkv.stateful.target import CannotDrive
    from pagedkv.stateful.traces import FIRST_COMMAND

    if svg is not None:
        check_writable(svg, "--svg")
    trace = read(file)
    subject = subject_of(trace, target, file)
    try:
        with watch(sys.stderr, subject.name) as tell:
            example = rerun(subject, trace, tell)
    except CannotDrive as error:
        raise Refused(f"{file}: can't be replayed: {error}") from error
    except MakesNoSense as error:
        raise Refused(f"{file}:{FIRST_COMMAND + error.index}: {error}") from error
    _show(subject.name, trace, example, file, to_stdout=svg == STDOUT)
    if svg is not None and example is not None:
        _draw(subject.name, example, svg)
    elif svg is not None:
        click.echo(f"--svg {svg}: nothing to draw: it no longer breaks", err=True)
    return 0 if example is None else 1


def subject_of(trace: Trace, name: str | None, file: Path) -> Subject:
    """What to run a trace on: the target of this name, or else the recorded one.

    Raises Refused. A program is run only if it was named by hand: a trace may come from anywhere.
    """
    from pagedkv import api

    if name is None and trace.target.startswith("exec:"):
        raise Refused(
            f"{file}:1: its target is a program, {trace.target!r}; "
            f"if you want that run, say so with --target"
        )
    try:
        return api.subject(resolve_one(trace.target if name is None else name))
    except Refused as error:
        if name is not None:
            raise
        raise Refused(f"{file}:1: {error.message}; name another one with --target") from error


def _draw(name: str, example: Counterexample, svg: Path) -> None:
    from pagedkv.stateful.reports import svg_picture

    picture = svg_picture([example], name)
    if picture is None:
        steps = f"{len(example.commands):,} commands are too many to be drawn"
        raise Refused(f"--svg {svg}: {steps}; cut the history down first, with pagedkv shrink")
    put(picture, svg, "--svg")


def _show(
    name: str, trace: Trace, example: Counterexample | None, file: Path, *, to_stdout: bool
) -> None:
    from pagedkv.stateful.text import counterexample_text
    from pagedkv.terminal import console_on, count

    console = console_on(sys.stderr if to_stdout else sys.stdout)
    commands = count(len(trace.commands), "command")
    if example is None:
        what = f"no longer breaks {trace.breaks}" if trace.breaks else "breaks nothing"
        console.print(f"FIXED: {name} {what}; {commands}")
        return
    known = trace.breaks in (None, example.property)
    what = (
        f"breaks {example.property}"
        if known
        else (f"breaks {example.property} first, where {trace.breaks} was recorded")
    )
    after = f"after {len(example.commands):,} of {commands}"
    console.print(f"FAILED: {name} {what}, {after}\n")
    console.print(counterexample_text(example, "as recorded"))
    if len(example.commands) > 3:
        console.print(f"\nNext: pagedkv shrink {file}, for a shorter history of this")
