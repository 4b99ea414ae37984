"""seq_len consistency.

seq_len[r] = tokens that the history put in
ceil(seq_len[r] / block_size) <= len(table[r]) <= ceil(...) + lookahead
a command on one request leaves every other as it was
"""

from __future__ import annotations

from pagedkv.specs.commands import NOBODY
from pagedkv.specs.model import Setting
from pagedkv.specs.properties import (
    HOLDS,
    VACUOUS,
    Broken,
    EveryState,
    EveryStep,
    Judgement,
    Property,
)
from pagedkv.specs.show import first_difference, show
from pagedkv.specs.steps import Observation, State, Step


def judge_seq_len(state: State) -> Judgement:
    """Snapshot and handles give every request the tokens that the history put in."""
    model, seen = state.model, state.seen
    if not model.live and not model.released:
        return VACUOUS
    for r, tags in model.live.items():
        where = seen.snapshot.seq_lens.get(r)
        if where != len(tags):
            return Broken(
                f"snapshot.seq_lens[{r}] = {where} != {len(tags)} = tokens put in", (), (r,)
            )
    for r in sorted(set(seen.snapshot.seq_lens) - set(model.live)):
        return Broken(f"snapshot.seq_lens names request {r}, which is not live", (), (r,))
    expected = {r: len(tags) for r, tags in model.live.items()} | dict(model.released)
    if model.swapped:
        expected |= {r: len(tags) for r, tags in model.swapped.items()}
    for r, seq_len in expected.items():
        if r in seen.handles and seen.handles[r].seq_len != seq_len:
            return Broken(
                f"request {r}: seq_len = {seen.handles[r].seq_len} != {seq_len} = tokens put in",
                (),
                (r,),
            )
    return HOLDS


def judge_cover(state: State) -> Judgement:
    """Every live request has a table that covers it exactly, plus the lookahead; no other has."""
    model, tables, setting = state.model, state.seen.tables, state.setting
    for r in sorted(set(tables) - set(model.live)):
        return Broken(f"request {r} is not live but has block_table {list(tables[r])}", (), (r,))
    for r, tags in model.live.items():
        if r not in tables:
            return Broken(f"request {r} is live with {len(tags)} tokens but has no table", (), (r,))
        need, has = setting.blocks_for(len(tags)), len(tables[r])
        lookahead = setting.declared.lookahead
        if not need <= has <= need + lookahead:
            more = f" (+ lookahead {lookahead})" if lookahead else ""
            return Broken(
                f"len(block_table[{r}]) = {has} != {need}{more} = {_due(setting, len(tags))}",
                tables[r],
                (r,),
            )
    return HOLDS if model.live else VACUOUS


def _due(setting: Setting, seq_len: int) -> str:
    """What the number of blocks due is made of, of each table of a request."""
    size, declared = setting.geometry.block_size, setting.declared
    if declared.lookahead_tokens:
        return f"ceil(({seq_len} + {declared.lookahead_tokens} tokens) / block_size {size})"
    return " + ".join(
        f"ceil({f'min({seq_len}, {window})' if declared.ring and window else seq_len} tokens / "
        f"block_size {size})"
        for window in declared.each_window
    )


def judge_others(step: Step) -> Judgement:
    """The tables, lengths and handles of all other requests are what they were."""
    own = step.command.request
    before, after = step.before.seen, step.after.seen
    if len(before.handles) == (own in before.handles):
        return VACUOUS
    if step.after is step.before:
        return HOLDS
    for r in before.handles:
        if r == own or (
            before.handles.get(r) == after.handles.get(r)
            and before.tables.get(r) == after.tables.get(r)
            and before.snapshot.seq_lens.get(r) == after.snapshot.seq_lens.get(r)
        ):
            continue
        what, old, new = _change(before, after, r)
        return Broken(
            f"{step.command} changed request {r}: {what} {show(old)} before != {show(new)} after",
            (),
            (r,),
        )
    return HOLDS


def _change(before: Observation, after: Observation, r: int) -> tuple[str, object, object]:
    """What changed of a request, as the manager shows it or else in its handle."""
    if before.tables.get(r) != after.tables.get(r):
        return "block_table", before.tables.get(r), after.tables.get(r)
    if before.snapshot.seq_lens.get(r) != after.snapshot.seq_lens.get(r):
        return "seq_len", before.snapshot.seq_lens.get(r), after.snapshot.seq_lens.get(r)
    if r not in after.handles:
        return "request", before.handles[r], None
    name, old, new = first_difference(before.handles[r], after.handles[r])
    return f"request.{name}", old, new


def judge_handle(step: Step) -> Judgement:
    """After a grant the caller's handle says what the manager holds, and nothing else changed."""
    if not step.granted:
        return VACUOUS
    own, model = step.command.request, step.after.model
    if own == NOBODY:
        return VACUOUS
    tags = model.live.get(own) or model.swapped.get(own)
    seq_len = model.released[own] if tags is None else len(tags)
    if step.returned.seq_len != seq_len:
        return Broken(
            f"{step.command}: seq_len = {step.returned.seq_len} != {seq_len} = tokens put in",
            (),
            (own,),
        )
    table = step.after.seen.tables.get(own, ())
    if not step.after.setting.declared.tables_outside and step.returned.block_table != table:
        return Broken(
            f"{step.command}: block_table = {list(step.returned.block_table)} != {list(table)}, "
            f"what the manager holds for it",
            (),
            (own,),
        )
    for name in ("request_id", "tokens", "prompt_len"):
        was, now = getattr(step.given, name), getattr(step.returned, name)
        if was != now:
            return Broken(
                f"{step.command}: request.{name} {show(was)} before != {show(now)} after",
                (),
                (own,),
            )
    return HOLDS


PROPERTIES = (
    Property(
        "seq-len",
        "seq_len is the number of tokens that the history put in.",
        "seq_len[r] = tokens put in",
        EveryState(judge_seq_len),
    ),
    Property(
        "table-cover",
        "A live request's table covers seq_len exactly, plus declared lookahead; no other has one.",
        "len(block_table[r]) = ceil(seq_len[r] / block_size)",
        EveryState(judge_cover),
    ),
    Property(
        "handle-filled",
        "A granted call leaves its request's handle saying what the manager holds for it.",
        "returned.seq_len = tokens put in, returned.block_table = block_table[r]",
        EveryStep(judge_handle),
    ),
    Property(
        "others-untouched",
        "A command on one request leaves all other requests as they were.",
        "for all r' != r: request r' before = request r' after",
        EveryStep(judge_others),
    ),
)
