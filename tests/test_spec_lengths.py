"""seq_len consistency, on plain data."""

from __future__ import annotations

from typing import Any

import pytest

from able import able, after, seen
from builders import declaring, handle, message, setting, state, step
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.abilities.swap import SwapOut
from pagedkv.specs.lengths import judge_cover, judge_handle, judge_others, judge_seq_len
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken
from pagedkv.specs.steps import NoBlocks

TWO = {0: (0, 1), 1: (2,)}


def test_accepts_the_tokens_that_were_put_in():
    right = state({0: 3, 1: 1}, TWO, released={2: 5})
    assert judge_seq_len(right) is HOLDS
    assert judge_cover(right) is HOLDS


def test_nothing_to_judge_without_a_request():
    assert judge_seq_len(state({}, {})) is VACUOUS
    assert judge_cover(state({}, {})) is VACUOUS


def test_a_released_request_has_a_length_but_no_table_to_judge():
    over = state({}, {}, released={0: 3})
    assert judge_seq_len(over) is HOLDS
    assert judge_cover(over) is VACUOUS


def test_rejects_a_snapshot_of_another_length():
    judgement = judge_seq_len(state({0: 3}, {0: (0, 1)}, seq_lens={0: 4}))
    assert Broken("snapshot.seq_lens[0] = 4 != 3 = tokens put in", (), (0,)) == judgement


def test_rejects_a_snapshot_that_forgets_a_length():
    judgement = judge_seq_len(state({0: 3}, {0: (0, 1)}, seq_lens={}))
    assert message(judgement) == "snapshot.seq_lens[0] = None != 3 = tokens put in"


def test_rejects_a_snapshot_with_the_length_of_a_request_that_is_not_live():
    judgement = judge_seq_len(state({0: 3}, {0: (0, 1)}, seq_lens={0: 3, 1: 2}))
    expected = "snapshot.seq_lens names request 1, which is not live"
    assert Broken(expected, (), (1,)) == judgement


def test_rejects_a_handle_of_another_length():
    judgement = judge_seq_len(state({0: 3}, {0: (0, 1)}, handles={0: handle(0, 2, (0, 1))}))
    assert Broken("request 0: seq_len = 2 != 3 = tokens put in", (), (0,)) == judgement


def test_rejects_a_released_handle_that_forgets_its_length():
    judgement = judge_seq_len(state({}, {}, released={1: 3}, handles={1: handle(1, 1)}))
    assert message(judgement) == "request 1: seq_len = 1 != 3 = tokens put in"


def test_all_handles_are_looked_at_while_a_request_is_swapped_out():
    within = able("swap", host=4)
    out = after(within, Prefill(0, 3), Prefill(1, 1), Prefill(2, 2), Release(2), SwapOut(0))
    shown: dict[str, Any] = {"swapped": {0: (0, 1)}, "host_free": (2, 3)}
    right = seen(within, out, {1: (2,)}, **shown)
    assert judge_seq_len(right) is HOLDS
    for r, length in ((0, 3), (1, 1), (2, 2)):
        wrong = {r: right.seen.handles[r]._replace(seq_len=9)}
        judgement = judge_seq_len(seen(within, out, {1: (2,)}, handles=wrong, **shown))
        assert message(judgement) == f"request {r}: seq_len = 9 != {length} = tokens put in"


def test_a_request_that_goes_out_keeps_its_length():
    within = able("swap", host=4)
    live = after(within, Prefill(0, 3))
    out = after(within, SwapOut(0), start=live)
    first = seen(within, live, {0: (0, 1)}, swapped={}, host_free=(0, 1, 2, 3))
    second = seen(within, out, {}, swapped={0: (0, 1)}, host_free=(2, 3))
    assert judge_handle(step(SwapOut(0), first, second)) is HOLDS
    reset = second.seen.handles[0]._replace(seq_len=0)
    judgement = judge_handle(step(SwapOut(0), first, second, returned=reset))
    assert message(judgement) == "swap_out(0): seq_len = 0 != 3 = tokens put in"


