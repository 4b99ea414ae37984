"""Blocks given back late: they are neither free nor held for a while, and it is said how long.

pending[b] = calls, or blocks given back, that b waits for at most, as declared
b pending before  =>  not handed out, and pending[b] runs down with what passed
b pending anew    =>  it was held before, and 1 <= pending[b] <= declared
"""

from __future__ import annotations

from collections.abc import Mapping

from pagedkv.specs.properties import (
    HOLDS,
    VACUOUS,
    Broken,
    EveryStep,
    Judgement,
    Need,
    Property,
    Sometimes,
)
from pagedkv.specs.steps import State, Step


def _pending(state: State) -> Mapping[int, int]:
    pending = state.seen.snapshot.pending
    return {} if pending is None else pending


def judge_pending(step: Step) -> Judgement:
    """Pending blocks are not handed out, and none is pending for longer than is declared."""
    was, now = _pending(step.before), _pending(step.after)
    if not was and not now:
        return VACUOUS
    held, holds = step.before.seen.held, step.after.seen.held
    if early := sorted((holds - held) & was.keys()):
        block = early[0]
        return Broken(
            f"{step.command} handed out block {block}, which was pending: pending[{block}] = "
            f"{was[block]} before",
            (block,),
            (step.command.request,),
        )
    for block, left in sorted(now.items()):
        if why := _overdue(step, block, left):
            return Broken(f"{step.command}: {why}", (block,))
    return HOLDS


def _overdue(step: Step, block: int, left: int) -> str | None:
    """Why `block` may not be pending for `left` more calls or blocks; None if it may."""
    was, held, declared = _pending(step.before), step.before.seen.held, step.after.setting.declared
    name = "late_blocks" if declared.late_blocks else "late_calls"
    if left < 1:
        return f"pending[{block}] = {left} < 1: it waits for nothing"
    if block in was:
        later = step.after.seen.snapshot.withheld or frozenset()
        given_back = len(held - step.after.seen.held - {declared.null_block} - later)
        passed = given_back if declared.late_blocks else int(step.granted)
        most = was[block] - passed
        why = f"{was[block]} before - {passed} passed ({name})"
    elif block in held or block in (step.before.seen.snapshot.withheld or ()):
        most, why = getattr(declared, name), f"declared {name}"
    else:
        return f"block {block} is pending, but nobody had held it"
    return None if left <= most else f"pending[{block}] = {left} > {most} = {why}"


def _ripened(step: Step) -> bool:
    free = step.after.seen.snapshot.free_blocks
    ripe = _pending(step.before).keys() - _pending(step.after).keys()
    return step.granted and bool(ripe if free is None else ripe.intersection(free))


PROPERTIES = (
    Property(
        "pending",
        "A block given back late is handed out only once it is free, which it is in time.",
        "pending[b] after <= pending[b] before - passed; pending & handed out = {}",
        EveryStep(judge_pending),
        frozenset({Need.PENDING}),
    ),
    Property(
        "pending-freed",
        "A block given back late became free.",
        "pending before, free after",
        Sometimes(_ripened),
        frozenset({Need.PENDING}),
    ),
)
