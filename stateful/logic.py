"""The logical model as an automaton: each of its states once, with what follows from it.

What makes sense, what is due and where a grant leads depend on the logical model alone, and a
search of millions of transitions goes through a few thousand logical states.
"""

from __future__ import annotations

from pagedkv.specs.catalogue import candidates
from pagedkv.specs.commands import Command
from pagedkv.specs.model import EMPTY, Model, Setting
from pagedkv.specs.steps import Expected

MOST = 1 << 14
"""So many states are kept; a long random history must not keep every model it went through."""
MOST_SETTINGS = 1 << 8

Identity = tuple[object, ...]

_STATES: dict[Identity, Logic] = {}
"""By setting and model: the pools of one kind that a run makes by the thousand share them."""
_SETTINGS: dict[Identity, Setting] = {}
"""Equal settings are one object here. Declarations, which have no hash, are told by identity."""


class Logic:
    """One state of the model. What is asked of it is worked out once, for all that share it."""

    __slots__ = ("_due", "_menu", "_next", "_setting", "model")

    def __init__(self, model: Model, setting: Setting) -> None:
        self.model, self._setting = model, setting
        self._menu: list[Command] | None = None
        self._due: dict[Command, Expected] = {}
        self._next: dict[Command, Logic] = {}

    @classmethod
    def start(cls, setting: Setting) -> Logic:
        """The model of a fresh pool."""
        return _state(EMPTY, _one(setting))

    def menu(self) -> list[Command]:
        """Every command that makes sense, in canonical order; not to be changed."""
        if self._menu is None:
            self._menu = candidates(self.model, self._setting)
        return self._menu

    def due(self, command: Command) -> Expected:
        """What the command is to be answered with."""
        due = self._due.get(command)
        if due is None:
            due = self._due[command] = command.expect(self.model, self._setting)
        return due

    def after(self, command: Command) -> Logic:
        """Where a grant of the command leads."""
        there = self._next.get(command)
        if there is None:
            there = self.at(command.advance(self.model, self._setting))
            self._next[command] = there
        return there

    def without_released(self) -> Logic:
        """The same without the released requests."""
        return self.at(self.model.without_released()) if self.model.released else self

    def at(self, model: Model) -> Logic:
        """The state in which the model is this one."""
        return _state(model, self._setting)


def _state(model: Model, setting: Setting) -> Logic:
    """The one state of this model and setting, which must be the one of its kind."""
    identity = (id(setting), *model.identity)
    there = _STATES.get(identity)
    if there is None:
        if len(_STATES) >= MOST:
            _STATES.clear()
        there = _STATES[identity] = Logic(model, setting)
    return there


def _one(setting: Setting) -> Setting:
    """The setting that stands for all that are equal to this one."""
    identity = (
        setting.geometry,
        id(setting.declared),
        setting.usable,
        setting.requests,
        setting.keeps_released,
        setting.active,
        setting.host_blocks,
        setting.varied,
    )
    if identity not in _SETTINGS and len(_SETTINGS) >= MOST_SETTINGS:
        _STATES.clear()
        _SETTINGS.clear()
    return _SETTINGS.setdefault(identity, setting)
