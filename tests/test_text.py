"""A counterexample as text, and as a test that reproduces it."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import replace
from typing import Any

import pytest

from pagedkv.protocol import OutOfBlocks
from pagedkv.reference import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.stateful.replay import replay
from pagedkv.stateful.report import Counterexample, Frame, OneMinimal, Shortest
from pagedkv.stateful.reproducer import pytest_function
from pagedkv.stateful.text import (
    by_history,
    counterexample_text,
    counterexamples_text,
    numbers,
    plain,
    together,
)
from pagedkv.stateful.world import World


class Leaky(KVCacheManager):
    """Forgets the last free block with each release."""

    def release_request(self, req):
        super().release_request(req)
        self._free.pop()


class Born(KVCacheManager):
    """Wrong from the start: a fresh pool lists a block twice."""

    @property
    def free_blocks(self):
        return [*super().free_blocks, 0]

    def snapshot(self):
        return replace(super().snapshot(), free_blocks=tuple(self.free_blocks))


def found(factory, geometry, *commands):
    """The counterexample that a history makes."""

    def make():
        return World(factory, geometry, requests=4, keeps_released=True)

    judge = Judge(PROPERTIES.values(), offered(make().state))
    ran = replay(make, commands, judge, frames=True)
    violation = ran.violations[0]
    return Counterexample(
        property=violation.property.id,
        statement=violation.property.statement,
        equation=violation.property.equation,
        message=violation.broken.message,
        geometry=geometry,
        commands=ran.commands,
        proof=Shortest(7),
        frames=ran.frames,
        blocks=violation.broken.blocks,
        requests=violation.broken.requests,
    )


def frame(owners, *, free=(), command="decode(0)", outcome="done", **more):
    tables: dict[int, list[int]] = {}
    for block, requests in owners.items():
        for r in requests:
            tables.setdefault(r, []).append(block)
    return Frame(
        command=command,
        outcome=outcome,
        owners=owners,
        tables={r: tuple(table) for r, table in sorted(tables.items())},
        seq_lens={r: len(table) for r, table in sorted(tables.items())},
        free=free,
        **more,
    )


def example(*frames, blocks=(), requests=(), **more):
    values: dict[str, Any] = {
        "property": "table-unique",
        "statement": "No block is held twice.",
        "equation": "references(b) <= 1",
        "message": "references(block 0) = 2 > 1",
        "geometry": Geometry(2, 1),
        "commands": (Prefill(0, 1), Decode(0))[: max(0, len(frames) - 1)],
        "proof": Shortest(7),
    } | more
    return Counterexample(frames=frames, blocks=blocks, requests=requests, **values)


FRESH = frame({0: (), 1: ()}, free=(0, 1), command=None, outcome="a fresh pool")


def rows(text):
    """The lines of the table, split at their columns."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("step"))
    table = lines[start : lines.index("", start)]
    return [re.split(r"\s{2,}", line.strip()) for line in table]


def test_what_is_swapped_out_stands_behind_the_tables():
    out = frame({0: (), 1: (1,)}, free=(0,), swapped={0: (0, 1, 2)})
    text = counterexample_text(example(FRESH, out))
    assert any(line.endswith("r1: 1 [1]  r0: swapped out [0..2]") for line in text.splitlines())


# ---------------------------------------------------------------- the text

LEAK_TEXT = f"""\
conservation: Every usable block is free, held, cached or pending; none is lost or counted twice.
    usable = free + held + cached + pending + withheld
    free(1) + held(0) + cached(0) != usable(2): leak, block 1 belongs to nobody

pool of 2 blocks of 1 token; 2 commands; {Shortest(7)}

step  command        outcome  block 0  block 1  free list  tokens [block table]
   0  a fresh pool            .        .        0 1
   1  prefill(0, 1)  done     r0       .        1          r0: 1 [0]
   2  release(0)     done     .        ?        0
                                       ^

    rN held by request N; . free; ? belongs to nobody; free list: next first"""


