"""Which cached block is evicted: the one that nobody has held for longest.

order = eviction_order, the next to be evicted first; as a set it is the cached blocks
a granted call:  order after = order before - found - evicted, and then what the call let go
                 evicted = the first of order before - found, each of which it hands out
                 of what one request let go, the last logical block first, where that is declared
"""

from __future__ import annotations

from collections.abc import Sequence

from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryStep, Judgement, Need, Property
from pagedkv.specs.show import show
from pagedkv.specs.steps import Step


def new_prompt(step: Step) -> tuple[int, ...] | None:
    """The tags of the prompt that the step is to admit; None if it admits none."""
    own, setting = step.command.request, step.after.setting
    if own in step.before.model.live or not step.command.takes:
        return None
    if own in step.before.model.swapped or len(step.command.names()) > 1:
        return None
    return step.command.advance(step.before.model, setting).live[own]


def judge_order(step: Step) -> Judgement:
    """What is evicted, and where what is let go stands in the order, is least recently held."""
    was = step.before.seen.snapshot.eviction_order or ()
    now = step.after.seen.snapshot.eviction_order or ()
    if sorted(now) != sorted(cached := step.after.seen.snapshot.cached):
        return Broken(f"eviction_order = {show(now)}, but cached = {show(cached)}", now)
    if not step.granted or not (was or now):
        return VACUOUS
    found = _found(step)
    there = [block for block in was if block not in found]
    evicted = [block for block in there if block not in now]
    if evicted != there[: len(evicted)]:
        due = there[: len(evicted)]
        return Broken(
            f"{step.command} evicted {show(evicted)} != {show(due)}, the first of eviction_order = "
            f"{show(was)}{_less(found, was)}",
            tuple(sorted({*evicted, *due})),
        )
    if idle := [block for block in evicted if block not in step.after.seen.held]:
        why = f"{step.command} evicted {show(idle)}, and handed it out to nobody"
        return Broken(why, tuple(idle))
    stayed = there[len(evicted) :]
    anew = [block for block in now if block not in stayed]
    if (turns := _out_of_turn(step, now, stayed, anew)) is not None:
        return Broken(
            f"{step.command}: eviction_order after = {show(now)} != {show(turns)}, "
            f"with {show(was)} before",
            now,
        )
    return HOLDS


def _found(step: Step) -> frozenset[int]:
    """The cached blocks that the prompt of the step found: they hold what they held."""
    tags = new_prompt(step)
    if tags is None:
        return frozenset()
    size, ends = step.after.setting.geometry.block_size, step.before.seen.ends
    table = step.after.seen.tables.get(step.command.request, ())
    found, cached = set[int](), step.before.seen.snapshot.cached
    for block, end in zip(table, range(size - 1, len(tags) - 1, size), strict=False):
        if ends.get(block) != tags[end]:
            break
        found.add(block)
    return frozenset(found & cached)


def _out_of_turn(
    step: Step, now: Sequence[int], stayed: Sequence[int], anew: Sequence[int]
) -> list[int] | None:
    """The order that is due where the one after is not; None if it is.

    What came back at the end of a group is in no order that anybody could see before.
    """
    due = [*stayed, *anew]
    table = step.before.seen.tables.get(step.command.request, ())
    if step.after.setting.declared.evicts == "lru-tail-first" and {*anew} <= {*table}:
        due = [*stayed, *sorted(anew, key=table.index, reverse=True)]
    return None if due == [*now] else due


def _less(found: frozenset[int], was: Sequence[int]) -> str:
    taken = [block for block in was if block in found]
    return f" without {show(taken)}, which it found" if taken else ""


EVICTION = Property(
    "eviction-order",
    "What is evicted is what nobody has held for longest, and no more than is handed out.",
    "evicted = first of order - found, handed out; order after = order - found - evicted + let go",
    EveryStep(judge_order),
    frozenset({Need.EVICTION}),
)
