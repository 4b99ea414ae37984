"""Rollback atomicity and the answers that are due, on plain data."""

from __future__ import annotations

import pytest

from builders import declaring, handle, message, setting, state, step
from pagedkv import Returns
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken
from pagedkv.specs.rollback import judge_answered, judge_exact, judge_refused, judge_unchanged
from pagedkv.specs.steps import DONE, Done, Grant, NoBlocks, Raised, Refuse, Refused

OOM = NoBlocks("OOM: none left")
FULL = state({0: 8}, {0: (0, 1, 2, 3)})
HALF = state({0: 4}, {0: (0, 1)})
REFUSALS = [OOM, Refused("no"), Raised("KeyError", "0")]


def oom(after, **fields):
    return step(Decode(0), FULL, after, outcome=OOM, **fields)


@pytest.mark.parametrize("outcome", REFUSALS, ids=lambda o: type(o).__name__)
def test_accepts_a_refusal_that_changes_nothing(outcome):
    assert judge_unchanged(step(Decode(0), FULL, FULL, outcome=outcome)) is HOLDS


def test_a_grant_may_change_things():
    assert judge_unchanged(step(Release(0), FULL, state({}, {}, released={0: 8}))) is VACUOUS


def test_wrong_use_that_returns_must_change_nothing_either():
    silent = step(Misuse(0, "prefill-live"), HALF, HALF)
    assert judge_unchanged(silent) is HOLDS
    moved = step(Misuse(0, "prefill-live"), HALF, state({0: 4}, {0: (2, 3)}), returned=FULL_HANDLE)
    assert "misuse(0, prefill-live) ended in: done" in message(judge_unchanged(moved))


FULL_HANDLE = handle(0, 8, (0, 1, 2, 3))


def test_rejects_a_refusal_that_changes_its_request():
    judgement = judge_unchanged(
        oom(FULL, given=FULL_HANDLE, returned=FULL_HANDLE._replace(seq_len=9))
    )
    expected = (
        "request 0: seq_len before 8 != 9 after; decode(0) ended in: out of blocks (OOM: none left)"
    )
    assert Broken(expected, (), (0,)) == judgement


@pytest.mark.parametrize(
    "change", [{"block_table": ()}, {"tokens": (0,)}, {"request_id": 3}], ids=str
)
def test_rejects_a_refusal_that_changes_any_field_of_its_request(change):
    returned = FULL_HANDLE._replace(**change)
    assert "!= " in message(judge_unchanged(oom(FULL, given=FULL_HANDLE, returned=returned)))


def test_rejects_a_refusal_that_leaks_a_block():
    after = state({0: 4}, {0: (0, 1)}, free=(3,))
    judgement = judge_unchanged(step(Prefill(1, 9), HALF, after, outcome=OOM))
    expected = (
        "free_blocks before [2, 3] != [3] after; "
        "prefill(1, 9) ended in: out of blocks (OOM: none left)"
    )
    assert Broken(expected) == judgement


def test_rejects_a_refusal_that_reorders_the_free_list():
    after = state({0: 4}, {0: (0, 1)}, free=(3, 2))
    judgement = judge_unchanged(step(Prefill(1, 9), HALF, after, outcome=OOM))
    assert "free_blocks before [2, 3] != [3, 2] after" in message(judgement)


def test_accepts_a_reordered_free_list_only_where_that_is_declared():
    within = setting(declared=declaring(reorders_free=True))
    before = state({0: 4}, {0: (0, 1)}, within=within)
    turned = state({0: 4}, {0: (0, 1)}, within=within, free=(3, 2))
    leaked = state({0: 4}, {0: (0, 1)}, within=within, free=(3,))
    assert judge_unchanged(step(Prefill(1, 9), before, turned, outcome=OOM)) is HOLDS
    judgement = judge_unchanged(step(Prefill(1, 9), before, leaked, outcome=OOM))
    assert "free_blocks before [2, 3] != [3] after" in message(judgement)


def test_a_reordered_free_list_does_not_excuse_a_changed_handle():
    within = setting(declared=declaring(reorders_free=True))
    before = state({0: 4}, {0: (0, 1)}, within=within)
    after = state({0: 4}, {0: (0, 1)}, within=within, free=(3, 2), handles={0: handle(0, 4)})
    judgement = judge_unchanged(step(Prefill(1, 9), before, after, outcome=OOM))
    assert message(judgement).startswith("request 0: block_table before [0, 1] != [] after")