def test_a_leak_reads_as_it_would_be_told_in_an_issue():
    text = counterexample_text(found(Leaky, Geometry(2, 1), Prefill(0, 1), Release(0)))
    assert text == LEAK_TEXT


def test_a_fresh_pool_that_is_wrong_has_one_row():
    text = counterexample_text(found(Born, Geometry(1, 2)))
    assert "pool of 1 block of 2 tokens; 0 commands;" in text
    assert rows(text) == [
        ["step", "command", "outcome", "block 0", "free list", "tokens [block table]"],
        ["0", "a fresh pool", ".!", "0 0"],
        ["^^"],
    ]
    assert "! counted twice" in text


def test_a_refusal_is_short_in_the_table_and_whole_below():
    case = found(Leaky, Geometry(2, 1), Prefill(0, 1), Prefill(1, 2), Release(0))
    text = counterexample_text(case)
    assert rows(text)[3] == ["2", "prefill(1, 2)", "out of blocks", "r0", ".", "1", "r0: 1 [0]"]
    assert f"    step 2: out of blocks ({OutOfBlocks(1, 2, 1)})" in text.splitlines()


@pytest.mark.parametrize(
    ("outcome", "short"),
    [
        ("refused (it holds nothing)", "refused"),
        ("raised KeyError: 3", "raised KeyError"),
        ("out of blocks (returned (None, 2))", "out of blocks"),
    ],
)
def test_each_outcome_has_a_short_form(outcome, short):
    text = counterexample_text(example(FRESH, frame({0: (0,), 1: ()}, outcome=outcome)))
    assert rows(text)[2][2] == short
    assert f"step 1: {outcome}" in text


def test_a_block_of_two_requests_names_both_and_both_are_marked():
    shared = frame({0: (0, 1), 1: ()}, free=(1,))
    text = counterexample_text(example(FRESH, shared, blocks=(0,), requests=(1,)))
    lines = text.splitlines()
    last = next(line for line in lines if line.startswith("   1"))
    marks = lines[lines.index(last) + 1]
    assert "r0+r1!" in last
    assert [m.start() for m in re.finditer(r"\^+", marks)] == [
        last.index("r0+r1!"),
        last.index("r1: 1 [0]"),
    ]
    assert marks.endswith("^" * len("r1: 1 [0]"))


@pytest.mark.parametrize(
    ("now", "cell", "legend"),
    [
        (frame({0: (0,), 1: ()}, free=(0, 1)), "r0!", "! counted twice"),
        (frame({0: (0, 0), 1: ()}, free=(1,)), "r0+r0!", "! counted twice"),
        (frame({0: (), 1: ()}, free=(1,)), "?", "? belongs to nobody"),
        (frame({0: (), 1: ()}, free=(1,), cached=frozenset({0})), "c", "c cached"),
        (frame({0: (), 1: ()}, free=(1,), reserved=frozenset({0})), "x", "x reserved"),
        (frame({0: (3,), 1: ()}, free=(1,), reserved=frozenset({0})), "xr3", "x reserved"),
    ],
)
def test_each_fate_of_a_block_has_its_sign_and_the_sign_its_words(now, cell, legend):
    text = counterexample_text(example(FRESH, now))
    assert rows(text)[2][3] == cell
    assert legend in text.splitlines()[-1]
    assert "cached" not in counterexample_text(example(FRESH, FRESH)).splitlines()[-1]


def test_a_block_outside_the_pool_is_a_column_of_its_own():
    text = counterexample_text(example(FRESH, frame({-1: (0,), 0: (), 1: ()}, free=(0, 1))))
    assert rows(text)[0][3:6] == ["block -1", "block 0", "block 1"]
    assert [row[-5 if i else -4] for i, row in enumerate(rows(text)[1:])] == ["-", "r0"]
    assert "- does not exist" in text


def test_a_free_list_that_can_not_be_seen_has_no_column_and_no_block_is_lost():
    unseen = replace(FRESH, free=None)
    text = counterexample_text(example(unseen, replace(frame({0: (0,), 1: ()}), free=None)))
    assert "free list" not in text
    assert rows(text)[2][3:5] == ["r0", "."]


