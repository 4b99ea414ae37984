"""A counterexample as plain text, to be read in a terminal or pasted into an issue.

One row a step: the command, what came of it, whose each block is, the free list, and the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pagedkv.stateful.report import Counterexample, Frame

WIDE = 12
"""A pool of more blocks is shown in runs of neighbours that share one fate."""

_LEGEND = {
    "r": "rN held by request N",
    ".": ". free",
    "c": "c cached",
    "x": "x reserved",
    "w": "w withheld until the group ends",
    "?": "? belongs to nobody",
    "!": "! counted twice",
    "-": "- does not exist",
}


def plain(text: str) -> str:
    """`text` on one line, with anything that could move a cursor shown as its escape."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def counterexample_text(example: Counterexample, how: str | None = None) -> str:
    """The whole counterexample; changes nothing. No line ends in blanks.

    how: words for how short it is, instead of its proof.
    """
    return counterexamples_text([example], how)


def counterexamples_text(examples: Sequence[Counterexample], how: str | None = None) -> str:
    """Counterexamples that have one history: what each breaks, and the history once."""
    geometry = examples[0].geometry
    width = f", head_dim {geometry.head_dim}" if geometry.head_dim != 1 else ""
    pool = f"{_count(geometry.num_blocks, 'block')} of {_count(geometry.block_size, 'token')}"
    steps = _count(len(examples[0].commands), "command")
    whole = together(examples)
    lines = [
        *(line for example in examples for line in _broken(example)),
        "",
        f"pool of {pool}{width}; {steps}; {plain(how or str(whole.proof))}",
        "",
        *(_history(whole) if whole.frames else _commands(whole)),
    ]
    return "\n".join(line.rstrip() for line in lines)


def _broken(example: Counterexample) -> list[str]:
    known = " (expected failure)" if example.expected else ""
    return [
        f"{example.property}{known}: {plain(example.statement)}",
        f"    {plain(example.equation)}",
        f"    {plain(example.message)}",
    ]


def by_history(examples: Iterable[Counterexample]) -> list[list[Counterexample]]:
    """The counterexamples, those with one history together, in the order of the first of each.

    One fault often breaks several properties at the same step.
    """
    groups: dict[object, list[Counterexample]] = {}
    for example in examples:
        history = (example.geometry, example.commands, example.fault)
        groups.setdefault((*history, example.expected), []).append(example)
    return list(groups.values())