@pytest.mark.parametrize(
    ("field", "was", "now", "words"),
    [
        ("num_free", 2, 1, "num_free before 2 != 1 after"),
        ("ref_counts", {0: 1}, {0: 2}, "ref_counts before {0: 1} != {0: 2} after"),
        ("cached", frozenset({3, 2}), frozenset(), "cached before {2, 3} != {} after"),
        ("capacities", {0: 4}, {0: 2}, "capacities before {0: 4} != {0: 2} after"),
    ],
)
def test_rejects_a_refusal_that_changes_any_field_of_the_snapshot(field, was, now, words):
    before = state({0: 4}, {0: (0, 1)}, **{field: was})
    after = state({0: 4}, {0: (0, 1)}, **{field: now})
    judgement = judge_unchanged(step(Decode(0), before, after, outcome=Refused("no")))
    assert f"{words}; decode(0) ended in: refused (no)" == message(judgement)


def test_rejects_a_refusal_that_changes_a_table_or_length():
    moved = state({0: 4}, {0: (0, 2)}, free=(2, 3))
    longer = state({0: 4}, {0: (0, 1)}, seq_lens={0: 5})
    for after, words in (
        (moved, "block_tables before {0: [0, 1]} != {0: [0, 2]} after"),
        (longer, "seq_lens before {0: 4} != {0: 5} after"),
    ):
        judgement = judge_unchanged(step(Prefill(1, 9), HALF, after, outcome=OOM))
        assert words in message(judgement)


def test_rejects_a_refusal_that_changes_another_handle():
    after = state({0: 4}, {0: (0, 1)}, handles={0: handle(0, 5, (0, 1))})
    judgement = judge_unchanged(step(Prefill(1, 9), HALF, after, outcome=OOM))
    expected = (
        "request 0: seq_len before 4 != 5 after; "
        "prefill(1, 9) ended in: out of blocks (OOM: none left)"
    )
    assert Broken(expected, (), (0,)) == judgement


def test_accepts_out_of_blocks_exactly_when_they_are_not_there():
    assert judge_exact(step(Decode(0), FULL, FULL, outcome=OOM)) is HOLDS
    assert (
        judge_exact(step(Prefill(1, 4), HALF, state({0: 4, 1: 4}, {0: (0, 1), 1: (2, 3)}))) is HOLDS
    )
    assert judge_exact(step(Prefill(1, 5), HALF, HALF, outcome=OOM)) is HOLDS


def test_wrong_use_needs_no_blocks():
    assert judge_exact(step(Misuse(0, "prefill-live"), FULL, FULL, outcome=OOM)) is VACUOUS


def test_rejects_a_grant_of_blocks_that_are_not_there():
    judgement = judge_exact(step(Prefill(1, 5), HALF, HALF, outcome=DONE))
    assert Broken("prefill(1, 5) granted: needed(3) > available(2)") == judgement


def test_a_grant_that_can_be_none_says_what_the_call_returned():
    judgement = judge_exact(step(Prefill(1, 5), HALF, HALF, outcome=Done("False")))
    says = "it returned False: if that says out of blocks, declare Returns(False)"
    assert Broken(f"prefill(1, 5) granted: needed(3) > available(2); {says}") == judgement


def test_rejects_out_of_blocks_while_they_are_there():
    judgement = judge_exact(step(Prefill(1, 4), HALF, HALF, outcome=OOM))
    expected = "prefill(1, 4) refused as out of blocks: needed(2) <= available(2); OOM: none left"
    assert Broken(expected) == judgement


def test_rejects_out_of_blocks_for_a_call_that_needs_none():
    inside = state({0: 3}, {0: (0, 1)}, free=())
    judgement = judge_exact(step(Decode(0), inside, inside, outcome=OOM))
    assert "needed(0) <= available(0)" in message(judgement)


def test_either_answer_is_right_between_low_and_high():
    due = Grant(low=1, high=3)
    for outcome in (DONE, OOM):
        assert judge_exact(step(Decode(0), HALF, HALF, expected=due, outcome=outcome)) is HOLDS


def test_an_early_refusal_is_right_only_where_it_is_declared():
    within = setting(declared=declaring(refuses_early=True))
    early = state({0: 4}, {0: (0, 1)}, within=within)
    assert judge_exact(step(Prefill(1, 2), early, early, outcome=OOM)) is HOLDS
    late = step(Prefill(1, 5), early, early, outcome=DONE)
    assert "needed(3) > available(2)" in message(judge_exact(late))


def test_no_declaration_excuses_a_release_that_is_out_of_blocks():
    within = setting(declared=declaring(refuses_early=True))
    seen = state({0: 4}, {0: (0, 1)}, within=within)
    assert "release(0)" in message(judge_exact(step(Release(0), seen, seen, outcome=OOM)))


