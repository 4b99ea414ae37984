"""Prefix caching: what is found again, what that makes of the blocks needed, and the index."""

from __future__ import annotations

from typing import Any

import pytest

from able import PLAIN, able, after, named, said, seen
from builders import message, step
from pagedkv import Request
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release, Resume
from pagedkv.specs.abilities.finding import (
    judge_counted,
    judge_found,
    judge_index,
    judge_kept,
    judge_published,
    judge_whole,
)
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.prefix import Admit, candidates
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.content import tags_of
from pagedkv.specs.growth import blocks_due
from pagedkv.specs.model import EMPTY, POISON
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, Need, Sometimes
from pagedkv.specs.steps import DONE, Grant, NoBlocks, Refused
from pagedkv.specs.tables import judge_unique

WITHIN = able("prefix")
FOUR = after(WITHIN, Prefill(0, 4))
OOM = NoBlocks("OOM")


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("command", "enabled"),
    [
        (Admit(1, (0, 0, 1), 0), True),
        (Admit(1, (1,), 1), True),
        (Admit(0, (1,), 0), False),
        (Admit(1, (), 0), False),
        (Admit(1, (0, 1), 0), True),
        (Admit(1, (1, 1), 0), False),
        (Admit(1, (2,), 0), False),
        (Admit(1, (0,), 2), True),
        (Admit(1, (0,), 3), False),
        (Admit(1, (0,), -1), False),
    ],
    ids=str,
)
def test_a_new_name_can_have_any_prompt_that_has_tags(command, enabled):
    assert enabled == command.enabled(FOUR, WITHIN)
    assert not command.enabled(after(PLAIN, Prefill(0, 4)), PLAIN)


def test_all_but_the_last_tokens_block_may_be_found():
    assert Grant(1, 2) == Admit(1, (1, 0, 0, 0), 0).expect(FOUR, WITHIN)
    assert Grant(1, 3) == Prefill(1, 5).expect(FOUR, WITHIN)
    assert Grant(1, 1) == Prefill(1, 2).expect(FOUR, WITHIN)
    ahead = able("prefix", lookahead=1)
    assert Grant(1, 3) == Prefill(1, 4).expect(FOUR, ahead)


def test_the_model_has_the_tags_of_the_prompt():
    dense = Admit(1, (1, 0, 0), 1).advance(FOUR, WITHIN)
    assert dense.live[1] == tags_of((1, 0, 0), 1, 2)
    assert dense.live[0] == FOUR.live[0] == tags_of((0, 0, 0, 0), 0, 2)
    assert after(WITHIN, Decode(1), start=dense).live[1] == tags_of((1, 0, 0, 0), 1, 2)


def test_a_released_prompt_is_kept_and_resumed_as_it_was():
    dense = after(WITHIN, Admit(0, (1, 0, 0), 1), Decode(0))
    over = after(WITHIN, Release(0), start=dense)
    assert over.kept == {0: dense.live[0]}
    assert dense == after(WITHIN, Resume(0), start=over)
    assert over.without_released() == EMPTY
    assert after(WITHIN, Admit(0, (0,), 0), start=over).kept == {}


def test_a_prompt_brings_its_request_and_takes_it_back():
    handles: dict[int, Request] = {}
    undo = Admit(1, (1, 0), 1).prepare(handles, seen(WITHIN, EMPTY, {}))
    assert (handles[1].tokens, handles[1].extra_key) == ([1, 0], 1)
    undo()
    assert handles == {}
    Admit(1, (1, 0), 0).prepare(handles, seen(WITHIN, EMPTY, {}))
    assert handles[1].extra_key is None
    assert said(Admit(1, (1,), 0), 1) == ("allocate_for_prefill", "r1")


class Finds:
    """A manager that found half of every prompt."""

    def cached_tokens(self, request):
        return request.prompt_len // 2


@pytest.mark.parametrize("command", [Admit(0, (0,), 0), Prefill(0, 4), Resume(0)], ids=str)
def test_what_a_prompt_found_is_not_written_again(command):
    found = command.written(Finds(), seen(WITHIN, EMPTY, {}), Request(0, 4))
    assert found == 2
    assert command.written(object(), seen(PLAIN, EMPTY, {}), Request(0, 4)) == 0


