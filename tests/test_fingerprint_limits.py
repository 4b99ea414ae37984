"""The fingerprint refuses what it can't see, and holds on random nested data."""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import RLock, Thread
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import declaring
from pagedkv.stateful.fingerprint import fingerprint
from pagedkv.stateful.opaque import Opaque


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b=None):
        self.a = a
        if b is not None:
            self.b = b

    def __repr__(self):
        return f"Slotted({self.a!r})"


@dataclass(frozen=True)
class Point:
    x: object
    y: object = 0


def generator():
    yield 1


def held_twice():
    lock = RLock()
    lock.acquire()
    lock.acquire()
    return lock


def opened():
    return Path(__file__).open()


def endless(depth=5000):
    nested: list[object] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def calling_itself():
    def inner():
        return inner

    return inner


def closing_over(value):
    def inner():
        return value

    return inner


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(generator, id="generator"),
        pytest.param(held_twice, id="lock held by its thread"),
        pytest.param(lambda: Thread(target=list), id="thread"),
        pytest.param(SimpleQueue, id="queue in C"),
        pytest.param(Future, id="future"),
        pytest.param(ThreadPoolExecutor, id="executor"),
        pytest.param(lambda: [{"deep": generator()}], id="deep inside"),
        pytest.param(lambda: memoryview(b"a").cast("B").__iter__(), id="iterator of memory"),
        pytest.param(opened, id="file"),
        pytest.param(random.SystemRandom, id="system random"),
        pytest.param(endless, id="too deep"),
        pytest.param(lambda: MappingProxyType({1: 2}), id="view of a dict"),
    ],
)
def test_what_cannot_be_seen_is_refused_not_guessed(make):
    value = make()
    try:
        with pytest.raises(Opaque):
            fingerprint(value)
    finally:
        getattr(value, "close", list)()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (generator(), "a generator"),
        (Point(Slotted(generator())), "`x.a` is a generator"),
        (Point([{1: generator()}]), "`x[...][...]` is a generator"),
        ((Point(generator()), []), "`x` is a generator"),
        (Point(held_twice()), "`x` is an RLock that is held"),
        (Point(ThreadPoolExecutor()), "`x` is a ThreadPoolExecutor"),
        (Point(generator().send), "`x.__self__` is a generator"),
        (Point(closing_over(generator())), "`x.__closure__[...]` is a generator"),
        (random.SystemRandom(), "not to be looked at (NotImplementedError: System entropy "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_seen_is_named_with_the_way_there(value, words):
    with pytest.raises(Opaque) as caught:
        fingerprint(value)
    assert str(caught.value).startswith(words)


def test_a_function_that_refers_to_itself_has_a_fingerprint():
    assert fingerprint(calling_itself()) == fingerprint(calling_itself())


def test_declarations_on_the_instance_have_a_fingerprint():
    one, other = declaring(lookahead=1), declaring(lookahead=2)
    assert fingerprint(one) == fingerprint(declaring(lookahead=1))
    assert fingerprint(one) != fingerprint(other)


def test_an_array_of_objects_is_its_objects():
    cells = np.empty(1, dtype=object)
    cells[0] = [1]
    before = fingerprint(cells)
    assert before == fingerprint(deepcopy(cells))
    cells[0].append(2)
    assert before != fingerprint(cells)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
SETS = st.frozensets(st.integers(0, 3)).map(set) | st.sets(st.text(max_size=2), max_size=1)
NESTED = st.recursive(
    SCALARS | SETS | st.binary(max_size=3).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | inner.map(lambda value: [value, value])
        | inner.map(Point)
        | inner.map(Slotted)
    ),
    max_leaves=12,
)


@pytest.mark.usefixtures("unmeasured")
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(NESTED)
def test_a_deep_copy_of_nested_data_has_the_same_fingerprint(value):
    assert fingerprint(value) == fingerprint(deepcopy(value))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(NESTED, NESTED)
def test_equal_fingerprints_mean_equal_data(one, other):
    if fingerprint(one) == fingerprint(other):
        assert repr(one) == repr(other)
