"""What the index of a prefix cache promises: a judgement for each promise.

index is a map from keys to blocks that are held or cached, each block whole and at most once, and
no two of them with the same content
found(r) = the longest run of leading blocks, the last token left out, whose content is indexed
admitted(r)  =>  the full blocks of r are indexed;  released(r)  =>  nothing has left the index
granted  <=> blocks needed behind what is found <= free + cached - cached blocks that are found
a tail that truncate cut out of a block which others found is copied before it grows: one more
"""

from __future__ import annotations

from collections.abc import Mapping

from pagedkv.specs.abilities.core import Release
from pagedkv.specs.eviction import new_prompt
from pagedkv.specs.growth import overwritten
from pagedkv.specs.model import POISON
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
from pagedkv.specs.steps import Done, NoBlocks, State, Step


def judge_index(state: State) -> Judgement:
    """The index finds whole blocks that are held or cached, each content by one key."""
    snapshot, known = state.seen.snapshot, dict[float, object]()
    if not snapshot.index:
        return VACUOUS
    blocks: dict[int, object] = {}
    for key, block in snapshot.index.items():
        if why := _flaw(state, block, known, blocks):
            return Broken(f"index[{key}] = {block}, {why}", (block,))
        blocks[block] = known[state.seen.ends[block]] = key
    if lost := snapshot.cached - blocks.keys():
        return Broken(f"block {min(lost)} is cached, but no key finds it", tuple(sorted(lost)))
    return HOLDS


def _flaw(
    state: State, block: int, known: Mapping[float, object], blocks: Mapping[int, object]
) -> str | None:
    """What is wrong with an entry of the index, beside those that were looked at before."""
    end = state.seen.ends.get(block)
    if end is None:
        return "which is neither held nor cached"
    if end == POISON:
        return "which is not written to its end"
    if block in blocks:
        return f"which is index[{blocks[block]}] too"
    if end in known and not state.setting.declared.keeps_duplicates:
        return f"which ends in {state.setting.name_tag(end)}, as index[{known[end]}] does"
    return None


def _hits(step: Step, tags: tuple[int, ...]) -> list[int]:
    """The blocks that the index had for the leading blocks of a prompt, its last token left out.

    Of several with the same content, the first that the index names.
    """
    snapshot, ends = step.before.seen.snapshot, step.before.seen.ends
    by_content: dict[float | None, int] = {}
    for held in (snapshot.index or {}).values():
        by_content.setdefault(ends.get(held), held)
    size, hits = step.after.setting.geometry.block_size, []
    for end in range(size - 1, len(tags) - 1, size):
        if tags[end] not in by_content:
            break
        hits.append(by_content[tags[end]])
    return hits


def judge_found(step: Step) -> Judgement:
    """A prompt finds exactly the leading blocks that the index had for it."""
    tags = new_prompt(step)
    if tags is None or not step.granted:
        return VACUOUS
    own, due = step.command.request, _hits(step, tags)
    table, ends = step.after.seen.tables.get(own, ()), step.before.seen.ends
    size = step.after.setting.geometry.block_size
    places = zip(table, range(size - 1, len(tags) - 1, size), strict=False)
    same = [ends.get(block) == tags[end] for block, end in places]
    has = same.index(False) if False in same else len(same)
    if has >= len(due):
        return HOLDS
    return Broken(
        f"{step.command}: found {has} block(s) != {len(due)} = leading blocks {due} of its prompt "
        f"that the index had",
        tuple(due),
        (own,),
    )


def judge_counted(step: Step) -> Judgement:
    """A call is granted exactly where what it finds, or has to copy, makes it fit."""
    if not isinstance(step.outcome, NoBlocks | Done):
        return VACUOUS
    tags = new_prompt(step)
    if tags is None:
        return _judge_growth(step)
    hits = _hits(step, tags)
    needed = step.after.setting.blocks_for(len(tags)) - len(hits)
    available = step.before.available - len(step.before.seen.snapshot.cached.intersection(hits))
    why = f"{len(hits)} block(s) of its prompt are found"
    return _judge_fit(step, needed, available, tuple(hits), why)


def _judge_growth(step: Step) -> Judgement:
    """The same of growing past a tail that was cut out of a block which others may have found."""
    own, setting, model = step.command.request, step.after.setting, step.before.model
    before = len(model.live.get(own, ()))
    after = len(step.command.advance(model, setting).live.get(own, ()))
    grows = before < after and setting.cuts_shared
    if not grows or setting.declared.window is not None:
        return VACUOUS
    tables, written = step.before.seen.tables, overwritten(setting, before, after)
    blocks = tables.get(own, ())[written.start : written.stop]
    if not blocks:
        return VACUOUS
    shared = [b for b in blocks if any(b in table for r, table in tables.items() if r != own)]
    needed = setting.blocks_for(after) - setting.blocks_for(before) + len(shared)
    why = f"others hold {len(shared)} of the blocks {list(blocks)} that it writes into"
    return _judge_fit(step, needed, step.before.available, blocks, why)


def _judge_fit(
    step: Step, needed: int, available: int, blocks: tuple[int, ...], why: str
) -> Judgement:
    declared = step.after.setting.declared
    if isinstance(step.outcome, NoBlocks):
        if needed + declared.lookahead > available or declared.refuses_early:
            return HOLDS
        relation = f"refused as out of blocks: needed({needed}) <= available({available})"
    else:
        grows = step.command.request in step.before.model.live  # and may have what it needs
        if needed - declared.lookahead * grows <= available:
            return HOLDS
        relation = f"granted: needed({needed}) > available({available})"
    return Broken(f"{step.command} {relation}, for {why}", blocks, (step.command.request,))