def test_prompts_are_tried_that_begin_their_blocks_with_zero_or_one():
    within = able("prefix", blocks=1)
    assert named(candidates(EMPTY, within)) == [
        *("admit(0, (1,), 0)", "admit(0, (0,), 1)"),
        *("admit(0, (1, 0), 0)", "admit(0, (0, 0), 1)"),
        *("admit(0, (0, 0, 1), 0)", "admit(0, (1, 0, 0), 0)"),
        *("admit(0, (1, 0, 1), 0)", "admit(0, (0, 0, 0), 1)"),
    ]


def test_long_prompts_differ_in_their_first_blocks_only():
    within = able("prefix", blocks=5, size=1)
    admits = [c for c in candidates(EMPTY, within) if isinstance(c, Admit)]
    found = [c for c in admits if len(c.tokens) == 5]
    assert len(found) == 8
    assert {c.tokens[3:] for c in found} == {(0, 0)}


def test_no_prompt_is_tried_where_nobody_may_come_or_it_is_not_asked_for():
    full = after(WITHIN, Prefill(0, 1), Prefill(1, 1), Prefill(2, 1))
    assert not list(candidates(full, WITHIN))
    assert not list(candidates(EMPTY, PLAIN))


def test_simpler_prompts_have_fewer_ones_fewer_tokens_or_no_extra_key():
    assert named(Admit(0, (1, 0, 1), 1).simpler()) == [
        "admit(0, (1, 0, 1), 0)",
        "admit(0, (0, 0, 1), 1)",
        "admit(0, (1, 0, 0), 1)",
        "admit(0, (1,), 1)",
        "admit(0, (1, 0), 1)",
        "admit(0, (1, 1, 0), 1)",
    ]
    assert named(Admit(0, (0, 0, 1), 2).simpler()) == [
        "admit(0, (0, 0, 1), 0)",
        "admit(0, (0, 0, 1), 1)",
        "admit(0, (0, 0, 0), 2)",
        "admit(0, (0,), 2)",
        "admit(0, (0, 0), 2)",
        "admit(0, (0, 1, 0), 2)",
        "admit(0, (1, 0, 0), 2)",
    ]
    assert named(Admit(0, (0,), 1).simpler()) == ["prefill(0, 1)"]
    assert named(Admit(0, (1,), 0).simpler()) == ["prefill(0, 1)", "admit(0, (0,), 0)"]


def test_simpler_prompts_have_each_one_at_an_earlier_place():
    moved = named(Admit(0, (0, 1, 0, 0, 1, 0, 1, 0), 0).simpler())[-4:]
    assert moved == [
        "admit(0, (1, 0, 0, 0, 1, 0, 1, 0), 0)",
        "admit(0, (0, 1, 0, 1, 0, 0, 1, 0), 0)",
        "admit(0, (0, 1, 1, 0, 0, 0, 1, 0), 0)",
        "admit(0, (0, 1, 0, 0, 1, 1, 0, 0), 0)",
    ]


def test_in_smaller_blocks_a_prompt_has_the_same_blocks():
    prompt = Admit(0, (1, 0, 0, 0, 0, 0, 1), 1)
    assert Admit(0, (1, 0, 0, 0, 1, 0), 1) == prompt.scaled(3, 2, full=True)
    assert Admit(0, (1, 0, 0, 0, 1), 1) == prompt.scaled(3, 2, full=False)
    assert Admit(0, (1, 0, 1), 1) == prompt.scaled(3, 1, full=False)
    assert Prefill(0, 4) == Prefill(0, 5).scaled(3, 2, full=True)
    ends = Admit(0, (0, 0, 0, 0, 0, 1, 1), 1)
    assert Admit(0, (0, 0, 0, 1, 1, 0), 1) == ends.scaled(3, 2, full=True)
    assert Admit(0, (0, 1, 1), 1) == ends.scaled(3, 1, full=False)


# ---------------------------------------------------------------- the index


def indexed(index, *, dense=FOUR, tables=None, **more):
    return seen(WITHIN, dense, {0: (0, 1)} if tables is None else tables, index=index, **more)


