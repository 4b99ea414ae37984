"""The pool over time: what the film says, and the SVG picture of it."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from faults import EarlyOut, FreeTwice, KeepsLast, SortsTable
from pagedkv import KVCacheManager
from pagedkv.specs.abilities.core import Prefill
from pagedkv.specs.model import Geometry
from pagedkv.stateful.report import Frame
from pagedkv.stateful.reports import first_history, svg_picture
from pagedkv.stateful.reports.cells import MOST_ROWS
from pagedkv.stateful.reports.film import Film, film_of
from report_examples import (
    HOSTILE,
    LEAK,
    SORTED,
    STAYS,
    TWICE,
    examples_of,
    hostile_report,
    stays_free,
)

SVG = "{http://www.w3.org/2000/svg}"


def film(examples, target="mine:M") -> Film:
    found = film_of(examples, target)
    assert found is not None
    return found


def labels(of, block, pool=0):
    return [moment.cells[block].label for moment in of.pools[pool].moments]


def words(of, block, pool=0):
    return [moment.cells[block].words for moment in of.pools[pool].moments]


def moment(**fields):
    """One moment of a pool of blocks 0 to 3."""
    given = {"owners": dict.fromkeys(range(4), ()), "tables": {}, "seq_lens": {}, "free": ()}
    return Frame(**{"command": "decode(0)", "outcome": "done", **given, **fields})


def film_from(*frames, blocks=(), requests=(), size=1):
    example = examples_of(KeepsLast, LEAK, Geometry(2, 1))[0]
    geometry = Geometry(4, size)
    of = replace(example, geometry=geometry, frames=frames, blocks=blocks, requests=requests)
    return film([of])


# ---------------------------------------------------------------- the film


def test_each_block_is_told_by_its_owner_at_each_step():
    of = film(examples_of(SortsTable, SORTED))
    assert of.commands == (
        "a fresh pool",
        "prefill(0, 1)",
        "prefill(1, 1)",
        "release(0)",
        "decode(1)",
    )
    assert labels(of, 0) == ["free", "r0", "r0", "free", "r1"]
    assert labels(of, 1) == ["free", "free", "r1", "r1", "r1"]
    assert words(of, 0)[-1] == "held by r1 at 1 of its table"


def test_a_block_that_is_held_and_free_is_both():
    of = film(stays_free())
    assert labels(of, 1) == ["free", "free", "r0+free"]
    assert words(of, 1)[-1] == "held by r0 at 1 of its table; on the free list"


def test_a_lost_block_belongs_to_nobody():
    assert labels(film(examples_of(KeepsLast, LEAK)), 1) == ["free", "r0", "nobody"]


def test_a_block_that_is_free_twice_says_so():
    assert labels(film(examples_of(FreeTwice, TWICE)), 0)[-1] == "free x2"


def test_reserved_cached_shared_and_missing_blocks_have_names_of_their_own():
    first = moment(owners={0: (), 1: (), 2: ()}, free=(2,), reserved=frozenset({0}))
    last = moment(
        owners={0: (), 1: (0, 1), 2: (), 7: (1,)},
        tables={0: (1,), 1: (1, 7)},
        free=(2,),
        reserved=frozenset({0}),
        cached=frozenset({2}),
    )
    of = film_from(first, last)
    assert [row.name for row in of.pools[0].rows] == ["block 0", "block 1", "block 2", "block 7"]
    kinds = [[cell.kind for cell in m.cells] for m in of.pools[0].moments]
    assert kinds == [
        ["reserved", "nobody", "free", "absent"],
        ["reserved", "held", "cached", "held"],
    ]
    assert [cell.label for cell in of.pools[0].moments[1].cells] == [
        "reserved",
        "r0+r1",
        "cached+free",
        "r1",
    ]


def test_where_the_free_list_can_not_be_seen_nothing_is_said_to_be_lost():
    of = film_from(moment(free=None), moment(free=None))
    assert labels(of, 0) == ["free", "free"]
    assert "can't be seen" in words(of, 0)[0]


def test_how_full_a_block_is_comes_from_its_place_in_the_table():
    held = {0: (0,), 1: (0,), 2: (), 3: ()}
    fresh = moment()
    of = film_from(fresh, moment(owners=held, tables={0: (1, 0)}, seq_lens={0: 5}), size=4)
    assert [cell.filled for cell in of.pools[0].moments[1].cells] == [0.25, 1.0, None, None]
    short = film_from(fresh, moment(owners=held, tables={0: (1, 0)}, seq_lens={0: 9}), size=4)
    assert [cell.filled for cell in short.pools[0].moments[1].cells] == [None] * 4


def test_what_changed_is_told():
    of = film(examples_of(SortsTable, SORTED))
    changes = [m.changes for m in of.pools[0].moments]
    assert changes[0] == ()
    assert changes[1] == ("block 0: free → r0", "r0: new, 1 [0]")
    assert changes[3] == ("block 0: r0 → free", "r0: gone")
    assert changes[4] == ("block 0: free → r1", "r1: 1 [1] → 2 [1 0]")
    order = film_from(moment(free=(0, 1, 2, 3)), moment(free=(1, 0, 2, 3)))
    assert order.pools[0].moments[1].changes == ("free list: another order",)


def test_a_request_that_is_swapped_out_says_what_it_has_there():
    here = moment(tables={0: (0, 1)}, seq_lens={0: 2})
    of = film_from(here, moment(swapped={0: (2, 3)}))
    (pool,) = of.pools
    (out,) = pool.moments[1].requests
    assert out.text == "swapped out [2 3]"
    assert "r0: 2 [0 1] → swapped out [2 3]" in pool.moments[1].changes
    told = of.to_json()["pools"][0]["moments"]
    assert [step["requests"] for step in told] == [[[0, "2", [0, 1]]], [[0, "swapped out", [2, 3]]]]


def test_the_broken_cells_are_marked():
    of = film(examples_of(SortsTable, SORTED))
    assert [row.wrong for row in of.pools[0].rows] == [False, True]
    assert of.pools[0].wrong == {1}


def test_a_pair_shows_both_and_marks_the_one_that_breaks():
    of = film(examples_of((KVCacheManager, EarlyOut), STAYS), "reference+mine:EarlyOut")
    assert [pool.name for pool in of.pools] == ["reference", "mine:EarlyOut"]
    assert [pool.moments[-1].outcome for pool in of.pools] == ["done", "out of blocks"]
    assert labels(of, 1, 0) == ["free", "free", "r0"]
    assert labels(of, 1, 1) == ["free", "free", "free"]
    message = "the second target: block 1 is wrong"
    guilty = [
        replace(e, message=message, blocks=(1,))
        for e in examples_of((KVCacheManager, EarlyOut), STAYS)
        if e.property == "out-of-blocks"
    ]
    marked = film(guilty, "reference+mine:EarlyOut")
    assert [[row.wrong for row in pool.rows] for pool in marked.pools] == [
        [False, False],
        [False, True],
    ]


def test_neighbours_of_one_fate_are_one_row_in_a_big_pool():
    (example,) = examples_of(KeepsLast, (Prefill(0, 3), *LEAK[1:]), Geometry(40, 1))
    of = film([example])
    assert [row.name for row in of.pools[0].rows] == ["0..1", "block 2", "3..39"]
    assert labels(of, 2) == ["free", "free", "free"]
    assert words(of, 0) == ["on the free list", "held by r0", "on the free list"]


def test_of_very_many_rows_the_most_telling_are_shown():
    blocks = range(0, 4 * MOST_ROWS, 2)
    fresh = moment(owners=dict.fromkeys(blocks, ()), free=tuple(blocks))
    held = {b: (0,) if b == 150 else () for b in blocks}
    free = tuple(b for b in blocks if b != 150)
    last = moment(owners=held, tables={0: (150,)}, free=free)
    of = film_from(fresh, last, blocks=(170,))
    names = [row.name for row in of.pools[0].rows]
    assert len(names) == MOST_ROWS + 1
    assert {"block 150", "block 170"} <= set(names)
    assert names[-1] == f"{len(blocks) - MOST_ROWS} more"
    assert all(len(m.cells) == len(names) for m in of.pools[0].moments)


def test_a_history_that_was_not_seen_has_no_film():
    example = replace(stays_free()[0], frames=())
    assert film_of([example], "mine:M") is None
    assert svg_picture([example], "mine:M") is None


# ---------------------------------------------------------------- the picture


def drawn(examples, target="mine:M") -> ET.Element:
    text = svg_picture(examples, target)
    assert text is not None
    return ET.fromstring(text.encode("utf-8"))


def text_of(element, tag) -> str:
    found = element.find(f"{SVG}{tag}")
    assert found is not None
    return found.text or ""


def number(element, name) -> float:
    return float(element.get(name) or "nan")


def classed(root, name, tag="*"):
    return [
        e for e in root.iter() if name in (e.get("class") or "").split() and tag in ("*", e.tag)
    ]


def test_there_is_a_cell_for_each_block_at_each_step():
    cells = classed(drawn(examples_of(SortsTable, SORTED)), "cell")
    assert len(cells) == 5 * 2
    assert {cell.get("data-step") for cell in cells} == set("01234")
    shown = {text.text for cell in cells for text in cell.iter(f"{SVG}text")}
    assert shown == {"free", "r0", "r1"}


def test_only_the_broken_cells_of_the_last_step_are_marked():
    failing = classed(drawn(stays_free()), "failing")
    titles = [t.text for cell in failing for t in cell.iter(f"{SVG}title")]
    assert "block 1: held by r0 at 1 of its table; on the free list" in titles
    assert {cell.get("data-step") for cell in failing if cell.get("data-step")} == {"2"}
    assert len(classed(drawn(stays_free()), "badge")) == len(failing) + 1


def test_each_owner_has_a_colour_a_pattern_and_a_name():
    root = drawn(examples_of(SortsTable, SORTED))
    one = next(cell for cell in classed(root, "cell") if text_of(cell, "text") == "r1")
    assert classed(one, "o1")
    patterns = {pattern.get("id") for pattern in root.iter(f"{SVG}pattern")}
    used = [
        r.get("fill") for r in one.iter(f"{SVG}rect") if (r.get("fill") or "").startswith("url")
    ]
    assert used == ["url(#film-p1)"]
    assert "film-p1" in patterns


def test_the_picture_is_told_in_words():
    root = drawn(stays_free(), "mine:StaysFree")
    title, told = text_of(root, "title"), text_of(root, "desc")
    assert root.get("aria-labelledby") == "film-title film-desc"
    assert title == "mine:StaysFree breaks conservation and free-disjoint"
    assert "Step 2: decode(0). done." in told
    assert "block 1 held by r0 at 1 of its table; on the free list." in told
    assert told.endswith("Broken: block 1, r0.")


def test_it_has_its_own_paper_and_a_dark_scheme():
    root = drawn(stays_free())
    assert len(classed(root, "paper")) == 1
    style = text_of(root, "style")
    assert "prefers-color-scheme: dark" in style
    assert "var(" not in style


def test_the_same_history_gives_the_same_picture():
    assert svg_picture(stays_free(), "mine:M") == svg_picture(stays_free(), "mine:M")


def test_nothing_of_a_target_becomes_markup():
    bad = hostile_report().targets[0]
    text = svg_picture(bad.counterexamples, bad.target)
    assert text is not None
    assert "<img" not in text
    assert "\x00" not in text
    root = ET.fromstring(text.encode("utf-8"))
    assert not list(root.iter(f"{SVG}img"))
    assert "\\x1b[31m" in text_of(root, "title")
    assert HOSTILE.partition("\x00")[0] in text_of(root, "title")


@pytest.mark.parametrize("history", [STAYS, LEAK, TWICE])
def test_everything_lies_on_the_paper(history):
    factory = {STAYS: stays_free, LEAK: lambda: examples_of(KeepsLast, LEAK)}
    examples = factory.get(history, lambda: examples_of(FreeTwice, TWICE))()
    root = drawn(examples)
    for rect in root.iter(f"{SVG}rect"):
        assert number(rect, "x") >= 0
        assert number(rect, "x") + number(rect, "width") <= number(root, "width")
        assert number(rect, "y") + number(rect, "height") <= number(root, "height")


def test_of_many_counterexamples_those_of_the_first_history_are_drawn_together():
    one, two = stays_free(), examples_of(KeepsLast, LEAK)
    assert first_history([*one, *two]) == one
    assert first_history([]) == []
