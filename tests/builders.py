"""Tiny builders of what the specs judge, so that a spec is tested on plain data, without a manager.

Whatever is not named is what a right allocator would show: a test names only what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedkv import Declarations, Snapshot
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry, Model, Setting
from pagedkv.specs.properties import Broken, Judgement
from pagedkv.specs.steps import (
    DONE,
    Asked,
    Expected,
    Handle,
    Observation,
    Outcome,
    Report,
    State,
    Step,
    Unreadable,
)

STRICT = Declarations()
REST: Any = "the rest"
"""As `free`: every usable block that no table names, ascending."""

Tables = Mapping[int, tuple[int, ...]]


def declaring(**fields: Any) -> Declarations:
    """Declarations whose reason is this test."""
    without = ("abilities", "meaningless", "never_reached")
    reasons = {name: "this test" for name in fields if name not in without}
    return Declarations(**fields, because=reasons)


def setting(
    num_blocks: int = 4,
    block_size: int = 2,
    *,
    declared: Declarations = STRICT,
    usable: frozenset[int] | None = None,
    requests: int = 3,
    keeps_released: bool = True,
) -> Setting:
    """By default a pool of 4 blocks of 2 tokens, for three requests."""
    blocks = frozenset(range(num_blocks)) if usable is None else usable
    geometry = Geometry(num_blocks, block_size)
    return Setting(geometry, declared, blocks, requests, keeps_released)


def model(within: Setting, live: Mapping[int, int], released: Mapping[int, int]) -> Model:
    """The dense cache in which these requests have so many tokens."""
    tags = {r: tuple(within.tag(r, p) for p in range(n)) for r, n in live.items()}
    return Model(tags, dict(released))


def state(
    live: Mapping[int, int],
    tables: Tables,
    *,
    within: Setting | None = None,
    released: Mapping[int, int] | None = None,
    free: tuple[int, ...] | None = REST,
    seq_lens: Mapping[int, int] | None = None,
    handles: Mapping[int, Handle] | None = None,
    contents: Mapping[int, Any] | None = None,
    reports: Mapping[int, Report | Unreadable] | None = None,
    **snapshot: Any,
) -> State:
    """A state in which `live` requests have so many tokens, and the manager these tables.

    `handles`, `contents` and `reports` are put over what they should be; `snapshot` are further
    fields of it.
    """
    within = within or setting()
    released = released or {}
    dense = model(within, live, released)
    if free is REST:
        held = {block for table in tables.values() for block in table}
        free = tuple(sorted(within.usable - held))
    seen = Snapshot(
        block_tables=tables,
        seq_lens=dict(live) if seq_lens is None else seq_lens,
        free_blocks=free,
        **snapshot,
    )
    shown = {r: handle(r, n, tables.get(r, ())) for r, n in (*live.items(), *released.items())}
    read = {**dense.live, **(contents or {})}
    told = {r: report(n, tables.get(r, ()), within) for r, n in live.items()} | dict(reports or {})
    observation = Observation(seen, shown | dict(handles or {}), lambda: read, lambda: told)
    return State(within, dense, observation)


def handle(request: int, seq_len: int, table: tuple[int, ...] = ()) -> Handle:
    """A handle whose tokens are zeros."""
    return Handle(request, seq_len, table, (0,) * seq_len)


def report(seq_len: int, table: tuple[int, ...], within: Setting) -> Report:
    """The right allocation report."""
    allocated = len(table) * within.geometry.block_size
    return {
        "logical_tokens": seq_len,
        "allocated_tokens": allocated,
        "unused_tail_tokens": allocated - seq_len,
        "utilization": seq_len / allocated if allocated else 0.0,
    }


def step(
    command: Command,
    before: State,
    after: State,
    *,
    expected: Expected | None = None,
    outcome: Outcome = DONE,
    given: Handle | None = None,
    returned: Handle | None = None,
    reused: frozenset[int] = frozenset(),
    peer: Step | None = None,
    index: int = 1,
    asked: Asked | None = None,
) -> Step:
    """A step whose handle is, unless named, what stands before and after it."""
    if expected is None:
        expected = command.expect(before.model, before.setting)
    own = command.request
    shown = after.seen.handles.get(own) or before.seen.handles.get(own) or handle(own, 1)
    given = given or before.seen.handles.get(own) or shown._replace(block_table=())
    if returned is None:
        returned = shown if outcome is DONE else given
        given = given._replace(tokens=returned.tokens)
    seen = (before, after, reused, peer)
    return Step(index, command, expected, outcome, given, returned, *seen, asked=asked)


def message(judgement: Judgement) -> str:
    """What a broken property says; fails if it is not broken."""
    assert isinstance(judgement, Broken), f"not broken: {judgement}"
    return judgement.message
