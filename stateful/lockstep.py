"""Two worlds moved by the same commands, as one."""

from __future__ import annotations

from typing import Self

from pagedkv.specs.commands import Command
from pagedkv.specs.model import Setting
from pagedkv.specs.steps import State, Step
from pagedkv.stateful.trust import Trust
from pagedkv.stateful.world import World


class Lockstep:
    """Drives `left` and `right` alike; the step of the right one is the left one's `peer`."""

    def __init__(self, left: World, right: World) -> None:
        self.left, self.right = left, right

    @property
    def setting(self) -> Setting:
        """The left one's setting."""
        return self.left.setting

    @property
    def states(self) -> tuple[State, ...]:
        """Both states."""
        return (self.left.state, self.right.state)

    @property
    def state(self) -> State:
        """The left one's state."""
        return self.left.state

    def candidates(self) -> list[Command]:
        """The commands that make sense for both; changes nothing."""
        right = set(self.right.candidates())
        return [command for command in self.left.candidates() if command in right]

    def apply(self, command: Command) -> Step:
        """Run one command on both. Mutates both."""
        return self.left.apply(command)._replace(peer=self.right.apply(command))

    def hooks(self) -> Trust:
        """The weaker of the two, each."""
        both = (self.left.hooks(), self.right.hooks())
        return Trust(
            "own" if all(hooks.key == "own" for hooks in both) else "whole",
            "own" if all(hooks.clone == "own" for hooks in both) else "deep",
        )

    def clone(self, trust: Trust) -> Self:
        """A copy of each; changes nothing."""
        return type(self)(self.left.clone(trust), self.right.clone(trust))

    def order(self, trust: Trust) -> tuple[int, ...]:
        """An order of the left one's; where it leaves several open, the right one decides."""
        orders = self.left.orders(trust)
        if len(orders) == 1:
            return orders[0]
        return min(orders, key=lambda order: self._key(trust, order) or b"")

    def key(self, trust: Trust) -> bytes | None:
        """Both keys together, under one naming of the requests; None where one has none."""
        return self._key(trust, self.order(trust))

    def _key(self, trust: Trust, order: tuple[int, ...]) -> bytes | None:
        left, right = self.left.key(trust, order), self.right.key(trust, order)
        return None if left is None or right is None else left + right

    def unseen(self, trust: Trust) -> str | None:
        """Why one of the two keys can't be taken; None if both can. Changes nothing."""
        return self.left.unseen(trust) or self.right.unseen(trust)