@pytest.mark.parametrize(("tokens", "table"), [(4, (0, 1)), (1, (2,)), (3, (1, 0))])
def test_accepts_exactly_the_blocks_that_the_tokens_need(tokens, table):
    assert judge_cover(state({0: tokens}, {0: table})) is HOLDS


@pytest.mark.parametrize(("tokens", "table", "need"), [(5, (0, 1), 3), (4, (0, 1, 2), 2)])
def test_rejects_a_block_too_few_or_too_many(tokens, table, need):
    judgement = judge_cover(state({0: tokens}, {0: table}))
    expected = (
        f"len(block_table[0]) = {len(table)} != {need} = ceil({tokens} tokens / block_size 2)"
    )
    assert Broken(expected, table, (0,)) == judgement


def test_accepts_declared_lookahead_and_no_more():
    within = setting(declared=declaring(lookahead=1))
    assert judge_cover(state({0: 2}, {0: (0,)}, within=within)) is HOLDS
    assert judge_cover(state({0: 2}, {0: (0, 1)}, within=within)) is HOLDS
    judgement = judge_cover(state({0: 2}, {0: (0, 1, 2)}, within=within))
    assert message(judgement).startswith("len(block_table[0]) = 3 != 1 (+ lookahead 1)")


def test_rejects_a_live_request_without_a_table():
    judgement = judge_cover(state({0: 3}, {}))
    assert Broken("request 0 is live with 3 tokens but has no table", (), (0,)) == judgement


def test_rejects_a_table_of_a_request_that_is_not_live():
    judgement = judge_cover(state({}, {1: (0,)}, released={1: 2}))
    assert Broken("request 1 is not live but has block_table [0]", (), (1,)) == judgement


def test_accepts_a_step_that_leaves_the_others_alone():
    before, after = state({0: 3, 1: 1}, TWO), state({0: 4, 1: 1}, TWO)
    assert judge_others(step(Decode(0), before, after)) is HOLDS


def test_no_others_to_judge_when_the_request_is_alone():
    before, after = state({0: 3}, {0: (0, 1)}), state({0: 4}, {0: (0, 1)})
    assert judge_others(step(Decode(0), before, after)) is VACUOUS


def test_rejects_a_step_that_moves_anothers_table():
    before = state({0: 3, 1: 1}, TWO)
    after = state({0: 4, 1: 1}, {0: (0, 1), 1: (3,)})
    judgement = judge_others(step(Decode(0), before, after))
    expected = "decode(0) changed request 1: block_table [2] before != [3] after"
    assert Broken(expected, (), (1,)) == judgement


def test_rejects_a_step_that_changes_anothers_length():
    before = state({0: 3, 1: 1}, TWO)
    after = state({0: 4, 1: 1}, TWO, seq_lens={0: 4, 1: 2})
    judgement = judge_others(step(Decode(0), before, after))
    assert message(judgement) == "decode(0) changed request 1: seq_len 1 before != 2 after"


def test_rejects_a_step_that_changes_anothers_handle():
    before = state({0: 3, 1: 1}, TWO)
    after = state({0: 4, 1: 1}, TWO, handles={1: handle(1, 1, (2,))._replace(tokens=(7,))})
    judgement = judge_others(step(Decode(0), before, after))
    assert (
        message(judgement) == "decode(0) changed request 1: request.tokens [0] before != [7] after"
    )


def test_rejects_a_step_that_changes_a_released_handle():
    before = state({0: 3}, {0: (0, 1)}, released={1: 1})
    after = state(
        {0: 4}, {0: (0, 1)}, released={1: 1}, handles={1: handle(1, 1)._replace(tokens=(7,))}
    )
    assert "request 1" in message(judge_others(step(Decode(0), before, after)))