@pytest.mark.parametrize(
    ("snapshot", "available"),
    [
        ({"free": (2,)}, 1),
        ({"free": (2,), "cached": frozenset({3})}, 2),
        ({"free": (2, 3), "cached": frozenset({3})}, 2),
        ({"free": None, "num_free": 1}, 1),
        ({"free": None}, 2),
        ({"free": (2, 2)}, 1),
        ({"free": None, "pending": {3: 1}}, 1),
    ],
    ids=["free list", "cached apart", "cached in it", "counter", "tables", "twice", "pending"],
)
def test_available_is_read_from_the_best_source_there_is(snapshot, available):
    assert available == state({0: 4}, {0: (0, 1)}, **snapshot).available


def test_accepts_wrong_use_that_gets_a_value_error():
    assert judge_refused(step(Misuse(0, "prefill-live"), HALF, HALF, outcome=Refused("no"))) is (
        HOLDS
    )


def test_right_use_is_no_wrong_use():
    assert judge_refused(step(Decode(0), HALF, HALF, outcome=Refused("no"))) is VACUOUS


@pytest.mark.parametrize(
    ("outcome", "words"),
    [(DONE, "done"), (OOM, "out of blocks (OOM: none left)"), (REFUSALS[2], "raised KeyError: 0")],
    ids=["done", "out of blocks", "raised"],
)
def test_rejects_wrong_use_that_gets_anything_else(outcome, words):
    judgement = judge_refused(step(Misuse(0, "release-duplicate"), HALF, HALF, outcome=outcome))
    expected = (
        f"misuse(0, release-duplicate): {words} != a ValueError, "
        f"since its table names a block twice"
    )
    assert Broken(expected, (), (0,)) == judgement


def test_wrong_use_that_is_declared_silent_must_be_silent():
    silent = Refuse(noop=True, why="the request was released")
    wrong = Misuse(0, "decode-released")
    assert judge_refused(step(wrong, HALF, HALF, expected=silent, outcome=DONE)) is HOLDS
    judgement = judge_refused(step(wrong, HALF, HALF, expected=silent, outcome=Refused("no")))
    assert message(judgement) == (
        "misuse(0, decode-released): refused (no) != no effect and no error, "
        "since the request was released"
    )


def test_where_a_value_says_no_it_may_say_so_to_silent_wrong_use():
    silent = Refuse(noop=True, why="the request was released")
    no = NoBlocks("returned False")

    def judged(due, declared):
        seen = state({0: 4}, {0: (0, 1)}, within=setting(declared=declared))
        return judge_refused(step(Misuse(0, "prefill-live"), seen, seen, expected=due, outcome=no))

    by_value = declaring(out_of_blocks=(Returns(False),))
    assert judged(silent, by_value) is HOLDS
    assert "!= no effect and no error" in message(judged(silent, declaring()))
    assert "!= a ValueError" in message(judged(Refuse(noop=False, why="it is live"), by_value))


@pytest.mark.parametrize("outcome", [DONE, OOM], ids=["granted", "out of blocks"])
def test_accepts_both_answers_to_an_allowed_call(outcome):
    assert judge_answered(step(Decode(0), HALF, HALF, outcome=outcome)) is HOLDS


@pytest.mark.parametrize(
    ("outcome", "words"),
    [(Refused("no"), "refused (no)"), (Raised("KeyError", "0"), "raised KeyError: 0")],
    ids=["refused", "raised"],
)
def test_rejects_any_other_answer_to_an_allowed_call(outcome, words):
    judgement = judge_answered(step(Decode(0), HALF, HALF, outcome=outcome))
    expected = f"decode(0): {words}; a grant or out-of-blocks was due"
    assert Broken(expected, (), (0,)) == judgement


def test_wrong_use_is_not_judged_as_an_allowed_call():
    wrong = step(Misuse(0, "prefill-live"), HALF, HALF, outcome=Raised("KeyError", "0"))
    assert judge_answered(wrong) is VACUOUS


def test_a_step_is_granted_only_if_it_was_allowed_and_done():
    allowed, wrong = Decode(0), Misuse(0, "prefill-live")
    assert step(allowed, HALF, HALF, outcome=Done()).granted
    assert not step(wrong, HALF, HALF, outcome=Done()).granted
    assert not step(allowed, HALF, HALF, outcome=OOM).granted


def test_a_hidden_free_list_has_no_order_that_could_be_declared():
    within = setting(declared=declaring(reorders_free=True))
    before = state({0: 4}, {0: (0, 1)}, within=within, free=None, num_free=2)
    after = state({0: 4}, {0: (0, 1)}, within=within, free=None, num_free=1)
    judgement = judge_unchanged(step(Decode(0), before, after, outcome=NoBlocks("no")))
    assert "num_free before 2 != 1 after" in message(judgement)
