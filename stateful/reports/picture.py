"""A film as one SVG picture: blocks as rows, one column a step, coloured by owner.

Each owner has a colour, a pattern and its name in the cell, so that any one of them will do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from importlib.resources import files
from xml.etree import ElementTree as ET

from pagedkv.stateful.report import Counterexample
from pagedkv.stateful.reports.escape import counted
from pagedkv.stateful.reports.film import Film, Moment, Pool, film_of
from pagedkv.stateful.reports.shapes import (
    GLYPH,
    HEIGHT,
    LOW,
    PATTERNS,
    SPINE,
    Column,
    add,
    badge,
    cut,
    draw_cell,
    draw_text,
    mark,
    short,
    sized,
    tip,
    width_of,
    write,
)
from pagedkv.stateful.text import by_history, numbers, plain

_GAP, _LINE, _EDGE = 4.0, 18.0, 16.0
_NARROWEST = 600.0
"""How wide a picture with captions is at least."""
_LEGEND = "rN: tokens [block table] of request N; free list: next first; bar: how full a block is"


def svg_picture(examples: Sequence[Counterexample], target: str) -> str | None:
    """Counterexamples with one history as an SVG file; None where no pool was seen.

    Changes nothing. The same examples give the same text.
    """
    film = film_of(examples, target)
    if film is None:
        return None
    first = examples[0]
    blocks = counted(first.geometry.num_blocks, "block")
    tokens = counted(first.geometry.block_size, "token")
    steps = counted(len(first.commands), "command")
    head = [
        f"{plain(target)} breaks {' and '.join(example.property for example in examples)}",
        *(plain(example.message) for example in examples),
        f"pool of {blocks} of {tokens}; {steps}; {plain(str(first.proof))}",
    ]
    picture = _Picture(film, "film", head, alone=True)
    style = files(__package__).joinpath("picture.css").read_text(encoding="utf-8")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{picture.draw(style)}\n'


def svg_of(film: Film, ident: str, title: str) -> str:
    """The film as an SVG element of a page that has the style; `ident` is unique in the page."""
    return _Picture(film, ident, [title], alone=False).draw()


def first_history(examples: Iterable[Counterexample]) -> list[Counterexample]:
    """Of many counterexamples those that share the first one's history."""
    return next(iter(by_history(examples)), [])