def test_accepts_an_index_of_whole_blocks_that_are_held_or_cached():
    assert judge_index(indexed({"a": 0, "b": 1})) is HOLDS
    assert judge_index(indexed({"a": 0})) is HOLDS
    cached = tags_of((1, 0), 0, 2)[-1]
    assert judge_index(indexed({"a": 0, "c": 3}, cached={3}, ends={3: cached})) is HOLDS


def test_nothing_to_judge_of_an_empty_index():
    assert judge_index(indexed({})) is VACUOUS
    assert judge_index(indexed(None)) is VACUOUS


@pytest.mark.parametrize(
    ("index", "more", "words", "block"),
    [
        ({"a": 2}, {}, "index[a] = 2, which is neither held nor cached", 2),
        ({"a": 1}, {"ends": {1: POISON}}, "index[a] = 1, which is not written to its end", 1),
        ({"a": 1, "b": 1}, {}, "index[b] = 1, which is index[a] too", 1),
    ],
    ids=["free", "unwritten", "two keys"],
)
def test_rejects_an_index_that_finds_what_it_should_not(index, more, words, block):
    assert Broken(words, (block,)) == judge_index(indexed(index, **more))


def test_rejects_two_blocks_of_one_content_in_the_index_unless_that_is_declared():
    same = tags_of((0, 0), 0, 2)[-1]
    cached: dict[str, Any] = {"cached": {3}, "ends": {3: same}}
    judgement = judge_index(indexed({"a": 0, "b": 3}, **cached))
    expected = "index[b] = 3, which ends in token 1 of prompt 0 0, as index[a] does"
    assert Broken(expected, (3,)) == judgement
    keeps = able("prefix", keeps_duplicates=True)
    state = seen(keeps, FOUR, {0: (0, 1)}, index={"a": 0, "b": 3}, **cached)
    assert judge_index(state) is HOLDS


def test_rejects_a_cached_block_that_nothing_finds():
    other = {2: tags_of((1, 0), 0, 2)[-1], 3: tags_of((1, 0), 1, 2)[-1]}
    judgement = judge_index(indexed({"a": 0, "b": 3}, cached={2, 3}, ends=other))
    assert Broken("block 2 is cached, but no key finds it", (2,)) == judgement


# ---------------------------------------------------------------- what a prompt finds


def before(index, *, dense=FOUR, tables=None, within=WITHIN, **more):
    return seen(within, dense, {0: (0, 1)} if tables is None else tables, index=index, **more)


def admitted(command, table, index, **more):
    """A prompt that is granted these blocks."""
    first = before(index, **more)
    dense = command.advance(first.model, first.setting)
    tables = {**first.seen.tables, command.request: table}
    return step(command, first, seen(first.setting, dense, tables, index=index))


BOTH = {"a": 0, "b": 1}


def test_accepts_a_prompt_that_finds_all_leading_blocks_but_that_of_its_last_token():
    assert judge_found(admitted(Prefill(1, 5), (0, 1, 2), BOTH)) is HOLDS
    assert judge_found(admitted(Prefill(1, 4), (0, 2), BOTH)) is HOLDS
    assert judge_found(admitted(Prefill(1, 2), (2,), BOTH)) is HOLDS


def test_accepts_a_prompt_that_finds_nothing_where_nothing_is_indexed():
    assert judge_found(admitted(Prefill(1, 5), (2, 3, 0), {}, tables={})) is HOLDS
    assert judge_found(admitted(Admit(1, (1, 0, 0), 0), (2, 3), BOTH)) is HOLDS
    assert judge_found(admitted(Admit(1, (0, 0, 0), 1), (2, 3), BOTH)) is HOLDS


