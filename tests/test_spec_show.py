"""Values in messages: short, ordered, without type names."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from builders import handle
from pagedkv.specs.show import LONGEST, first_difference, show

SHOWN = [
    (3, "3"),
    (None, "None"),
    ((), "[]"),
    ((2,), "[2]"),
    ([1, (2, 3)], "[1, [2, 3]]"),
    (set(), "{}"),
    ({10, 2, 1}, "{1, 2, 10}"),
    (frozenset({"b", "a"}), "{a, b}"),
    ({}, "{}"),
    ({1: (0, 1), 0: ()}, "{1: [0, 1], 0: []}"),
    (MappingProxyType({0: {3}}), "{0: {3}}"),
    (handle(0, 3, (0, 1)), "(seq_len 3, block_table [0, 1])"),
]


@pytest.mark.parametrize(("value", "words"), SHOWN, ids=[words for _, words in SHOWN])
def test_a_value_is_shown_as_an_equation_would_have_it(value, words):
    assert words == show(value)


@pytest.mark.parametrize(
    ("make", "left", "right"),
    [(tuple, "[", "]"), (frozenset, "{", "}"), (dict.fromkeys, "{", "}")],
    ids=["table", "set", "mapping"],
)
def test_a_long_value_is_cut_in_the_middle_and_says_by_how_much(make, left, right):
    whole, long = show(make(range(LONGEST))), show(make(range(LONGEST + 3)))
    assert "more" not in whole
    assert long.startswith(f"{left}0")
    assert ", ... 3 more, " in long
    assert long.endswith(right)
    assert long.count(",") == LONGEST


def test_the_first_field_that_differs_is_told_with_both_values():
    was, now = handle(0, 3, (0, 1)), handle(0, 4, (0, 2))
    assert first_difference(was, now) == ("seq_len", 3, 4)
    assert first_difference(was, was._replace(tokens=(7,))) == ("tokens", (0, 0, 0), (7,))
