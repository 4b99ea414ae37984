"""Managers whose abilities can be switched off one by one, each kind a class of its own."""

from __future__ import annotations

import sys
from functools import cache
from typing import ClassVar, Self, cast

from pagedkv.abilities import ABILITY_NAMES, AbilityName
from pagedkv.declarations import Declarations
from pagedkv.protocol import MisuseError, as_int

NULL_BLOCK = -1
"""What stands in a table for a block that went back."""

ALL_BUT_WINDOW: frozenset[AbilityName] = frozenset(ABILITY_NAMES) - {"window"}

_BESIDE_WINDOW: frozenset[AbilityName] = frozenset({"append", "ask", "group", "window"})
_NOT_BESIDE_LOOKAHEAD: frozenset[AbilityName] = frozenset({"fork", "window"})


class Configurable:
    """What a manager can do is in these class attributes; `declares` says it, for every subclass.

    A subclass that sets them to what does not go together is a ValueError when it is made.
    lookahead: tokens to come that a request's blocks have room for at any time.
    """

    abilities: ClassVar[frozenset[AbilityName]] = ALL_BUT_WINDOW
    forks_eagerly: ClassVar[bool] = False
    publishes_at_once: ClassVar[bool] = False
    window: ClassVar[int | None] = None
    lookahead: ClassVar[int] = 0
    declares: ClassVar[Declarations]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "declares" not in cls.__dict__:
            cls.declares = _declared(cls)

    @classmethod
    def configured(
        cls,
        *abilities: AbilityName,
        forks_eagerly: bool = False,
        publishes_at_once: bool = False,
        window: int | None = None,
        lookahead: int = 0,
    ) -> type[Self]:
        """The subclass with exactly these abilities, the same each time; changes nothing.

        None at all is the core. Raises ValueError for an unknown ability, for window without its
        length or the other way round, for window beside fork, prefix, swap or truncate, and for
        lookahead below 0, or beside fork or window.
        """
        chosen = frozenset(abilities)
        # Typeshed says that the class of a class method can't be hashed; any class can.
        made = _made(cls, chosen, forks_eagerly, publishes_at_once, window, lookahead)  # type: ignore[arg-type]
        return cast(type[Self], made)

    def _needs(self, ability: AbilityName, call: str) -> None:
        """Refuse a call of an ability that is off. Raises MisuseError."""
        if ability not in self.abilities:
            raise MisuseError(
                f"{call} on a {type(self).__name__}, whose ability {ability} is off; make it with "
                f"configured({ability!r}, ...)"
            )


@cache
def _made(
    kind: type[Configurable],
    abilities: frozenset[AbilityName],
    forks_eagerly: bool,
    publishes_at_once: bool,
    window: int | None,
    lookahead: int,
) -> type[Configurable]:
    words = [name.title() for name in ABILITY_NAMES if name in abilities] or ["Core"]
    words += ["ForksEagerly"] * forks_eagerly + ["PublishesAtOnce"] * publishes_at_once
    words += [f"Lookahead{lookahead}"] if lookahead else []
    name = f"{kind.__name__}{''.join(words)}{'' if window is None else window}"
    own = {
        "__module__": kind.__module__,
        "__doc__": f"`{kind.__name__}` with {', '.join(sorted(abilities)) or 'the core'} only.",
        "abilities": abilities,
        "forks_eagerly": forks_eagerly,
        "publishes_at_once": publishes_at_once,
        "window": window,
        "lookahead": lookahead,
        # A search trusts these only where a class has them itself; this one adds no state.
        **{hook: kind.__dict__[hook] for hook in ("state_key", "clone") if hook in kind.__dict__},
    }
    made = type(name, (kind,), own)
    setattr(sys.modules[kind.__module__], name, made)  # where pickling looks for it
    return made


def _declared(kind: type[Configurable]) -> Declarations:
    """What the class attributes say, as declarations; raises ValueError as `configured`."""
    if kind.window is not None:
        as_int("window", kind.window, minimum=1)
        if beside := kind.abilities - _BESIDE_WINDOW:
            raise ValueError(
                f"window = {kind.window} beside {', '.join(sorted(beside))}: a window goes with "
                f"append, ask and group only; leave one or the other off"
            )
    as_int("lookahead", kind.lookahead, minimum=0)
    if kind.lookahead and (beside := kind.abilities & _NOT_BESIDE_LOOKAHEAD):
        raise ValueError(
            f"lookahead = {kind.lookahead} beside {', '.join(sorted(beside))}: what is reserved is "
            f"one request's, and for all that it reads; leave one or the other off"
        )
    because = {
        "forks_eagerly": "pagedkv.configurable, Configurable.forks_eagerly",
        "publishes_at_once": "pagedkv.configurable, Configurable.publishes_at_once",
        "window": "pagedkv.abilities, window",
        "null_block": "pagedkv.configurable, NULL_BLOCK",
        "lookahead_tokens": "pagedkv.configurable, Configurable.lookahead",
        "evicts": "pagedkv.abilities, prefix",
    }
    chosen = {
        "forks_eagerly": kind.forks_eagerly,
        "publishes_at_once": kind.publishes_at_once,
        "window": kind.window is not None,
        "null_block": kind.window is not None,
        "lookahead_tokens": kind.lookahead > 0,
        "evicts": "prefix" in kind.abilities,
    }
    return Declarations(
        abilities=kind.abilities,
        forks_eagerly=kind.forks_eagerly,
        publishes_at_once=kind.publishes_at_once,
        window=kind.window,
        null_block=None if kind.window is None else NULL_BLOCK,
        lookahead_tokens=kind.lookahead,
        evicts="lru-tail-first" if "prefix" in kind.abilities else None,
        because={name: why for name, why in because.items() if chosen[name]},
    )