def test_others_are_judged_after_a_refusal_too():
    before, after = state({0: 3, 1: 1}, TWO), state({0: 3, 1: 1}, {0: (0, 1), 1: (3,)})
    refused = step(Decode(0), before, after, outcome=NoBlocks("OOM"))
    assert "changed request 1" in message(judge_others(refused))


def test_accepts_a_handle_that_says_what_the_manager_holds():
    alone = state({0: 3}, {0: (0, 1)})
    for done in (
        step(Prefill(0, 3), state({}, {}), alone),
        step(Decode(0), alone, state({0: 4}, {0: (0, 1)})),
        step(Release(0), alone, state({}, {}, released={0: 3})),
        step(Resume(0), state({}, {}, released={0: 3}), alone),
    ):
        assert judge_handle(done) is HOLDS


def test_no_handle_is_judged_after_a_refusal_or_wrong_use():
    alone = state({0: 3}, {0: (0, 1)})
    assert judge_handle(step(Decode(0), alone, alone, outcome=NoBlocks("OOM"))) is VACUOUS
    assert judge_handle(step(Misuse(0, "prefill-live"), alone, alone)) is VACUOUS


def test_rejects_a_grant_that_leaves_seq_len_behind():
    before, after = state({0: 3}, {0: (0, 1)}), state({0: 4}, {0: (0, 1)})
    judgement = judge_handle(step(Decode(0), before, after, returned=handle(0, 3, (0, 1))))
    assert Broken("decode(0): seq_len = 3 != 4 = tokens put in", (), (0,)) == judgement


def test_rejects_a_release_that_resets_seq_len():
    before, after = state({0: 3}, {0: (0, 1)}), state({}, {}, released={0: 3})
    judgement = judge_handle(step(Release(0), before, after, returned=handle(0, 0)))
    assert message(judgement) == "release(0): seq_len = 0 != 3 = tokens put in"


def test_rejects_a_handle_with_another_table_than_the_managers():
    before, after = state({}, {}), state({0: 3}, {0: (0, 1)})
    judgement = judge_handle(step(Prefill(0, 3), before, after, returned=handle(0, 3, (0,))))
    expected = "prefill(0, 3): block_table = [0] != [0, 1], what the manager holds for it"
    assert Broken(expected, (), (0,)) == judgement


def test_rejects_a_release_that_leaves_the_table():
    before, after = state({0: 3}, {0: (0, 1)}), state({}, {}, released={0: 3})
    judgement = judge_handle(step(Release(0), before, after, returned=handle(0, 3, (0, 1))))
    assert "release(0): block_table = [0, 1] != []" in message(judgement)


def test_accepts_an_empty_handle_where_tables_are_kept_outside():
    within = setting(declared=declaring(tables_outside=True))
    before, after = state({}, {}, within=within), state({0: 3}, {0: (0, 1)}, within=within)
    assert judge_handle(step(Prefill(0, 3), before, after, returned=handle(0, 3))) is HOLDS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request_id": 5}, "request.request_id 0 before != 5 after"),
        ({"tokens": (0, 0, 9)}, "request.tokens [0, 0, 0] before != [0, 0, 9] after"),
    ],
    ids=["id", "tokens"],
)
def test_rejects_a_call_that_changes_the_requests_id_or_tokens(change, words):
    before, after = state({}, {}), state({0: 3}, {0: (0, 1)})
    right = handle(0, 3, (0, 1))
    judgement = judge_handle(
        step(Prefill(0, 3), before, after, given=handle(0, 3), returned=right._replace(**change))
    )
    assert Broken(f"prefill(0, 3): {words}", (), (0,)) == judgement


def test_rejects_a_step_after_which_anothers_handle_is_gone():
    before, after = state({0: 3}, {0: (0, 1)}, released={1: 1}), state({0: 4}, {0: (0, 1)})
    expected = (
        "decode(0) changed request 1: request (seq_len 1, block_table []) before != None after"
    )
    assert expected == message(judge_others(step(Decode(0), before, after)))
