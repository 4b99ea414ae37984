"""Freezing: equal bytes for equal states, faithful copies, and a refusal of everything else."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

from allocators import Plain as Allocator
from pagedkv import Request
from pagedkv.stateful.copying import freeze, thaw
from pagedkv.stateful.fingerprint import fingerprint
from pagedkv.stateful.opaque import Opaque


class Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@dataclass(frozen=True, slots=True)
class Slotted:
    block: int
    owner: list[int]


class SaysHow(Plain):
    def __getstate__(self) -> dict[str, Any]:
        return {}


class SetsHow(Plain):
    def __setstate__(self, state: object) -> None:
        """Take nothing."""


class Reduces(Plain):
    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Plain, ()


class MadeAnew(Plain):
    def __getnewargs__(self) -> tuple[()]:
        return ()


class MyList(list[int]):
    """A list with a field."""


@pytest.mark.parametrize(
    "value",
    [
        [1, "a", None, 2.5, b"x", (True, frozenset({3}))],
        {2: [1], 1: {"x": {1, 2}}},
        deque([1, 2], maxlen=3),
        OrderedDict(b=1, a=2),
        np.array([[0, 1, 2], [3, 4, 5]], dtype=np.int32),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_the_same_and_shares_nothing(value):
    copy = thaw(freeze(value))
    assert copy is not value
    assert type(copy) is type(value)
    assert repr(copy) == repr(value)
    assert freeze(copy) == freeze(value)


def test_a_copy_keeps_fields_and_slots():
    copy = thaw(freeze(Plain(inner=Slotted(3, [1, 2]), rest=MyList([4]))))
    assert (copy.inner, copy.rest) == (Slotted(3, [1, 2]), [4])
    assert type(copy.rest) is MyList


def test_a_copy_keeps_what_is_shared_shared():
    one = [1]
    copy = thaw(freeze(Plain(left=one, right=one)))
    assert copy.left is copy.right
    assert copy.left is not one


def test_a_copy_of_what_refers_to_itself_refers_to_itself():
    loop = Plain()
    loop.__dict__["me"] = loop
    copy = thaw(freeze(loop))
    assert copy.me is copy


def test_manager_and_handles_in_one_copy_belong_together():
    manager, request = Allocator(4, 2, 1), Request(0, 3)
    manager.allocate_for_prefill(request)
    twin, twins = thaw(freeze((manager, {0: request})))
    twin.release_request(twins[0])
    assert twin.free_blocks == [2, 3, 0, 1]
    assert (manager.free_blocks, request.block_table) == ([2, 3], [0, 1])


def test_a_copied_tensor_has_its_own_memory():
    tensor = torch.arange(4, dtype=torch.float32).reshape(2, 2)
    copy = thaw(freeze(tensor))
    copy[0, 0] = 9
    assert tensor.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert copy.dtype == torch.float32


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Plain(n=1), Plain(n=2)),
        (Plain(n=1), Plain(n=True)),
        (Plain(free=[1, 2]), Plain(free=[2, 1])),
        (Plain(free=[1, 2]), Plain(free=(1, 2))),
        (Plain(m={1: 0, 2: 0}), Plain(m={2: 0, 1: 0})),
        (Plain(t=torch.zeros(2)), Plain(t=torch.ones(2))),
        (Plain(t=torch.zeros(2)), Plain(t=torch.zeros(2, dtype=torch.int32))),
        (Plain(a=np.zeros((2, 3))), Plain(a=np.zeros((3, 2)))),
    ],
)
def test_states_that_differ_have_other_bytes(one, other):
    assert freeze(one) != freeze(other)


@pytest.mark.parametrize("kind", [SaysHow, SetsHow, Reduces, MadeAnew])
def test_a_class_that_says_how_it_is_pickled_is_refused(kind):
    with pytest.raises(Opaque, match=f"{kind.__name__} pickles itself in its own way"):
        freeze([kind(field=1)])


@pytest.mark.parametrize(
    "value",
    [SimpleQueue(), (n for n in range(3)), lambda: None],
    ids=["queue in C", "generator", "lambda"],
)
def test_what_can_not_be_pickled_is_refused(value):
    with pytest.raises(Opaque):
        freeze(Plain(field=value))


def aliases(array: Any) -> dict[str, Any]:
    return {
        "view": [array, array[:]],
        "part": [array, array[1:]],
        "part alone": array[1:],
        "other shape": [array, array.reshape(-1, 1)],
    }


ARRAY, TENSOR = np.zeros(4), torch.zeros(4)
SHARING = {
    **{f"numpy {name}": value for name, value in aliases(ARRAY).items()},
    **{f"tensor {name}": value for name, value in aliases(TENSOR).items()},
    "tensor of an array": [ARRAY, torch.from_numpy(ARRAY)],
    "array of a tensor": [TENSOR, TENSOR.numpy()],
    "detached": [TENSOR, TENSOR.detach()],
}


@pytest.mark.parametrize("value", SHARING.values(), ids=SHARING)
def test_arrays_that_share_their_memory_are_refused(value):
    with pytest.raises(Opaque):
        freeze(Plain(field=value))


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1], 2], dtype=object),
        np.zeros(2, dtype=[("block", "i4"), ("owner", "i4")]),
        np.zeros((2, 3), order="F"),
        np.ma.masked_array([1, 2], [True, False]),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(2, 3).T,
    ],
    ids=["objects", "fields", "columns first", "masked", "gradient", "bfloat16", "transposed"],
)
def test_an_array_that_its_bytes_do_not_tell_whole_is_refused(value):
    with pytest.raises(Opaque):
        freeze(value)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((0, 3)),
        np.array(1.5),
        np.array([np.datetime64("2020-01-01")]),
        torch.arange(6).reshape(2, 3),
        [np.zeros(0), np.zeros(0)],
        [np.zeros(2), np.zeros(2), torch.zeros(2)],
    ],
    ids=["empty", "scalar", "dates", "tensor", "two empty", "several"],
)
def test_a_copy_of_an_array_can_be_copied_and_has_the_same_bytes(value):
    copy = thaw(freeze(value))
    assert freeze(copy) == freeze(value) == freeze(thaw(freeze(copy)))


def test_a_copied_array_can_be_written_to():
    array = np.zeros(2)
    copy = thaw(freeze(array))
    copy[0] = 1
    assert (copy.tolist(), array.tolist()) == ([1.0, 0.0], [0.0, 0.0])


# ---------------------------------------------------------------- meaningless fields


class Counting(Plain):
    """With a base, so that either may be named."""


@pytest.mark.parametrize("name", ["clock", "Counting.clock", "Plain.clock"])
def test_a_meaningless_field_is_left_out_under_any_of_its_names(name):
    one, other = Counting(n=1, clock=1), Counting(n=1, clock=2)
    assert freeze(one) != freeze(other)
    assert freeze(one, {name}) == freeze(other, {name})


def test_a_meaningless_field_takes_nothing_else_with_it():
    assert freeze(Counting(n=1, clock=1), {"clock"}) != freeze(Counting(n=2, clock=1), {"clock"})
    one, other = Counting(clock=1), Counting(clock=2)
    assert freeze(one, {"Slotted.clock"}) != freeze(other, {"Slotted.clock"})


def test_a_meaningless_field_is_left_out_of_inner_objects_too():
    one, other = (Plain(inner=[Counting(n=1, clock=time)]) for time in (1, 2))
    assert freeze(one, {"clock"}) == freeze(other, {"clock"})


def test_a_meaningless_field_that_can_not_be_frozen_does_not_hinder():
    one = Counting(n=1, clock=(n for n in range(3)))
    assert freeze(one, {"clock"}) == freeze(Counting(n=1, clock=None), {"clock"})


class SlottedClock:
    __slots__ = ("clock", "n")

    def __init__(self, n: int, clock: int) -> None:
        self.n, self.clock = n, clock


class DefaultClock(Plain):
    clock = 0


def whole(value: object) -> bytes:
    """As a search takes it: looked into piece by piece where it can't be frozen."""
    try:
        return freeze(value, {"clock"})
    except Opaque:
        return fingerprint(value, {"clock"})


