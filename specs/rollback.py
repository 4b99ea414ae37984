"""Rollback atomicity, and answers that are due.

not granted  =>  snapshot, handles and argument before = after, order included
granted      <=> demand <= available          (between low and high: either)
wrong use    =>  refused with a ValueError    (or silence, where declared)
"""

from __future__ import annotations

from dataclasses import fields, replace

from pagedkv.declarations import Returns
from pagedkv.protocol import Snapshot
from pagedkv.specs.growth import dead
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryStep, Judgement, Need, Property
from pagedkv.specs.show import first_difference, show
from pagedkv.specs.steps import Done, Grant, Handle, NoBlocks, Raised, Refuse, Refused, Step


def _without_time(was: Snapshot, now: Snapshot) -> Snapshot:
    """`now` without what passing time did to pending blocks, if that is what changed."""
    if was.pending is None or now.pending is None:
        return now
    left = was.pending.keys() & now.pending.keys()
    ripe = was.pending.keys() - left
    if left != now.pending.keys() or any(now.pending[b] > was.pending[b] for b in left):
        return now
    free, count = now.free_blocks, now.num_free
    if free is not None:
        if not ripe <= set(free):
            return now
        free = tuple(block for block in free if block not in ripe)
    if count is not None:
        count -= len(ripe)
    return replace(now, pending=was.pending, free_blocks=free, num_free=count)


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


def _without_drops(step: Step, was: Snapshot, now: Snapshot) -> Snapshot:
    """`now` with what went back behind the request's window in its place, if that changed."""
    own, null = step.command.request, step.after.setting.declared.null_block
    old, new = was.block_tables.get(own, ()), now.block_tables.get(own, ())
    if len(old) != len(new) or null is None:
        return now
    places = [(then, this) for then, this in zip(old, new, strict=True) if then != this]
    gone = frozenset(then for then, this in places if this == null)
    if len(gone) != len(places) or not gone:
        return now
    free, count, counts = now.free_blocks, now.num_free, now.ref_counts
    back = gone - {*(was.free_blocks or ()), *was.cached}
    if free is not None:
        free = tuple(block for block in free if block not in back)
    if count is not None:
        count -= len(back - now.cached)
    if counts is not None:
        counts = {**counts, **{block: counts.get(block, 0) + 1 for block in gone}}
    order = now.eviction_order
    return replace(
        now,
        eviction_order=order and tuple(block for block in order if block not in back),
        block_tables={**now.block_tables, own: old},
        free_blocks=free,
        num_free=count,
        ref_counts=counts,
        cached=now.cached - back,
    )


def _with_table(handle: Handle, step: Step) -> Handle:
    """The handle with the table that it had, if the call only dropped what it has no more."""
    before, after = step.before.seen, step.after.seen
    own = step.command.request
    if handle.block_table != after.tables.get(own):
        return handle
    first, second = before.snapshot, _without_drops(step, before.snapshot, after.snapshot)
    same = first.block_tables == second.block_tables and own in first.block_tables
    return handle._replace(block_table=first.block_tables[own]) if same else handle


def _dropped_before(step: Step) -> int:
    """Blocks that a refused call has given back, as far as this one was to take them."""
    own, model, setting = step.command.request, step.before.model, step.after.setting
    if not setting.declared.drops_behind_window or own not in model.live:
        return 0
    before, after = (
        len(state.live.get(own, ())) for state in (model, step.command.advance(model, setting))
    )
    if after <= before:
        return 0
    table, null = step.before.seen.tables.get(own, ()), setting.declared.null_block
    gone = dead(model, setting, own, after)
    dropped = sum(table[i : i + 1] == (null,) for i in gone)
    # What goes back beyond what the call takes is not due, wherever it is by now.
    spare = max(0, len(gone) - (setting.blocks_for(after) - setting.blocks_for(before)))
    return max(0, dropped - spare)


def _without_order(snapshot: Snapshot) -> Snapshot:
    free = snapshot.free_blocks
    return snapshot if free is None else replace(snapshot, free_blocks=tuple(sorted(free)))


def _as_declared(step: Step, first: Snapshot, second: Snapshot) -> tuple[Snapshot, Snapshot]:
    """Both snapshots less what a refusal is declared to change."""
    declared = step.after.setting.declared
    if declared.drops_behind_window:
        second = _without_drops(step, first, second)
    if declared.evicts_cached:
        second = _without_evictions(first, second)
    if declared.late_calls:
        second = _without_time(first, second)
    if declared.reorders_free:
        return _without_order(first), _without_order(second)
    return first, second


