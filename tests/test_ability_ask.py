"""Ask: what the manager says it would do is what it does, and asking changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from allocators import broken
from builders import message, state, step
from pagedkv import Declarations, SharedKVCacheManager
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.ask import ASK, judge_agrees, judge_pure
from pagedkv.specs.abilities.core import KINDS, Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import COMMANDS
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, Sometimes
from pagedkv.specs.steps import DONE, Asked, NoBlocks, Raised, Refused
from pagedkv.stateful.profiles import PROFILES
from pagedkv.stateful.world import World

OOM = NoBlocks("OOM")
HALF = state({0: 4}, {0: (0, 1)})
LESS = state({0: 4}, {0: (0, 1)}, free=(3,))


def asked(answer, outcome, command=Decode(0), changed=None):  # noqa: B008 - it is frozen
    return step(command, HALF, HALF, outcome=outcome, asked=Asked(answer, changed))


@pytest.mark.parametrize(("answer", "outcome"), [(True, DONE), (False, OOM)], ids=str)
def test_accepts_an_answer_that_the_call_then_gives_too(answer, outcome):
    assert judge_agrees(asked(answer, outcome)) is HOLDS


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (True, OOM, "True != False, for it ended in: out of blocks (OOM)"),
        (False, DONE, "False != True, for it ended in: done"),
        (None, OOM, "None != False, for it ended in: out of blocks (OOM)"),
        (1, DONE, "1 != True, for it ended in: done"),
        (Raised("KeyError", "0"), DONE, "raised KeyError: 0 != True, for it ended in: done"),
    ],
    ids=str,
)
def test_rejects_an_answer_that_is_another_or_none(answer, outcome, words):
    expected = f"asked whether decode(0) would be granted: {words}"
    assert Broken(expected, (), (0,)) == judge_agrees(asked(answer, outcome))


class Numpy(SharedKVCacheManager.configured("ask")):  # type: ignore[misc]
    """Says it in what it counts with."""

    def can_prefill(self, req):
        return np.int64(-(-req.seq_len // self.block_size)) <= len(self.free_blocks)

    def can_decode(self, req):
        return req.seq_len % self.block_size or len(self.free_blocks)


class Silent(Numpy):
    def can_decode(self, req):
        pass


class Negated(Numpy):
    def can_decode(self, req):
        return not super().can_decode(req)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Numpy, {}),
        (Silent, {"asked-agrees": "None != True"}),
        (Negated, {"asked-agrees": "False != True"}),
    ],
)
def test_an_answer_is_yes_where_if_takes_it_for_one(kind, said):
    here = World(kind, Geometry(2, 1), abilities=frozenset({"ask"}))
    found = broken(here, Prefill(0, 1), Decode(0))
    assert found.keys() == said.keys()
    assert all(words in found[name] for name, words in said.items())


def test_a_fork_is_asked_of_its_parent():
    judgement = judge_agrees(asked(True, OOM, Fork(1, 0)))
    assert isinstance(judgement, Broken)
    assert judgement.requests == (0,)


def test_nothing_to_judge_where_nothing_was_asked_or_the_call_answered_otherwise():
    assert judge_agrees(step(Decode(0), HALF, HALF)) is VACUOUS
    assert judge_agrees(asked(True, Refused("no"))) is VACUOUS
    assert judge_agrees(asked(False, Raised("KeyError", "0"))) is VACUOUS
    wrong = Misuse(0, "prefill-live")
    assert judge_agrees(asked(True, OOM, wrong)) is VACUOUS


def test_accepts_a_question_that_changes_nothing():
    assert judge_pure(asked(True, DONE)) is HOLDS
    assert judge_pure(step(Decode(0), HALF, HALF)) is VACUOUS


def test_a_question_may_leave_a_zero_behind():
    zero = state({0: 4}, {0: (0, 1)}, ref_counts={0: 1, 1: 1, 2: 0})
    without = state({0: 4}, {0: (0, 1)}, ref_counts={0: 1, 1: 1})
    changed = (without.seen.snapshot, zero.seen.snapshot)
    assert judge_pure(asked(True, DONE, changed=changed)) is HOLDS


def test_rejects_a_question_that_changes_something():
    changed = (HALF.seen.snapshot, LESS.seen.snapshot)
    judgement = judge_pure(asked(False, OOM, changed=changed))
    assert message(judgement) == (
        "free_blocks before [2, 3] != [3] after asking whether decode(0) would be granted"
    )


def test_the_goal_is_a_no():
    goal = ASK.properties[-1].expectation
    assert isinstance(goal, Sometimes)
    assert goal.reached(asked(False, OOM))
    assert not goal.reached(asked(True, DONE))
    assert not goal.reached(asked(0, OOM))
    assert not goal.reached(step(Decode(0), HALF, HALF, outcome=OOM))


QUESTIONS = {
    Decode(0): ("can_decode", ()),
    Prefill(0, 2): ("can_prefill", ()),
    Resume(0): ("can_prefill", ()),
    Admit(0, (1,), 0): ("can_prefill", ()),
    Append(0, 3): ("can_append", (3,)),
    Fork(1, 0): ("can_fork", ()),
    SwapOut(0): ("can_swap_out", ()),
    SwapIn(0): ("can_swap_in", ()),
}
NONE = [Release(0), Truncate(0, 1), GroupBegin(), GroupEnd(), *(Misuse(0, k) for k in KINDS)]


def test_every_call_that_may_run_out_has_its_question_and_no_other_has():
    for command, question in QUESTIONS.items():
        assert question == command.question()
        assert command.asks_about() == 0
    assert [command.question() for command in NONE] == [None] * len(NONE)
    assert {c.op for c in (*QUESTIONS, *NONE)} == set(COMMANDS)


def test_asking_has_no_commands_of_its_own():
    assert ASK.commands == ()
    assert not list(ASK.candidates(HALF.model, HALF.setting))


@pytest.mark.parametrize(
    ("abilities", "named"),
    [
        ((), []),
        (("ask",), ["ask"]),
        (("append", "ask"), ["append"]),
        (("append", "fork"), ["append", "fork"]),
    ],
)
def test_whoever_can_be_asked_is_asked_in_every_scope_of_abilities(abilities, named):
    declared = Declarations(abilities=frozenset(abilities))
    scopes = PROFILES["quick"].scopes(declared, pair=False)[2:]
    assert [scope.name for scope in scopes] == named
    assert all(("ask" in scope.abilities) == ("ask" in abilities) for scope in scopes)


def test_each_search_is_called_by_what_it_tries():
    declared = Declarations(abilities=frozenset({"ask", "fork", "prefix"}))
    words = [scope.words for scope in PROFILES["quick"].scopes(declared, pair=False)]
    assert words == [
        "small pools",
        "small pools, released handles kept",
        "small pools with fork",
        "small pools with prefix, released handles kept",
        "small pools with fork and prefix, released handles kept",
    ]