@pytest.mark.parametrize(
    ("command", "table", "index", "words"),
    [
        (Prefill(1, 5), (0, 2, 3), BOTH, "found 1 block(s) != 2 = leading blocks [0, 1]"),
        (Prefill(1, 5), (2, 3, 3), BOTH, "found 0 block(s) != 2 = leading blocks [0, 1]"),
        (Prefill(1, 3), (2, 3), {"a": 0}, "found 0 block(s) != 1 = leading blocks [0]"),
    ],
    ids=["one of two", "none of two", "none of one"],
)
def test_rejects_a_prompt_that_does_not_find_what_is_there(command, table, index, words):
    judgement = judge_found(admitted(command, table, index))
    assert message(judgement) == f"{command}: {words} of its prompt that the index had"
    due = (0, 1) if index is BOTH else (0,)
    assert Broken(message(judgement), due, (1,)) == judgement


def test_what_stands_behind_a_gap_in_the_index_is_not_found():
    assert judge_found(admitted(Prefill(1, 5), (2, 3, 0), {"b": 1}, tables={0: (0, 1)})) is HOLDS


def test_cached_blocks_are_found_and_a_resumed_prompt_finds_its_own():
    over = after(WITHIN, Release(0), start=FOUR)
    ends = {0: FOUR.live[0][1], 1: FOUR.live[0][3]}
    there = {"dense": over, "tables": {}, "cached": {0, 1}, "ends": ends}
    assert judge_found(admitted(Resume(0), (0, 2), BOTH, **there)) is HOLDS
    judgement = judge_found(admitted(Resume(0), (3, 2), BOTH, **there))
    assert "resume(0): found 0 block(s) != 1" in message(judgement)


@pytest.mark.parametrize("judge", [judge_found, judge_counted], ids=["found", "counted"])
def test_nothing_to_judge_of_what_admits_no_prompt(judge):
    within = able("prefix", "fork")
    dense = after(within, Prefill(0, 4))
    first = seen(within, dense, {0: (0, 1)}, index=BOTH)
    child = seen(within, after(within, Fork(1, 0), start=dense), {0: (0, 1), 1: (0, 1)})
    assert judge(step(Fork(1, 0), first, child)) is VACUOUS
    grown = seen(within, after(within, Decode(0), start=dense), {0: (0, 1, 2)})
    assert judge(step(Decode(0), first, grown)) is VACUOUS
    assert judge(step(Prefill(1, 4), first, first, outcome=Refused("no"))) is VACUOUS


def test_nothing_is_found_by_a_prompt_that_is_refused():
    first = before(BOTH)
    assert judge_found(step(Prefill(1, 9), first, first, outcome=OOM)) is VACUOUS


# ---------------------------------------------------------------- what that makes of the blocks


def refused(command, index, **more):
    first = before(index, **more)
    return step(command, first, first, outcome=OOM)


def test_accepts_answers_that_count_what_is_found():
    assert judge_counted(admitted(Prefill(1, 5), (0, 1, 2), BOTH)) is HOLDS
    assert judge_counted(refused(Prefill(1, 9), BOTH)) is HOLDS
    one = {"free_blocks": (2,)}
    assert judge_counted(admitted(Prefill(1, 5), (0, 1, 2), BOTH, **one)) is HOLDS


def test_rejects_a_refusal_of_what_fits_with_what_is_found():
    judgement = judge_counted(refused(Prefill(1, 8), BOTH))
    assert message(judgement) == (
        "prefill(1, 8) refused as out of blocks: needed(2) <= available(2), "
        "for 2 block(s) of its prompt are found"
    )


def test_rejects_a_grant_of_more_than_there_is_beside_what_is_found():
    judgement = judge_counted(admitted(Prefill(1, 5), (0, 1, 2), BOTH, free_blocks=()))
    expected = (
        "prefill(1, 5) granted: needed(1) > available(0), for 2 block(s) of its prompt are found"
    )
    assert Broken(expected, (0, 1), (1,)) == judgement


def test_what_is_found_among_the_cached_can_not_be_evicted_for_the_same_prompt():
    over = after(WITHIN, Release(0), start=FOUR)
    ends = {0: FOUR.live[0][1], 1: FOUR.live[0][3]}
    there = {"dense": over, "tables": {}, "cached": {0, 1}, "ends": ends, "free_blocks": ()}
    assert judge_counted(refused(Prefill(1, 5), BOTH, **there)) is HOLDS
    granted = judge_counted(admitted(Prefill(1, 5), (0, 1, 2), BOTH, **there))
    assert "needed(1) > available(0)" in message(granted)


