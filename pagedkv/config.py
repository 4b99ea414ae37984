"""`[tool.pagedkv]` in pyproject.toml: what a run uses unless it is told otherwise.

    [tool.pagedkv]
    targets = ["mymodule:MyManager"]
    profile = "ci"                      # quick, ci or nightly
    seed = 7                            # of the random histories
    budget = 60                         # seconds for each target
    properties = ["conservation"]       # judge these only
    traces = "traces"                   # counterexamples as files, beside this one
    isolate = true                      # as --isolate does
    faults = true                       # as --faults does; one of the two

    [tool.pagedkv.expected-failures]    # property id -> reason
    rollback = "issue 12"

    [tool.pagedkv.expected-failures."mymodule:MyManager"]  # of one target
    conservation = "issue 13"

    [tool.pagedkv.tolerances."mymodule:MyManager"]  # Declarations over its own, see tolerances.py
    late_calls = 2
    because = { late_calls = "MyManager.flush" }

Whatever can't be what was meant is an error: a setting that is misspelt would change nothing, and
nobody would see it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

PROFILES = ("quick", "ci", "nightly")
KEYS = (
    "targets",
    "profile",
    "seed",
    "budget",
    "properties",
    "traces",
    "isolate",
    "faults",
    "expected-failures",
    "tolerances",
)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class BadConfig(ValueError):
    """A file whose `[tool.pagedkv]` can't be used: one line with the file, the key and its cure."""


@dataclass(frozen=True, slots=True)
class Config:
    """What `[tool.pagedkv]` says; None or empty is what it does not say.

    expected_failures: property id -> reason, of every target. expected_of: the same, of the target
    that is named. traces: a folder; a relative one is meant from the file's own. tolerances: by
    the name of a target, fields of `Declarations` over what it declares itself.
    """

    targets: tuple[str, ...] = ()
    profile: str | None = None
    seed: int | None = None
    budget: float | None = None
    properties: tuple[str, ...] = ()
    traces: Path | None = None
    isolate: bool = False
    faults: bool = False
    expected_failures: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    expected_of: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: _NOTHING)
    tolerances: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)

    def expected(self, target: str) -> dict[str, str]:
        """The known failures of one target, property id -> reason; changes nothing."""
        return {**self.expected_failures, **self.expected_of.get(target, _NOTHING)}


def nearest_config(folder: Path) -> Config:
    """Of `folder` and those around it, what the first pyproject.toml with a `[tool.pagedkv]` says.

    Changes nothing. Where there is none, all is left unsaid. Raises BadConfig.
    """
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file() and (table := _table(file)) is not None:
            return _Reader(file).config(table)
    return Config()


def read_config(file: Path) -> Config:
    """What this file's `[tool.pagedkv]` says; changes nothing. Raises BadConfig."""
    table = _table(file)
    if table is None:
        raise BadConfig(f"{file}: has no [tool.pagedkv]")
    return _Reader(file).config(table)


def _table(file: Path) -> object:
    """The file's `[tool.pagedkv]`, whatever it is; None if it has none."""
    try:
        with file.open("rb") as opened:
            tool = tomllib.load(opened).get("tool", {})
    except OSError as error:
        raise BadConfig(f"{file}: can't be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{file}: is not TOML: {error}") from error
    return tool.get("pagedkv") if isinstance(tool, dict) else None