def judge_published(step: Step) -> Judgement:
    """What a prompt fills is indexed once it is computed, in its own blocks or in others."""
    tags = new_prompt(step)
    if tags is None or not step.granted:
        return VACUOUS
    size, known = step.after.setting.geometry.block_size, _contents(step.after)
    for end in range(size - 1, len(tags), size):
        if tags[end] not in known:
            return Broken(
                f"{step.command}: no key finds block {end // size} of the prompt, which is full",
                step.after.seen.tables.get(step.command.request, ())[end // size : end // size + 1],
                (step.command.request,),
            )
    return HOLDS if len(tags) >= size else VACUOUS


def judge_kept(step: Step) -> Judgement:
    """A release leaves in the index whatever was found there: nothing has to go for it.

    What it gives back late is found again, if at all, once it has come back. Where it is declared
    that what nobody holds is forgotten, what somebody still holds stays.
    """
    snapshot = step.after.seen.snapshot
    if not (isinstance(step.command, Release) and step.granted) or snapshot.withheld is not None:
        return VACUOUS
    waits = snapshot.pending or {}
    before = {what: b for what, b in _contents(step.before).items() if b not in waits}
    if step.after.setting.declared.forgets_unheld:
        held = step.after.seen.held
        before = {what: block for what, block in before.items() if block in held}
    lost = before.keys() - _contents(step.after).keys()
    if not lost:
        return HOLDS if before else VACUOUS
    what = min(lost)
    return Broken(
        f"{step.command}: block {before[what]}, which ends in "
        f"{step.after.setting.name_tag(what)}, was found before, and nothing is now",
        (before[what],),
    )


def judge_whole(step: Step) -> Judgement:
    """A block that was written into is not found before it is full: what it held may be gone."""
    own, setting = step.command.request, step.after.setting
    before, after = step.before.model.live.get(own, ()), step.after.model.live.get(own, ())
    grew = step.granted and 0 < len(before) < len(after)
    if not grew or len(after) % setting.geometry.block_size == 0:
        return VACUOUS
    table = step.after.seen.tables.get(own, ())
    tails = table[(len(after) - 1) // setting.geometry.block_size :][:1]
    for key, block in (step.after.seen.snapshot.index or {}).items():
        if block in tails:
            return Broken(
                f"{step.command} wrote into block {block}, which is not full, and "
                f"index[{key}] = {block}",
                tails,
                (own,),
            )
    return HOLDS


def _contents(state: State) -> dict[float, int]:
    """Which block is found for each content, by the tag of its last slot."""
    index, ends = state.seen.snapshot.index or {}, state.seen.ends
    return {ends[block]: block for block in index.values() if block in ends}


def _hit(step: Step) -> bool:
    tags = new_prompt(step)
    if tags is None or not step.granted:
        return False
    table = step.after.seen.tables.get(step.command.request, ())
    return bool(table) and table[0] in step.before.seen.held | step.before.seen.snapshot.cached


def _evicted(step: Step) -> bool:
    gone = step.before.seen.snapshot.cached - step.after.seen.snapshot.cached
    return step.granted and any(
        step.before.seen.ends.get(block) != step.after.seen.ends.get(block) for block in gone
    )


PROMISES = (
    Property(
        "index-exact",
        "The prefix index finds written blocks that are held or cached, each content once.",
        "index: key -> block, one to one; cached <= index; content(b) distinct",
        EveryState(judge_index),
        frozenset({Need.INDEX}),
    ),
    Property(
        "prefix-found",
        "A prompt finds all leading blocks that are indexed, its last token left out.",
        "found(r) >= leading blocks of r in index",
        EveryStep(judge_found),
        frozenset({Need.INDEX}),
    ),
    Property(
        "prefix-counted",
        "A call is granted exactly where what it finds, or has to copy, makes it fit.",
        "granted <=> needed - found + copied <= free + cached - found in cached",
        EveryStep(judge_counted),
        frozenset({Need.INDEX}),
    ),
    Property(
        "prefix-published",
        "The full blocks of a prompt can be found once it is computed.",
        "admitted(r): full blocks of r <= index",
        EveryStep(judge_published),
        frozenset({Need.INDEX}),
    ),
    Property(
        "prefix-kept",
        "Whatever is found before a release is found after it.",
        "release(r) outside a group: content(index) before <= content(index) after + pending",
        EveryStep(judge_kept),
        frozenset({Need.INDEX}),
    ),
    Property(
        "prefix-whole",
        "A block that was written into is found again only once it is full.",
        "grown(r), seq_len[r] % block_size > 0 => table[r][-1] not in index",
        EveryStep(judge_whole),
        frozenset({Need.INDEX}),
    ),
)
"""What holds in every state and at every step."""

GOALS = (
    Property(
        "prefix-hit",
        "A prompt found a block.",
        "found(r) > 0",
        Sometimes(_hit),
        frozenset({Need.PREFIX}),
    ),
    Property(
        "cached-evicted",
        "A cached block was evicted.",
        "cached before, other content after",
        Sometimes(_evicted),
        frozenset({Need.PREFIX}),
    ),
)
"""What has to happen for that to say anything."""