def judge_unchanged(step: Step) -> Judgement:
    """After anything but a grant, everything is as it was, the free list's order included."""
    if step.granted:
        return VACUOUS
    before, after = step.before.seen, step.after.seen
    if step.returned == step.given and (
        step.after is step.before
        or (before.snapshot == after.snapshot and before.handles == after.handles)
    ):
        return HOLDS
    own, what = step.command.request, f"{step.command} ended in: {step.outcome}"
    returned, handles = step.returned, after.handles
    if step.after.setting.declared.drops_behind_window:
        returned = _with_table(returned, step)
        handles = {r: _with_table(h, step) if r == own else h for r, h in handles.items()}
    if returned != step.given:
        name, was, now = first_difference(step.given, returned)
        return Broken(
            f"request {own}: {name} before {show(was)} != {show(now)} after; {what}", (), (own,)
        )
    if before.snapshot != after.snapshot:
        first, second = _as_declared(step, before.snapshot, after.snapshot)
        for f in fields(Snapshot):
            was, now = getattr(first, f.name), getattr(second, f.name)
            if was != now:
                return Broken(f"{f.name} before {show(was)} != {show(now)} after; {what}")
    if before.handles != handles:
        r = next(r for r in before.handles if before.handles[r] != handles[r])
        name, was, now = first_difference(before.handles[r], handles[r])
        return Broken(
            f"request {r}: {name} before {show(was)} != {show(now)} after; {what}", (), (r,)
        )
    return HOLDS


def _perhaps(outcome: Done) -> str:
    """What a grant that could not be one may have been meant to say."""
    if outcome.value is None:
        return ""
    value = outcome.value
    return f"; it returned {value}: if that says out of blocks, declare Returns({value})"


def _takes(step: Step) -> bool:
    """Whether the call takes blocks, though no more than it leaves behind a window."""
    own, before, setting = step.command.request, step.before.model, step.after.setting
    if "window" not in setting.declared.abilities or own not in before.live:
        return False
    after = len(step.command.advance(before, setting).live.get(own, ()))
    blocks_for = setting.blocks_for
    return blocks_for(after) > blocks_for(len(before.live[own]))


def judge_exact(step: Step) -> Judgement:
    """Out of blocks exactly when the blocks are not there."""
    due = step.expected
    if not isinstance(due, Grant):
        return VACUOUS
    available, before = step.before.available_to(due), _dropped_before(step)
    low, high = due.low + before, due.high + before
    if isinstance(step.outcome, Done) and low > available:
        return Broken(
            f"{step.command} granted: needed({low}) > available({available})"
            f"{_perhaps(step.outcome)}"
        )
    if (
        isinstance(step.outcome, NoBlocks)
        and high <= available
        # Refusing early is about taking blocks: what needs none can't be refused.
        and not (step.after.setting.declared.refuses_early and (high or _takes(step)))
    ):
        return Broken(
            f"{step.command} refused as out of blocks: needed({high}) <= "
            f"available({available}); {step.outcome.message}"
        )
    return HOLDS


def judge_refused(step: Step) -> Judgement:
    """Wrong use gets a ValueError, or silence where that is declared."""
    due = step.expected
    if not isinstance(due, Refuse):
        return VACUOUS
    if isinstance(step.outcome, Done if due.noop else Refused):
        return HOLDS
    ways = step.after.setting.declared.out_of_blocks
    says_no = isinstance(step.outcome, NoBlocks) and any(isinstance(w, Returns) for w in ways)
    if due.noop and says_no:  # What says "no" by its return value may say it to wrong use too.
        return HOLDS
    want = "no effect and no error" if due.noop else "a ValueError"
    return Broken(
        f"{step.command}: {step.outcome} != {want}, since {due.why}",
        (),
        (step.command.request,),
    )


def judge_answered(step: Step) -> Judgement:
    """A call that is allowed is granted or says out of blocks, and does nothing else."""
    if not isinstance(step.expected, Grant):
        return VACUOUS
    if isinstance(step.outcome, Refused | Raised):
        return Broken(
            f"{step.command}: {step.outcome}; a grant or out-of-blocks was due",
            (),
            (step.command.request,),
        )
    return HOLDS


PROPERTIES = (
    Property(
        "rollback",
        "A call that is not granted changes nothing: tables, lengths, free list and its order.",
        "not granted => before = after",
        EveryStep(judge_unchanged),
    ),
    Property(
        "out-of-blocks",
        "Out of blocks is said exactly when the blocks are not there.",
        "granted <=> needed <= available",
        EveryStep(judge_exact),
    ),
    Property(
        "misuse-refused",
        "Wrong use is answered as the protocol, or the declaration, says.",
        "wrong use => ValueError",
        EveryStep(judge_refused),
        frozenset({Need.WRONG_USE}),
    ),
    Property(
        "answered",
        "A call that is allowed is granted or says out of blocks; it raises nothing else.",
        "outcome in {granted, out of blocks}",
        EveryStep(judge_answered),
    ),
)