@dataclass(frozen=True, slots=True)
class _Reader:
    """One file's settings, each checked; every error names the file and the key."""

    file: Path

    def config(self, table: object) -> Config:
        """The whole table."""
        if not isinstance(table, dict):
            raise BadConfig(f"{self.file}: tool.pagedkv = {table!r} must be a table [tool.pagedkv]")
        for key in table:
            if key not in KEYS:
                self._bad(key, f"is no setting; {nearest(key, KEYS)}")
        targets = self._texts(table, "targets")
        for_all, of_one = self._expected(table.get("expected-failures", {}), targets)
        traces = self._text(table, "traces")
        return Config(
            targets=targets,
            profile=self._profile(table),
            seed=self._seed(table),
            budget=self._budget(table),
            properties=self._ids(table),
            traces=None if traces is None else self.file.parent / traces,
            isolate=self._flag(table, "isolate"),
            faults=self._flag(table, "faults"),
            expected_failures=for_all,
            expected_of=of_one,
            tolerances=self._tolerances(table.get("tolerances", {}), targets),
        )

    def _bad(self, key: str, what: str) -> NoReturn:
        raise BadConfig(f"{self.file}: [tool.pagedkv] {key} {what}")

    def _text(self, table: Mapping[str, Any], key: str) -> str | None:
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            self._bad(key, f'= {value!r} must be a text, like {key} = "{_EXAMPLES[key]}"')
        return value

    def _texts(self, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            self._bad(
                key, f'= {value!r} must be a list of texts, like {key} = ["{_EXAMPLES[key]}"]'
            )
        return tuple(dict.fromkeys(value))

    def _profile(self, table: Mapping[str, Any]) -> str | None:
        value = self._text(table, "profile")
        if value is not None and value not in PROFILES:
            self._bad("profile", f"= {value!r} is no profile; {nearest(value, PROFILES)}")
        return value

    def _seed(self, table: Mapping[str, Any]) -> int | None:
        value = table.get("seed")
        if value is not None and (type(value) is not int or value < 0):
            self._bad("seed", f"= {value!r} must be an integer >= 0")
        return value

    def _budget(self, table: Mapping[str, Any]) -> float | None:
        value = table.get("budget")
        if value is not None and (type(value) not in (int, float) or not 0 < value < math.inf):
            self._bad("budget", f"= {value!r} must be a number of seconds > 0")
        return value

    def _flag(self, table: Mapping[str, Any], key: str) -> bool:
        value = table.get(key, False)
        if type(value) is not bool:
            self._bad(key, f"= {value!r} must be true or false")
        if value and key == "faults" and table.get("isolate"):
            self._bad(key, "= true goes with isolate = true as little as --faults with --isolate")
        return value

    def _ids(self, table: Mapping[str, Any]) -> tuple[str, ...]:
        ids = self._texts(table, "properties")
        for name in ids:
            self._check_id("properties", name)
        return ids

    def _check_id(self, key: str, name: str) -> None:
        from pagedkv.specs.catalogue import PROPERTIES

        if name not in PROPERTIES:
            self._bad(key, f"names {name!r}, which is no property; {nearest(name, PROPERTIES)}")

    def _expected(
        self, table: object, targets: tuple[str, ...]
    ) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """The known failures of all targets, and those of single ones."""
        for_all: dict[str, str] = {}
        of_one: dict[str, dict[str, str]] = {}
        if not isinstance(table, dict):
            self._bad("expected-failures", f"= {table!r} must be a table of property id = reason")
        for name, value in table.items():
            if not isinstance(value, dict):
                self._reason("expected-failures", name, value)
                for_all[name] = value
                continue
            if targets and name not in targets:
                known = nearest(name, targets)
                self._bad("expected-failures", f"names {name!r}, which is none of targets; {known}")
            for prop, reason in value.items():
                self._reason(f"expected-failures of {name}", prop, reason)
            of_one[name] = value
        return for_all, of_one

    def _tolerances(self, table: object, targets: tuple[str, ...]) -> dict[str, Mapping[str, Any]]:
        """What is declared for single targets."""
        if table == {}:
            return {}
        from pagedkv.declarations import Declarations
        from pagedkv.targets import singles
        from pagedkv.tolerances import BadTolerance, over

        if not isinstance(table, dict):
            self._bad("tolerances", f"= {table!r} must be a table for each target")
        known = {name: None for target in targets for name in singles(target)}
        for name, fields in table.items():
            if not isinstance(fields, dict):
                due = f'must be a table, like [tool.pagedkv.tolerances."{name}"]'
                self._bad("tolerances", f"{name} = {fields!r} {due}")
            if known and name not in known:
                near = nearest(name, known)
                self._bad("tolerances", f"names {name!r}, which is none of targets; {near}")
            try:
                over(Declarations(), fields, importing=False)
            except BadTolerance as error:
                self._bad(f"tolerances of {name}:", str(error))
        return table

    def _reason(self, key: str, name: str, reason: object) -> None:
        self._check_id(key, name)
        if not isinstance(reason, str) or not reason.strip():
            self._bad(key, f'{name} = {reason!r} must be the reason, like {name} = "issue 12"')


_EXAMPLES = {
    "targets": "mymodule:MyManager",
    "profile": "ci",
    "properties": "conservation",
    "traces": "traces",
}


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known words that are like `word`, or else at all; changes nothing."""
    words = list(known)
    near = get_close_matches(word, words, n=2)
    return f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(words)}"
