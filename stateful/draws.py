"""What is drawn, and in which order: tiny pools, and the edges of blocks and pools first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from pagedkv.declarations import Declarations
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.specs.steps import Grant, State
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import System

Make = Callable[[Geometry], System]
"""Makes a fresh world, or two in lockstep. Raises CannotDrive."""


def drawable(declared: Declarations) -> tuple[Geometry, ...]:
    """Pools of 1 to 8, 12, 34 and 70 blocks of 1 to 4 and 16 tokens that the target can have.

    Smallest first. Of block sizes that it declares the two smallest, and all up to 64. More than 8
    blocks fill a byte of a bitmap, more than 32 or 64 a word; 10 stands before 9 where numbers are
    text.
    """
    sizes: Sequence[int] = (1, 2, 3, 4, 16)
    if declared.block_sizes is not None:
        own = sorted(declared.block_sizes)
        sizes = [*own[:2], *(size for size in own[2:] if size <= LARGEST_SIZE)]
    return tuple(
        Geometry(blocks, size, head_dim)
        for blocks in (*range(1, 9), 12, 34, 70)
        for size in sizes
        for head_dim in (1, 2)
        if declared.supports(blocks, size) and (blocks <= SURE or blocks * size <= MOST_TOKENS)
    )


def drivable(make: Make) -> tuple[Geometry, ...]:
    """The tiny geometries of a target, asked of the first one that can be made.

    Of those with more than 8 blocks only what it can have with tags that its tensor holds exactly.
    """
    refused: CannotDrive | None = None
    for geometry in (*drawable(Declarations()), Geometry(4, 16), Geometry(4, 256)):
        try:
            declared = make(geometry).setting.declared
        except CannotDrive as error:
            refused = refused or error
            continue
        if found := drawable(declared):
            large = [g for g in found if g.num_blocks > SURE and not _can_have(make, g)]
            return tuple(geometry for geometry in found if geometry not in large)
        refused = refused or CannotDrive(f"the target declares that it can't have {geometry}")
    assert refused is not None
    raise refused


SURE = 8
"""A pool of more blocks is made once before it is drawn."""
MOST_TOKENS = 1200
"""Such pools hold no more: each slot is looked at by itself."""
LARGEST_SIZE = 64


def _can_have(make: Make, geometry: Geometry) -> bool:
    try:
        make(geometry)
    except CannotDrive:
        return False
    return True


MOST_TIMES = 3
"""No command is drawn with a weight of more."""


def boundary_first(commands: Sequence[Command], state: State) -> list[Command]:
    """The commands of one class in the order to draw them from: edges first, and more than once.

    Of the sizes for one request, in canonical order, the first, the last, and any two neighbours
    for which different numbers of blocks are due are *block edges*; neighbours of which the blocks
    for only one are there are *pool edges*. Pool edges come first and stand three times, block
    edges twice. Changes nothing.
    """
    pool, blocks = set[int](), set[int]()
    for _, group in groupby(range(len(commands)), key=lambda i: commands[i].request):
        of_one = list(group)
        if len(of_one) > 1:  # One alone has no edge.
            _find_edges(commands, of_one, state, pool, blocks)
    if not blocks:
        return list(commands)
    edges = [*sorted(pool), *sorted(blocks - pool)]
    rest = [i for i in range(len(commands)) if i not in blocks]
    return [commands[i] for i in (*edges, *rest, *edges, *sorted(pool))]


def _find_edges(
    commands: Sequence[Command],
    group: Sequence[int],
    state: State,
    pool: set[int],
    blocks: set[int],
) -> None:
    """Add the edges among the sizes of one group to those found."""
    model, setting = state.model, state.setting
    sizes = [
        (i, due) for i in group if isinstance(due := commands[i].expect(model, setting), Grant)
    ]
    if len(sizes) < 2:
        return
    blocks |= {sizes[0][0], sizes[-1][0]}
    there = state.available_to(sizes[0][1])  # Commands of one class take from one pool.
    for (i, one), (j, two) in pairwise(sizes):
        if one != two:
            blocks |= {i, j}
        if (one.high <= there) != (two.high <= there):
            pool |= {i, j}


# ---------------------------------------------------------------- the machine
