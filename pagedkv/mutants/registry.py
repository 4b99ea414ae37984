"""What is known of each planted fault, as a value beside the class that has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

Manager = TypeVar("Manager")

INVENTED = "invented"
"""As `seen`: no public report is known of."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One allocator with one planted fault.

    name: the class's, in words. statement: what is wrong, in a sentence. breaks: the property that
    the shortest history breaks. optimum: how many commands that history has, none shorter in the
    fixed scope. seen: where such a fault was reported, or "invented". target: as `pagedkv check`
    takes it; a pair where only a second allocator shows the fault. hidden: the attributes that
    its class adds to its parent's; None where its whole state is looked at.
    """

    name: str
    statement: str
    breaks: str
    optimum: int
    seen: str
    target: str
    hidden: tuple[str, ...] | None


_PLANTED: dict[str, Mutant] = {}
PLANTED: Mapping[str, Mutant] = MappingProxyType(_PLANTED)
"""Every fault of the modules that were imported, by name."""


def planted(
    breaks: str,
    optimum: int,
    *,
    seen: str = INVENTED,
    hidden: tuple[str, ...] | None = (),
    beside: str | None = None,
) -> Callable[[type[Manager]], type[Manager]]:
    """Register a class as a mutant; its docstring is the statement.

    hidden: the attributes that the class adds, which must be plain values that name no request:
    they go into its state key beside what its parent's key has. None is for faults in what the
    parent's key or copy leaves out: the class is then given neither. beside: a target to run in
    lockstep with. Raises ValueError for a name that is taken.
    """

    def register(kind: type[Manager]) -> type[Manager]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
        if name in _PLANTED:
            raise ValueError(f"two mutants are called {name}; rename {kind.__qualname__}")
        if hidden is not None:
            _bring_hooks(kind, hidden)
        target = f"{kind.__module__}:{kind.__qualname__}"
        _PLANTED[name] = Mutant(
            name=name,
            statement=" ".join((kind.__doc__ or "").split()),
            breaks=breaks,
            optimum=optimum,
            seen=seen,
            target=target if beside is None else f"{beside}+{target}",
            hidden=hidden,
        )
        return kind

    return register


def _bring_hooks(kind: Any, hidden: tuple[str, ...]) -> None:
    """Let `kind` bring its parent's key, with `hidden` beside it, and its parent's copy.

    An inherited hook is not used, since it can't know what a subclass adds.
    """

    def state_key(self: Any, names: Mapping[int, int]) -> tuple[object, ...]:
        """The parent's key, and what this class adds."""
        own = tuple(getattr(self, name) for name in hidden)
        return (super(kind, self).state_key(names), own)

    def clone(self: Any, requests: Mapping[int, Any]) -> Any:
        """The parent's copy, which copies what a subclass adds."""
        return super(kind, self).clone(requests)

    for hook in (state_key, clone):
        if hook.__name__ not in vars(kind):
            setattr(kind, hook.__name__, hook)