class _Picture:
    """Draws one film.

    head: a title and the lines below it. alone: they are shown, as no page around it says them.
    """

    def __init__(self, film: Film, ident: str, head: Sequence[str], *, alone: bool) -> None:
        self._film, self._ident, self._head, self._alone = film, ident, head, alone
        names = [row.name for pool in film.pools for row in pool.rows]
        names += [f"r{r}" for pool in film.pools for r in pool.requests] + ["free list"]
        self._label = max(map(len, names)) * GLYPH * 0.93 + 14
        self._columns = self._measure()
        last = self._columns[-1]
        self._width = max(last.left + last.width + _EDGE, _NARROWEST if alone else 0.0)

    def _measure(self) -> list[Column]:
        columns: list[Column] = []
        left = _EDGE + self._label
        for i, command in enumerate(self._film.commands):
            widths = [*map(width_of, _split(command)), width_of(f"step {i}") + 12, 56.0]
            for pool in self._film.pools:
                moment = pool.moments[i]
                widths += [width_of(moment.outcome), width_of(_free(moment))]
                widths += [
                    width_of(cell.label) + SPINE * max(1, len(cell.owners)) for cell in moment.cells
                ]
                widths += [width_of(held.text) for held in moment.requests]
            columns.append(Column(left, max(widths) + 22))
            left += columns[-1].width + _GAP
        return columns

    def draw(self, style: str | None = None) -> str:
        """The whole picture as text."""
        ident = self._ident
        root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "class": "film"})
        root.attrib |= {"role": "img", "aria-labelledby": f"{ident}-title {ident}-desc"}
        add(root, "title", id=f"{ident}-title").text = self._head[0]
        add(root, "desc", id=f"{ident}-desc").text = " ".join(_told(self._film))
        if style is not None:
            add(root, "style").text = f"\n{style}"
        self._patterns(add(root, "defs"))
        paper = add(root, "rect", cls="paper", x=0.5, y=0.5, rx=8)
        y = self._captions(root)
        bands = add(root, "g")
        top = y
        y = self._commands(root, y)
        labels = ET.Element("g", {"class": "labels"})
        under = add(labels, "rect", cls="under")
        for pool in self._film.pools:
            y = self._pool(root, labels, pool, y)
        self._bands(bands, top, y)
        under.attrib |= sized(0, top - 2, _EDGE + self._label - 4, y - top + 4)
        root.append(labels)
        height = self._legend(root, y) + _EDGE - _GAP
        root.attrib |= {"width": short(self._width), "height": short(height)}
        root.attrib["viewBox"] = f"0 0 {short(self._width)} {short(height)}"
        paper.attrib |= {"width": short(self._width - 1), "height": short(height - 1)}
        return ET.tostring(root, encoding="unicode")

    def _captions(self, root: ET.Element) -> float:
        y = 10.0
        if not self._alone:
            return y
        for i, text in enumerate(self._head):
            kind, size = ("caption", 6.5) if i else ("title", 9.0)
            room = int((self._width - 2 * _EDGE) / size)
            for line in textwrap.wrap(text, room, break_on_hyphens=False):
                y += _LINE
                write(root, _EDGE, y, line, kind)
            y += 0 if i else 6
        return y + 14

    def _legend(self, root: ET.Element, y: float) -> float:
        if not self._alone:
            return y
        write(root, _EDGE, y + 18, _LEGEND, "caption")
        return y + 24

    def _commands(self, root: ET.Element, top: float) -> float:
        """The step's number and the command above each column."""
        for i, (column, command) in enumerate(zip(self._columns, self._film.commands, strict=True)):
            group = add(root, "g", cls="step")
            group.attrib["data-step"] = str(i)
            add(group, "title").text = f"step {i}: {command}"
            last = i == len(self._columns) - 1
            said = f"step {i}"
            if last:
                write(group, column.middle - 9, top + 16, said, "breaks", "middle")
                badge(group, column.middle + len(said) * 3.7 + 3, top + 12)
            else:
                write(group, column.middle, top + 16, said, "soft", "middle")
            op, values = _split(command)
            write(group, column.middle, top + 35, op, "command", "middle")
            write(group, column.middle, top + 51, values, "soft", "middle")
        return top + 58

    def _pool(self, root: ET.Element, labels: ET.Element, pool: Pool, y: float) -> float:
        """One pool: the outcomes, its blocks, its requests, its free list."""
        if pool.name is not None:
            y += 20
            write(labels, _EDGE, y, pool.name, "name")
            y += 2
        for column, moment in zip(self._columns, pool.moments, strict=True):
            outcome = write(root, column.middle, y + 13, cut(moment.outcome), "soft", "middle")
            tip(outcome, moment.note)
        y += 22
        for i, row in enumerate(pool.rows):
            write(labels, _EDGE, y + 21, row.name, "row")
            for step, (column, moment) in enumerate(zip(self._columns, pool.moments, strict=True)):
                group = draw_cell(root, column, y, moment.cells[i], row.name, self._ident)
                group.attrib["data-step"] = str(step)
                if row.wrong and step == len(self._columns) - 1:
                    mark(group, column, y, HEIGHT)
            y += HEIGHT + _GAP
        return self._below(root, labels, pool, y + 8)

    def _below(self, root: ET.Element, labels: ET.Element, pool: Pool, y: float) -> float:
        for request in pool.requests:
            write(labels, _EDGE, y + 16, f"r{request}", "row")
            for step, (column, moment) in enumerate(zip(self._columns, pool.moments, strict=True)):
                held = moment.holding(request)
                group = draw_text(root, column, y, "" if held is None else held.text)
                if request in pool.wrong and step == len(self._columns) - 1:
                    mark(group, column, y, LOW)
            y += LOW + _GAP
        if any(moment.free is not None for moment in pool.moments):
            write(labels, _EDGE, y + 16, "free list", "row")
            for column, moment in zip(self._columns, pool.moments, strict=True):
                draw_text(root, column, y, _free(moment))
            y += LOW + _GAP
        return y

    def _bands(self, bands: ET.Element, top: float, bottom: float) -> None:
        """What lies behind each column; the last one is that of the violation."""
        for i, column in enumerate(self._columns):
            last = i == len(self._columns) - 1
            band = add(bands, "rect", cls="band last" if last else "band", rx=6)
            band.attrib |= sized(column.left - 1, top - 2, column.width + 2, bottom - top + 2)
            band.attrib["data-step"] = str(i)

    def _patterns(self, defs: ET.Element) -> None:
        for i, lines in enumerate(PATTERNS):
            pattern = add(defs, "pattern", id=f"{self._ident}-p{i}", width=6, height=6)
            pattern.attrib["patternUnits"] = "userSpaceOnUse"
            for path in lines:
                if path == ".":
                    add(pattern, "circle", cls="dot", cx=3, cy=3, r=1.5)
                else:
                    add(pattern, "path", cls="line", d=path)


def _free(moment: Moment) -> str:
    if moment.free is None:
        return "not seen"
    return numbers(moment.free) if moment.free else "empty"


def _split(command: str) -> tuple[str, str]:
    """A command's name and its values, each on a line of its own."""
    op, bracket, values = command.partition("(")
    return cut(op), cut(bracket + values)


def _told(film: Film) -> Iterable[str]:
    """The picture in sentences."""
    for i, command in enumerate(film.commands):
        yield f"Step {i}: {command}."
        for pool in film.pools:
            moment = pool.moments[i]
            if pool.name is not None:
                yield f"{pool.name}:"
            if moment.outcome:
                yield f"{moment.outcome}."
            rows = zip(pool.rows, moment.cells, strict=True)
            yield "; ".join(f"{row.name} {cell.words}" for row, cell in rows) + "."
            if moment.free is not None:
                yield f"Free list: {_free(moment)}."
    for pool in film.pools:
        wrong = [row.name for row in pool.rows if row.wrong] + [f"r{r}" for r in sorted(pool.wrong)]
        if wrong:
            yield f"Broken{f' in {pool.name}' if pool.name else ''}: {', '.join(wrong)}."
