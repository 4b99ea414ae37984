"""Small allocators written by hand, and what drives and judges them in a test."""

from __future__ import annotations

from typing import Any

from pagedkv import Request
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Violation
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.world import World


class Plain:
    """The least that can be driven: the three calls and a free list, first in, first out."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))

    @property
    def free_blocks(self) -> Any:
        return list(self.free)

    def take(self, blocks: int) -> list[int]:
        """The first free blocks, or out of blocks."""
        if blocks > len(self.free):
            raise RuntimeError(f"OOM: {blocks} needed, {len(self.free)} available")
        taken, self.free = self.free[:blocks], self.free[blocks:]
        return taken

    def allocate_for_prefill(self, req: Request) -> object:
        if req.block_table:
            raise ValueError("it holds blocks already")
        req.block_table = self.take(-(-req.seq_len // self.block_size))
        return True

    def allocate_for_decode(self, req: Request) -> object:
        if not req.block_table:
            raise ValueError("it holds no blocks")
        if req.seq_len == len(req.block_table) * self.block_size:
            req.block_table = [*req.block_table, *self.take(1)]
        req.seq_len += 1
        return True

    def release_request(self, req: Request) -> object:
        if not req.block_table:
            raise ValueError("it holds no blocks")
        self.free = [*self.free, *req.block_table]
        req.block_table = []
        return True


def world(
    factory: Any,
    num_blocks: int = 4,
    block_size: int = 2,
    head_dim: int = 1,
    *,
    requests: int = 3,
    keeps_released: bool = True,
) -> World:
    """By default a pool of 4 blocks of 2 tokens, for three requests."""
    geometry = Geometry(num_blocks, block_size, head_dim)
    return World(factory, geometry, requests=requests, keeps_released=keeps_released)


def moved(here: World, *commands: Command) -> World:
    """The same world after these commands, none of which breaks anything."""
    for command in commands:
        assert violations(here, command) == []
    return here


def violations(here: World | Lockstep, *commands: Command) -> list[Violation]:
    """What the last of the commands breaks, or the state as it is where there is none."""
    judge = Judge(PROPERTIES.values(), offered(*here.states))
    found = judge.state(here.state)
    for command in commands:
        step = here.apply(command)
        found = judge.step(step) + judge.reached(step)
    return found


def broken(here: World | Lockstep, *commands: Command) -> dict[str, str]:
    """The messages of what the last of the commands breaks, by property."""
    return {v.property.id: v.broken.message for v in violations(here, *commands)}
