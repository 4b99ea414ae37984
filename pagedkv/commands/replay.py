"""`pagedkv replay`: whether recorded histories still break what they broke."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv.commands import common
from pagedkv.commands.common import Refused
from pagedkv.commands.defaults import config_option
from pagedkv.commands.files import STDOUT, check_writable, put, read

if TYPE_CHECKING:
    from pagedkv.config import Config
    from pagedkv.stateful.report import Counterexample
    from pagedkv.stateful.subject import Subject
    from pagedkv.stateful.traces import Trace


_EXAMPLES = """\b
Examples:
  pagedkv replay traces/conservation.jsonl
  pagedkv replay traces/*.jsonl
  pagedkv replay trace.jsonl --target mymodule:MyManager
  pagedkv replay trace.jsonl --svg trace.svg
"""


@click.command(epilog=_EXAMPLES)
@click.argument(
    "files", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--target", metavar="TARGET", help="Run it on this one instead of the recorded one.")
@click.option(
    "--svg",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the pool step by step, for an issue; - is stdout, and the text goes to stderr.",
)
@config_option
def replay(config: Config, files: tuple[Path, ...], target: str | None, svg: Path | None) -> int:
    """Run recorded histories again.

    Says FAILED if one still breaks something, with the history if it is the only one, and FIXED
    if not. Exits with 1 if one fails, else with 2 if one can't be run, else with 0.
    """
    if len(files) == 1:
        return _replay(config, files[0], target, svg, alone=True)
    if svg is not None:
        raise Refused(f"--svg {svg}: draws one history; give one trace")
    codes = [_one_of_several(config, file, target) for file in files]
    failed = [file for file, code in zip(files, codes, strict=True) if code == 1]
    if failed:
        click.echo(f"Next: pagedkv replay {shlex.quote(str(failed[0]))}, for what happens in it")
    return next((code for code in (1, 2) if code in codes), 0)


def _one_of_several(config: Config, file: Path, target: str | None) -> int:
    try:
        return _replay(config, file, target, None, alone=False)
    except Refused as error:
        click.echo(f"Error: {error.message}", err=True)
        return error.exit_code


def _replay(
    config: Config, file: Path, target: str | None, svg: Path | None, *, alone: bool
) -> int:
    from pagedkv.commands.progress import watch
    from pagedkv.stateful.replay import MakesNoSense
    from pagedkv.stateful.shrink import rerun
    from pagedkv.stateful.target import CannotDrive
    from pagedkv.stateful.traces import FIRST_COMMAND

    if svg is not None:
        check_writable(svg, "--svg")
    trace = read(file)
    subject = subject_of(trace, target, file, config)
    try:
        with watch(sys.stderr, subject.name) as tell:
            example = rerun(subject, trace, tell)
    except CannotDrive as error:
        raise Refused(f"{file}: can't be replayed: {error}") from error
    except MakesNoSense as error:
        raise Refused(f"{file}:{FIRST_COMMAND + error.index}: {error}") from error
    if alone:
        _show(subject.name, trace, example, file, to_stdout=svg == STDOUT)
    else:
        click.echo(f"{file}: {_told(subject.name, trace, example)}")
    if svg is not None and example is not None:
        _draw(subject.name, example, svg)
    elif svg is not None:
        click.echo(f"--svg {svg}: nothing to draw: it no longer breaks", err=True)
    return 0 if example is None else 1


def subject_of(trace: Trace, name: str | None, file: Path, config: Config) -> Subject:
    """What to run a trace on: the target of this name, or else the recorded one.

    Raises Refused. A program is run only if it was named by hand: a trace may come from anywhere.
    """
    if name is None and trace.target.startswith("exec:"):
        raise Refused(
            f"{file}:1: its target is a program, {trace.target!r}; "
            f"if you want that run, say so with --target"
        )
    try:
        return common.subject_of(trace.target if name is None else name, config)
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


def _told(name: str, trace: Trace, example: Counterexample | None) -> str:
    """What came of it, in one line."""
    from pagedkv.terminal import count

    commands = count(len(trace.commands), "command")
    if example is None:
        what = f"no longer breaks {trace.breaks}" if trace.breaks else "breaks nothing"
        return f"FIXED: {name} {what}; {commands}"
    known = trace.breaks in (None, example.property)
    what = f"breaks {example.property}"
    if not known:
        what = f"{what} first, where {trace.breaks} was recorded"
    return f"FAILED: {name} {what}, after {len(example.commands):,} of {commands}"


def _show(
    name: str, trace: Trace, example: Counterexample | None, file: Path, *, to_stdout: bool
) -> None:
    from pagedkv.stateful.text import counterexample_text
    from pagedkv.terminal import console_on

    console = console_on(sys.stderr if to_stdout else sys.stdout)
    console.print(_told(name, trace, example))
    if example is None:
        return
    console.print()
    console.print(counterexample_text(example, "as recorded"))
    if len(example.commands) > 3:
        console.print(f"\nNext: pagedkv shrink {file}, for a shorter history of this")
