"""Commands as plain data: which make sense, what is due, how the model moves, and their JSON."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from builders import declaring, model, setting, state
from pagedkv import Request
from pagedkv.protocol import PagedKVManager
from pagedkv.specs.abilities.core import (
    ALL_LENGTHS_UP_TO,
    KINDS,
    Decode,
    Misuse,
    Prefill,
    Release,
    Resume,
)
from pagedkv.specs.catalogue import candidates
from pagedkv.specs.model import EMPTY
from pagedkv.specs.steps import Grant, Refuse

POOL = setting(num_blocks=3, block_size=1, requests=3)
NEVER = declaring(wrong_use={"prefill": "never", "decode": "never", "release": "never"})
QUIET = setting(num_blocks=3, block_size=1, requests=3, declared=NEVER)


def named(found):
    return [str(command) for command in found]


def test_a_fresh_pool_takes_a_prefill_of_every_length_and_one_token_too_many():
    fresh = candidates(EMPTY, QUIET)
    assert [Prefill(0, 1), Prefill(0, 2), Prefill(0, 3), Prefill(0, 4)] == fresh


def test_a_request_that_was_never_prefilled_can_be_misused():
    wrong = [command for command in candidates(EMPTY, POOL) if isinstance(command, Misuse)]
    assert [Misuse(0, "decode-fresh"), Misuse(0, "release-fresh")] == wrong


def test_candidates_stand_in_canonical_order():
    middle = model(QUIET, {1: 1, 0: 1}, {2: 2})
    assert named(candidates(middle, QUIET)) == [
        "decode(0)",
        "decode(1)",
        "release(0)",
        "release(1)",
        "resume(2)",
    ]


def test_prefills_go_one_token_beyond_what_is_free_and_beyond_the_pool():
    within = setting(num_blocks=3, block_size=2, declared=NEVER)
    one = candidates(model(within, {0: 3}, {}), within)
    lengths = [command.tokens for command in one if isinstance(command, Prefill)]
    assert lengths == [1, 2, 3, 7]


def test_a_full_pool_is_still_asked_for_more():
    full = candidates(model(QUIET, {0: 3}, {}), QUIET)
    assert named(full) == ["decode(0)", "prefill(1, 1)", "prefill(1, 4)", "release(0)"]


def test_prefills_of_large_pools_go_to_block_edges_only():
    within = setting(num_blocks=10, block_size=4, declared=NEVER)
    lengths = [
        command.tokens for command in candidates(EMPTY, within) if isinstance(command, Prefill)
    ]
    assert lengths[:7] == [1, 3, 4, 5, 7, 8, 9]
    assert lengths[-6:] == [35, 36, 37, 39, 40, 41]


@pytest.mark.parametrize(
    ("live", "released", "names"),
    [({}, {}, {0}), ({0: 1, 2: 1}, {}, {1}), ({1: 1}, {0: 1}, {2}), ({0: 1, 2: 1}, {1: 1}, set())],
)
def test_a_new_request_gets_the_lowest_name_that_nobody_has(live, released, names):
    found = candidates(model(QUIET, live, released), QUIET)
    assert names == {command.request for command in found if isinstance(command, Prefill)}


def test_a_released_name_is_given_out_again_where_nothing_can_resume():
    within = setting(declared=declaring(resumes=False))
    found = candidates(model(within, {0: 1}, {1: 1}), within)
    assert {1} == {command.request for command in found if isinstance(command, Prefill)}


def test_wrong_uses_come_last_kind_by_kind():
    wrong = [
        str(command)
        for command in candidates(model(POOL, {0: 1}, {1: 1}), POOL)
        if isinstance(command, Misuse)
    ]
    assert wrong == [
        "misuse(0, prefill-live)",
        "misuse(2, decode-fresh)",
        "misuse(1, decode-released)",
        "misuse(2, release-fresh)",
        "misuse(1, release-released)",
        "misuse(0, release-duplicate)",
        "misuse(0, release-out-of-range)",
        "misuse(0, release-negative)",
        "misuse(0, release-free)",
        "misuse(2, release-stolen)",
    ]


def test_every_kind_of_wrong_use_is_a_candidate_somewhere():
    kinds = Counter(
        command.kind
        for live, released in [({0: 1, 1: 1}, {}), ({0: 1}, {1: 1})]
        for command in candidates(model(POOL, live, released), POOL)
        if isinstance(command, Misuse)
    )
    assert set(KINDS) == kinds.keys()


@pytest.mark.parametrize("operation", ["prefill", "decode", "release"])
def test_wrong_use_that_promises_nothing_is_not_tried(operation):
    within = setting(num_blocks=3, block_size=1, declared=declaring(wrong_use={operation: "never"}))
    tried = {
        command.operation
        for live, released in [({0: 1, 1: 1}, {}), ({0: 1}, {1: 1})]
        for command in candidates(model(within, live, released), within)
        if isinstance(command, Misuse)
    }
    assert {"prefill", "decode", "release"} - {operation} == tried


def test_a_target_that_declares_no_resume_gets_none():
    within = setting(declared=declaring(resumes=False))
    released = model(within, {}, {0: 1})
    assert not Resume(0).enabled(released, within)
    assert not [c for c in candidates(released, within) if isinstance(c, Resume)]


@pytest.mark.parametrize(
    ("live", "released"), [({}, {}), ({0: 1}, {}), ({0: 2, 1: 1}, {2: 1}), ({0: 3}, {1: 1, 2: 2})]
)
def test_every_candidate_is_enabled_and_stands_there_once(live, released):
    dense = model(POOL, live, released)
    found = candidates(dense, POOL)
    assert len(found) == len(set(found))
    assert all(command.enabled(dense, POOL) for command in found)


@pytest.mark.parametrize(
    "command",
    [
        Decode(1),
        Prefill(0, 1),
        Prefill(1, 0),
        Release(1),
        Resume(0),
        Resume(2),
        Misuse(1, "prefill-live"),
        Misuse(0, "decode-fresh"),
        Misuse(0, "release-fresh"),
        Misuse(0, "release-stolen"),
        Misuse(1, "decode-released"),
        Misuse(0, "release-released"),
        Misuse(0, "release-foreign"),
        Misuse(1, "release-duplicate"),
    ],
    ids=str,
)
def test_a_command_that_makes_no_sense_is_not_enabled(command):
    assert not command.enabled(model(POOL, {0: 1}, {}), POOL)


def test_a_free_block_can_be_forged_only_while_one_is_sure_to_be_free():
    wrong = Misuse(0, "release-free")
    assert wrong.enabled(model(POOL, {0: 2}, {}), POOL)
    assert not wrong.enabled(model(POOL, {0: 3}, {}), POOL)
    ahead = setting(num_blocks=3, block_size=1, declared=declaring(lookahead=1))
    assert not wrong.enabled(model(ahead, {0: 2}, {}), ahead)


@pytest.mark.parametrize(
    ("command", "live", "demand"),
    [
        (Prefill(0, 5), {}, 3),
        (Prefill(0, 4), {}, 2),
        (Decode(0), {0: 3}, 0),
        (Decode(0), {0: 4}, 1),
        (Release(0), {0: 4}, 0),
        (Resume(2), {}, 1),
    ],
    ids=str,
)
def test_demand_follows_from_the_lengths_alone(command, live, demand):
    within = setting(num_blocks=4, block_size=2)
    assert Grant(demand, demand) == command.expect(model(within, live, {2: 1}), within)


def test_lookahead_blurs_the_demand():
    within = setting(declared=declaring(lookahead=2))
    dense = model(within, {0: 4}, {})
    assert Grant(1, 3) == Prefill(1, 1).expect(dense, within)
    assert Grant(0, 3) == Decode(0).expect(dense, within)
    assert Grant(0, 0) == Release(0).expect(dense, within)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_use_is_to_be_refused_or_ignored_as_declared(kind):
    operation = kind.partition("-")[0]
    loud, silent = setting(), setting(declared=declaring(wrong_use={operation: "noop"}))
    for within, noop in ((loud, False), (silent, True)):
        due = Misuse(0, kind).expect(model(within, {0: 1, 1: 1}, {}), within)
        assert isinstance(due, Refuse)
        assert noop == due.noop
        assert due.why


def test_the_model_moves_as_a_dense_cache_would():
    within = setting()
    dense = Prefill(1, 2).advance(EMPTY, within)
    assert model(within, {1: 2}, {}) == dense
    dense = Decode(1).advance(dense, within)
    assert model(within, {1: 3}, {}) == dense
    dense = Release(1).advance(dense, within)
    assert model(within, {}, {1: 3}) == dense
    assert model(within, {1: 3}, {}) == Resume(1).advance(dense, within)
    assert dense is Misuse(1, "decode-released").advance(dense, within)


def test_a_prefill_of_a_kept_name_forgets_the_released_request():
    within = setting()
    assert model(within, {0: 1}, {1: 2}) == Prefill(0, 1).advance(
        model(within, {}, {0: 3, 1: 2}), within
    )


def forged(kind, tables, request=0, within=POOL):
    """The table that the wrong use puts in, and the handles before and after taking it back."""
    live = {r: len(table) for r, table in tables.items()}
    handles = {r: Request(r, max(1, len(table))) for r, table in tables.items()}
    for r, table in tables.items():
        handles[r].block_table = list(table)
    was = {r: (request, list(request.block_table)) for r, request in handles.items()}
    undo = Misuse(request, kind).prepare(handles, state(live, tables, within=within))
    table = list(handles[request].block_table)
    undo()
    assert was == {r: (request, request.block_table) for r, request in handles.items()}
    return table


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("prefill-live", [2]),
        ("release-duplicate", [2, 2]),
        ("release-out-of-range", [2, 3]),
        ("release-negative", [2, -1]),
        ("release-free", [2, 1]),
        ("release-foreign", [2, 0]),
    ],
)
def test_a_forged_table_is_the_own_one_and_one_wrong_block_more(kind, table):
    assert table == forged(kind, {0: (2,), 1: (0,)})


@pytest.mark.parametrize("kind", ["decode-fresh", "release-fresh"])
def test_a_fresh_request_holds_nothing(kind):
    assert forged(kind, {0: (2,)}, request=1) == []


def test_a_stolen_table_is_anothers():
    assert forged("release-stolen", {0: (2, 0)}, request=1) == [2, 0]


def test_the_block_beyond_the_pool_lies_beyond_the_highest_usable_one():
    within = setting(usable=frozenset({4, 9}))
    assert forged("release-out-of-range", {0: (9,)}, within=within) == [9, 10]


def test_the_other_request_is_the_one_with_the_lowest_table_whatever_its_name():
    assert forged("release-foreign", {0: (1,), 1: (2,), 2: (0,)}) == [1, 0]
    assert forged("release-foreign", {0: (1,), 1: (0,), 2: (2,)}) == [1, 0]


def test_a_misuse_of_a_kept_name_puts_the_kept_handle_back():
    kept = Request(0, 3)
    handles = {0: kept}
    undo = Misuse(0, "release-fresh").prepare(handles, state({}, {}, released={0: 3}))
    assert kept is not handles[0]
    undo()
    assert {0: kept} == handles


def test_a_decode_brings_its_token_and_takes_it_back():
    handles = {0: Request(0, 2)}
    undo = Decode(0).prepare(handles, state({0: 2}, {0: (0,)}))
    assert handles[0].tokens == [0, 0, 0]
    undo()
    assert handles[0].tokens == [0, 0]


def test_a_prefill_brings_its_request_and_takes_it_back():
    handles: dict[int, Request] = {}
    undo = Prefill(1, 3).prepare(handles, state({}, {}))
    assert (handles[1].request_id, handles[1].prompt_len) == (1, 3)
    undo()
    assert handles == {}


class Told:
    """A manager that only says which of its calls was made, and with which request."""

    def allocate_for_prefill(self, req):
        return ("prefill", req)

    def allocate_for_decode(self, req):
        return ("decode", req)

    def release_request(self, req):
        return ("release", req)


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (Decode(0), "decode"),
        (Prefill(0, 1), "prefill"),
        (Release(0), "release"),
        (Resume(0), "prefill"),
        *((Misuse(0, kind), kind.partition("-")[0]) for kind in KINDS),
    ],
    ids=str,
)
def test_a_command_makes_its_call_and_passes_the_answer_on(command, call):
    request, manager = Request(0, 1), Told()
    assert (call, request) == command.perform(cast(PagedKVManager, manager), {0: request})


def test_a_fresh_request_that_is_misused_has_one_token():
    handles: dict[int, Request] = {}
    Misuse(1, "decode-fresh").prepare(handles, state({}, {}))
    assert (handles[1].prompt_len, handles[1].seq_len) == (1, 1)


def test_of_many_free_blocks_the_lowest_is_forged_in():
    assert forged("release-free", {0: (1,)}) == [1, 0]


def test_another_that_has_no_table_adds_nothing_to_a_forged_one():
    # The history says that request 1 is live; a wrong manager may not know it.
    handles = {0: Request(0, 1)}
    Misuse(0, "release-foreign").prepare(handles, state({0: 1, 1: 1}, {0: (2,)}))
    assert handles[0].block_table == [2]


def test_nobody_is_misused_once_every_name_is_taken():
    within = setting(requests=1)
    found = candidates(model(within, {0: 1}, {}), within)
    assert {0} == {command.request for command in found}
    assert any(isinstance(command, Misuse) for command in found)


def test_every_length_is_tried_up_to_the_limit_itself():
    within = setting(num_blocks=9, block_size=4, declared=NEVER)
    assert within.capacity == ALL_LENGTHS_UP_TO
    lengths = [c.tokens for c in candidates(EMPTY, within) if isinstance(c, Prefill)]
    assert list(range(1, ALL_LENGTHS_UP_TO + 2)) == lengths


@pytest.mark.parametrize(
    ("kind", "table"), [("release-foreign", [2, 3, 0]), ("release-duplicate", [2, 3, 2])]
)
def test_one_block_is_forged_in_however_long_the_tables(kind, table):
    assert table == forged(kind, {0: (2, 3), 1: (0, 1)}, within=setting(block_size=1))


def test_where_nobody_reads_a_handle_s_table_none_is_forged():
    within = setting(declared=declaring(tables_outside=True))
    two = model(within, {0: 2, 1: 1}, {2: 3})
    kinds = [kind for kind in KINDS if Misuse(0, kind).enabled(two, within)]
    assert kinds == ["prefill-live"]
    assert [k for k in KINDS if Misuse(3, k).enabled(two, within)] == [
        "decode-fresh",
        "release-fresh",
    ]
    assert Misuse(2, "release-released").enabled(two, within)
