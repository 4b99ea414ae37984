"""What several commands share: refusing bad input, and finding targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pagedkv.config import Config
    from pagedkv.stateful.shards import Shard
    from pagedkv.stateful.subject import Subject
    from pagedkv.targets import Pair, Target
    from pagedkv.tolerances import Tolerances


class Refused(click.ClickException):
    """Bad input: one line, exit code 2."""

    exit_code = 2


def complete_target(_context: object, _parameter: object, typed: str) -> list[str]:
    """The built-in names that begin with what was typed, for shell completion."""
    from pagedkv.builtin import BUILTINS

    return [builtin.name for builtin in BUILTINS if builtin.name.startswith(typed)]


def resolve_all(
    names: Iterable[str], tolerances: Tolerances | None = None, *, isolate: bool = False
) -> list[Target | Pair]:
    """The targets, each once, in the order given; none of their code runs here if `isolate`."""
    from pagedkv.loading import BadTarget
    from pagedkv.targets import default_targets, is_apart, isolated, resolve

    once, told = list(dict.fromkeys(names)), dict(tolerances or {})
    try:
        for name in once:
            if not isolate and not is_apart(name):
                _survive(name, told)
        found = [isolated(name, told) if isolate else resolve(name, told) for name in once]
        return found or list(default_targets(told))
    except BadTarget as error:
        raise Refused(str(error)) from error


def _survive(name: str, tolerances: Tolerances) -> None:
    """Raise Refused if importing and making the target kills, or hangs, a process."""
    from pagedkv.builtin import BUILTINS
    from pagedkv.stateful.processes import death_of
    from pagedkv.targets import resolve

    if {*name.split("+")} <= {builtin.name for builtin in BUILTINS}:
        return
    work = partial(resolve, tolerances=tolerances)
    if (death := death_of(work, name, MADE_WITHIN)) is not None:
        raise Refused(f"target {name!r}: {death} when it was imported and made once; mend that")


MADE_WITHIN = 60.0
"""Seconds that importing a target and making one manager may take."""


def subject_of(name: str, config: Config) -> Subject:
    """What is driven of the target of this name. Raises Refused."""
    from pagedkv.api import subject

    (target,) = resolve_all([name], config.tolerances)
    return subject(target, config.tolerances)


def _read_shard(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> Shard | None:
    from pagedkv.stateful.shards import Shard

    try:
        return None if text is None else Shard.of_text(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def shard_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--shard`; the function gets a `Shard` or None."""
    option = click.option(
        "--shard",
        metavar="K/N",
        callback=_read_shard,
        help="Search only the K-th of N parts; `pagedkv join` puts their --json together.",
    )
    return option(command)


def check_properties(ids: Iterable[str], where: str = "--property") -> None:
    """Raise Refused for an id that no property has."""
    from pagedkv.specs.catalogue import PROPERTIES

    for name in ids:
        if name not in PROPERTIES:
            near = get_close_matches(name, PROPERTIES, n=2)
            hint = f"did you mean {' or '.join(near)}" if near else f"use {', '.join(PROPERTIES)}"
            raise Refused(f"{where}: {name!r} is no property; {hint}{'?' if near else ''}")
