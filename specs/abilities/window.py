"""Sliding window: blocks behind it go back, or are written over; those that it reads never are.

table[r][i] = null  =>  (i + 1) * block_size <= seq_len[r] - window    (+ 1, where a refusal drops)
a granted call on r that grows it leaves no block behind the window that r held before it

Of each table, where a request has several. What a ring writes over, `contents` judges.
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
    null = declared.null_block
    if null is None or not state.model.live:
        return VACUOUS
    for r, tags in state.model.live.items():
        parts, start = state.setting.parts(state.seen.tables.get(r, ()), len(tags)), 0
        for window, table in zip(declared.each_window, parts, strict=True):
            # What the last token read the next one need not.
            back = len(tags) if window is None else window - declared.drops_behind_window
            for i, block in enumerate(table):
                if block == null and (i + 1) * size > len(tags) - back:
                    return Broken(
                        f"block_table[{r}][{start + i}] = {block} is null, but positions "
                        f"{i * size} .. {(i + 1) * size - 1} >= seq_len({len(tags)}) - "
                        f"window({back}) are read",
                        (),
                        (r,),
                    )
            start += len(table)
    return HOLDS


def judge_freed(step: Step) -> Judgement:
    """A call that grows a live request gives back what it leaves behind the window."""
    own, declared = step.command.request, step.after.setting.declared
    null, tables = declared.null_block, step.before.seen.tables
    before, after = step.before.model.live.get(own), step.after.model.live.get(own)
    grew = before is not None and after is not None and len(after) > len(before)
    if null is None or not step.granted or not grew or after is None:
        return VACUOUS
    setting, start = step.after.setting, 0
    parts = setting.parts(step.after.seen.tables.get(own, ()), len(after))
    # What it took itself goes at the next call.
    left = behind(setting, tables.get(own, ()), len(before or ()), len(after))
    for window, table, gone in zip(declared.each_window, parts, left, strict=True):
        for i, block in enumerate(table[:gone]):
            if block != null:
                return Broken(
                    f"{step.command}: block_table[{own}][{start + i}] = {block} != {null}: the "
                    f"window of {window} left it behind at seq_len {len(after)}",
                    (block,),
                    (own,),
                )
        start += len(table)
    return HOLDS


def _left_behind(step: Step) -> bool:
    null = step.after.setting.declared.null_block
    table = step.after.seen.tables.get(step.command.request, ())
    return step.granted and null is not None and null in table


def _turned(step: Step) -> bool:
    window = step.after.setting.declared.each_window
    length = len(step.after.model.live.get(step.command.request, ()))
    return step.granted and any(back is not None and length > back for back in window)


WINDOW = Ability(
    id="window",
    statement="Only the last tokens are read; the blocks behind them go back, or are written over.",
    commands=(),
    candidates=lambda _model, _setting: (),
    properties=(
        Property(
            "window-kept",
            "No block that the window still reads is given back.",
            "table[r][i] = null => (i + 1) * block_size <= seq_len[r] - window",
            EveryState(judge_kept),
            frozenset({Need.NULLS}),
        ),
        Property(
            "window-freed",
            "A call that grows a request gives back the blocks that it leaves behind the window.",
            "(i + 1) * block_size <= seq_len[r] - window => table[r][i] = null, if held before",
            EveryStep(judge_freed),
            frozenset({Need.NULLS}),
        ),
        Property(
            "window-turned",
            "A ring was written over from its start.",
            "seq_len[r] > window",
            Sometimes(_turned),
            frozenset({Need.RING}),
        ),
        Property(
            "window-left",
            "A block was left behind the window.",
            "null in table",
            Sometimes(_left_behind),
            frozenset({Need.NULLS}),
        ),
    ),
)
