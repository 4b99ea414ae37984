"""What a refused call may have changed all the same, where the target declares it.

A snapshot after the call is taken back as far as that goes: what time did to pending blocks, what
was evicted, what was dropped behind a window, the order of the free list. If it then equals the one
before, nothing else has changed; a change that is not wholly of such a kind is not taken back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pagedkv.protocol import Owned, Snapshot
from pagedkv.specs.model import GONE, Model
from pagedkv.specs.steps import Handle, Step


def as_declared(step: Step, was: Snapshot, now: Snapshot) -> tuple[Snapshot, Snapshot]:
    """Both snapshots less what a refusal is declared to change; changes neither."""
    declared, seen = step.after.setting.declared, now
    if declared.drops_behind_window:
        now = _without_drops(step, was, now)
    dropped = now is not seen
    if declared.late_calls or (declared.late_blocks and dropped):
        now = _without_time(was, now)
    if declared.evicts_cached:
        now = _without_evictions(was, now)
    if declared.reorders_free:
        return _without_order(was), _without_order(now)
    return was, now


def with_table(handle: Handle, step: Step) -> Handle:
    """The handle with the table that it had, if the call only dropped what it has no more."""
    before, after, own = step.before.seen, step.after.seen, step.command.request
    null = step.after.setting.declared.null_block
    shown = handle.block_table == after.tables.get(own)
    if shown and _dropped(before.tables.get(own, ()), handle.block_table, null):
        return handle._replace(block_table=before.tables[own])
    return handle


def remembering(step: Step) -> Model:
    """The model before the call, in which what earlier refusals dropped is gone.

    A request needs a block in place of each that it grows by, and has none left to give back; what
    it has dropped it holds together with nobody. A table with lookahead is longer than its pages.
    """
    model, null = step.before.model, step.after.setting.declared.null_block
    left = {
        r: tuple(
            GONE if b == null else page
            for page, b in zip(pages, step.before.seen.tables.get(r, ()), strict=False)
        )
        for r, pages in model.pages.items()
    }
    whole = {r: pages for r, pages in left.items() if len(pages) == len(model.pages[r])}
    return replace(model, pages={**model.pages, **whole})


def _dropped(was: tuple[int, ...], now: tuple[int, ...], null: int | None) -> list[tuple[int, int]]:
    """The (logical, block) that null stands for; none if the tables differ in anything else."""
    if null is None or len(was) != len(now):
        return []
    changed = [i for i, (then, this) in enumerate(zip(was, now, strict=True)) if then != this]
    return [(i, was[i]) for i in changed] if all(now[i] == null for i in changed) else []


def _without_drops(step: Step, was: Snapshot, now: Snapshot) -> Snapshot:
    """`now` with what went back behind the request's window in its place, if that changed."""
    own, setting = step.command.request, step.after.setting
    null = setting.declared.null_block
    table = was.block_tables.get(own, ())
    dropped = _dropped(table, now.block_tables.get(own, ()), null)
    if not dropped:
        return now
    gone = frozenset(block for _, block in dropped)
    back = gone.difference(*now.block_tables.values())
    fields: dict[str, Any] = {"block_tables": {**now.block_tables, own: table}}
    if now.ref_counts is not None:
        counts = {block: now.ref_counts.get(block, 0) + 1 for block in gone}
        fields["ref_counts"] = {**now.ref_counts, **counts}
    if now.reverse_map is not None:
        fields["reverse_map"] = now.reverse_map | {Owned(own, i, block) for i, block in dropped}
    if now.capacities is not None:
        room = now.capacities.get(own, 0) + len(dropped) * setting.geometry.block_size
        fields["capacities"] = {**now.capacities, own: room}
    if now.index is not None:
        forgotten = back - now.cached
        if not (setting.declared.forgets_unheld or setting.declared.evicts_cached):
            # What waits is not found; what is free at once should have been kept.
            forgotten &= {*(now.withheld or ()), *(now.pending or ())}
        keys = {key: block for key, block in (was.index or {}).items() if block in forgotten}
        fields["index"] = {**keys, **now.index}
    return replace(_without(now, back), **fields)


def _without(now: Snapshot, back: frozenset[int]) -> Snapshot:
    """`now` without these blocks wherever a block can be that nobody holds."""
    free, order = now.free_blocks, now.eviction_order
    withheld, pending = now.withheld, now.pending
    waiting = {*(withheld or ()), *(pending or ())}
    counted = back - waiting if free is None else back.intersection(free)
    return replace(
        now,
        free_blocks=None if free is None else tuple(b for b in free if b not in back),
        num_free=None if now.num_free is None else now.num_free - len(counted),
        cached=now.cached - back,
        eviction_order=None if order is None else tuple(b for b in order if b not in back),
        withheld=None if withheld is None else withheld - back,
        pending=None if pending is None else {b: n for b, n in pending.items() if b not in back},
    )


def _without_evictions(was: Snapshot, now: Snapshot) -> Snapshot:
    """`now` with the cached blocks that were evicted put back, if that is what changed."""
    gone = was.cached - now.cached
    kept = {key: block for key, block in (was.index or {}).items() if block not in gone}
    if not gone or now.cached - was.cached or (now.index or {}) != kept:
        return now
    free, count = now.free_blocks, now.num_free
    if free is not None and was.free_blocks is not None:
        free = tuple(block for block in free if block not in gone - {*was.free_blocks})
    if count is not None and was.num_free is not None and count == was.num_free + len(gone):
        count = was.num_free
    order = None if was.eviction_order is None else [b for b in was.eviction_order if b not in gone]
    if order is None or order == [*(now.eviction_order or ())]:
        now = replace(now, eviction_order=was.eviction_order)
    return replace(now, cached=was.cached, index=was.index, free_blocks=free, num_free=count)


def _without_time(was: Snapshot, now: Snapshot) -> Snapshot:
    """`now` without what passing time did to pending blocks, if that is what changed."""
    if was.pending is None or now.pending is None:
        return now
    left = was.pending.keys() & now.pending.keys()
    ripe = frozenset(was.pending.keys() - left)
    if left != now.pending.keys() or any(now.pending[b] > was.pending[b] for b in left):
        return now
    if now.free_blocks is not None and not ripe <= {*now.free_blocks, *now.cached}:
        return now
    before = was.index or {}
    index = now.index and {k: b for k, b in now.index.items() if b not in ripe or k in before}
    return replace(_without(now, ripe), pending=was.pending, index=index)


def _without_order(snapshot: Snapshot) -> Snapshot:
    free = snapshot.free_blocks
    return snapshot if free is None else replace(snapshot, free_blocks=tuple(sorted(free)))
