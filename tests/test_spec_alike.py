"""When two snapshots say the same."""

from __future__ import annotations

import pytest

from able import NULL, able
from builders import setting
from pagedkv import Snapshot
from pagedkv.specs.alike import difference

PLAIN = setting()


def snapshot(**fields):
    return Snapshot(**{"block_tables": {}, "seq_lens": {}, "free_blocks": (0, 1), **fields})


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"ref_counts": {}}, {"ref_counts": {0: 0, 1: 0}}),
        ({"ref_counts": {0: 1, 2: 0}}, {"ref_counts": {0: 1}}),
        ({"capacities": {0: 0, "row 2": 4}}, {"capacities": {"row 2": 4}}),
        ({"reserved": {3}, "ref_counts": {3: 1}}, {"reserved": {3}, "ref_counts": {3: 2}}),
    ],
    ids=["no count", "a count of none", "no room", "a reserved block"],
)
def test_what_is_nothing_may_be_said_or_not(was, now):
    assert difference(snapshot(**was), snapshot(**now), PLAIN) is None
    assert difference(snapshot(**now), snapshot(**was), PLAIN) is None


def test_how_often_the_null_block_stands_there_is_not_counted():
    within = able("window", window=2)
    was, now = snapshot(ref_counts={1: 1}), snapshot(ref_counts={1: 1, NULL: 3})
    assert difference(was, now, within) is None
    assert difference(was, now, PLAIN) == "ref_counts before {1: 1} != {1: 1, -1: 3} after"


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ({"ref_counts": {0: 1}}, {"ref_counts": {0: 2}}, "ref_counts before {0: 1} != {0: 2}"),
        ({"ref_counts": {0: 1}}, {"ref_counts": {0: 0}}, "ref_counts before {0: 1} != {}"),
        ({"ref_counts": None}, {"ref_counts": {0: 1}}, "ref_counts before None != {0: 1}"),
        ({"capacities": {0: 2}}, {"capacities": {0: 4}}, "capacities before {0: 2} != {0: 4}"),
        ({}, {"free_blocks": (1, 0)}, "free_blocks before [0, 1] != [1, 0]"),
        ({}, {"free_blocks": (1,), "num_free": 3}, "free_blocks before [0, 1] != [1]"),
    ],
    ids=str,
)
def test_the_first_that_differs_is_named_with_both_values(was, now, words):
    assert difference(snapshot(**was), snapshot(**now), PLAIN) == f"{words} after"
