"""Random histories of a target, every step of them judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from pagedkv import Declarations
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.properties import Violation
from pagedkv.stateful.draws import boundary_first, drawable
from pagedkv.stateful.world import World
from zoo.animal import Factory

LENGTH = 60
"""Commands of one history."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a walk came. `violations` ended it; `commands` are then the history."""

    steps: int
    judge: Judge
    violations: tuple[Violation, ...] = ()
    commands: tuple[Command, ...] = ()


def walk(factory: Factory, declared: Declarations, steps: int, seed: int = 0) -> Walk:
    """Walk for so many steps, through pools of up to 70 blocks and with up to 6 requests."""
    draw, pools = Random(seed), drawable(declared)
    judge, done = None, 0
    while True:
        world = World(
            factory,
            draw.choice(pools),
            requests=draw.choice((2, 3, 6)),
            keeps_released=True,
            varied=True,
        )
        judge = judge or Judge(PROPERTIES.values(), offered(world.state))
        violations, commands = judge.state(world.state), list[Command]()
        for command in _draws(world, draw):
            if violations or done >= steps:
                return Walk(done, judge, tuple(violations), tuple(commands))
            commands.append(command)
            done += 1
            step = world.apply(command)
            violations = judge.step(step) + judge.reached(step)
        if violations:
            return Walk(done, judge, tuple(violations), tuple(commands))


def _draws(world: World, draw: Random) -> Iterator[Command]:
    """The commands of one history, edges first as the machine draws them; wrong use one in six."""
    for _ in range(LENGTH):
        by_op = dict[str, list[Command]]()
        for command in world.candidates():
            by_op.setdefault(command.op, []).append(command)
        if not by_op:
            return
        wrong = by_op.pop("misuse", [])
        if wrong and (not by_op or draw.random() < 1 / 6):
            yield draw.choice(wrong)
        else:
            commands = draw.choice(list(by_op.values()))
            yield draw.choice(boundary_first(commands, world.state))
