"""The HTML page in a real browser: steps, keys, schemes and small screens.

Needs playwright, and a Chromium: any that is on the PATH, or the one that PAGEDKV_CHROMIUM names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from faults import EarlyOut, SortsTable
from pagedkv import KVCacheManager
from pagedkv.stateful.report import Report
from pagedkv.stateful.reports import html_page
from report_examples import (
    HOSTILE,
    OTHERS,
    SORTED,
    STAYS,
    examples_of,
    hostile_report,
    report,
    target,
)

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = os.environ.get("PAGEDKV_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")
QUIET = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a report, as a file; whatever the browser complains of fails the test."""
    complaints: list[str] = []
    contexts = []

    def opened(of: Report, **settings: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(html_page(of), encoding="utf-8")
        context = browser.new_context(**{"reduced_motion": "reduce", **settings})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda asked: complaints.append(asked.url))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in complaints if not text.startswith(("file:", "data:"))] == []


def sorts() -> Report:
    return Report((target("mine:SortsTable", examples_of(SortsTable, SORTED), results=OTHERS),))


def heading(page: Any) -> str:
    return str(page.locator(".now h4").first.inner_text())


def free(page: Any) -> list[str]:
    return list(page.locator(".now .free .chip").all_inner_texts())


def test_it_opens_at_the_step_that_breaks_and_the_failing_cell_is_marked(show):
    page = show(sorts())
    assert heading(page) == "step 4 of 4: decode(1)"
    failing = page.locator(".cell.failing")
    assert failing.count() == 1
    assert failing.locator("text").text_content() == "r1"
    assert failing.locator("rect.wrong").is_visible()
    assert page.locator(".now tr.wrong th").inner_text() == "r1"
    assert page.locator(".now li.wrong").inner_text().startswith("block 1")


def test_keys_step_forth_and_back(show):
    page = show(sorts())
    page.locator(".strip").focus()
    page.keyboard.press("ArrowLeft")
    assert heading(page) == "step 3 of 4: release(0)"
    assert free(page) == ["0"]
    assert page.locator(".now .wrong").count() == 0
    page.keyboard.press("Home")
    assert heading(page) == "step 0 of 4: a fresh pool"
    assert free(page) == ["0", "1"]
    page.keyboard.press("ArrowLeft")
    assert heading(page) == "step 0 of 4: a fresh pool"
    page.keyboard.press("ArrowRight")
    assert heading(page) == "step 1 of 4: prefill(0, 1)"
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    assert heading(page) == "step 4 of 4: decode(1)"


def test_keys_work_without_a_focus_on_what_is_in_view(show):
    page = show(sorts(), viewport={"width": 900, "height": 500})
    page.locator(".player").evaluate("element => element.scrollIntoView({block: 'center'})")
    page.keyboard.press("ArrowLeft")
    assert heading(page) == "step 3 of 4: release(0)"


def test_buttons_slider_and_columns_step_as_well(show):
    page = show(sorts())
    page.get_by_role("button", name="Step back").click()
    assert heading(page) == "step 3 of 4: release(0)"
    page.get_by_role("button", name="First step").click()
    assert heading(page) == "step 0 of 4: a fresh pool"
    assert page.get_by_role("button", name="Step back").get_attribute("aria-disabled") == "true"
    page.get_by_role("button", name="Step forth").click()
    assert heading(page) == "step 1 of 4: prefill(0, 1)"
    page.get_by_role("slider").press("ArrowRight")
    assert heading(page) == "step 2 of 4: prefill(1, 1)"
    page.locator('.cell[data-step="3"]').first.click()
    assert heading(page) == "step 3 of 4: release(0)"
    page.get_by_role("button", name="Last step").click()
    assert heading(page) == "step 4 of 4: decode(1)"


def test_the_column_of_the_step_is_framed(show):
    page = show(sorts())
    page.get_by_role("button", name="First step").click()
    frame, band = page.locator("rect.current"), page.locator('.band[data-step="0"]')
    assert frame.get_attribute("x") == band.get_attribute("x")


def test_each_counterexample_steps_by_itself(show):
    page = show(report())
    players = page.locator(".player")
    players.nth(1).locator(".strip").focus()
    page.keyboard.press("Home")
    assert [p.get_attribute("data-at") for p in players.all()] == ["3", "0", "2", "1"]


def test_a_pair_shows_both_pools(show):
    pair = examples_of((KVCacheManager, EarlyOut), STAYS)
    page = show(Report((target("reference+mine:EarlyOut", pair),)))
    assert page.locator(".now h5").all_inner_texts() == ["reference", "mine:EarlyOut"]
    assert page.locator(".now .pool").nth(1).locator(".free .chip").all_inner_texts() == ["1"]
    assert page.locator(".now .pool").nth(0).locator(".free .none").inner_text() == "empty"


