"""What everything shares: requests, errors, snapshots as values, declarations."""

from __future__ import annotations

import copy
import pickle
from collections import UserDict
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch

from pagedkv import (
    NOT_TRIED,
    AlreadyHolding,
    Declarations,
    HoldsNothing,
    InvalidBlockTable,
    MisuseError,
    OutOfBlocks,
    Owned,
    Raises,
    Request,
    Returns,
    Snapshot,
)
from pagedkv.protocol import as_int

# ------------------------------------------------------------------ integers


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), torch.tensor(3)])
def test_as_int_takes_every_kind_of_integer(value):
    number = as_int("n", value, minimum=1)
    assert (3, int) == (number, type(number))


@pytest.mark.parametrize(
    "value", [True, np.True_, torch.tensor(True), 3.0, np.float32(3), "3", None, [3]]
)
def test_as_int_refuses_booleans_floats_and_the_rest(value):
    with pytest.raises(TypeError, match=r"^n must be an integer, got"):
        as_int("n", value, minimum=1)


def test_as_int_refuses_a_value_below_the_minimum_and_names_both():
    assert as_int("n", 1, minimum=1) == 1
    with pytest.raises(ValueError, match=r"^n must be >= 1, got 0$"):
        as_int("n", 0, minimum=1)


# ------------------------------------------------------------------ requests


def test_a_fresh_request_holds_nothing_and_starts_at_its_prompt():
    request = Request(0, 3)
    assert (
        request.request_id,
        request.prompt_len,
        request.seq_len,
        request.block_table,
        request.tokens,
    ) == (0, 3, 3, [], [0, 0, 0])


def test_a_request_copies_the_tokens_it_is_given():
    tokens = (7, 8)
    request = Request(1, 2, tokens)
    request.tokens.append(9)
    assert (tokens, request.tokens) == ((7, 8), [7, 8, 9])


def test_two_requests_share_no_table():
    one, other = Request(0, 1), Request(1, 1)
    one.block_table.append(3)
    assert other.block_table == []


def test_a_request_takes_numpy_integers_and_keeps_plain_ones():
    request = Request(np.int64(4), np.uint8(3))
    assert (int, int) == (type(request.request_id), type(request.seq_len))


@pytest.mark.parametrize(("request_id", "prompt_len"), [(-1, 1), (0, 0), (0, -3)])
def test_a_request_refuses_negative_ids_and_lengths_below_one(request_id, prompt_len):
    with pytest.raises(ValueError, match="must be >="):
        Request(request_id, prompt_len)


@pytest.mark.parametrize(("request_id", "prompt_len"), [(True, 1), (0, True), (0.0, 1), (0, 1.5)])
def test_a_request_refuses_booleans_and_floats(request_id, prompt_len):
    with pytest.raises(TypeError, match="must be an integer"):
        Request(request_id, prompt_len)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_a_request_refuses_tokens_of_another_length(tokens):
    with pytest.raises(ValueError, match=rf"len\(tokens\) = {len(tokens)} != 2"):
        Request(0, 2, tokens)


def test_a_request_shows_its_id_length_and_table():
    assert repr(Request(2, 3)) == "Request(request_id=2, seq_len=3, block_table=[])"


def test_a_request_survives_a_deep_copy_without_sharing():
    request = Request(2, 3)
    twin = copy.deepcopy(request)
    twin.block_table.append(1)
    twin.tokens.append(1)
    assert (request.block_table, request.tokens) == ([], [0, 0, 0])


# ------------------------------------------------------------------ errors


def test_out_of_blocks_is_a_runtime_error_that_says_oom_and_both_numbers():
    error = OutOfBlocks(7, needed=3, available=2)
    assert isinstance(error, RuntimeError)
    assert str(error).startswith("OOM: request 7 needs 3 more block(s), 2 available")


def test_out_of_blocks_survives_pickling():
    error = pickle.loads(pickle.dumps(OutOfBlocks(7, 3, 2)))
    assert (error.request_id, error.needed, error.available) == (7, 3, 2)


