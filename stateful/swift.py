"""A world that can also be moved without looking, for histories of a million commands.

Looking after every command (snapshot, handles, judging) costs ten to a hundred times what the
command itself does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from pagedkv.protocol import method_of
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.steps import Done, Grant, NoBlocks, Observation, Outcome, Refuse, Refused, State
from pagedkv.stateful.world import World


class SwiftWorld(World):
    """A world with `hurry` beside `apply`; what both lead to is the same."""

    def hurry(self, commands: Iterable[Command], *, strict: bool = False) -> bool:
        """Run the commands and look at the end only. Mutates the world.

        Commands that make no sense where they stand are left out, or, if `strict`, end it with
        False. So does one that is answered in a way that never is right, and an end that can't be
        looked at: the world is of no further use then, and the commands are to be judged one by
        one.
        """
        if self.setting.declared.abilities:
            return self._walk(commands, strict=strict)
        now = _Lazily(self)
        setting, handles, steps = self.setting, self.handles, self.steps
        model = now.model
        for command in commands:
            if not command.enabled(model, setting):
                if strict:
                    return False
                continue
            expected = command.expect(model, setting)
            undo = command.prepare(handles, cast(State, now))
            request = handles[command.request]
            held = list(request.block_table)
            outcome = self._call(command)
            steps += 1
            if isinstance(outcome, Done) and isinstance(expected, Grant):
                now.moved(command.advance(model, setting))
                if not self._fill(now, model, command.request, held):
                    return False
                model = now.model
            else:
                undo()
                now.moved(model)
                if not _may_be(outcome, expected):
                    return False
        self.steps = steps
        return self._look(model)

    def _walk(self, commands: Iterable[Command], *, strict: bool) -> bool:
        """The same by looking at every step: what is shared is followed by content."""
        for command in commands:
            if not command.enabled(self.state.model, self.setting):
                if strict:
                    return False
                continue
            step = self.apply(command)
            if not step.observed or not (step.granted or _may_be(step.outcome, step.expected)):
                return False
        return True

    def _fill(self, now: _Lazily, before: Model, name: int, held: list[int]) -> bool:
        """Write the tags of one request's new tokens, and poison what it held and gave back.

        Returns False if the tokens have no place.
        """
        request, manager = self.handles[name], self.manager
        tags, old = now.model.live.get(name, ()), len(before.live.get(name, ()))
        try:
            self._eyes.follow_tensor()
            table = request.block_table
            if len(table) < len(held):
                self.pool.poison(set(held).difference(table))
            if len(tags) > old:
                declared = self.setting.declared
                if declared.tables_outside or declared.windows or method_of(manager, "slots"):
                    for slots in self._eyes.slots(name, now.seen.tables, len(tags)):
                        self.pool.write(slots[old:], tags[old : len(slots)])
                else:
                    size = self.setting.geometry.block_size
                    places = [(int(table[p // size]), p % size) for p in range(old, len(tags))]
                    self.pool.write(places, tags[old:])
            computed = method_of(manager, "computed")
            if computed is not None and name in now.model.live:
                computed(request)
        except Exception:  # noqa: BLE001 - a table may hold anything; it is to be judged
            return False
        return True

    def _look(self, model: Model) -> bool:
        eyes = self._eyes
        try:
            self._stand(self._logic.at(model), *eyes.look(model.live))
            held = self.state.seen.held
        except Exception:  # noqa: BLE001 - a target that can't be looked at is to be judged
            return False
        self.pool.poison(self.setting.usable - held)
        if model.released and not self.setting.keeps_released:
            self._forget()
        return True


class _Lazily:
    """The state between two commands, seen only by those commands that ask for it."""

    def __init__(self, world: SwiftWorld) -> None:
        self._world = world
        self.model = world.state.model
        self._seen: Observation | None = world.state.seen

    @property
    def setting(self) -> Setting:
        return self._world.setting

    @property
    def seen(self) -> Observation:
        if self._seen is None:
            eyes = self._world._eyes
            self._seen = eyes.state(self.model, *eyes.look(self.model.live)).seen
        return self._seen

    @property
    def available(self) -> int:
        return State(self.setting, self.model, self.seen).available

    def moved(self, model: Model) -> None:
        """What was seen is out of date."""
        self.model, self._seen = model, None


def _may_be(outcome: Outcome, expected: Grant | Refuse) -> bool:
    """Whether an outcome other than a grant can be right."""
    if isinstance(expected, Grant):
        return isinstance(outcome, NoBlocks)
    return isinstance(outcome, Done if expected.noop else Refused)
