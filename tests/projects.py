"""Projects outside our tree, with pytest run in them as their authors would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree as ET

import pagedkv

ROOT = Path(__file__).resolve().parent.parent
COPY = Path(pagedkv.__file__).parents[1]
"""Where the copy of pagedkv lies that is tested."""

ALLOCATORS = '''
from pagedkv import Declarations


class Right:
    """First in, first out; in pools of at most 2 blocks of 1 token, so that all is tried soon."""

    declares = Declarations(
        max_blocks=2, block_sizes=(1,), because={"max_blocks": "a test", "block_sizes": "a test"}
    )

    def __init__(self, num_blocks, block_size, head_dim):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.held = {}

    def take(self, count):
        if count > len(self.free_blocks):
            raise RuntimeError(f"OOM: {count} blocks needed, {len(self.free_blocks)} free")
        taken, self.free_blocks = self.free_blocks[:count], self.free_blocks[count:]
        return taken

    def own(self, req):
        if not req.block_table or self.held.get(req.request_id) != req.block_table:
            raise ValueError("not the blocks of this request")
        return self.held[req.request_id]

    def allocate_for_prefill(self, req):
        if req.request_id in self.held:
            raise ValueError("it holds blocks already")
        self.held[req.request_id] = self.take(-(-req.seq_len // self.block_size))
        req.block_table = list(self.held[req.request_id])

    def allocate_for_decode(self, req):
        held = self.own(req)
        if req.seq_len == len(held) * self.block_size:
            held += self.take(1)
        req.block_table = list(held)
        req.seq_len += 1

    def release_request(self, req):
        self.free_blocks = self.free_blocks + self.own(req)
        del self.held[req.request_id]
        req.block_table = []


class Leaks(Right):
    def release_request(self, req):
        super().release_request(req)
        self.free_blocks = self.free_blocks[1:]
'''

LEAK = "!= usable(1): leak, block 0 belongs to nobody"


@dataclass(frozen=True)
class Result:
    """What a run of pytest printed, and per test its outcome and message."""

    code: int
    out: str
    tests: Mapping[str, tuple[str, str]]

    def outcomes(self) -> dict[str, str]:
        return {name: outcome for name, (outcome, _) in self.tests.items()}


def environment(folder: Path, *, measured: bool = False) -> dict[str, str]:
    """For a command in another folder: our copy of pagedkv, and its entry points.

    Where that copy is not installed, its entry points are put where an installation has them.
    measured: what it covers counts, which makes a campaign several times as slow.
    """
    out = ("PYTEST_",) if measured else ("PYTEST_", "COVERAGE_PROCESS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(out)}
    path = [str(COPY), *filter(None, [os.environ.get("PYTHONPATH")])]
    if not any(metadata.entry_points(group="pytest11", name="pagedkv")):
        path.append(str(_entry_points(folder)))
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def _entry_points(folder: Path) -> Path:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / ".installed" / "pagedkv-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pagedkv\nVersion: 0\n")
    lines = [f"{name} = {where}\n" for name, where in project["entry-points"]["pytest11"].items()]
    (info / "entry_points.txt").write_text("[pytest11]\n" + "".join(lines))
    return info.parent


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Put the files into the folder, and a module of allocators beside them."""
    for name, text in {"allocators_here.py": ALLOCATORS, **files}.items():
        (folder / name).write_text(dedent(text), encoding="utf-8")


def pytest_in(folder: Path, *arguments: str, measured: bool = False) -> Result:
    """Run pytest in the folder, strict of markers and warnings."""
    file = folder / "junit.xml"
    file.unlink(missing_ok=True)
    strict = ("-W", "error", "--strict-markers", f"--junitxml={file}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *strict, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(folder, measured=measured),
    )
    out = done.stdout + done.stderr
    return Result(done.returncode, out, _tests(file) if file.exists() else {})


def _tests(file: Path) -> dict[str, tuple[str, str]]:
    return {_name(case): _outcome(case) for case in ET.parse(file).iter("testcase")}


def _name(case: ET.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}".removeprefix("::")


def _outcome(case: ET.Element) -> tuple[str, str]:
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            expected = found.get("type") == "pytest.xfail"
            text = found.get("message") or "" if kind == "skipped" else found.text or ""
            return "xfailed" if expected else kind, text
    return "passed", ""


def without_times(text: str) -> str:
    """The text with what differs from run to run taken out."""
    return re.sub(r"\d+\.\d+ ?s", "N s", text)
