"""A fault that vLLM had: found in the release that has it, gone in the one that mended it."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from findings import FOLDER, printed, scripts
from pagedkv import check

try:
    VERSION = metadata.version("vllm")
except metadata.PackageNotFoundError:
    VERSION = "none"
TARGET = "vllm_early_v1:Manager"
MENDED = {"0.6.6.post1": False, "0.7.0": True}

pytestmark = pytest.mark.skipif(VERSION not in MENDED, reason=f"vllm is {VERSION}")


@pytest.fixture(autouse=True)
def adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_the_fault_is_found_where_it_is_and_only_there():
    (report,) = check(TARGET, budget=600).targets
    if MENDED[VERSION]:
        assert (report.verdict, report.coverage.exhausted) == ("passed", True)
        return
    assert report.verdict == "violated"
    found = {example.property: example for example in report.counterexamples}
    assert set(found) == {"conservation", "ref-counts", "rollback"}
    for example in found.values():
        assert [str(command) for command in example.commands] == [
            "prefill(0, 2)",
            "release(0)",
            "prefill(1, 1)",
            "resume(0)",
        ]


@pytest.mark.skipif(MENDED.get(VERSION, True), reason="mended")
def test_the_script_of_the_page_prints_what_it_says():
    for script, output in scripts("vllm-hits-pinned.md"):
        assert printed(script) == output


def test_only_the_allocator_is_imported():
    check(TARGET, budget=1, properties=["conservation"])
    assert not {"vllm.engine", "vllm.config", "transformers"} & _from_files()


def _from_files() -> set[str]:
    return {name for name, module in sys.modules.items() if getattr(module, "__file__", None)}
