"""What adapters have in common, and copies that ask no object how it is copied."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from enum import Enum
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from counting import counted
from pagedkv import NOT_TRIED, Adapter, Declarations, Request, Returns, Snapshot
from pagedkv.adapter import plain, told_apart, unpadded
from pagedkv.specs.model import Geometry
from pagedkv.twins import twin_of


class Theirs:
    """An engine: sequences with tables of their own, freed blocks last."""

    def __init__(self, num_blocks: int) -> None:
        self.free = deque(range(num_blocks))

    def take(self, table: list[int], count: int) -> bool:
        if count > len(self.free):
            return False
        table += [self.free.popleft() for _ in range(count)]
        return True


class Mine(Adapter[list[int]]):
    declares = Declarations(
        out_of_blocks=(Returns(False),),
        wrong_use=NOT_TRIED,
        because={"out_of_blocks": "Theirs.take", "wrong_use": "Theirs promises nothing"},
    )

    def start(self) -> None:
        self.engine = Theirs(self.num_blocks)

    def table(self, req: Request) -> list[int]:
        return self.live[req]

    def allocate_for_prefill(self, req: Request) -> bool:
        table: list[int] = []
        return self.engine.take(table, self.blocks_for(req.seq_len)) and self.holds(req, table)

    def allocate_for_decode(self, req: Request) -> bool:
        more = self.blocks_for(req.seq_len + 1) - len(self.live[req])
        return self.engine.take(self.live[req], more) and self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        self.engine.free += self.lets_go(req)

    def snapshot(self) -> Snapshot:
        free = self.engine.free
        return Snapshot(**self.of_live(), free_blocks=free, num_free=len(free))

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        return *plain(self.engine.free), self.live_key(names)

    clone = Adapter.twin


def test_key_and_copies_of_an_adapter_on_the_base_are_relied_on_without_a_doubt():
    assert counted(Mine, Geometry(2, 2)) == (14, 66)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_below_one_are_a_value_error(sizes):
    with pytest.raises(ValueError, match="must be >= 1"):
        Mine(*sizes)


@pytest.mark.parametrize("hook", ["start", "table"])
def test_the_hooks_are_the_adapters_own(hook):
    with pytest.raises(NotImplementedError):
        getattr(Adapter, hook)(*[object()] * (1 + (hook == "table")))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (2, 1), (3, 2)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert Mine(1, 2, 1).blocks_for(tokens) == blocks


def test_handles_are_filled_in_and_emptied():
    manager, request = Mine(3, 2, 1), Request(7, 2)
    assert manager.allocate_for_prefill(request) is True
    assert manager.allocate_for_decode(request) is True
    assert (request.seq_len, request.block_table) == (3, [0, 1])
    assert request.block_table is not manager.live[request]
    assert manager.snapshot() == Snapshot(
        block_tables={7: (0, 1)}, seq_lens={7: 3}, free_blocks=(2,), num_free=1
    )
    manager.release_request(request)
    assert (request.seq_len, request.block_table, manager.live) == (3, [], {})
    with pytest.raises(KeyError):
        manager.lets_go(request)


def test_the_key_of_live_requests_calls_them_by_their_names_in_the_order_of_names():
    keys = []
    for order in ((4, 9), (9, 4)):
        manager = Mine(4, 1, 1)
        requests = {name: Request(name, 1) for name in order}
        for name in order:
            manager.allocate_for_prefill(requests[name])
        names = {name: i for i, name in enumerate(order)}
        keys.append(manager.live_key(names, lambda req: len(req.tokens)))
    assert keys == [((0, 1, 1, 0), (1, 1, 1, 1))] * 2


def test_requests_without_a_name_are_told_apart_by_their_ids():
    manager = Mine(4, 1, 1)
    for name in (9, 4):
        manager.allocate_for_prefill(Request(name, 1))
    assert manager.live_key({}) == ((-10, 1, (), 0), (-5, 1, (), 1))


def test_plain_makes_tuples_of_whatever_an_engine_keeps():
    values = ([1, [2]], deque([3]), {4: [5]}, {7, 6}, torch.tensor([[8, 9]]), "a", b"b", None, True)
    assert plain(*values) == (
        *((1, (2,)), (3,), ((4, (5,)),), (6, 7), ((8, 9),)),
        *("a", b"b", None, True),
    )


def test_plain_keeps_the_order_of_a_mapping():
    assert plain({1: 2, 3: 4}) != plain({3: 4, 1: 2})


@pytest.mark.parametrize(
    ("row", "table"),
    [([1, 2], [1, 2]), ([1, -1], [1]), ([-1, 2, -1], [-1, 2]), ([-1], []), ([], [])],
)
def test_a_row_ends_at_its_last_block_and_shows_a_hole(row, table):
    assert unpadded(row) == table


def test_an_extra_key_becomes_another_first_token():
    prompts = [told_apart(Request(0, 2, [1, 0], extra_key=key)) for key in (None, 1, 2)]
    assert prompts == [[1, 0], [3, 0], [5, 0]]


# ---------------------------------------------------------------- copies


class Lossy:
    """Tells less than it has when it is asked, as what is sent to a worker does."""

    def __init__(self) -> None:
        self.kept, self.lost = [1], [2]

    def __getstate__(self) -> object:
        return {"kept": self.kept}

    def __deepcopy__(self, memo: object) -> object:
        return self


class Slotted:
    __slots__ = ("__private", "value")

    def __init__(self, value: list[int]) -> None:
        self.value, self.__private = value, [3]

    @property
    def private(self) -> list[int]:
        return self.__private


class OneSlot(Slotted):
    more: list[int]
    __slots__ = "more"  # noqa: PLC0205 - one name alone, as Python has it


class Colour(Enum):
    RED = 1


def test_a_twin_has_all_attributes_of_its_own():
    original = Lossy()
    twin = twin_of(original)
    assert (twin.kept, twin.lost) == ([1], [2])
    twin.lost.append(4)
    assert original.lost == [2]


def test_slots_are_copied_private_and_missing_ones_too():
    original = OneSlot([1])
    twin = twin_of(original)
    twin.value.append(2)
    twin.private.append(4)
    assert (original.value, original.private, hasattr(twin, "more")) == ([1], [3], False)
    original.more = [5]
    assert twin_of(original).more == [5]


def test_what_is_shared_is_shared_in_the_twin_and_rings_end():
    inner: list[Any] = []
    original = SimpleNamespace(left=inner, right=(inner, {1: inner}), ring=Lossy())
    original.ring.kept = [original.ring]
    inner.append(inner)
    twin = twin_of([original])[0]
    assert twin.left is twin.right[0] is twin.right[1][1] is twin.left[0]
    assert twin.left is not inner
    assert twin.ring.kept == [twin.ring]


def test_handles_and_what_they_stand_for_are_copied_in_one():
    manager, live, fresh = Mine(3, 1, 1), Request(0, 1), Request(1, 1)
    manager.allocate_for_prefill(live)
    twin, handles = manager.clone({0: live, 1: fresh})
    assert list(twin.live) == [handles[0]]
    twin.release_request(handles[0])
    assert (manager.live[live], live.block_table, manager.snapshot().free_blocks) == (
        *([0], [0]),
        (1, 2),
    )
    assert handles[1].tokens is not fresh.tokens


@pytest.mark.parametrize(
    "value",
    [
        deque([[1], 2], maxlen=3),
        {(1, 2): {3}},
        frozenset({4}),
        OrderedDict(a=[1]),
        bytearray(b"x"),
        torch.arange(3),
    ],
)
def test_containers_and_tensors_are_equal_and_apart(value):
    twin = twin_of([value])[0]
    assert type(twin) is type(value)
    assert repr(twin) == repr(value)
    assert twin is not value


@pytest.mark.parametrize(
    "value", [1, "a", None, len, test_plain_keeps_the_order_of_a_mapping, sys, int, Colour.RED]
)
def test_what_never_changes_is_shared(value):
    assert twin_of([value])[0] is value


def test_torch_s_own_constants_are_shared():
    assert twin_of([torch.float16])[0] is torch.float16
    assert twin_of([torch.device("cpu")])[0] == torch.device("cpu")


def test_a_bound_method_is_bound_to_the_twin():
    original = Lossy()
    original.act = original.__getstate__  # type: ignore[attr-defined]
    twin = twin_of(original)
    assert twin.act.__self__ is twin  # type: ignore[attr-defined]


def test_a_compiled_object_is_copied_as_it_says():
    numbers = count(5)
    twin = twin_of([numbers])[0]
    assert (next(twin), next(twin), next(numbers)) == (5, 6, 5)
