"""Two targets side by side, on plain data."""

from __future__ import annotations

import pytest

from builders import handle, message, state, step
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.specs.lockstep import LOCKSTEP, judge_lockstep
from pagedkv.specs.properties import HOLDS, VACUOUS, Need
from pagedkv.specs.steps import NoBlocks, Refused

FRESH, ONE = state({}, {}), state({0: 3}, {0: (0, 1)})


def beside(peer_after, **fields):
    peer = step(Prefill(0, 3), FRESH, peer_after, **fields)
    return step(Prefill(0, 3), FRESH, ONE, peer=peer)


def test_needs_a_second_target():
    assert frozenset({Need.PEER}) == LOCKSTEP.needs
    assert judge_lockstep(step(Prefill(0, 3), FRESH, ONE)) is VACUOUS


def test_accepts_the_same_answer():
    assert judge_lockstep(beside(ONE)) is HOLDS


def test_accepts_other_blocks_and_another_order():
    assert judge_lockstep(beside(state({0: 3}, {0: (3, 1)}, free=(2, 0)))) is HOLDS


def test_accepts_refusals_in_other_words():
    peer = step(Decode(0), ONE, ONE, outcome=NoBlocks("no"))
    both = step(Decode(0), ONE, ONE, outcome=NoBlocks("OOM"), peer=peer)
    assert judge_lockstep(both) is HOLDS


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (
            beside(FRESH, outcome=NoBlocks("OOM")),
            "prefill(0, 3): outcome of the first = done != out of blocks of the second",
        ),
        (
            beside(state({0: 3}, {0: (0, 1)}, seq_lens={0: 4})),
            "prefill(0, 3): seq_lens of the first = {0: 3} != {0: 4} of the second",
        ),
        (
            beside(state({0: 3}, {0: (0, 1, 2)})),
            "prefill(0, 3): blocks per table of the first = {0: 2} != {0: 3} of the second",
        ),
        (
            beside(state({0: 3}, {0: (0, 1)}, free=(2,))),
            "prefill(0, 3): free blocks of the first = 2 != 1 of the second",
        ),
        (
            beside(ONE, returned=handle(0, 2, (0, 1))),
            "prefill(0, 3): seq_len of the handle of the first = 3 != 2 of the second",
        ),
    ],
    ids=["outcome", "lengths", "table sizes", "free count", "handle"],
)
def test_rejects_a_different_answer(peer, words):
    assert words == message(judge_lockstep(peer))


def test_a_refusal_and_out_of_blocks_are_different_answers():
    peer = step(Decode(0), ONE, ONE, outcome=Refused("no"))
    both = step(Decode(0), ONE, ONE, outcome=NoBlocks("OOM"), peer=peer)
    words = "decode(0): outcome of the first = out of blocks != refused of the second"
    assert words == message(judge_lockstep(both))
