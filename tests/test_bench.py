"""The benchmarks run; what they measure is nobody's business here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Behind all others: the package that is tested may be another copy than the one beside `bench`.
sys.path.append(str(Path(__file__).parent.parent))

from bench.harness import Group, measure, table
from bench.managers import admission, decoding
from bench.reading import reading
from bench.serving import serving


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("groups", [admission, decoding, serving, lambda: reading(2**10)])
def test_each_case_of_ours_runs(groups):
    group = next(groups())
    ours = [case for case in group.cases if not case.note or "array" in case.name]
    assert group.base in [case.name for case in ours]
    rows = measure(Group(group.title, group.unit, group.base, ours), rounds=1, warmups=0)
    assert [row.ratio for row in rows if row.case.name == group.base] == [1]
    assert min(value for row in rows for value in row.values) > 0
    assert table(group, rows).count(" x") == len(rows)