def test_an_early_refusal_is_right_only_where_it_is_declared():
    early = able("prefix", refuses_early=True)
    assert judge_counted(refused(Prefill(1, 5), BOTH, within=early)) is HOLDS
    assert judge_counted(refused(Prefill(1, 5), BOTH)) is not HOLDS


def test_lookahead_may_need_one_more():
    ahead = able("prefix", lookahead=1)
    last = {"free_blocks": (2,)}
    assert judge_counted(refused(Prefill(1, 5), BOTH, within=ahead, **last)) is HOLDS
    assert judge_counted(refused(Prefill(1, 5), BOTH, **last)) is not HOLDS
    none = {"within": ahead, "free_blocks": ()}
    assert judge_counted(admitted(Prefill(1, 5), (0, 1, 2), BOTH, **none)) is not HOLDS


def test_a_request_that_grows_may_have_what_it_needs_by_lookahead():
    ahead = able("prefix", "truncate", "append", lookahead=1)
    first = seen(ahead, CUT, HELD, index={"a": 0}, free_blocks=())
    grown = seen(ahead, after(ahead, Decode(0), start=CUT), HELD, free_blocks=())
    assert judge_counted(step(Decode(0), first, grown)) is HOLDS
    more = seen(ahead, after(ahead, Append(0, 3), start=CUT), HELD, free_blocks=())
    assert judge_counted(step(Append(0, 3), first, more)) is not HOLDS


# ---------------------------------------------------------------- a tail cut out of a block


CUTS = able("prefix", "truncate", "append")
CUT = after(CUTS, Prefill(0, 2), Prefill(1, 3), Truncate(0, 1))
"""Both hold block 0, whole in request 1, and request 0 has one token of it."""
HELD = {0: (0,), 1: (0, 1)}


def cut(**more):
    return seen(CUTS, CUT, HELD, index={"a": 0}, **more)


def test_growing_past_a_tail_that_others_may_have_found_needs_a_copy_or_none():
    assert Grant(0, 1) == Decode(0).expect(CUT, CUTS)
    assert Grant(1, 2) == Append(0, 2).expect(CUT, CUTS)
    assert Grant(0, 1) == Decode(1).expect(CUT, CUTS)
    whole = after(CUTS, Prefill(0, 2))
    assert Grant(1, 1) == Decode(0).expect(whole, CUTS)
    assert Grant(0, 0) == Decode(0).expect(after(WITHIN, Prefill(0, 1)), WITHIN)


def test_a_tail_that_a_fork_shares_needs_its_copy_for_sure():
    within = able("prefix", "truncate", "fork")
    both = after(within, Prefill(0, 3), Fork(1, 0))
    assert Grant(1, 1) == Decode(0).expect(both, within)


def test_accepts_a_copy_of_a_tail_that_another_holds_and_no_copy_of_ones_own():
    full = cut(free_blocks=())
    assert judge_counted(step(Decode(0), full, full, outcome=OOM)) is HOLDS
    grown = after(CUTS, Decode(0), start=CUT)
    assert judge_counted(step(Decode(0), cut(), seen(CUTS, grown, {0: (2,), 1: (0, 1)}))) is HOLDS
    alone = after(CUTS, Prefill(0, 2), Truncate(0, 1))
    last = seen(CUTS, alone, {0: (0,)}, index={"a": 0}, free_blocks=())
    there = seen(CUTS, after(CUTS, Decode(0), start=alone), {0: (0,)}, free_blocks=())
    assert judge_counted(step(Decode(0), last, there)) is HOLDS


def test_rejects_a_grant_without_a_block_for_the_copy():
    grown = seen(CUTS, after(CUTS, Decode(0), start=CUT), HELD, free_blocks=())
    judgement = judge_counted(step(Decode(0), cut(free_blocks=()), grown))
    expected = (
        "decode(0) granted: needed(1) > available(0), "
        "for others hold 1 of the blocks [0] that it writes into"
    )
    assert Broken(expected, (0,), (0,)) == judgement


