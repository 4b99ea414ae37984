"""Two targets side by side: the same commands give the same answers, up to block names."""

from __future__ import annotations

from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryStep, Judgement, Need, Property
from pagedkv.specs.show import show
from pagedkv.specs.steps import Done, NoBlocks, Raised, Refused, Step

WORDS = {Done: "done", NoBlocks: "out of blocks", Refused: "refused", Raised: "another error"}


def _told(step: Step) -> dict[str, object]:
    snapshot = step.after.seen.snapshot
    return {
        "outcome": WORDS[type(step.outcome)],
        "seq_lens": dict(sorted(snapshot.seq_lens.items())),
        "blocks per table": {r: len(t) for r, t in sorted(snapshot.block_tables.items())},
        "free blocks": step.after.available,
        "seq_len of the handle": step.returned.seq_len,
    }


def judge_lockstep(step: Step) -> Judgement:
    """Outcome, lengths, table sizes and free counts agree; contents are judged for each."""
    if step.peer is None:
        return VACUOUS
    first, second = _told(step), _told(step.peer)
    for what, value in first.items():
        if value != second[what]:
            return Broken(
                f"{step.command}: {what} of the first = {show(value)} != {show(second[what])} of "
                f"the second"
            )
    return HOLDS


LOCKSTEP = Property(
    "lockstep",
    "Two targets answer the same commands alike, up to block names.",
    "outcome, seq_len, |table|, |free| of the first = of the second",
    EveryStep(judge_lockstep),
    frozenset({Need.PEER}),
)
