"""How values stand in messages: short, ordered, without type names."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pagedkv.specs.steps import Handle

LONGEST = 12


def show(value: object) -> str:
    """Words for a value of a snapshot or a handle; changes nothing.

    Sets are ordered, tables are lists, long ones are cut in the middle.
    """
    match value:
        case Handle():
            return f"(seq_len {value.seq_len}, block_table {show(value.block_table)})"
        case Mapping():
            items = [f"{key}: {show(item)}" for key, item in value.items()]
            return "{" + ", ".join(_cut(items)) + "}"
        case set() | frozenset():
            ordered = sorted(map(str, value), key=lambda word: (len(word), word))
            return "{" + ", ".join(_cut(ordered)) + "}"
        case list() | tuple():
            return "[" + ", ".join(_cut([show(item) for item in value])) + "]"
        case _:
            return str(value)


def first_difference(was: Handle, now: Handle) -> tuple[str, object, object]:
    """The first field in which two handles that differ do so, and both values of it."""
    names = zip(was._fields, was, now, strict=True)
    return next((name, old, new) for name, old, new in names if old != new)


def _cut(words: Collection[str]) -> list[str]:
    listed = list(words)
    if len(listed) <= LONGEST:
        return listed
    half = LONGEST // 2
    return [*listed[:half], f"... {len(listed) - 2 * half} more", *listed[-half:]]