def test_a_free_list_that_is_seen_only_sometimes_says_so():
    text = counterexample_text(example(FRESH, replace(frame({0: (0,), 1: ()}), free=None)))
    assert rows(text)[2][5] == "not seen"


def test_an_empty_free_list_says_so():
    text = counterexample_text(example(FRESH, frame({0: (0,), 1: (0,)})))
    assert rows(text)[2][5] == "empty"


def test_a_big_pool_is_shown_in_runs_of_one_fate():
    case = found(Leaky, Geometry(64, 2), Prefill(0, 20), Prefill(1, 41), Release(0))
    table = rows(counterexample_text(case))
    assert table[0][3:7] == ["0..9", "10..30", "31..62", "block 63"]
    assert table[4][3:] == [".", "r1", ".", "?", "0..9 31..62", "r1: 41 [10..30]"]


def test_without_frames_the_history_is_a_numbered_list():
    text = counterexample_text(example(commands=(Prefill(0, 1), Misuse(0, "prefill-live"))))
    assert text.splitlines()[-2:] == ["   1  prefill(0, 1)", "   2  misuse(0, prefill-live)"]


def test_head_dim_proof_and_expectation_are_told_where_they_matter():
    case = example(
        FRESH,
        geometry=Geometry(2, 1, 8),
        proof=OneMinimal("the budget ended"),
        expected=True,
    )
    text = counterexample_text(case)
    assert text.startswith("table-unique (expected failure): ")
    assert "pool of 2 blocks of 1 token, head_dim 8; 0 commands; one-minimal: " in text


def test_no_line_ends_in_blanks():
    text = counterexample_text(found(Leaky, Geometry(3, 2), Prefill(0, 3), Decode(0), Release(0)))
    assert text.splitlines() == [line.rstrip() for line in text.splitlines()]


def test_what_a_target_says_can_not_move_the_cursor_or_break_a_line():
    assert plain("a\n b\tc \x1b[31mred\x07") == "a b c \\x1b[31mred\\x07"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((), ""),
        ((4,), "4"),
        ((0, 1), "0 1"),
        ((0, 1, 2), "0..2"),
        ((3, 2, 1, 0), "3..0"),
        ((0, 1, 2, 9, 5, 4, 3, 2), "0..2 9 5..2"),
        ((0, 0, 0), "0 0 0"),
        ((2, 3, 2, 1), "2 3..1"),
    ],
)
def test_runs_of_neighbours_are_written_as_their_ends(values, text):
    assert numbers(values) == text


# ---------------------------------------------------------------- the reproducer


def run_test(source):
    """Paste the source into a module, and call its one test."""
    module: dict[str, object] = {}
    exec(compile(source, "pasted.py", "exec"), module)
    (test,) = (value for name, value in module.items() if name.startswith("test_"))
    assert callable(test)
    test()


@pytest.fixture
def targets_here(monkeypatch):
    """Makes the managers of this file importable by a name."""
    monkeypatch.setitem(sys.modules, "planted", sys.modules[__name__])


LEAK = (Geometry(2, 1), Prefill(0, 1), Release(0))


def test_the_test_fails_with_the_equation_while_the_fault_is_there(targets_here):
    case = found(Leaky, *LEAK)
    with pytest.raises(AssertionError, match=re.escape(case.message)):
        run_test(pytest_function(case, "planted:Leaky"))


def test_the_test_passes_once_the_fault_is_gone():
    run_test(pytest_function(found(Leaky, *LEAK), "reference"))


def test_the_test_of_a_fresh_pool_has_no_commands(targets_here):
    case = found(Born, Geometry(1, 2))
    source = pytest_function(case, "planted:Born")
    assert "commands=[]" in source
    with pytest.raises(AssertionError, match=re.escape(case.message)):
        run_test(source)


