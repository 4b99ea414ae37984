"""The command line. A command is one function and its options; the rest is imported by its body.

Exit codes: 0 passed, 1 violated, 2 unknown, wrong usage, or a failure of pagedkv itself.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagedkv import __version__

if TYPE_CHECKING:
    from pagedkv.api import Options
    from pagedkv.stateful.report import Report
    from pagedkv.targets import Pair, Target

PROFILES = ("quick", "ci", "nightly")


class Refused(click.ClickException):
    """Bad input: one line, exit code 2."""

    exit_code = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Writes to stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # What a target says may be in no encoding that the terminal has.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = pagedkv.main(arguments, standalone_mode=False)
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
"""


@pagedkv.command(epilog=_CHECK_EXAMPLES)
@click.argument("names", metavar="[TARGET]...", nargs=-1)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default="quick",
    show_default=True,
    help="How much is tried: under 20 s a target, under a minute, or ten minutes.",
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

    _check_properties(properties)
    if json_file is not None:
        _check_writable(json_file)
    known = {} if expected_failures is None else read_expected_failures(expected_failures)
    options = Options(profile, seed, budget, tuple(dict.fromkeys(properties)), known)
    report = _run(_resolve(names), options)
    _show(report, json_file, profile)
    return report.exit_code


@pagedkv.command()
def targets() -> None:
    """List the built-in targets.

    Says of each whether it can run here, and how to install what it lacks.
    """
    from pagedkv.targets import BUILTINS
    from pagedkv.terminal import console_on, show_builtins

    show_builtins(console_on(sys.stdout), BUILTINS)


def _run(chosen: Sequence[Target | Pair], options: Options) -> Report:
    """Check them all; what is known already if even a second Ctrl-C came."""
    from pagedkv.api import check_targets
    from pagedkv.stateful.report import Coverage, Report, TargetReport
    from pagedkv.terminal import progress

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


def _show(report: Report, json_file: Path | None, profile: str) -> None:
    """Show the report, and then write it: a full disk must not cost the text."""
    from pagedkv.terminal import console_on, give_up, show_report

    to_stdout = json_file == Path("-")
    show_report(console_on(sys.stderr if to_stdout else sys.stdout), report, profile)
    text = json.dumps(report.to_json(), indent=2) + "\n"
    if to_stdout:
        try:
            click.echo(text, nl=False)
        except BrokenPipeError:
            give_up(sys.stdout)
    elif json_file is not None:
        write_whole(json_file, text)


def _resolve(names: Iterable[str]) -> list[Target | Pair]:
    """The targets, each once, in the order given."""
    from pagedkv.targets import BadTarget, default_targets, resolve

    try:
        return [resolve(name) for name in dict.fromkeys(names)] or list(default_targets())
    except BadTarget as error:
        raise Refused(str(error)) from error


def _check_properties(ids: Iterable[str], where: str = "--property") -> None:
    from pagedkv.specs.catalogue import PROPERTIES

    for name in ids:
        if name not in PROPERTIES:
            near = get_close_matches(name, PROPERTIES, n=2)
            hint = f"did you mean {' or '.join(near)}" if near else f"use {', '.join(PROPERTIES)}"
            raise Refused(f"{where}: {name!r} is no property; {hint}{'?' if near else ''}")


def read_expected_failures(path: Path) -> dict[str, str]:
    """Property id -> reason, from lines `id: reason`; blank lines and `#` lines say nothing.

    Raises Refused, with file and line, for anything else: an expectation that is misspelt would
    excuse nothing and nobody would see it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"--expected-failures {path}: can't be read: {_reason(error)}") from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, _, reason = map(str.strip, line.partition(":"))
        where = f"{path}:{number}"
        _check_properties([name], where)
        if not reason:
            raise Refused(f"{where}: {name} has no reason; write `{name}: why it fails`")
        if name in reasons:
            raise Refused(f"{where}: {name} stands there twice; keep one line of the two")
        reasons[name] = reason
    return reasons


def _check_writable(path: Path) -> None:
    """Refuse what can't be written now, not after a long run. Leaves nothing behind."""
    try:
        if path == Path("-") or _is_device(path):
            return
        path = path.resolve()
        if path.is_dir():
            raise Refused(f"--json {path}: is a folder; name a file in it")
        if not path.parent.is_dir():
            raise Refused(f"--json {path}: there is no folder {path.parent}; make it first")
        _beside(path).touch(exist_ok=False)
        _beside(path).unlink()
    except OSError as error:
        what = f"can't be written: {_reason(error)}; name another file"
        raise Refused(f"--json {path}: {what}") from error


def write_whole(path: Path, text: str) -> None:
    """Put `text` into the file, all of it or, if that fails, nothing. Raises Refused."""
    try:
        if _is_device(path):
            path.write_text(text, encoding="utf-8")
            return
        path = path.resolve()
        try:
            _beside(path).write_text(text, encoding="utf-8")
            _beside(path).replace(path)
        finally:
            _beside(path).unlink(missing_ok=True)
    except OSError as error:
        raise Refused(f"--json {path}: can't be written: {_reason(error)}") from error


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _is_device(path: Path) -> bool:
    """Something like /dev/stdout, which must not be replaced by a file."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
