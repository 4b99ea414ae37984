"""`--config`: the options that `[tool.pagedkv]` gives where the command line gives none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pagedkv.commands.common import Refused
from pagedkv.config import BadConfig, Config, nearest_config, read_config


def _read(context: click.Context, _parameter: click.Parameter, file: Path | None) -> Config:
    if context.resilient_parsing:  # the shell wants a completion, not the truth
        return Config()
    try:
        config = nearest_config(Path.cwd()) if file is None else read_config(file)
    except BadConfig as error:
        raise Refused(str(error)) from error
    said = {
        "profile": config.profile,
        "seed": config.seed,
        "budget": config.budget,
        "properties": config.properties or None,
        "traces": config.traces,
        "isolate": config.isolate or None,
        "faults": config.faults or None,
    }
    context.default_map = {key: value for key, value in said.items() if value is not None}
    return config


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config`; the function gets a `Config`, and its other options their defaults."""
    option = click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,  # before the options that it has defaults for
        callback=_read,
        help="Take [tool.pagedkv] from this file, not from the nearest pyproject.toml.",
    )
    return option(command)
