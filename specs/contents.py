"""Reconstructed cache equivalence: what a table reads back is the plain dense cache.

for all live r, positions p: read(r)[p] = tag(r, p)
"""

from __future__ import annotations

from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryState, Judgement, Property
from pagedkv.specs.steps import State, Unreadable


def judge_contents(state: State) -> Judgement:
    """Every position of every live request reads back its own tag."""
    model = state.model
    if not model.live:
        return VACUOUS
    contents = state.seen.read()
    windowed = state.setting.declared.window is not None
    for r, every in model.live.items():
        read, tags = contents.get(r), state.setting.readable(every) if windowed else every
        if read == tags:
            continue
        if state.setting.declared.drops_behind_window:
            read, tags = _without_dropped(state, r, read, tags)
            if read == tags:
                continue
        if read is None:
            return Broken(f"request {r} is live but can't be read", (), (r,))
        if isinstance(read, Unreadable):
            return Broken(f"cache of request {r} can't be read: {read.message}", (), (r,))
        if len(read) != len(tags):
            return Broken(f"cache of request {r} has {len(read)} != {len(tags)} tokens", (), (r,))
        at = next(p for p, tag in enumerate(tags) if read[p] != tag)
        position = at + len(every) - len(tags)
        due = f"token {position} of request {r}"
        if state.setting.shares:
            due = state.setting.name_tag(tags[at])
        return Broken(
            f"cache of request {r}, position {position}: reads "
            f"{state.setting.name_tag(read[at])} != {due}",
            _block_of(state, r, position),
            (r,),
        )
    return HOLDS


def _without_dropped(
    state: State,
    request: int,
    read: tuple[float, ...] | Unreadable | None,
    tags: tuple[int, ...],
) -> tuple[tuple[float, ...] | Unreadable | None, tuple[int, ...]]:
    """Both from where a refused call left blocks: whether it might, `window-kept` judges."""
    null, size = state.setting.declared.null_block, state.setting.geometry.block_size
    dropped = state.seen.tables.get(request, ()).count(null) if null is not None else 0
    start = len(state.model.live[request]) - len(tags)
    less = min(max(0, dropped * size - start), len(tags))
    same = isinstance(read, tuple) and len(read) == len(tags)
    return (read[less:], tags[less:]) if isinstance(read, tuple) and same else (read, tags)


def _block_of(state: State, request: int, position: int) -> tuple[int, ...]:
    table = state.seen.tables.get(request, ())
    logical = position // state.setting.geometry.block_size
    return (table[logical],) if logical < len(table) else ()


PROPERTIES = (
    Property(
        "contents",
        "What a request's table reads back is what a plain dense cache would hold.",
        "read(r)[p] = tag(r, p)",
        EveryState(judge_contents),
    ),
)
