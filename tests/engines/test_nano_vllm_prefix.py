"""A fault that nano-vllm had: found in a release that has it, gone in the one that mended it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from findings import FOLDER, printed, scripts
from pagedkv import check

FAULTY = find_spec("nanovllmnpu") is not None

pytestmark = pytest.mark.skipif(
    not FAULTY and find_spec("nanovllm") is None, reason="needs nano-vllm-npu or nano-vllm-fork"
)


@pytest.fixture(autouse=True)
def adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def test_the_fault_is_found_where_it_is_and_only_there():
    (report,) = check("nano_vllm_prefix:Sharing", budget=300).targets
    if not FAULTY:
        assert (report.verdict, report.coverage.exhausted) == ("passed", True)
        assert (report.coverage.states, report.coverage.transitions) == (6977, 27151)
        return
    assert report.verdict == "violated"
    found = {example.property: example for example in report.counterexamples}
    assert {name: len(example.commands) for name, example in found.items()} == {
        "contents": 5,
        "prefix-published": 5,
        "table-unique": 6,
    }
    assert [str(command) for command in found["contents"].commands] == [
        "prefill(0, 2)",
        "release(0)",
        "admit(1, (1, 0, 0, 0), 0)",
        "release(1)",
        "resume(0)",
    ]


@pytest.mark.skipif(not FAULTY, reason="mended")
def test_the_script_of_the_page_prints_what_it_says():
    for script, output in scripts("nano-vllm-stale-hash.md"):
        assert printed(script) == output