def test_rejects_a_refusal_for_a_copy_that_nobody_needs():
    alone = after(CUTS, Prefill(0, 2), Truncate(0, 1))
    full = seen(CUTS, alone, {0: (0,)}, index={"a": 0}, free_blocks=())
    judgement = judge_counted(step(Decode(0), full, full, outcome=OOM))
    assert "needed(0) <= available(0), for others hold 0 of the blocks [0]" in message(judgement)


def test_what_is_cut_once_more_needs_no_copy():
    within = able("prefix", "truncate", size=3)
    dense = after(within, Prefill(0, 3), Prefill(1, 4), Truncate(0, 2))
    first = seen(within, dense, HELD, free_blocks=())
    then = seen(within, after(within, Truncate(0, 1), start=dense), HELD, free_blocks=())
    assert judge_counted(step(Truncate(0, 1), first, then)) is VACUOUS


def test_what_growing_needs_is_not_judged_so_behind_a_window():
    within = able("prefix", "truncate", "window", window=3)
    dense = after(within, Prefill(0, 2), Prefill(1, 3), Truncate(0, 1))
    first = seen(within, dense, HELD, free_blocks=())
    grown = seen(within, after(within, Decode(0), start=dense), HELD, free_blocks=())
    assert judge_counted(step(Decode(0), first, grown)) is VACUOUS


def test_fewest_blocks_count_what_is_equal_once():
    assert blocks_due(CUT, CUTS) == 2
    assert blocks_due(after(CUTS, Decode(0), Decode(0), start=CUT), CUTS) == 2
    assert blocks_due(after(CUTS, Admit(2, (1,), 0), start=CUT), CUTS) == 3
    two = after(WITHIN, Prefill(0, 3), Prefill(1, 3))
    assert blocks_due(two, WITHIN) == 3


def test_requests_share_blocks_of_the_same_content_whole_or_cut():
    assert judge_unique(cut()) is HOLDS
    other = after(WITHIN, Prefill(0, 2), Admit(1, (1, 0, 0), 0))
    judgement = judge_unique(seen(WITHIN, other, {0: (0,), 1: (0, 1)}))
    assert "but the tokens there are not the same" in message(judgement)


def test_every_shared_block_is_compared_over_what_both_have_of_it():
    within = able("prefix", blocks=6)
    ends = after(within, Prefill(0, 4), Prefill(1, 3), Admit(2, (0, 0, 1, 0), 0))
    assert judge_unique(seen(within, ends, {0: (0, 1), 1: (0, 1), 2: (0, 2)})) is HOLDS
    wrong = judge_unique(seen(within, ends, {0: (0, 1), 1: (0, 3), 2: (0, 1)}))
    words = "block_table[0][1] = 1 = block_table[2][1], but the tokens there are not the same"
    assert Broken(words, (1,), (0, 2)) == wrong
    unknown = seen(within, EMPTY, {3: (5,), 4: (5,)})
    assert judge_unique(unknown) is HOLDS


# ---------------------------------------------------------------- what can be found afterwards


def test_accepts_a_prompt_whose_full_blocks_are_found_in_its_own_blocks_or_in_others():
    assert judge_published(admitted(Prefill(1, 5), (0, 1, 2), BOTH)) is HOLDS
    assert judge_published(admitted(Prefill(1, 4), (0, 2), BOTH)) is HOLDS
    assert judge_published(admitted(Prefill(1, 3), (0, 2), {"a": 0})) is HOLDS
    assert judge_published(admitted(Prefill(1, 2), (2,), {"a": 0})) is HOLDS


@pytest.mark.parametrize(
    ("command", "table", "index", "block"),
    [
        (Prefill(1, 5), (0, 3, 2), {"a": 0}, 1),
        (Prefill(1, 4), (0, 2), {"a": 0}, 1),
        (Prefill(1, 4), (0, 1), {"b": 1}, 0),
        (Admit(1, (1, 0), 0), (2,), BOTH, 0),
        (Admit(1, (0, 0), 1), (2,), BOTH, 0),
        (Prefill(1, 2), (2,), None, 0),
    ],
    ids=["between", "its last", "its first", "its only one", "under another key", "no index"],
)
def test_rejects_a_prompt_of_which_a_full_block_is_not_found(command, table, index, block):
    expected = f"{command}: no key finds block {block} of the prompt, which is full"
    judgement = judge_published(admitted(command, table, index))
    assert Broken(expected, (table[block],), (1,)) == judgement


