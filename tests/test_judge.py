"""The judge: which properties count, how often, and for whom."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from able import able, after, seen
from builders import handle, report, setting, state, step
from pagedkv import Declarations
from pagedkv.declarations import NOT_TRIED
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.abilities.swap import SwapOut
from pagedkv.specs.catalogue import ABILITIES, PROPERTIES, candidates, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.lockstep import LOCKSTEP
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.properties import Broken, EveryState, EveryStep, Need, Property, Violation
from pagedkv.specs.steps import DONE, NoBlocks, Refused, State

EVERYTHING = frozenset(Need)
FRESH, ONE = state({}, {}), state({0: 3}, {0: (0, 1)})
LEAKED = state({0: 3}, {0: (0, 1)}, free=(2,))
GROWN = step(Prefill(0, 3), FRESH, ONE)


def judge(*ids: str, needs: frozenset[Need] = EVERYTHING) -> Judge:
    return Judge([PROPERTIES[name] for name in ids], needs)


def said(violations: list[Violation]) -> list[str]:
    return [str(violation) for violation in violations]


def test_a_property_whose_need_is_not_offered_is_left_out():
    blind = judge("conservation", "contents", needs=frozenset())
    assert [PROPERTIES["contents"]] == list(blind.properties)
    assert blind.evaluations == {"contents": 0}
    assert blind.state(LEAKED) == []


def test_a_state_that_holds_counts_and_a_vacuous_one_does_not():
    here = judge("table-unique")
    assert here.state(FRESH) == []
    assert here.evaluations == {"table-unique": 0}
    assert here.state(ONE) == []
    assert here.evaluations == {"table-unique": 1}


def test_a_broken_state_is_a_violation_at_its_step_and_counts():
    here = judge("conservation")
    (violation,) = here.state(LEAKED, 4)
    assert (PROPERTIES["conservation"], 4) == (violation.property, violation.step)
    assert violation.broken.blocks == (3,)
    assert str(violation) == (
        "conservation: free(1) + held(2) + cached(0) != usable(4): leak, block 3 belongs to nobody"
    )
    assert here.evaluations == {"conservation": 1}


def test_a_vacuous_property_does_not_end_the_judging():
    here = judge("misuse-refused", "answered", "table-unique", "conservation")
    leaked = state({}, {}, free=(2,))
    assert [violation.property.id for violation in here.state(leaked)] == ["conservation"]
    wrong = step(Decode(0), ONE, ONE, outcome=Refused("no"))
    assert [violation.property.id for violation in here.step(wrong)] == ["answered"]


def test_each_judgement_counts():
    here = judge("conservation", "answered")
    for there in (FRESH, LEAKED, ONE):
        here.state(there)
    for _ in range(2):
        here.step(GROWN)
    assert here.evaluations == {"conservation": 3, "answered": 2}
    assert here.commands == {"prefill": 2}


def test_the_fresh_state_stands_at_step_0():
    (violation,) = judge("conservation").state(LEAKED)
    assert violation.step == 0


def test_a_step_counts_its_command_and_only_what_had_something_to_judge():
    here = judge("answered", "misuse-refused")
    assert here.step(GROWN) == []
    assert here.evaluations == {"answered": 1, "misuse-refused": 0}
    assert here.commands == {"prefill": 1}


def test_a_broken_step_is_a_violation_with_its_index():
    refused = step(Decode(0), ONE, ONE, outcome=Refused("no"), index=7)
    (violation,) = judge("answered").step(refused)
    assert 7 == violation.step  # noqa: SIM300
    assert violation.broken.requests == (0,)


def test_a_step_is_judged_apart_from_the_state_it_leads_to():
    here = judge("conservation", "answered")
    leaking = step(Prefill(0, 3), FRESH, LEAKED)
    assert here.step(leaking) == []
    assert here.evaluations == {"conservation": 0, "answered": 1}
    assert [v.property.id for v in here.reached(leaking)] == ["conservation"]


def test_violations_stand_in_the_order_of_the_catalogue():
    both = state({0: 3, 1: 1}, {0: (0, 1), 1: (1,)}, free=(1, 2, 3))
    found = judge("table-unique", "free-disjoint", "conservation").state(both)
    assert [v.property.id for v in found] == ["table-unique", "free-disjoint", "conservation"]


def test_a_goal_is_counted_once():
    here = judge("two-live", "table-grown")
    both = state({0: 3, 1: 2}, {0: (0, 1), 1: (2,)})
    second = step(Prefill(1, 2), ONE, both)
    assert here.step(GROWN) == []
    assert here.evaluations == {"two-live": 0, "table-grown": 0}
    for _ in range(3):
        assert here.step(second) == []
    assert here.evaluations == {"two-live": 1, "table-grown": 0}
    assert here.commands == {"prefill": 4}


def test_every_goal_that_one_step_reaches_is_counted():
    here = judge("two-live", "table-scattered", "pool-full")
    full = state({0: 4, 1: 4}, {0: (0, 1), 1: (3, 2)})
    here.step(step(Prefill(1, 4), state({0: 4}, {0: (0, 1)}), full))
    assert here.evaluations == {"two-live": 1, "table-scattered": 1, "pool-full": 1}


def test_the_second_target_is_judged_but_not_counted():
    here = Judge([PROPERTIES["answered"], LOCKSTEP], EVERYTHING)
    wrong = step(Decode(0), ONE, ONE, outcome=Refused("no"), index=3)
    right = step(Decode(0), ONE, state({0: 4}, {0: (0, 1)}), index=3, peer=wrong)
    found = here.step(right)
    assert [violation.property.id for violation in found] == ["lockstep", "answered"]
    assert 3 == found[1].step  # noqa: SIM300
    assert here.evaluations == {"answered": 1, "lockstep": 1}
    assert here.commands == {"decode": 1}


def test_what_both_targets_break_is_said_once():
    here = judge("answered")
    wrong = step(Decode(0), ONE, ONE, outcome=Refused("no"))
    both = step(Decode(0), ONE, ONE, outcome=Refused("never"), peer=wrong)
    assert said(here.step(both)) == [
        "answered: decode(0): refused (never); a grant or out-of-blocks was due"
    ]


def test_the_state_of_the_second_target_is_judged_where_the_first_holds():
    here = judge("conservation")
    leaking = step(Prefill(0, 3), FRESH, LEAKED)
    assert [v.property.id for v in here.reached(step(Prefill(0, 3), FRESH, ONE, peer=leaking))] == [
        "conservation"
    ]
    assert 1 == len(here.reached(step(Prefill(0, 3), FRESH, LEAKED, peer=leaking)))  # noqa: SIM300


def test_what_the_second_target_breaks_is_said_to_be_its_and_where():
    here = judge("conservation")
    step_3 = step(Prefill(0, 3), FRESH, LEAKED, index=3)
    (own,) = here.reached(step_3)
    (others,) = here.reached(step(Prefill(0, 3), FRESH, ONE, peer=step_3, index=3))
    assert (own.step, others.step) == (3, 3)
    assert others.broken.message == f"the second target: {own.broken.message}"
    assert others.broken.blocks == own.broken.blocks


def test_a_state_that_could_not_be_looked_at_is_not_judged():
    here = judge("conservation")
    leaking = step(Prefill(0, 3), FRESH, LEAKED)
    assert here.reached(leaking._replace(observed=False)) == []
    peer = step(Prefill(0, 3), FRESH, ONE, peer=leaking._replace(observed=False))
    assert here.reached(peer) == []
    assert here.evaluations == {"conservation": 1}


def test_a_property_that_the_second_target_does_not_offer_is_not_judged_of_it():
    counting, one = state({}, {}, num_free=4), state({0: 3}, {0: (0, 1)}, num_free=2)
    here = Judge([PROPERTIES["free-count"]], offered(counting, FRESH))
    peer = step(Prefill(0, 3), FRESH, ONE)
    assert here.reached(step(Prefill(0, 3), counting, one, peer=peer)) == []


def test_a_property_of_ones_own_is_judged_like_any_other():
    short = Property(
        "short-table",
        "Tables are short.",
        "len(table) < 2",
        EveryState(lambda seen: Broken(f"{dict(seen.seen.tables)} is long")),
    )
    loud = Property("loud", "Never.", "false", EveryStep(lambda step: Broken(str(step.command))))
    here = Judge([short, loud], frozenset())
    assert said(here.state(ONE)) == ["short-table: {0: (0, 1)} is long"]
    assert said(here.step(GROWN)) == ["loud: prefill(0, 3)"]


@pytest.mark.parametrize(
    ("shown", "need"),
    [
        ({"num_free": 4}, Need.COUNTER),
        ({"ref_counts": {}}, Need.REF_COUNTS),
        ({"reverse_map": frozenset()}, Need.REVERSE_MAP),
        ({"capacities": {}}, Need.CAPACITIES),
        ({"pending": {}}, Need.PENDING),
    ],
)
def test_what_the_snapshot_shows_is_offered(shown, need):
    assert need in offered(state({}, {}, **shown))
    assert need not in offered(FRESH)


def test_what_can_be_asked_beside_the_snapshot_is_offered():
    asked = FRESH._replace(seen=FRESH.seen._replace(listed=lambda: ()))
    silent = FRESH._replace(seen=FRESH.seen._replace(reports=lambda: None))
    assert {Need.LISTED} == offered(asked) - offered(FRESH)
    assert {Need.REPORT} == offered(FRESH) - offered(silent)


def test_a_second_pool_is_judged_only_where_swapping_is_declared():
    shown: dict[str, Any] = {"swapped": {}, "host_free": (0,)}
    assert Need.HOST not in offered(state({}, {}, **shown))
    assert Need.HOST in offered(state({}, {}, within=able("swap", host=1), **shown))


def test_a_hidden_free_list_is_not_offered():
    assert Need.FREE_LIST in offered(FRESH)
    assert Need.FREE_LIST not in offered(state({}, {}, free=None))


def test_a_peer_is_offered_where_there_is_one():
    assert Need.PEER in offered(FRESH, FRESH)
    assert Need.PEER not in offered(FRESH)


def test_declarations_take_back_what_would_be_offered():
    outside = Declarations(
        tables_outside=True,
        wrong_use=NOT_TRIED,
        because={"tables_outside": "this test", "wrong_use": "this test"},
    )
    strict, loose = (
        offered(FRESH),
        offered(state({}, {}, within=setting(declared=outside))),
    )
    assert {Need.HANDLE_TABLES, Need.WRONG_USE} == strict - loose


def test_every_property_has_an_id_of_its_own_a_sentence_and_an_equation():
    every = [prop for ability in ABILITIES for prop in ability.properties]
    assert len(every) + 2 == len(PROPERTIES)  # in lockstep, and under failure
    assert all(prop.statement.endswith(".") and prop.equation for prop in every)
    assert all(name == prop.id for name, prop in PROPERTIES.items())


def test_a_right_history_breaks_nothing_in_the_whole_catalogue():
    here = Judge(PROPERTIES.values(), offered(FRESH))
    released = state({}, {}, released={0: 3})
    history = [
        GROWN,
        step(Misuse(0, "prefill-live"), ONE, ONE, outcome=Refused("no"), returned=handle(0, 3)),
        step(Release(0), ONE, released),
    ]
    found = here.state(FRESH)
    for moved in history:
        found += here.step(moved) + here.reached(moved)
    assert [v for v in found if v.property.id != "rollback"] == []


# ---------------------------------------------------------------- what a target does not show


def hidden(within: Setting, dense: Model) -> State:
    """A target that shows no table of any live request, and blocks of nobody else's."""
    told = {r: report(len(tags), (), within) for r, tags in dense.live.items()}
    there: dict[str, Any] = {
        "num_free": 4,
        "ref_counts": {},
        "reverse_map": (),
        "capacities": {},
        "pending": {},
        "index": {"a": 0},
        "cached": {0},
        "eviction_order": (0,),
        "swapped": dict.fromkeys(dense.swapped, ()),
        "host_free": tuple(range(within.host_blocks)),
    }
    withheld = frozenset[int]() if dense.grouping else None
    return seen(within, dense, {}, ends={0: 1.0}, reports=told, withheld=withheld, **there)


