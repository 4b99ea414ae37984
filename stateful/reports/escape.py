"""Words as reports show them; those of others so that no file format stumbles over them."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with all but line ends and what can be printed shown as its escape.

    What is left is legal in XML, in HTML and in UTF-8.
    """
    return "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in text)


def counted(number: int, what: str) -> str:
    """A number with its noun, in the plural where it takes one."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