def test_nothing_is_published_by_what_fills_no_block_of_a_new_prompt():
    first = before({})
    assert judge_published(admitted(Prefill(1, 1), (2,), {})) is VACUOUS
    assert judge_published(step(Prefill(1, 4), first, first, outcome=OOM)) is VACUOUS
    grown = seen(WITHIN, after(WITHIN, Decode(0), start=FOUR), {0: (0, 1, 2)})
    assert judge_published(step(Decode(0), first, grown)) is VACUOUS


OVER = after(WITHIN, Release(0), start=FOUR)
LAST = {0: FOUR.live[0][1], 1: FOUR.live[0][3]}
"""What the last slots of blocks 0 and 1 have."""


def released(was, now, *, ends=LAST, outcome=DONE, withheld=None):
    there = seen(WITHIN, OVER, {}, index=now, cached={*(now or ())}, ends=ends, withheld=withheld)
    return step(Release(0), before(was), there, outcome=outcome)


def test_accepts_a_release_after_which_the_same_is_found_whatever_the_block():
    assert judge_kept(released(BOTH, BOTH)) is HOLDS
    assert judge_kept(released(BOTH, {"a": 0, "c": 3}, ends={**LAST, 3: LAST[1]})) is HOLDS
    assert judge_kept(released({"a": 0}, BOTH)) is HOLDS


@pytest.mark.parametrize(
    ("now", "block", "content"),
    [({"a": 0}, 1, "3 of prompt 0 0 | 0 0"), ({"b": 1}, 0, "1 of prompt 0 0"), (None, 0, "1 of")],
    ids=["the last", "the first", "all"],
)
def test_rejects_a_release_after_which_less_is_found(now, block, content):
    judgement = judge_kept(released(BOTH, now))
    words = f"release(0): block {block}, which ends in token {content}"
    assert message(judgement).startswith(words)
    assert message(judgement).endswith(", was found before, and nothing is now")
    assert Broken(message(judgement), (block,)) == judgement


def test_what_waits_to_come_back_need_not_be_found_meanwhile():
    there = seen(WITHIN, OVER, {}, index={"a": 0}, cached={0}, ends=LAST, pending={1: 1})
    assert judge_kept(step(Release(0), before(BOTH), there)) is HOLDS
    lost = seen(WITHIN, OVER, {}, index={}, ends=LAST, pending={1: 1})
    assert "block 0, which ends in" in message(judge_kept(step(Release(0), before(BOTH), lost)))


def test_what_was_not_found_before_a_release_and_what_is_withheld_is_not_judged():
    assert judge_kept(released({}, {})) is VACUOUS
    assert judge_kept(released(BOTH, {}, outcome=Refused("no"))) is VACUOUS
    assert judge_kept(released(BOTH, {}, withheld={0, 1})) is VACUOUS
    gone = seen(WITHIN, OVER, {}, index={})
    assert judge_kept(step(Prefill(0, 1), seen(WITHIN, OVER, {}, index=BOTH), gone)) is VACUOUS


def test_what_somebody_still_holds_is_found_though_the_rest_may_be_forgotten():
    within = able("prefix", forgets_unheld=True)
    both = after(within, Prefill(0, 2), Prefill(1, 4))
    first = seen(within, both, {0: (0,), 1: (0, 1)}, index=BOTH)
    dense = after(within, Release(1), start=both)
    for index, right in (({"a": 0}, True), ({}, False)):
        judgement = judge_kept(step(Release(1), first, seen(within, dense, {0: (0,)}, index=index)))
        assert (judgement is HOLDS) == right
    nobody = after(within, Release(0), start=dense)
    last = seen(within, dense, {0: (0,)}, index={"a": 0})
    assert judge_kept(step(Release(0), last, seen(within, nobody, {}, index={}))) is VACUOUS


THREES = able("prefix", "append", "truncate", blocks=4, size=3)