SHARING = able(
    *("append", "fork", "group", "prefix", "swap", "truncate"),
    host=4,
    evicts="lru-tail-first",
)
BEHIND = [
    able("append", "window", window=3),
    able("append", "window", window=3, ring=True, null_block=None),
]


@pytest.mark.parametrize("within", [SHARING, *BEHIND], ids=["sharing", "null entries", "ring"])
@pytest.mark.parametrize("outcome", [DONE, NoBlocks("OOM")], ids=["granted", "refused"])
def test_every_property_judges_a_target_that_shows_no_table(within, outcome):
    dense = after(within, Prefill(0, 3), Prefill(1, 4))
    if "swap" in within.active:
        dense = after(within, SwapOut(1), start=dense)
    alone = {Need.PEER, Need.FAULTS}
    tried = [prop for prop in PROPERTIES.values() if not prop.needs & alone]
    judged = Counter[str]()
    for command in candidates(dense, within):
        if command.op == "misuse":
            continue
        then = hidden(within, command.advance(dense, within) if outcome is DONE else dense)
        made = step(command, hidden(within, dense), then, outcome=outcome)
        for prop in tried:
            due = prop.expectation
            if isinstance(due, EveryStep):
                judged[prop.id] += isinstance(due.judge(made), Broken)
            elif isinstance(due, EveryState):
                judged[prop.id] += isinstance(due.judge(made.after), Broken)
            else:
                assert due.reached(made) in (True, False)
    assert judged["table-cover"]
