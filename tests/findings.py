"""The scripts on the pages of docs/findings/: each needs only the engine, and shows its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "findings"
_SCRIPT = re.compile(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)


def scripts(page: str) -> list[tuple[str, str]]:
    """Each script of `docs/findings/PAGE`, and what the page says that it prints."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    found = _SCRIPT.findall(text)
    assert len(found) == text.count("```python") > 0, f"{page}: a script without its output"
    return found


def printed(script: str) -> str:
    """What the script prints in a Python of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        # As this Python knows it: MAX, once imported, leaves a PYTHONEXECUTABLE beneath it.
        env=dict(os.environ),
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