@pytest.mark.parametrize("kind", [AlreadyHolding, HoldsNothing, InvalidBlockTable])
def test_each_misuse_is_a_value_error_and_never_out_of_blocks(kind):
    assert issubclass(kind, MisuseError)
    assert issubclass(kind, ValueError)
    assert not issubclass(kind, RuntimeError)


# ------------------------------------------------------------------ snapshots


def test_a_snapshot_has_plain_numbers_whatever_the_manager_counts_in():
    tensors: Any = list(torch.arange(8))
    length: Any = np.int64(3)
    seen = Snapshot(
        block_tables={0: tensors[:2]},
        seq_lens={0: length},
        free_blocks=torch.tensor([2, 3]),
        blocks=np.arange(8),
        num_free=tensors[2],
        ref_counts={tensors[0]: tensors[1], 1: 1},
        cached=tensors[4:5],
        pending={5: tensors[1]},
        reserved=[tensors[6]],
        capacities={0: tensors[4], "row 1": 0},
        index={"key": tensors[4]},
    )
    plain = Snapshot(
        block_tables={0: [0, 1]},
        seq_lens={0: 3},
        free_blocks=[2, 3],
        blocks=range(8),
        num_free=2,
        ref_counts={0: 1, 1: 1},
        cached=[4],
        pending={5: 1},
        reserved=[6],
        capacities={0: 4, "row 1": 0},
        index={"key": 4},
    )
    assert seen == plain
    assert repr(seen) == repr(plain)


def test_what_is_no_number_stays_in_a_snapshot_to_be_judged():
    table: Any = [0, None]
    free: Any = ["a", np.int64(1)]
    seen = Snapshot(block_tables={0: table}, seq_lens={0: 1}, free_blocks=free)
    assert repr((seen.block_tables[0], seen.free_blocks)) == "((0, None), ('a', 1))"


def lively() -> Snapshot:
    return Snapshot(
        block_tables={0: (1, 2)},
        seq_lens={0: 3},
        free_blocks=(0,),
        blocks=frozenset({0, 1, 2}),
        num_free=1,
        ref_counts={1: 1, 2: 1},
        reverse_map=frozenset({Owned(0, 0, 1), Owned(0, 1, 2)}),
        capacities={0: 4},
    )


def test_equal_snapshots_are_equal_and_the_order_of_free_blocks_counts():
    assert lively() == lively()
    assert replace(lively(), free_blocks=(0, 3)) != replace(lively(), free_blocks=(3, 0))


def test_a_snapshot_can_not_be_assigned_to():
    with pytest.raises(FrozenInstanceError):
        lively().num_free = 2  # type: ignore[misc]  # that it is refused is the point


def test_a_snapshot_takes_keywords_only():
    with pytest.raises(TypeError):
        Snapshot({}, {}, ())  # type: ignore[call-arg]  # that it is refused is the point


def test_a_snapshot_is_no_view_of_what_it_was_made_from():
    # Looser types than are asked for: a user may well pass what is at hand.
    table, free = [1], [0]
    tables, lens, counts, capacities = ({0: table}, {0: 1}, {1: 1}, {0: 2})
    blocks, cached, reserved, entries = ({0, 1, 2, 3}, {2}, {3}, {Owned(0, 0, 1)})
    pending = {4: 1}
    given: dict[str, Any] = {
        "block_tables": tables,
        "seq_lens": lens,
        "free_blocks": free,
        "blocks": blocks,
        "ref_counts": counts,
        "cached": cached,
        "pending": pending,
        "reserved": reserved,
        "reverse_map": entries,
        "capacities": capacities,
    }
    seen = Snapshot(**given)
    table.append(9)
    for container in given.values():
        container.clear()
    assert seen == Snapshot(
        block_tables={0: (1,)},
        seq_lens={0: 1},
        free_blocks=(0,),
        blocks=frozenset({0, 1, 2, 3}),
        ref_counts={1: 1},
        cached=frozenset({2}),
        pending={4: 1},
        reserved=frozenset({3}),
        reverse_map=frozenset({Owned(0, 0, 1)}),
        capacities={0: 2},
    )


