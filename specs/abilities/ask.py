"""Ask: whether a call would be granted; the call then says the same, and asking changes nothing."""

from __future__ import annotations

from pagedkv.specs.ability import Ability
from pagedkv.specs.alike import difference
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
from pagedkv.specs.show import show
from pagedkv.specs.steps import Done, Grant, NoBlocks, Step


def judge_agrees(step: Step) -> Judgement:
    """What was answered is what the call then did, in both directions."""
    if step.asked is None or not isinstance(step.expected, Grant):
        return VACUOUS
    if not isinstance(step.outcome, Done | NoBlocks):
        return VACUOUS
    answer, granted = step.asked.answer, isinstance(step.outcome, Done)
    if isinstance(answer, bool) and answer == granted:
        return HOLDS
    return Broken(
        f"asked whether {step.command} would be granted: {show(answer)} != {granted}, for it ended "
        f"in: {step.outcome}",
        (),
        (step.command.asks_about(),),
    )


def judge_pure(step: Step) -> Judgement:
    """Asking leaves everything as it was."""
    if step.asked is None:
        return VACUOUS
    if step.asked.changed is None:
        return HOLDS
    changed = difference(*step.asked.changed, step.after.setting)
    if changed is None:
        return HOLDS
    return Broken(f"{changed} asking whether {step.command} would be granted")


def _said_no(step: Step) -> bool:
    return step.asked is not None and step.asked.answer is False


ASK = Ability(
    id="ask",
    statement="Whether a call would be granted, without making it.",
    commands=(),
    candidates=lambda _model, _setting: (),
    properties=(
        Property(
            "asked-agrees",
            "What the manager says it would do is what it does.",
            "can(call) <=> call granted",
            EveryStep(judge_agrees),
            frozenset({Need.ASK}),
        ),
        Property(
            "asked-pure",
            "Asking changes nothing.",
            "snapshot before = snapshot after asking",
            EveryStep(judge_pure),
            frozenset({Need.ASK}),
        ),
        Property(
            "asked-no",
            "The manager said that it would not grant a call.",
            "can(call) = no",
            Sometimes(_said_no),
            frozenset({Need.ASK}),
        ),
    ),
)
