"""The HTML page as text: what stands in it, and what can't break out of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from pagedkv.specs.catalogue import PROPERTIES
from pagedkv.stateful.report import PropertyResult, Report
from pagedkv.stateful.reports import html_page
from report_examples import (
    HOSTILE,
    OTHERS,
    hostile_report,
    report,
    stays_free,
    target,
)

VOID = {"meta", "link", "img", "input", "br", "hr"}


class Page(HTMLParser):
    """The elements of a page, each with its text, and whether they close in order."""

    def __init__(self, of: Report) -> None:
        super().__init__(convert_charrefs=True)
        self.text = html_page(of)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.open: list[tuple[str, int]] = []
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, len(self.elements) - 1))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        opened, _ = self.open.pop()
        assert opened == tag

    def handle_data(self, data):
        for _, index in self.open:
            self.texts[index] = self.texts.get(index, "") + data

    def all(self, tag, **attributes):
        """(attributes, text) of each such element; `class_` is one of its classes."""
        wanted = attributes.pop("class_", None)
        return [
            (given, self.texts.get(i, ""))
            for i, (name, given) in enumerate(self.elements)
            if name == tag
            and (wanted is None or wanted in (given.get("class") or "").split())
            and attributes.items() <= given.items()
        ]

    def films(self):
        ((_, text),) = self.all("script", id="films")
        return json.loads(text)


def test_elements_close_in_order_and_ids_are_unique():
    for of in (report(), hostile_report(), Report()):
        page = Page(of)
        assert page.open == []
        ids = [given["id"] for _, given in page.elements if "id" in given]
        assert len(ids) == len(set(ids))


def test_links_lead_to_what_is_there():
    page = Page(report())
    ids = {given["id"] for _, given in page.elements if "id" in given}
    links = [given["href"] for given, _ in page.all("a")]
    assert len(links) > 8
    assert {link.removeprefix("#") for link in links} <= ids
    for _, given in page.elements:
        for name in (given.get("aria-labelledby") or "").split():
            assert name in ids


def test_nothing_is_loaded_from_anywhere():
    page = Page(report())
    sources = [
        given[name] or ""
        for _, given in page.elements
        for name in ("src", "href", "srcset", "action", "data")
        if name in given
    ]
    assert all(source.startswith(("#", "data:")) for source in sources)
    without = page.text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\((?!#)", without)
    ((policy, _),) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    content = policy["content"] or ""
    assert content.startswith("default-src 'none'; ")
    assert "unsafe" not in content


def test_the_headline_is_the_runs_verdict():
    def headline(*verdicts):
        of = Report(tuple(target(f"m:{i}", [], verdict=v) for i, v in enumerate(verdicts)))
        ((_, text),) = Page(of).all("h1")
        return text

    assert headline("passed") == "Passed: 1 of 1 target"
    assert headline("passed", "unknown") == "Unknown: 1 of 2 targets"
    assert headline("passed", "unknown", "violated") == "Violated: 1 of 3 targets"
    assert headline() == "Nothing was checked"


def test_the_header_has_the_profile_and_the_seed():
    def how(of):
        return [text for _, text in Page(of).all("p", class_="how")]

    assert how(report()) == []
    assert how(replace(report(), profile="nightly", seed=7)) == ["profile nightly, seed 7"]
    assert how(Report((), "ci")) == ["profile ci, the profile's own seed"]


def test_what_is_violated_comes_first():
    goal = PropertyResult("block-reused", "violated", 1)
    last = PropertyResult("rollback", "violated", 1)
    first = PropertyResult("table-valid", "passed", 1)
    other = PropertyResult("double-free", "passed", 1)
    assert list(PROPERTIES).index("table-valid") < list(PROPERTIES).index("rollback")
    page = Page(Report((target("m:M", [], results=(first, goal, other, last)),)))
    text = page.text.partition('<table class="matrix">')[2]
    named = re.findall(r'<th scope="row"><b>(.*?)</b>', text)
    rest = [name for name in PROPERTIES if name in ("table-valid", "double-free")]
    assert named == ["rollback", *rest, "block-reused"]


def test_each_target_has_a_card_with_its_verdict_reason_and_figures():
    page = Page(report())
    cards = {given["class"]: text for given, text in page.all("article", class_="card")}
    assert set(cards) == {"card violated", "card passed", "card unknown"}
    unknown = cards["card unknown"]
    assert "it died (signal 11)" in unknown
    for figure in ("states20", "transitions60", "depth4", "seconds1.2"):
        assert figure in re.sub(r"\s", "", unknown)


def test_the_matrix_has_a_row_for_each_property_and_a_cell_for_each_target():
    page = Page(report())
    text = page.text.partition('<table class="matrix">')[2].partition("</table>")[0]
    rows = re.findall(r"<tr>.*?</tr>", text, re.DOTALL)[1:]
    named = [name for row in rows for name in re.findall(r"<b>(.*?)</b>", row)]
    judged = {result.id for of in report().targets for result in of.properties}
    assert set(named) == judged
    (row,) = [row for row in rows if "<b>conservation</b>" in row]
    verdicts = re.findall(r'<td class="(\w+)"', row)
    assert verdicts == ["violated", *["not_applicable"] * 5]
    assert PROPERTIES["conservation"].statement in row
    (expected,) = [row for row in rows if "<b>report-agrees</b>" in row]
    assert '<td class="expected"' in expected


def test_with_few_targets_reasons_stand_in_the_matrix():
    page = Page(Report((target("mine:M", stays_free(), results=OTHERS),)))
    assert {text for _, text in page.all("span", class_="why")} == {
        "never reached",
        "needs reference counts",
    }


def test_counterexamples_with_one_history_are_shown_once():
    page = Page(report())
    examples = page.all("article", class_="example")
    assert len(examples) == len(page.films()) == 4
    first = examples[0][1]
    for name in ("conservation", "free-valid"):
        assert PROPERTIES[name].statement in first
        assert PROPERTIES[name].equation in first
    assert "free_blocks names block 0 2 times" in first
    assert "proven shortest" in first
    assert "pagedkv.assert_holds(" in first


def test_the_data_are_the_states_of_each_step():
    film = Page(Report((target("mine:StaysFree", stays_free()),))).films()[0]
    assert film["commands"] == ["a fresh pool", "prefill(0, 1)", "decode(0)"]
    (pool,) = film["pools"]
    assert pool["blocks"] == ["block 0", "block 1"]
    assert pool["wrong"] == {"blocks": [1], "requests": [0]}
    assert pool["moments"][2] == {
        "outcome": "done",
        "note": "",
        "cells": ["held by r0 at 0 of its table", "held by r0 at 1 of its table; on the free list"],
        "requests": [[0, "2", [0, 1]]],
        "free": [1],
        "changes": ["block 1: free → r0+free", "r0: 1 [0] → 2 [0 1]"],
    }


def test_without_a_script_the_last_step_stands_there():
    page = Page(Report((target("mine:StaysFree", stays_free()),)))
    ((_, now),) = page.all("div", class_="now")
    assert "step 2 of 2: decode(0)" in now
    assert "held by r0 at 1 of its table; on the free list" in now
    assert [given for given, _ in page.all("div", class_="controls") if "hidden" in given]
    assert len(page.all("svg", class_="film")) == 1


def test_a_history_that_is_too_long_to_be_shown_is_listed():
    long = [replace(example, frames=()) for example in stays_free()]
    page = Page(Report((target("mine:StaysFree", long),)))
    assert page.films() == []
    assert page.all("svg", class_="film") == []
    ((_, text), _) = page.all("pre")
    assert "   2  decode(0)" in text


def test_nothing_of_a_target_becomes_markup():
    page = Page(hostile_report())
    assert page.all("img") == []
    assert len(page.all("script")) == 2
    assert not any(name.startswith("on") for _, given in page.elements for name in given)
    shown = HOSTILE.encode("unicode_escape").decode().partition("\\u")[0]
    assert [text for _, text in page.all("h3") if shown in text]
    assert all(c == "\n" or c.isprintable() for c in page.text)
    page.text.encode("utf-8")


def test_hostile_words_come_through_the_data_as_they_are():
    film = Page(hostile_report()).films()[0]
    note = film["pools"][0]["moments"][1]["note"]
    assert note.startswith("raised </script><img src=x onerror=alert(1)>\"'&\\x00\\x1b[31m")


def test_the_same_report_gives_the_same_page():
    assert html_page(report()) == html_page(report())
