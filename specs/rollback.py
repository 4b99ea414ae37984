"""Rollback atomicity, and answers that are due.

not granted  =>  snapshot, handles and argument before = after, order included
granted      <=> demand <= available          (between low and high: either)
wrong use    =>  refused with a ValueError    (or silence, where declared)
"""

from __future__ import annotations

from dataclasses import replace

from pagedkv.declarations import Returns
from pagedkv.specs.alike import difference
from pagedkv.specs.growth import dead
from pagedkv.specs.model import GONE
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryStep, Judgement, Need, Property
from pagedkv.specs.refusals import as_declared, remembering, with_table
from pagedkv.specs.show import first_difference, show
from pagedkv.specs.steps import Done, Grant, HostGrant, NoBlocks, Raised, Refuse, Refused, Step


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
        returned = with_table(returned, step)
        handles = {**handles, own: with_table(handles[own], step)} if own in handles else handles
    if returned != step.given:
        name, was, now = first_difference(step.given, returned)
        return Broken(
            f"request {own}: {name} before {show(was)} != {show(now)} after; {what}", (), (own,)
        )
    if before.snapshot != after.snapshot:
        first, second = as_declared(step, before.snapshot, after.snapshot)
        if (changed := difference(first, second, step.after.setting)) is not None:
            return Broken(f"{changed}; {what}")
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
    own, model, setting = step.command.request, step.before.model, step.after.setting
    if own not in model.pages:
        return False
    gone = dead(model, setting, own, len(step.command.advance(model, setting).live.get(own, ())))
    left = tuple(GONE if i in gone else page for i, page in enumerate(model.pages[own]))
    due = step.command.expect(replace(model, pages={**model.pages, own: left}), setting)
    return isinstance(due, Grant) and due.high > 0


def judge_exact(step: Step) -> Judgement:
    """Out of blocks exactly when the blocks are not there."""
    due, setting = step.expected, step.after.setting
    if isinstance(due, Grant) and setting.declared.drops_behind_window:
        due = step.command.expect(remembering(step), setting)
    if not isinstance(due, Grant):
        return VACUOUS
    if isinstance(due, HostGrant) and step.before.seen.snapshot.host_free is None:
        return VACUOUS
    available = step.before.available_to(due)
    if isinstance(step.outcome, Done) and due.low > available:
        return Broken(
            f"{step.command} granted: needed({due.low}) > available({available})"
            f"{_perhaps(step.outcome)}"
        )
    if (
        isinstance(step.outcome, NoBlocks)
        and due.high <= available
        # Refusing early is about taking blocks: what needs none can't be refused.
        and not (setting.declared.refuses_early and (due.high or _takes(step)))
    ):
        return Broken(
            f"{step.command} refused as out of blocks: needed({due.high}) <= "
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
