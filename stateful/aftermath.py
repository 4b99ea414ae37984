"""What a command left behind when something inside it failed, and whether the manager goes on.

Right after the failure: a call that was not granted has changed nothing that an observer sees; one
that was granted all the same has led to a right state. From then on: each command is answered as
by a twin, the same target in which nothing failed, up to the names of blocks. Where the whole
state, hidden parts and all, is what it was, there is nothing left to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.lockstep import judge_lockstep
from pagedkv.specs.properties import Broken, Sometimes, Violation
from pagedkv.specs.rollback import judge_unchanged
from pagedkv.specs.steps import Grant, Step
from pagedkv.stateful.world import World

WALKS = (1, 3)
WALK = 6
"""From a state that a failure left in other hidden form, walks of so many more commands are made
beside the twin, by each of these strides through what makes sense.
"""

Make = Callable[[], World]


class Aftermath:
    """Judges failed calls, and what follows them.

    past: redundant properties that the target breaks without any failure too.
    """

    def __init__(self, fresh: World, past: Collection[str] = ()) -> None:
        chosen = [
            prop
            for prop in PROPERTIES.values()
            if prop.id not in past and not isinstance(prop.expectation, Sometimes)
        ]
        self._judge = Judge(chosen, offered(*fresh.states))

    def right(self, step: Step) -> bool:
        """Whether a step in which nothing failed breaks nothing."""
        return not self._broken(step)

    def at_once(self, step: Step) -> Broken | None:
        """What is wrong right after a call inside which something failed."""
        if not step.observed:
            return Broken(f"the manager can't be looked at: {step.outcome}")
        if step.granted:
            found = self._broken(step)
            return None if not found else _said("granted all the same, but ", found[0])
        judged = judge_unchanged(step)
        if isinstance(judged, Broken):
            return judged
        found = [] if step.after is step.before else self._judge.state(step.after, step.index)
        # The contents may have changed though nothing else has.
        return None if not found else _said(f"{step.command} ended in: {step.outcome}; ", found[0])

    def beside(self, step: Step, twin: Step) -> Broken | None:
        """What is wrong with a later step, beside the twin's, which is right."""
        found = self._broken(step)
        if found:
            return _said("", found[0])
        judged = judge_lockstep(step._replace(peer=twin))
        # Where blocks come back after so many calls, the one that failed counts too.
        if not isinstance(judged, Broken) or step.after.setting.declared.late_calls:
            return None
        words = judged.message.replace("of the first", "now").replace("of the second", "otherwise")
        return replace(judged, message=words)

    def goes_on(self, failed: Make, twin: Make) -> tuple[tuple[Command, ...], Broken] | None:
        """The first commands that are answered otherwise than by the twin; None if all agree.

        Both make a world of their own with every call.
        """
        for command in failed().candidates():
            if found := self._along(failed(), twin(), [command]):
                return found
        for stride in WALKS:
            if found := self._walk(failed(), twin(), stride):
                return self._shortened(failed, twin, found)
        return None

    def follow(self, world: World, twin: World, commands: Sequence[Command]) -> Broken | None:
        """What is wrong with the last of the commands that both can be asked, if anything is."""
        found = self._along(world, twin, commands)
        return None if found is None else found[1]

    def _along(
        self, world: World, twin: World, commands: Sequence[Command]
    ) -> tuple[tuple[Command, ...], Broken] | None:
        for i, command in enumerate(commands, start=1):
            if not command.enabled(twin.state.model, twin.setting):
                return None
            due = twin.apply(command)
            if not self.right(due):
                return None  # the target is wrong here without any failure
            if broken := self.beside(world.apply(command), due):
                return tuple(commands[:i]), broken
        return None

    def _walk(
        self, world: World, twin: World, stride: int
    ) -> tuple[tuple[Command, ...], Broken] | None:
        walked: list[Command] = []
        for i in range(WALK):
            model, setting = twin.state.model, twin.setting
            menu = twin.candidates()
            menu = [c for c in menu if isinstance(c.expect(model, setting), Grant)] or menu
            if not menu:
                return None
            walked.append(menu[(stride * i + stride) % len(menu)])
            due = twin.apply(walked[-1])
            if not self.right(due):
                return None
            if broken := self.beside(world.apply(walked[-1]), due):
                return tuple(walked), broken
        return None

    def _shortened(
        self, failed: Make, twin: Make, found: tuple[tuple[Command, ...], Broken]
    ) -> tuple[tuple[Command, ...], Broken]:
        """The same with no command that could go."""
        i = 0
        while i < len(found[0]) - 1:
            less = found[0][:i] + found[0][i + 1 :]
            shorter = self._along(failed(), twin(), less)
            if shorter is None:
                i += 1
            else:
                found, i = shorter, 0
        return found

    def _broken(self, step: Step) -> list[Violation]:
        found = self._judge.step(step)
        return found + self._judge.reached(step)


def _said(words: str, violation: Violation) -> Broken:
    broken = violation.broken
    return replace(broken, message=f"{words}{violation.property.id}: {broken.message}")
