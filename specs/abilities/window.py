"""Sliding window: blocks behind it go back; those that it still reads never do.

table[r][i] = null  =>  (i + 1) * block_size <= seq_len[r] - window    (+ 1, where a refusal drops)
a granted call on r that grows it leaves no block behind the window that r held before it
"""

from __future__ import annotations

from pagedkv.specs.ability import Ability
from pagedkv.specs.growth import behind
from pagedkv.specs.properties import (
    HOLDS,
    VACUOUS,
    Broken,
    EveryState,
    EveryStep,
    Judgement,
    Need,
    Property,
    Sometimes,
)
from pagedkv.specs.steps import State, Step


def judge_kept(state: State) -> Judgement:
    """An entry is null only where the window has left its whole block behind."""
    declared, size = state.setting.declared, state.setting.geometry.block_size
    window, null = declared.window, declared.null_block
    assert window is not None, "Need.WINDOW is checked before"
    if null is None or not state.model.live:
        return VACUOUS
    if declared.drops_behind_window:  # What the last token read the next one need not.
        window -= 1
    for r, tags in state.model.live.items():
        for i, block in enumerate(state.seen.tables.get(r, ())):
            if block == null and (i + 1) * size > len(tags) - window:
                return Broken(
                    f"block_table[{r}][{i}] = {block} is null, but positions {i * size} .. "
                    f"{(i + 1) * size - 1} >= seq_len({len(tags)}) - window({window}) are read",
                    (),
                    (r,),
                )
    return HOLDS


def judge_freed(step: Step) -> Judgement:
    """A call that grows a live request gives back what it leaves behind the window."""
    own, declared = step.command.request, step.after.setting.declared
    window, null = declared.window, declared.null_block
    assert window is not None, "Need.WINDOW is checked before"
    before, after = step.before.model.live.get(own), step.after.model.live.get(own)
    grew = before is not None and after is not None and len(after) > len(before)
    if null is None or not step.granted or not grew or after is None:
        return VACUOUS
    left = behind(step.after.setting, len(before or ()), len(after))
    had = len(step.before.seen.tables.get(own, ()))  # What it took itself goes at the next call.
    table = step.after.seen.tables.get(own, ())
    for i, block in enumerate(table[: min(left, had)]):
        if block != null:
            return Broken(
                f"{step.command}: block_table[{own}][{i}] = {block} != {null}: the window of "
                f"{window} left it behind at seq_len {len(after)}",
                (block,),
                (own,),
            )
    return HOLDS


def _left_behind(step: Step) -> bool:
    null = step.after.setting.declared.null_block
    table = step.after.seen.tables.get(step.command.request, ())
    return step.granted and null is not None and null in table


WINDOW = Ability(
    id="window",
    statement="Only the last tokens are read; the blocks behind them go back.",
    commands=(),
    candidates=lambda _model, _setting: (),
    properties=(
        Property(
            "window-kept",
            "No block that the window still reads is given back.",
            "table[r][i] = null => (i + 1) * block_size <= seq_len[r] - window",
            EveryState(judge_kept),
            frozenset({Need.WINDOW}),
        ),
        Property(
            "window-freed",
            "A call that grows a request gives back the blocks that it leaves behind the window.",
            "(i + 1) * block_size <= seq_len[r] - window => table[r][i] = null, if held before",
            EveryStep(judge_freed),
            frozenset({Need.WINDOW}),
        ),
        Property(
            "window-left",
            "A block was left behind the window.",
            "null in table",
            Sometimes(_left_behind),
            frozenset({Need.WINDOW}),
        ),
    ),
)
