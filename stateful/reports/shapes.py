"""What a picture is made of: texts, boxes and the cells of blocks, as elements of SVG.

Built as a tree, so that no word can become markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree as ET

from pagedkv.stateful.reports.cells import Cell

COLOURS = 8
LONGEST = 22
"""Longer words are cut in a column; the whole is in the tooltip."""
GLYPH = 7.9
"""How wide a sign of the cells' type is."""
HEIGHT, LOW, SPINE = 32.0, 24.0, 9.0
"""How high a block's cell is, how high one of the rest, and how wide the owner's stripe."""
PATTERNS: tuple[tuple[str, ...], ...] = (
    (),
    ("M-1 1L1 -1M0 6L6 0M5 7L7 5",),
    (".",),
    ("M0 3H6",),
    ("M-1 5L1 7M0 0L6 6M5 -1L7 1",),
    ("M0 0L6 6M0 6L6 0",),
    ("M3 0V6",),
    ("M0 3H6", "M3 0V6"),
)
"""One pattern for each colour: none, stripes, dots and crosses."""


@dataclass(frozen=True, slots=True)
class Column:
    """Where one step's column lies."""

    left: float
    width: float

    @property
    def middle(self) -> float:
        """Halfway across."""
        return self.left + self.width / 2


def cut(word: str) -> str:
    """The word, or as much of it as a column shows."""
    return word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…"


def width_of(word: str) -> float:
    """How much room the word takes in a column."""
    return min(len(word), LONGEST) * GLYPH


# ---------------------------------------------------------------- the parts of a column


def draw_cell(
    root: ET.Element, column: Column, y: float, cell: Cell, name: str, ident: str
) -> ET.Element:
    """One block at one step, in its owners' colours."""
    group = add(root, "g", cls=f"cell {cell.kind}")
    add(group, "title").text = f"{name}: {cell.words}"
    outer = add(group, "rect", cls="box", rx=4)
    outer.attrib |= sized(column.left + 3, y, column.width - 6, HEIGHT)
    inner, owners = column.width - 8, list(dict.fromkeys(cell.owners))
    for i, owner in enumerate(owners):
        left, share = column.left + 4 + i * inner / len(owners), inner / len(owners)
        _draw_owner(group, owner % COLOURS, left, y + 1, share, ident)
    middle = column.middle + (SPINE / 2 if owners else 0)
    write(group, middle, y + (21 if cell.filled is None else 18), cut(cell.label), "", "middle")
    if cell.filled is not None:
        left, wide = column.left + 4 + SPINE + 6, inner - SPINE - 12
        add(group, "rect", cls="trough", rx=1.5).attrib |= sized(left, y + 24, wide, 3)
        level = sized(left, y + 24, wide * cell.filled, 3)
        add(group, "rect", cls="level", rx=1.5).attrib |= level
    return group


def _draw_owner(
    group: ET.Element, colour: int, left: float, top: float, width: float, ident: str
) -> None:
    """A tint, and on its left a stripe in the full colour and with the pattern."""
    tint, spine = sized(left, top, width, HEIGHT - 2), sized(left, top, SPINE, HEIGHT - 2)
    add(group, "rect", cls=f"o{colour}", rx=3).attrib |= tint
    add(group, "rect", cls=f"o{colour} spine", rx=3).attrib |= spine
    if PATTERNS[colour]:
        add(group, "rect", rx=3, fill=f"url(#{ident}-p{colour})").attrib |= spine


def draw_text(root: ET.Element, column: Column, y: float, text: str) -> ET.Element:
    """A box with text; an empty group for none."""
    group = add(root, "g")
    if text:
        outer = add(group, "rect", cls="holding", rx=4)
        outer.attrib |= sized(column.left + 3, y, column.width - 6, LOW)
        tip(write(group, column.middle, y + 16, cut(text), "", "middle"), text)
    return group


def mark(group: ET.Element, column: Column, y: float, height: float) -> None:
    """A red frame and a cross in a circle: this is what is broken."""
    group.attrib["class"] = f"{group.get('class', 'holds')} failing"
    frame = add(group, "rect", cls="wrong", rx=5)
    frame.attrib |= sized(column.left + 2, y - 1, column.width - 4, height + 2)
    badge(group, column.left + column.width - 4, y + 1)


def badge(group: ET.Element, x: float, y: float) -> None:
    """A cross in a circle."""
    add(group, "circle", cls="badge", cx=x, cy=y, r=7)
    path = f"M{short(x - 2.5)} {short(y - 2.5)}l5 5M{short(x + 2.5)} {short(y - 2.5)}l-5 5"
    add(group, "path", cls="cross", d=path)


# ---------------------------------------------------------------- elements


def add(parent: ET.Element, tag: str, cls: str = "", **values: float | str) -> ET.Element:
    """A new element at the end of `parent`."""
    element = ET.SubElement(parent, tag, {"class": cls} if cls else {})
    for name, value in values.items():
        element.set(name, value if isinstance(value, str) else short(value))
    return element


def write(
    parent: ET.Element, x: float, y: float, text: str, cls: str, anchor: str = "start"
) -> ET.Element:
    """A new text at the end of `parent`."""
    element = add(parent, "text", cls=cls, x=x, y=y)
    if anchor != "start":
        element.set("text-anchor", anchor)
    element.text = text
    return element


def tip(element: ET.Element, text: str) -> None:
    """The whole of what `element` has no room for, shown by a pointer that rests on it."""
    if text and text != element.text:
        ET.SubElement(element, "title").text = text


def sized(x: float, y: float, width: float, height: float) -> dict[str, str]:
    """Place and size as attributes."""
    return {"x": short(x), "y": short(y), "width": short(width), "height": short(height)}


def short(value: float) -> str:
    """A number as short as it can be."""
    return f"{value:.1f}".removesuffix(".0")