def test_a_snapshot_takes_any_mapping():
    seen = Snapshot(block_tables=UserDict({0: (1,)}), seq_lens=UserDict({0: 1}), free_blocks=None)
    assert (seen.block_tables, seen.seq_lens, seen.free_blocks) == ({0: (1,)}, {0: 1}, None)


# ------------------------------------------------------------------ declarations


def test_the_default_declares_the_core_strictly():
    declares = Declarations()
    assert declares.on_wrong_use("prefill") == "error"
    assert declares.supports(1, 1)
    assert (Raises(RuntimeError, "OOM"),) == declares.out_of_blocks


def test_a_deviation_without_a_reason_is_refused():
    with pytest.raises(ValueError, match="lookahead = 1 is declared without a reason"):
        Declarations(lookahead=1)
    assert Declarations(lookahead=1, because={"lookahead": "scheduler.py:12"}).lookahead == 1


def test_a_deviation_with_an_empty_reason_is_refused():
    with pytest.raises(ValueError, match="without a reason"):
        Declarations(refuses_early=True, because={"refuses_early": ""})


def test_a_reason_for_nothing_is_refused():
    with pytest.raises(ValueError, match="because names 'lookahaed'"):
        Declarations(because={"lookahaed": "a slip"})


def test_wrong_use_is_declared_for_each_operation():
    declares = Declarations(wrong_use={"release": "noop"}, because={"wrong_use": "docs"})
    assert (
        declares.on_wrong_use("decode"),
        declares.on_wrong_use("release"),
    ) == ("error", "noop")
    untried = Declarations(wrong_use=NOT_TRIED, because={"wrong_use": "docs"})
    assert {"never"} == {untried.on_wrong_use(name) for name in ("prefill", "decode", "release")}


@pytest.mark.parametrize(
    ("wrong_use", "message"),
    [
        ({"free": "error"}, "the operations are"),
        ({"release": "ignore"}, "use error, noop or never"),
    ],
)
def test_wrong_use_of_another_name_is_refused(wrong_use, message):
    with pytest.raises(ValueError, match=message):
        Declarations(wrong_use=wrong_use, because={"wrong_use": "docs"})


def test_lookahead_is_a_length():
    with pytest.raises(ValueError, match="lookahead must be >= 0"):
        Declarations(lookahead=-1, because={"lookahead": "docs"})
    with pytest.raises(TypeError, match="lookahead must be an integer"):
        Declarations(lookahead=True, because={"lookahead": "docs"})


@pytest.mark.parametrize(
    ("name", "least"), [("late_calls", 0), ("late_blocks", 0), ("pool_multiple", 1)]
)
def test_numbers_below_the_least_are_refused(name, least):
    with pytest.raises(ValueError, match=f"{name} must be >= {least}"):
        Declarations(**{name: least - 1}, because={name: "docs"})


def test_pending_blocks_wait_for_calls_or_for_blocks_not_for_both():
    because = {"late_calls": "docs", "late_blocks": "docs"}
    with pytest.raises(ValueError, match=r"late_calls = 1 and late_blocks = 2 .* declare one"):
        Declarations(late_calls=1, late_blocks=2, because=because)


def test_a_pool_may_have_to_be_a_multiple():
    declares = Declarations(pool_multiple=2, because={"pool_multiple": "docs"})
    assert [n for n in range(1, 7) if declares.supports(n, 1)] == [2, 4, 6]


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "fits"), [(4, 2, True), (5, 2, False), (4, 3, False)]
)
def test_a_geometry_is_supported_within_what_is_declared(num_blocks, block_size, fits):
    declares = Declarations(
        block_sizes=(2, 4), max_blocks=4, because={"block_sizes": "docs", "max_blocks": "docs"}
    )
    assert fits is declares.supports(num_blocks, block_size)


def test_out_of_blocks_may_be_a_returned_value():
    declares = Declarations(out_of_blocks=(Returns(None),), because={"out_of_blocks": "docs"})
    assert (Returns(None),) == declares.out_of_blocks
