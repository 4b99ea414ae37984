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
    each = state.setting.declared.each_window
    for r, every in model.live.items():
        read, tags = contents.get(r), state.setting.readable(every) if each != (None,) else every
        if read == tags:
            continue
        if read is None:
            return Broken(f"request {r} is live but can't be read", (), (r,))
        if (isinstance(read, Unreadable) or len(read) != len(tags)) and _lacks(state, r):
            continue  # There is nothing to be read in place of what a refused call dropped.
        if isinstance(read, Unreadable):
            return Broken(f"cache of request {r} can't be read: {read.message}", (), (r,))
        if len(read) != len(tags):
            return Broken(f"cache of request {r} has {len(read)} != {len(tags)} tokens", (), (r,))
        start = 0
        for table, window in enumerate(each):
            end = start + min(window or len(every), len(every))
            broken = _judge_table(state, r, table, read[start:end], tags[start:end])
            if broken is not None:
                return broken
            start = end
    return HOLDS


def _judge_table(
    state: State, r: int, table: int, read: tuple[float, ...], tags: tuple[int, ...]
) -> Broken | None:
    """What one table of a request reads back is the last of its tags."""
    setting, seq_len = state.setting, len(state.model.live[r])
    entries = setting.parts(state.seen.tables.get(r, ()), seq_len)[table]
    less = _dropped(state, entries, seq_len - len(tags)) if read != tags else 0
    wrong = (at for at in range(min(less, len(tags)), len(tags)) if read[at] != tags[at])
    if (at := next(wrong, None)) is None:
        return None
    position = at + seq_len - len(tags)
    due = setting.name_tag(tags[at]) if setting.shares else f"token {position} of request {r}"
    which = f", table {table}" if setting.declared.windows else ""
    return Broken(
        f"cache of request {r}{which}, position {position}: reads "
        f"{setting.name_tag(read[at])} != {due}",
        _block_of(state, entries, table, position),
        (r,),
    )


def _dropped(state: State, table: tuple[int, ...], start: int) -> int:
    """How many tokens from `start` on a refused call dropped; if it might, `window-kept` judges."""
    declared, size = state.setting.declared, state.setting.geometry.block_size
    if not declared.drops_behind_window or declared.null_block is None:
        return 0
    return max(0, table.count(declared.null_block) * size - start)


def _lacks(state: State, r: int) -> bool:
    """Whether a refused call dropped what a request's window reaches back to."""
    seq_len = len(state.model.live[r])
    parts = state.setting.parts(state.seen.tables.get(r, ()), seq_len)
    return any(
        _dropped(state, table, max(0, seq_len - (window or seq_len))) > 0
        for window, table in zip(state.setting.declared.each_window, parts, strict=True)
    )


def _block_of(state: State, entries: tuple[int, ...], table: int, position: int) -> tuple[int, ...]:
    index, _ = state.setting.place(state.setting.declared.each_window[table], position)
    return (entries[index],) if index < len(entries) else ()


PROPERTIES = (
    Property(
        "contents",
        "What a request's table reads back is what a plain dense cache would hold.",
        "read(r)[p] = tag(r, p)",
        EveryState(judge_contents),
    ),
)
