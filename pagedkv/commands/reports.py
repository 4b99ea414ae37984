"""Reports in files: `--json`, `--junit`, `--sarif` and `--html`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pagedkv.commands.common import Refused
from pagedkv.commands.files import STDOUT, check_writable, put

if TYPE_CHECKING:
    from pagedkv.stateful.report import Report
    from pagedkv.targets import Pair, Target

_HELP = {
    "json": "Write the report as JSON too; - is stdout, and the text then goes to stderr.",
    "junit": "Write it as JUnit XML too: a suite for each target, a case for each property.",
    "sarif": "Write it as SARIF too, for code scanning: each violation a result.",
    "html": "Write it as one HTML page too, with each counterexample step by step.",
}


@dataclass(frozen=True, slots=True)
class Files:
    """Which kind of report goes into which file; the kinds are named like their options."""

    files: Mapping[str, Path]

    @property
    def on_stdout(self) -> bool:
        """Whether one of them takes stdout."""
        return STDOUT in self.files.values()

    def check(self) -> None:
        """Raise Refused for what can't be written, now and not after a long run."""
        taken: dict[Path, str] = {}
        for kind, file in self.files.items():
            check_writable(file, f"--{kind}")
            whole = file if file == STDOUT else file.resolve()
            if whole in taken:
                raise Refused(
                    f"--{kind} {file}: --{taken[whole]} goes there too; name another file"
                )
            taken[whole] = kind

    def write(self, report: Report, targets: Sequence[Target | Pair], *, isolated: bool) -> None:
        """Write them all. Raises Refused."""
        for kind, file in self.files.items():
            put(_text(kind, report, targets, isolated=isolated), file, f"--{kind}")


def _text(kind: str, report: Report, targets: Sequence[Target | Pair], *, isolated: bool) -> str:
    if kind == "json":
        return json.dumps(report.to_json(), indent=2) + "\n"
    from pagedkv.stateful import reports

    if kind == "junit":
        return reports.junit_xml(report)
    if kind == "html":
        return reports.html_page(report)
    from pagedkv.sources import places_of

    places = {target.name: places_of(target, isolated=isolated) for target in targets}
    return reports.sarif_json(report, places)


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each kind of report; the function gets them as `files`."""

    @wraps(command)  # click keeps what was added to a command with the function
    def run(**values: Any) -> Any:
        chosen = {kind: values.pop(f"{kind}_file") for kind in _HELP}
        return command(
            files=Files({kind: file for kind, file in chosen.items() if file is not None}),
            **values,
        )

    extended: Callable[..., Any] = run
    for kind, text in reversed(_HELP.items()):
        option = click.option(
            f"--{kind}",
            f"{kind}_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help=text,
        )
        extended = option(extended)
    return extended
