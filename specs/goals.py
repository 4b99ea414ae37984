"""What a run must have reached, so that it can't pass on nothing."""

from __future__ import annotations

from itertools import pairwise

from pagedkv.specs.properties import Need, Property, Sometimes
from pagedkv.specs.steps import Grant, NoBlocks, Refuse, Step


def _pool_full(step: Step) -> bool:
    return step.granted and step.after.seen.held >= step.after.setting.usable


def _oom(step: Step) -> bool:
    return isinstance(step.outcome, NoBlocks) and isinstance(step.expected, Grant)


def _oom_in_decode(step: Step) -> bool:
    return _oom(step) and step.command.request in step.before.model.live


def _grown(step: Step) -> bool:
    own = step.command.request
    before, after = step.before.seen.tables.get(own), step.after.seen.tables.get(own)
    return before is not None and after is not None and len(after) > len(before) > 0


def _scattered(step: Step) -> bool:
    table = step.after.seen.tables.get(step.command.request, ())
    return any(b != a + 1 for a, b in pairwise(table))


def _shared_pool(step: Step) -> bool:
    return len(step.after.model.live) > 1


def _released_beside(step: Step) -> bool:
    return step.granted and len(step.after.model.live) == len(step.before.model.live) - 1 > 0


def _reused(step: Step) -> bool:
    return bool(step.reused)


def _wrong_use(step: Step) -> bool:
    return isinstance(step.expected, Refuse)


GOALS = (
    Property("pool-full", "Every block was held at once.", "held = usable", Sometimes(_pool_full)),
    Property("oom-hit", "Blocks ran out.", "outcome = out of blocks", Sometimes(_oom)),
    Property(
        "oom-in-decode",
        "Blocks ran out under a live request.",
        "decode(r) = out of blocks",
        Sometimes(_oom_in_decode),
    ),
    Property("table-grown", "A live table took a block.", "len(table) grew", Sometimes(_grown)),
    Property(
        "table-scattered",
        "A table was not an ascending run of blocks.",
        "table[i + 1] != table[i] + 1",
        Sometimes(_scattered),
    ),
    Property(
        "two-live",
        "Two requests were live at once.",
        "|live| >= 2",
        Sometimes(_shared_pool),
    ),
    Property(
        "released-beside",
        "A request was released while another went on.",
        "release(r) with |live| >= 2",
        Sometimes(_released_beside),
    ),
    Property(
        "block-reused",
        "A block was freed and handed out again.",
        "taken & freed before != {}",
        Sometimes(_reused),
    ),
    Property(
        "misuse-tried",
        "Wrong use was tried.",
        "some command was wrong use",
        Sometimes(_wrong_use),
        frozenset({Need.WRONG_USE}),
    ),
)