def test_the_test_of_a_pair_names_both(targets_here):
    source = pytest_function(found(Leaky, *LEAK), "reference+planted:Leaky")
    assert '"reference+planted:Leaky",' in source
    with pytest.raises(AssertionError):
        run_test(source)


LEAK_TEST = '''\
import pagedkv


def test_conservation_holds_for_my_module_leaky():
    """usable = free + held + cached + pending + withheld

    free(1) + held(0) + cached(0) != usable(2): leak, block 1 belongs to nobody
    """
    pagedkv.assert_holds(
        "my_module:Leaky",
        commands=[
            {"op": "misuse", "request": 0, "kind": "decode-fresh"},
            {"op": "prefill", "request": 0, "tokens": 1},
            {"op": "release", "request": 0},
        ],
        num_blocks=2,
        block_size=1,
        head_dim=4,
        property="conservation",
    )
'''


def test_the_test_is_source_that_a_formatter_would_leave_alone():
    case = found(Leaky, Geometry(2, 1, 4), Misuse(0, "decode-fresh"), Prefill(0, 1), Release(0))
    assert pytest_function(case, "my_module:Leaky") == LEAK_TEST


@pytest.mark.parametrize(
    "message", ['ends it """ here', "a \\ b \\x00", "\x1b[31m", 'ends in "', "ends in \\", "é [b]"]
)
def test_no_message_can_end_the_docstring_or_change_in_it(message):
    tree = ast.parse(pytest_function(example(message=message), "a:b"))
    function = tree.body[1]
    assert isinstance(function, ast.FunctionDef)
    docstring = ast.get_docstring(function)
    assert docstring is not None
    assert docstring.splitlines()[2:] == [plain(message)]


def test_values_of_every_kind_become_python():
    class Odd(Prefill):
        def to_json(self):
            return {"op": "odd", "flag": True, "none": None, "ids": [1, 2], "map": {"é": 0.5}}

    source = pytest_function(example(commands=(Odd(0, 1),)), "a:b")
    assert '{"op": "odd", "flag": True, "none": None, "ids": [1, 2], "map": {"é": 0.5}},' in source


# ---------------------------------------------------------------- several of one history


def test_properties_that_one_history_breaks_are_told_above_one_history():
    one = found(Leaky, Geometry(2, 1), Prefill(0, 1), Release(0))
    two = replace(one, property="free-count", message="num_free = 1 != 0", requests=(0,))
    lines = counterexamples_text([one, two]).splitlines()
    assert lines[:3] == counterexample_text(one).splitlines()[:3]
    assert lines[3:6] == counterexample_text(two).splitlines()[:3]
    assert lines[6:] == counterexample_text(one).splitlines()[3:]


def test_what_each_property_names_is_marked_in_the_one_history():
    one = found(Leaky, Geometry(2, 1), Prefill(0, 1), Release(0))
    whole = together([one, replace(one, blocks=(0,), requests=(3,))])
    assert whole.blocks == (0, *one.blocks)
    assert whole.requests == (3,)


def test_only_equal_histories_in_equal_pools_stand_together():
    one = found(Leaky, Geometry(2, 1), Prefill(0, 1), Release(0))
    others = [
        replace(one, geometry=Geometry(3, 1)),
        replace(one, commands=one.commands[:1]),
        replace(one, expected=True),
    ]
    twin = replace(one, property="free-count")
    groups = by_history([one, *others, twin])
    assert groups == [[one, twin], *([other] for other in others)]


def test_of_a_long_history_without_frames_the_end_is_listed():
    one = found(Leaky, Geometry(2, 1), Prefill(0, 1), Release(0))
    long = replace(one, frames=(), commands=(Prefill(0, 1), *[Decode(0)] * 998, Release(0)))
    lines = counterexample_text(long, "as recorded").splitlines()
    assert "pool of 2 blocks of 1 token; 1000 commands; as recorded" in lines
    assert "      (980 commands before these)" in lines
    assert lines[-1] == "1000  release(0)"
    assert len(lines) == 6 + 1 + 20
