"""Known failures: a file for all targets, or a folder with one for each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pagedkv.commands.common import Refused, check_properties
from pagedkv.commands.files import reason_of

OPTION = "--expected-failures"


def read_expected_folder(folder: Path, targets: Iterable[str]) -> dict[str, dict[str, str]]:
    """Target -> its known failures, from `TARGET.expected` in `folder`; none where there is none.

    Raises Refused as `read_expected_failures` does.
    """
    files = {name: folder / file_of(name) for name in targets}
    return {name: read_expected_failures(file) for name, file in files.items() if file.exists()}


def file_of(target: str) -> str:
    """The name of a target's file: what can't stand in one is a dash; changes nothing."""
    return re.sub(r"[^A-Za-z0-9_+.]+", "-", target).strip("-.") + ".expected"


def read_expected_failures(path: Path) -> dict[str, str]:
    """Property id -> reason, from lines `id: reason`; blank lines and `#` lines say nothing.

    Raises Refused, with file and line, for anything else: an expectation that is misspelt would
    excuse nothing and nobody would see it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{OPTION} {path}: can't be read: {reason_of(error)}") from error
    reasons: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        name, _, reason = map(str.strip, line.partition(":"))
        where = f"{path}:{number}"
        check_properties([name], where)
        if not reason:
            raise Refused(f"{where}: {name} has no reason; write `{name}: why it fails`")
        if name in reasons:
            raise Refused(f"{where}: {name} stands there twice; keep one line of the two")
        reasons[name] = reason
    return reasons
