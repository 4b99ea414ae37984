"""The adapter to smol-vllm: as its scheduler asks, and the manager by itself."""

from __future__ import annotations

import pytest

from engine import NAMES, admit, checked, figures, grow, seen
from findings import printed, scripts
from pagedkv.declarations import Raises
from pagedkv.protocol import Request, Snapshot

pytest.importorskip("smol_vllm", reason="pip install smol-vllm==0.1.2")

from pagedkv.engines.smol_vllm import SmolVllm, SmolVllmAlone


def test_blocks_come_first_in_first_out():
    manager = SmolVllm(3, 2, 1)
    first, second = admit(manager, 5, 3), admit(manager, 6, 1)
    assert (first.block_table, second.block_table) == ([0, 1], [2])
    manager.release_request(first)
    assert first.block_table == []
    grow(manager, second)
    grow(manager, second)
    assert manager.snapshot() == Snapshot(
        block_tables={6: (2, 0)},
        seq_lens={6: 3},
        free_blocks=(1,),
        num_free=1,
        ref_counts={2: 1, 0: 1},
    )


def test_asked_first_it_says_no_and_nothing_has_changed():
    manager = SmolVllm(1, 2, 1)
    request = admit(manager, 0, 1)
    grow(manager, request)
    before = (*seen(manager), repr(request))
    assert manager.allocate_for_prefill(Request(1, 1)) is False
    assert manager.allocate_for_decode(request) is False
    assert before == (*seen(manager), repr(request))


def test_asked_first_a_token_that_takes_no_block_is_granted_from_a_full_pool():
    manager = SmolVllm(1, 2, 1)
    request = admit(manager, 0, 1)
    assert manager.allocate_for_decode(request) is True


@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_by_itself_it_raises_what_is_declared(call):
    manager = SmolVllmAlone(1, 1, 1)
    request = admit(manager, 0, 1)
    allocate = {"prefill": manager.allocate_for_prefill, "decode": manager.allocate_for_decode}
    with pytest.raises(ValueError, match="free") as refusal:
        allocate[call](Request(1, 1) if call == "prefill" else request)
    told = [one for one in manager.declares.out_of_blocks if isinstance(one, Raises)]
    assert [one.containing in str(refusal.value) for one in told].count(True) == 1


def test_a_refused_token_is_counted():
    """The finding in docs/findings/; once smol-vllm has mended it, this fails and both change."""
    manager = SmolVllmAlone(1, 1, 1)
    request = admit(manager, 0, 1)
    with pytest.raises(ValueError, match="No free blocks to append"):
        manager.allocate_for_decode(request)
    assert manager.snapshot().seq_lens == {0: 2}


def test_the_key_calls_sequences_by_their_names():
    left, right = SmolVllm(3, 2, 1), SmolVllm(3, 2, 1)
    admit(left, 4, 3)
    admit(right, 7, 3)
    assert left.state_key({4: 0}) == right.state_key({7: 0})
    assert left.state_key(NAMES) != right.state_key(NAMES)


@pytest.mark.parametrize(
    ("target", "expected"),
    [("smol-vllm", ("passed", True, 784, 2703)), ("smol-vllm-alone", ("passed", False, 382, 1031))],
)
def test_the_verdict_is_as_recorded(target, expected):
    assert figures(checked(target)) == expected


@pytest.mark.parametrize(("script", "shown"), scripts("smol-vllm-append-counts.md"))
def test_the_script_of_the_finding_prints_what_it_says(script, shown):
    assert printed(script) == shown