def together(examples: Sequence[Counterexample]) -> Counterexample:
    """Counterexamples with one history as one; changes nothing."""
    first = examples[0]
    return replace(
        first,
        property=", ".join(example.property for example in examples),
        equation=";  ".join(example.equation for example in examples),
        message="; ".join(example.message for example in examples),
        blocks=tuple(sorted({block for example in examples for block in example.blocks})),
        requests=tuple(sorted({r for example in examples for r in example.requests})),
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


LISTED = 20
"""Of a longer history the last so many commands are listed."""


def _commands(example: Counterexample) -> list[str]:
    """The history alone, where no pool was seen."""
    left = max(0, len(example.commands) - LISTED)
    shown = enumerate(example.commands[left:], start=left + 1)
    more = [f"      ({_count(left, 'command')} before these)"] if left else []
    return [*more, *(f"{i:>4}  {command}" for i, command in shown)]


def _history(example: Counterexample) -> list[str]:
    """The table, the marks below its last row, and what its signs mean."""
    frames = example.frames
    runs = _runs_of_blocks(frames, frozenset(example.blocks))
    cells = [[_cell(frame, frames[0], run[0]) for run in runs] for frame in frames]
    shows_free = any(frame.free is not None for frame in frames)
    head = ["step", "command", "outcome", *map(_block_name, runs)]
    rows = [[str(i), _command(frame), _short(frame), *cells[i]] for i, frame in enumerate(frames)]
    marks = [
        "",
        "",
        "",
        *(
            "^" * len(c) if set(run) & set(example.blocks) else ""
            for c, run in zip(cells[-1], runs, strict=True)
        ),
    ]
    if shows_free:
        head.append("free list")
        marks.append("")
        for row, frame in zip(rows, frames, strict=True):
            row.append(_free(frame))
    head.append("tokens [block table]")
    for row, frame in zip(rows, frames, strict=True):
        row.append("  ".join(text for _, text in _tables(frame)))
    marks.append(_mark_requests(frames[-1], example.requests))
    table = [head, *rows, *([marks] if any(marks) else [])]
    return [*_aligned(table), "", *_notes(frames), f"    {_legend(cells, shows_free)}"]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width; the step numbers stand to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [row[0].rjust(widths[0])]
            + [cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in table
    ]


def _command(frame: Frame) -> str:
    return "a fresh pool" if frame.command is None else plain(frame.command)


def _short(frame: Frame) -> str:
    """The outcome without its message."""
    if frame.command is None:
        return ""
    return plain(frame.outcome).partition(" (")[0].partition(":")[0]


def _notes(frames: Sequence[Frame]) -> list[str]:
    """The outcomes that the table has no room for."""
    return [
        f"    step {i}: {plain(frame.outcome)}"
        for i, frame in enumerate(frames)
        if frame.command is not None and _short(frame) != plain(frame.outcome)
    ]


def _cell(frame: Frame, fresh: Frame, block: int) -> str:
    """Whose the block is: `r0`, `r0+r1`, `.` free, and `!` after what is counted twice."""
    owners, free = frame.owners.get(block, ()), frame.free
    listed = 0 if free is None else free.count(block)
    held = "+".join(f"r{r}" for r in owners)
    if block not in fresh.owners and not owners:
        return "-"
    if block in frame.reserved:
        return f"x{held}"
    if held:
        alone = len(owners) == 1 or (frame.shares and len({*owners}) == len(owners))
        return held if alone and not listed else f"{held}!"
    if block in frame.withheld | frame.cached:
        return "c" if block in frame.cached else "w"
    if free is None or listed:
        return ".!" if listed > 1 else "."
    return "?"


def _runs_of_blocks(frames: Sequence[Frame], marked: frozenset[int]) -> list[tuple[int, ...]]:
    """The blocks, one a run; in a big pool neighbours of one fate are one run."""
    blocks = sorted({block for frame in frames for block in frame.owners} | marked)
    if len(blocks) <= WIDE:
        return [(block,) for block in blocks]
    runs: list[tuple[int, ...]] = []
    last: object = None
    for block in blocks:
        fate = (block in marked, *(_cell(frame, frames[0], block) for frame in frames))
        if runs and fate == last and block == runs[-1][-1] + 1:
            runs[-1] = (*runs[-1], block)
        else:
            runs.append((block,))
        last = fate
    return runs


def _block_name(run: tuple[int, ...]) -> str:
    return f"block {run[0]}" if len(run) == 1 else f"{run[0]}..{run[-1]}"


def _free(frame: Frame) -> str:
    if frame.free is None:
        return "not seen"
    return numbers(frame.free) if frame.free else "empty"


def _tables(frame: Frame) -> list[tuple[int, str]]:
    """Each live request with its length and its table; then those that are swapped out."""
    here = [
        (r, f"r{r}: {frame.seq_lens.get(r, '?')} [{numbers(frame.tables.get(r, ()))}]")
        for r in sorted({*frame.tables, *frame.seq_lens})
    ]
    return here + [(r, f"r{r}: swapped out [{numbers(t)}]") for r, t in frame.swapped.items()]


def _mark_requests(frame: Frame, requests: Iterable[int]) -> str:
    wrong = set(requests)
    return "  ".join(
        ("^" if r in wrong else " ") * len(text) for r, text in _tables(frame)
    ).rstrip()


def numbers(values: Sequence[int]) -> str:
    """The values in their order, runs of three and more neighbours as `first..last`."""
    parts: list[str] = []
    i = 0
    while i < len(values):
        j = i
        step = values[i + 1] - values[i] if i + 1 < len(values) else 0
        if step in (1, -1):
            while j + 1 < len(values) and values[j + 1] - values[j] == step:
                j += 1
        if j - i >= 2:
            parts.append(f"{values[i]}..{values[j]}")
            i = j + 1
        else:
            parts.append(str(values[i]))
            i += 1
    return " ".join(parts)


def _legend(cells: Sequence[Sequence[str]], shows_free: bool) -> str:
    """The meaning of the signs that occur."""
    used = set("".join(cell for row in cells for cell in row))
    words = [words for sign, words in _LEGEND.items() if sign in used]
    if shows_free:
        words.append("free list: next first")
    return "; ".join(words)
