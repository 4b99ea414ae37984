"""What can't be looked into, and where in a target it stands."""

from __future__ import annotations

import sys

_BETWEEN = frozenset({"__main__", "builtins", "collections", "types"})
_BLAMED = sys.stdlib_module_names - _BETWEEN
"""Of what stands inside an object of these modules, the object is named: it is what can be left
out, or copied in another way."""


class Opaque(Exception):
    """The value holds something whose state can't be seen.

    what: names it. path: leads there from the value that was looked at, if that is known.
    """

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what)
        self.what, self.path = what, path

    def within(self, step: str, kind: type | None = None) -> Opaque:
        """The same, seen from one step further out, where an object of class `kind` holds it."""
        if kind is not None and kind.__module__.partition(".")[0] in _BLAMED:
            return Opaque(a(kind))
        return Opaque(self.what, step + self.path)

    def __str__(self) -> str:
        path = self.path.removeprefix("[...]").lstrip(".")
        return f"`{path}` is {self.what}" if path else self.what


def a(kind: type) -> str:
    """The class with its article."""
    name = kind.__qualname__
    return f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"