def wrote(command, length, index, *, outcome=DONE):
    """Request 0, of so many tokens in blocks of 3, grows into blocks 0, 1, 2."""
    dense = after(THREES, Prefill(0, length))
    first = seen(THREES, dense, {0: (0, 1, 2)})
    then = dense if outcome is not DONE else command.advance(dense, THREES)
    there = seen(THREES, then, {0: (0, 1, 2)}, index=index)
    return step(command, first, there, outcome=outcome)


def test_accepts_a_tail_that_is_not_found_and_full_blocks_that_are():
    assert judge_whole(wrote(Decode(0), 4, {"a": 0})) is HOLDS
    assert judge_whole(wrote(Append(0, 6), 1, {"a": 0, "b": 1})) is HOLDS
    assert judge_whole(wrote(Decode(0), 4, {"a": 0, "c": 2})) is HOLDS
    assert judge_whole(wrote(Decode(0), 4, None)) is HOLDS


@pytest.mark.parametrize(
    ("command", "length", "block"),
    [(Decode(0), 1, 0), (Decode(0), 3, 1), (Decode(0), 4, 1), (Append(0, 6), 1, 2)],
    ids=["the first", "begun", "further", "many"],
)
def test_rejects_a_tail_that_is_found_though_it_was_written_into(command, length, block):
    expected = f"{command} wrote into block {block}, which is not full, and index[key] = {block}"
    judgement = judge_whole(wrote(command, length, {"other": 3, "key": block}))
    assert Broken(expected, (block,), (0,)) == judgement


def test_a_tail_is_not_judged_where_it_is_full_new_or_was_not_written_into():
    found = {"a": 0, "b": 1}
    assert judge_whole(wrote(Decode(0), 5, found)) is VACUOUS
    assert judge_whole(wrote(Decode(0), 4, found, outcome=OOM)) is VACUOUS
    assert judge_whole(wrote(Truncate(0, 4), 5, found)) is VACUOUS
    fresh = seen(THREES, after(THREES, Prefill(0, 4)), {0: (0, 1)}, index=found)
    assert judge_whole(step(Prefill(0, 4), seen(THREES, EMPTY, {}), fresh)) is VACUOUS


# ---------------------------------------------------------------- goals and needs


def test_the_first_goal_is_a_prompt_whose_first_block_was_there():
    goal = PROPERTIES["prefix-hit"].expectation
    assert isinstance(goal, Sometimes)
    assert goal.reached(admitted(Prefill(1, 5), (0, 1, 2), BOTH))
    assert goal.reached(admitted(Prefill(1, 4), (0, 2), BOTH))
    assert not goal.reached(admitted(Prefill(1, 5), (2, 3, 1), {}))
    grown = seen(WITHIN, after(WITHIN, Decode(0), start=FOUR), {0: (0, 1, 2)})
    assert not goal.reached(step(Decode(0), before(BOTH), grown))
    assert not goal.reached(refused(Prefill(1, 9), BOTH))
    first = before(BOTH)
    assert not goal.reached(step(Release(0), first, seen(WITHIN, EMPTY, {})))


def test_the_second_goal_is_a_cached_block_that_has_other_content():
    goal = PROPERTIES["cached-evicted"].expectation
    assert isinstance(goal, Sometimes)
    over = after(WITHIN, Release(0), start=FOUR)
    ends = {0: FOUR.live[0][1]}
    first = seen(WITHIN, over, {}, cached={0}, ends=ends)
    there = Admit(1, (1, 0), 0).advance(over, WITHIN)
    assert goal.reached(step(Admit(1, (1, 0), 0), first, seen(WITHIN, there, {1: (0,)})))
    hit = Prefill(1, 3).advance(over, WITHIN)
    assert not goal.reached(step(Prefill(1, 3), first, seen(WITHIN, hit, {1: (0, 1)})))
    assert not goal.reached(step(Admit(1, (1, 0), 0), first, first, outcome=OOM))


def test_the_index_is_judged_where_it_can_be_seen_only():
    assert Need.INDEX in offered(before({}))
    assert Need.INDEX not in offered(before(None))
    assert Need.INDEX not in offered(seen(PLAIN, EMPTY, {}, index={}))
