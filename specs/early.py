"""Nothing is found before it is computed, unless the target declares that it is.

new entries of the index & blocks that the call's tokens go into = {}    between call and writing
"""

from __future__ import annotations

from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryStep, Judgement, Need, Property
from pagedkv.specs.steps import Step


def judge_computed(step: Step) -> Judgement:
    """Between the call and the writing of its tokens no block that these go into can be found."""
    if step.early is None:
        return VACUOUS
    if not step.early:
        return HOLDS
    return Broken(
        f"{step.command}: block {min(step.early)} could be found before its tokens were computed",
        tuple(sorted(step.early)),
        (step.command.request,),
    )


COMPUTED = Property(
    "prefix-computed",
    "No block can be found before its tokens are computed, unless that is declared.",
    "new in index & written by the call = {}, between the call and the writing",
    EveryStep(judge_computed),
    frozenset({Need.INDEX, Need.LATE_PREFIX}),
)
