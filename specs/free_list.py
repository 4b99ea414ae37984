"""Free-list disjointness and conservation.

free has no duplicates and lies in usable
free & held = {}
|usable| = |free| + |held| + |cached| + |pending| + |withheld|
num_free = |free|, and where the list is not seen |free| or |free| + |cached|
"""

from __future__ import annotations

from pagedkv.specs.properties import HOLDS, Broken, EveryState, Judgement, Need, Property
from pagedkv.specs.show import show
from pagedkv.specs.steps import State
from pagedkv.specs.tables import name_blocks, owners


def _free(state: State) -> tuple[int, ...]:
    free = state.seen.snapshot.free_blocks
    assert free is not None, "Need.FREE_LIST is checked before"
    return free


def judge_valid(state: State) -> Judgement:
    """The free list names usable blocks only, each once."""
    free, usable = _free(state), state.setting.usable
    for block in free:
        if block in state.seen.snapshot.reserved:
            return Broken(f"free_blocks names block {block}, which is reserved", (block,))
        if block not in usable:
            return Broken(f"free_blocks names {block}, which is no usable block", (block,))
        if free.count(block) > 1:
            return Broken(f"free_blocks names block {block} {free.count(block)} times", (block,))
    return HOLDS


def judge_disjoint(state: State) -> Judgement:
    """No block is both free and held."""
    both = state.seen.held.intersection(_free(state))
    if not both:
        return HOLDS
    block = min(both)
    who = owners(state, block)
    return Broken(
        f"free & held = {show(both)} != {{}}: block {block} is free and held by request {who[0]}",
        tuple(sorted(both)),
        tuple(sorted(set(who))),
    )


def judge_conserved(state: State) -> Judgement:
    """Every usable block is free, held, cached or pending; counts entries, not sets."""
    snapshot, usable = state.seen.snapshot, state.setting.usable
    free = _free(state)
    held, null = _held(state), state.setting.declared.null_block
    cached, pending = len(snapshot.cached), snapshot.pending
    waiting, withheld = pending or {}, snapshot.withheld or frozenset()
    total = len(free) + held + cached + len(waiting) + len(withheld)
    known = state.seen.held.union(snapshot.cached, free, waiting, withheld) - {null}
    lost = usable - known
    if total == len(usable) and not lost:
        return HOLDS
    sums = f"free({len(free)}) + held({held}) + cached({cached})"
    if pending is not None:
        sums += f" + pending({len(pending)})"
    if snapshot.withheld is not None:
        sums += f" + withheld({len(withheld)})"
    relation = "!=" if total != len(usable) else "="
    equation = f"{sums} {relation} usable({len(usable)})"
    if total > len(usable):
        twice = [b for b in sorted(known) if _count(state, b) > 1]
        who = "; ".join(f"block {b}: {', '.join(_places(state, b))}" for b in twice[:3])
        strays = name_blocks(known - usable) + " not usable" if known - usable else ""
        why = "; ".join(filter(None, (who, strays)))
        return Broken(f"{equation}: double count, {why}", tuple(twice))
    verb = "belongs" if len(lost) == 1 else "belong"
    return Broken(f"{equation}: leak, {name_blocks(lost)} {verb} to nobody", tuple(sorted(lost)))


_NOT_ONE_EACH = frozenset({"fork", "prefix", "window"})
"""Abilities with which a table entry is not a block of its own."""


def _held(state: State) -> int:
    """Entries of the tables, of shared blocks one each, of a window's null block none."""
    if not _NOT_ONE_EACH.isdisjoint(state.setting.declared.abilities):
        return len(state.seen.held - {state.setting.declared.null_block})
    return sum(len(table) for table in state.seen.tables.values())


def _places(state: State, block: int) -> list[str]:
    """Everywhere that a block is counted."""
    free = _free(state).count(block)
    return [
        *(["free"] if free == 1 else [f"free {free} times"] if free else []),
        *_holders(state, block),
        *(["cached"] if block in state.seen.snapshot.cached else []),
        *(["pending"] if block in (state.seen.snapshot.pending or ()) else []),
        *(["withheld"] if block in (state.seen.snapshot.withheld or ()) else []),
    ]


def _holders(state: State, block: int) -> list[str]:
    who = [f"held by request {r}" for r in owners(state, block)]
    return [" and ".join(who)] if who and state.setting.shares else who


def _count(state: State, block: int) -> int:
    return len(_places(state, block)) + max(0, _free(state).count(block) - 1)


def judge_counted(state: State) -> Judgement:
    """The manager's own counter equals the free list, or what the tables leave."""
    snapshot = state.seen.snapshot
    counter = snapshot.num_free
    assert counter is not None, "Need.COUNTER is checked before"
    if snapshot.free_blocks is not None:
        left, what = len(snapshot.free_blocks), "len(free_blocks)"
    else:
        waiting = {*(snapshot.pending or ()), *(snapshot.withheld or ())}
        left = len(state.setting.usable.difference(state.seen.held, waiting))
        what = "usable - held - pending" if waiting else "usable - held"
        if counter == left - len(snapshot.cached):  # Without the list, either may be meant.
            return HOLDS
    if counter == left:
        return HOLDS
    return Broken(f"num_free = {counter} != {left} = {what}")


PROPERTIES = (
    Property(
        "free-valid",
        "The free list names usable blocks only, each once.",
        "free_blocks[i] in usable, all distinct",
        EveryState(judge_valid),
        frozenset({Need.FREE_LIST}),
    ),
    Property(
        "free-disjoint",
        "No block is both free and held.",
        "free & held = {}",
        EveryState(judge_disjoint),
        frozenset({Need.FREE_LIST}),
    ),
    Property(
        "conservation",
        "Every usable block is free, held, cached or pending; none is lost or counted twice.",
        "usable = free + held + cached + pending + withheld",
        EveryState(judge_conserved),
        frozenset({Need.FREE_LIST}),
    ),
    Property(
        "free-count",
        "The manager's own counter of free blocks is right.",
        "num_free = |free|",
        EveryState(judge_counted),
        frozenset({Need.COUNTER}),
    ),
)
