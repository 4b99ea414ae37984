"""Neither manager is changed by a failing call, and both agree over long random histories."""

from __future__ import annotations

import random
from typing import Any

import pytest

from managing import Nth, admit, everything, read
from pagedkv import (
    AlreadyHolding,
    ArrayKVCacheManager,
    HoldsNothing,
    KVCacheManager,
    MisuseError,
    OutOfBlocks,
    Request,
)

# ------------------------------------------------------------------ failure in the middle


def scenes(make):
    """One for each way through a call: what to set up, and the call; growth included."""

    def live(length, *others):
        manager = make(6, 2, 1)
        requests = admit(manager, *others, length)
        return manager, requests[-1]

    def fresh(length, *others):
        manager, _ = live(1, *others)
        return manager, Request(9, length)

    yield lambda: fresh(1), "allocate_for_prefill"
    yield lambda: fresh(7), "allocate_for_prefill"
    yield lambda: fresh(3, 1, 1), "allocate_for_prefill"
    yield lambda: live(1), "allocate_for_decode"
    yield lambda: live(2), "allocate_for_decode"
    yield lambda: live(4, 1), "allocate_for_decode"
    yield lambda: live(5, 2), "release_request"


@pytest.mark.parametrize("scene", range(7))
def test_a_failure_at_any_inner_call_changes_nothing(make, scene):
    set_up, name = list(scenes(make))[scene]
    n = 0
    while True:
        n += 1
        manager, request = set_up()
        before = everything(manager, request)
        failed = Nth(n).run(lambda: getattr(manager, name)(request))  # noqa: B023 - runs at once
        if not failed:
            break
        assert before == everything(manager, request), f"inner call {n}"
        getattr(manager, name)(request)
    assert n > 3, "no inner call was ever reached"


# ------------------------------------------------------------------ lockstep


BOTH = (KVCacheManager, ArrayKVCacheManager)


class Pair:
    """Both managers side by side; block names may differ, all else may not."""

    def __init__(self, num_blocks, block_size):
        self.managers: list[Any] = [make(num_blocks, block_size, 1) for make in BOTH]
        self.requests: dict[int, list[Request]] = {}

    def apply(self, name, request_id, length=1):
        """Make the same call on both sides and return what it did, which must be the same."""
        if request_id not in self.requests:
            self.requests[request_id] = [Request(request_id, length) for _ in self.managers]
        outcomes: list[Any] = []
        for manager, request in zip(self.managers, self.requests[request_id], strict=True):
            before = everything(manager, request)
            try:
                getattr(manager, name)(request)
                outcomes.append(None)
            except (OutOfBlocks, MisuseError) as error:
                assert before == everything(manager, request)
                outcomes.append((type(error), str(error) if name == "decode" else None))
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def tag(self, request_id):
        """Write (request, position) where the tables say, as a forward pass would."""
        for manager, request in zip(self.managers, self.requests[request_id], strict=True):
            for position in range(request.seq_len):
                block = request.block_table[position // manager.block_size]
                tag = request_id * 1000 + position
                manager.physical_kv_cache[block, position % manager.block_size] = tag

    def compare(self):
        one, other = (manager.snapshot() for manager in self.managers)
        assert one.seq_lens == other.seq_lens
        assert len(one.free_blocks) == len(other.free_blocks) == other.num_free
        for name, sides in self.requests.items():
            assert sides[0].seq_len == sides[1].seq_len
            assert len(sides[0].block_table) == len(sides[1].block_table)
            for manager, request in zip(self.managers, sides, strict=True):
                if request.block_table:
                    tags = [name * 1000 + p for p in range(request.seq_len)]
                    assert tags == read(manager, request)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (4, 1), (3, 2), (8, 3)])
def test_both_managers_agree_over_a_random_history(num_blocks, block_size):
    draw = random.Random(num_blocks * 10 + block_size)
    pair = Pair(num_blocks, block_size)
    seen = set()
    for _ in range(1500):
        request_id = draw.randrange(4)
        name = draw.choice(["allocate_for_prefill", "allocate_for_decode", "release_request"])
        outcome = pair.apply(name, request_id, draw.randint(1, num_blocks * block_size + 1))
        seen.add((name, outcome and outcome[0]))
        if outcome is None and name != "release_request":
            pair.tag(request_id)
        if draw.random() < 0.2 and not pair.requests[request_id][0].block_table:
            del pair.requests[request_id]
        pair.compare()
    # The history went where it hurts: every call granted, refused, and out of blocks.
    assert {
        ("allocate_for_prefill", None),
        ("allocate_for_prefill", OutOfBlocks),
        ("allocate_for_prefill", AlreadyHolding),
        ("allocate_for_decode", OutOfBlocks),
        ("allocate_for_decode", HoldsNothing),
        ("release_request", None),
        ("release_request", HoldsNothing),
    } <= seen


def test_a_table_that_was_replaced_by_an_equal_sequence_is_still_the_own_one(make):
    manager = make(4, 1, 1)
    first, second = admit(manager, 2, 1)
    for request in (first, second):
        request.block_table = tuple(request.block_table)
    manager.allocate_for_decode(first)
    assert list(first.block_table) == [0, 1, 3]
    manager.release_request(second)
    assert len(manager.free_blocks) == 1


def test_a_decode_names_the_length_that_is_none(make):
    manager = make(4, 1, 1)
    (request,) = admit(manager, 2)
    request.seq_len = 0
    with pytest.raises(ValueError, match=r"^seq_len must be >= 1, got 0$"):
        manager.allocate_for_decode(request)
    assert request.block_table == [0, 1]


def test_a_prefill_of_an_emptied_table_says_the_whole_of_it(make):
    manager = make(4, 1, 1)
    (request,) = admit(manager, 2)
    request.block_table = []
    with pytest.raises(AlreadyHolding) as caught:
        manager.allocate_for_prefill(request)
    assert str(caught.value) == (
        "prefill of request 0, which holds blocks though its block_table was emptied by hand; "
        "put the table back"
    )


def test_a_table_set_by_hand_is_told_from_anothers_whoever_is_live(make):
    manager = make(4, 1, 1)
    admit(manager, 1)
    stray = Request(7, 1)
    stray.block_table = [3]
    with pytest.raises(AlreadyHolding, match=r"which carries the blocks \[3\] set by hand"):
        manager.allocate_for_prefill(stray)


@pytest.mark.parametrize(("place", "name"), [(0, "num_blocks"), (1, "block_size"), (2, "head_dim")])
def test_construction_names_what_it_refuses(make, place, name):
    sizes = [1, 1, 1]
    sizes[place] = 0
    with pytest.raises(ValueError, match=f"^{name} must be >= 1, got 0$"):
        make(*sizes)