class SlottedBelow(SlottedClock):
    """Its instances have a dictionary too."""


class ClockedList(list[int]):
    clock: int


def clocked(items: list[int], clock: int) -> ClockedList:
    made = ClockedList(items)
    made.clock = clock
    return made


def test_leaving_a_field_out_leaves_out_neither_slots_nor_elements():
    assert whole(SlottedBelow(1, 1)) != whole(SlottedBelow(2, 1))
    assert whole(clocked([1], 1)) == whole(clocked([1], 2))
    assert whole(clocked([1], 1)) != whole(clocked([2], 1))


def test_a_meaningless_slot_or_default_is_left_out_by_one_way_or_the_other():
    assert whole(SlottedClock(1, 1)) == whole(SlottedClock(1, 2))
    assert whole(SlottedClock(1, 1)) != whole(SlottedClock(2, 1))
    assert whole(DefaultClock(n=1, clock=1)) == whole(DefaultClock(n=1, clock=2))
    assert whole(DefaultClock(n=1, clock=1)) != whole(DefaultClock(n=2, clock=1))


@pytest.mark.parametrize("made", [lambda: str(12345), lambda: bytes([1, 2, 3])])
def test_equal_strings_and_bytes_freeze_alike_whether_or_not_they_are_one_object(made):
    one = made()
    assert freeze([one, one]) == freeze([made(), made()])
    assert made() is not one
    assert freeze(["abc"]) != freeze([b"abc"])
    assert thaw(freeze([one, made()])) == [one, one]