def test_the_last_step_is_drawn_by_the_script_as_it_stood_there(show):
    still = show(report(), java_script_enabled=False)
    live = show(report())
    assert still.locator(".now").all_inner_texts() == live.locator(".now").all_inner_texts()
    assert still.locator(".controls:visible").count() == 0
    assert live.locator(".controls:visible").count() == 4
    assert still.locator(".cell.failing").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_both_schemes(show, scheme):
    page = show(sorts(), color_scheme=scheme)
    background, ratios = page.evaluate(CONTRASTS)
    assert (sum(background) > 600) == (scheme == "light")
    assert len(ratios) > 40
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


CONTRASTS = """() => {
  const rgb = (colour) => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const solid = (colour) => colour.startsWith("rgb(");
  const light = (c) => {
    const linear = (v) => (v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (solid(colour)) return rgb(colour);
    }
    return [255, 255, 255];
  };
  const under = (text) => {
    const fills = [...text.parentElement.querySelectorAll("rect")]
      .map((rect) => getComputedStyle(rect))
      .filter((style, i) => solid(style.fill) && style.visibility === "visible");
    const tint = fills.find((_, i) => i === 1) || fills[0];
    return rgb((tint || getComputedStyle(document.querySelector(".paper"))).fill);
  };
  const ratios = {};
  const put = (name, ink, paper) => {
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    ratios[name] = Math.min((a + .05) / (b + .05), ratios[name] || 99);
  };
  for (const e of document.querySelectorAll("main *, header *")) {
    if (e instanceof SVGElement) continue;
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own) continue;
    const name = `${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 20)}`;
    put(name, rgb(getComputedStyle(e).color), ground(e));
  }
  for (const e of document.querySelectorAll(".film .cell text")) {
    const name = `${e.parentElement.getAttribute("class")} ${e.textContent}`;
    put(name, rgb(getComputedStyle(e).fill), under(e));
  }
  return [rgb(getComputedStyle(document.body).backgroundColor), ratios];
}"""


@pytest.mark.parametrize("of", [report(), hostile_report()], ids=["all", "odd"])
def test_on_a_phone_only_the_parts_that_are_wide_scroll(show, of):
    page = show(of, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    strip = page.locator(".strip").first
    assert strip.evaluate("e => e.scrollWidth > e.clientWidth && e.scrollLeft > 0")
    assert strip.locator(".under").evaluate("e => getComputedStyle(e).visibility") == "visible"
    label = page.locator(".labels text").first.bounding_box()
    assert label["x"] >= strip.bounding_box()["x"]
    button = page.get_by_role("button", name="Step back").first.bounding_box()
    assert min(button["width"], button["height"]) >= 44


@pytest.mark.parametrize("width", [360, 390, 430])
def test_no_column_is_half_hidden_below_the_names(show, width):
    page = show(sorts(), viewport={"width": width, "height": 844})
    edges = """async () => {
        for (const _ of [1, 2]) await new Promise(requestAnimationFrame);  // the names follow
        const boxes = [".under", ".band"].flatMap((name) =>
            [...document.querySelectorAll(name)].map((e) => e.getBoundingClientRect()));
        return [boxes[0].right, ...boxes.slice(1).flatMap((box) => [box.left, box.right])];
    }"""
    for key in ("End", "ArrowLeft", "ArrowLeft", "Home", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
        under, *sides = page.evaluate(edges)
        columns = zip(sides[::2], sides[1::2], strict=True)
        assert not [c for c in columns if c[0] + 2 < under < c[1] - 2], key


def test_hostile_words_are_shown_and_not_run(show):
    page = show(hostile_report())
    assert page.locator("img").count() == 0
    page.get_by_role("button", name="Step back").click()
    shown = HOSTILE.partition("\x00")[0]
    assert shown in page.locator(".now .outcome").inner_text()
    assert shown in page.locator(".card h3").inner_text()


def test_a_reader_of_the_screen_is_told(show):
    page = show(sorts())
    assert (
        page.get_by_role("img").first.get_attribute("aria-labelledby")
        == "example-1-title example-1-desc"
    )
    assert page.locator(".now").get_attribute("aria-live") == "polite"
    page.get_by_role("slider").press("Home")
    assert page.get_by_role("slider").get_attribute("aria-valuetext") == "step 0: a fresh pool"
    focusable = page.evaluate(
        "[...document.querySelectorAll('.player [tabindex], .player button, .player input')].length"
    )
    assert focusable == 6


def test_it_prints_without_the_controls(show):
    page = show(sorts(), color_scheme="dark", viewport={"width": 360, "height": 640})
    assert page.locator(".strip").evaluate("e => e.scrollLeft") > 0
    page.emulate_media(media="print")
    assert page.locator(".labels").evaluate("e => getComputedStyle(e).transform") == "none"
    assert page.locator(".under").is_hidden()
    assert page.locator(".controls").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = page.locator(".message code").first.evaluate("e => getComputedStyle(e).color")
    assert ink == "rgb(31, 35, 40)"
    assert page.locator(".paper").evaluate("e => getComputedStyle(e).fill") == "rgb(255, 255, 255)"


def test_nothing_was_checked_is_a_page_too(show):
    page = show(Report())
    assert page.locator("h1").inner_text() == "Nothing was checked"
