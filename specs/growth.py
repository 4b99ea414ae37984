"""How the logical model grows, and how many blocks that needs: the ideal allocator.

It shares what a fork shares, copies a tail that several hold before one of them writes into it,
and gives back what the window has left behind. Its blocks are called pages, and it never runs out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count as counting
from itertools import islice

from pagedkv.specs.model import GONE, Model, Setting
from pagedkv.specs.steps import Grant


def demand(model: Model, setting: Setting, request: int, after: int) -> Grant:
    """Blocks due where a live request grows to `after` tokens; lookahead blurs both ends.

    Changes nothing.

    What others may have found, the tables say and not the model: a tail that was cut out of a
    full block, which is copied then, as `prefix-counted` judges, and what a window leaves behind.
    Where blocks are given back late, that is no room yet.
    """
    blocks_for, lookahead = setting.blocks_for, setting.declared.lookahead
    before = len(model.live[request])
    need, perhaps = blocks_for(after) - blocks_for(before), 0
    if setting.tracks_pages:
        gone = dead(model, setting, request, after)
        tail_stays = len(model.pages[request]) - 1 not in gone
        need += tail_stays and shares_tail(model, setting, request)
        if not model.grouping:  # What goes back inside a group is withheld.
            back = len(_given_back(model, request, gone))
            late = bool(setting.declared.late_calls or setting.declared.late_blocks)
            need, perhaps = need - back, back * (setting.by_content or late)
    if setting.cuts_shared:
        perhaps += len(overwritten(setting, before, after))
        perhaps -= shares_tail(model, setting, request)
    return Grant(low=max(0, need - lookahead), high=max(0, need + perhaps) + lookahead)


def overwritten(setting: Setting, before: int, after: int) -> range:
    """The logical blocks held at `before` tokens that growing to `after` writes into."""
    size, held = setting.geometry.block_size, setting.blocks_for(before)
    return range(before // size, max(before // size, min(held, setting.geometry.blocks_for(after))))


def admission(setting: Setting, seq_len: int) -> Grant:
    """Blocks due for a new prompt: any but the last token's may be found. Changes nothing.

    How many are, the index before the call says; `prefix-counted` judges that.
    """
    whole = setting.blocks_for(seq_len)
    found = (seq_len - 1) // setting.geometry.block_size if setting.by_content else 0
    return Grant(low=whole - found, high=whole + setting.declared.lookahead)


def grown(model: Model, setting: Setting, request: int, count: int) -> Model:
    """The model in which the request holds `count` more tokens; changes nothing."""
    return placed(
        model, setting, request, setting.more(request, model.live.get(request, ()), count)
    )


def placed(model: Model, setting: Setting, request: int, tags: tuple[int, ...]) -> Model:
    """The model in which the request, which held the first of `tags`, holds them all."""
    there = model.with_live(request, tags)
    if not setting.tracks_pages:
        return there
    pages, fresh = list(model.pages.get(request, ())), _fresh(model)
    if pages and shares_tail(model, setting, request):
        pages[-1] = next(fresh)
    for i in dead(model, setting, request, len(tags)):
        pages[i] = GONE
    before, held = len(model.live.get(request, ())), iter(pages)
    whole = [
        page
        for had, due in zip(setting.spans(before), setting.spans(len(tags)), strict=True)
        for page in (*islice(held, had), *islice(fresh, due - had))
    ]
    return replace(there, pages=_numbered({**model.pages, request: tuple(whole)}))


def cut(model: Model, setting: Setting, request: int, seq_len: int) -> Model:
    """The model in which a live request holds its first `seq_len` tokens; changes nothing."""
    there = replace(model, live={**model.live, request: model.live[request][:seq_len]})
    if not setting.tracks_pages:
        return there
    left = model.pages[request][: setting.geometry.blocks_for(seq_len)]
    return replace(there, pages=_numbered({**model.pages, request: left}))


def forked(model: Model, setting: Setting, parent: int, child: int) -> Model:
    """The model in which `child` holds what `parent` holds; changes nothing."""
    there, pages = model.with_live(child, model.live[parent]), model.pages[parent]
    if copies_at_fork(model, setting, parent):
        pages = (*pages[:-1], next(_fresh(model)))
    return replace(there, pages=_numbered({**model.pages, child: pages}))


def copies_at_fork(model: Model, setting: Setting, parent: int) -> bool:
    """Whether a fork takes a block, for the tail."""
    partly = len(model.live[parent]) % setting.geometry.block_size > 0
    return setting.declared.forks_eagerly and partly


def let_go(model: Model, setting: Setting, request: int) -> Model:
    """The model in which the request holds nothing and keeps its length; changes nothing."""
    tags = model.swapped.get(request)
    if tags is not None:
        swapped = {r: held for r, held in model.swapped.items() if r != request}
        released = dict(sorted({**model.released, request: len(tags)}.items()))
        there = replace(model, swapped=swapped, released=released)
    else:
        tags, there = model.live[request], model.with_released(request)
    if setting.by_content:
        there = replace(there, kept=dict(sorted({**model.kept, request: tags}.items())))
    return without_pages(there, request)


def without_pages(model: Model, request: int) -> Model:
    """The model in which the request has no pages; changes nothing."""
    if request not in model.pages:
        return model
    return replace(
        model, pages=_numbered({r: held for r, held in model.pages.items() if r != request})
    )


def resumed(model: Model, setting: Setting, request: int) -> Model:
    """The model in which a released request holds its kept length again; changes nothing."""
    if not setting.by_content:
        return grown(model, setting, request, model.released[request])
    return placed(model, setting, request, model.kept[request])


def shares_tail(model: Model, setting: Setting, request: int) -> bool:
    """Whether a partly filled tail is another request's too; it is copied before a write."""
    pages = model.pages.get(request)
    if not pages or len(model.live[request]) % setting.geometry.block_size == 0:
        return False
    return sum(pages[-1] in held for held in model.pages.values()) > 1


def blocks_at_most(model: Model, setting: Setting) -> int:
    """Blocks that the live requests hold in all, at most; changes nothing."""
    lookahead = setting.declared.lookahead * len(model.live)
    if setting.tracks_pages and not setting.by_content:
        return lookahead + blocks_due(model, setting)
    return lookahead + sum(setting.blocks_for(len(tags)) for tags in model.live.values())


def blocks_due(model: Model, setting: Setting) -> int:
    """Blocks that the live requests need in all, at least; changes nothing."""
    size = setting.geometry.block_size
    if setting.cuts_shared:
        # A block that was cut may be one that another request has whole: its end is inside that.
        ends, inside = set[int](), set[int]()
        for tags in model.live.values():
            for position, tag in enumerate(tags, 1):
                (inside if position % size and position < len(tags) else ends).add(tag)
        return len(ends - inside)
    if setting.by_content:
        whole = {tags[end] for tags in model.live.values() for end in _ends(len(tags), size)}
        if not setting.tracks_pages:
            return len(whole) + sum(len(tags) % size > 0 for tags in model.live.values())
        tails = {model.pages[r][-1] for r, tags in model.live.items() if len(tags) % size}
        return len(whole) + len(tails)
    if setting.tracks_pages:
        return len({page for held in model.pages.values() for page in held} - {GONE})
    return sum(setting.blocks_for(len(tags)) for tags in model.live.values())


def free_name(model: Model, setting: Setting) -> int | None:
    """The name of the next new request; None if as many are live as there may be.

    Where handles can be resumed, a name that nobody had goes before that of a released one, which
    is only given out again where `setting.varied`.
    """
    if len(model.live) + len(model.swapped) >= setting.requests:
        return None
    taken = {*model.live, *model.swapped}
    if setting.names > setting.requests:
        tags = (*model.live.values(), *model.swapped.values())
        taken |= {(tag - 1) // setting.stride for held in tags for tag in held}
    names = [r for r in range(setting.names) if r not in taken]
    if not setting.declared.resumes:
        return next(iter(names), None)
    fresh = (r for r in names if r not in model.released)
    return next(fresh, next(iter(names), None) if setting.varied else None)


def outlived(model: Model, setting: Setting, order: Sequence[int]) -> tuple[int, ...]:
    """Names that only tags know, since a fork outlived them, as they appear in that order."""
    if setting.names == setting.requests:
        return ()
    tags = [tag for r in order for tag in model.live.get(r) or model.swapped.get(r, ())]
    writers = dict.fromkeys((tag - 1) // setting.stride for tag in tags)
    return tuple(r for r in writers if r not in order)


def _ends(seq_len: int, size: int) -> range:
    """The positions at which full blocks end."""
    return range(size - 1, seq_len, size)


def behind(setting: Setting, held: tuple[int, ...], before: int, after: int) -> list[int]:
    """How many leading entries, of each table that a request of `before` tokens held, it leaves
    behind the window when it grows to `after`.
    """
    declared, size = setting.declared, setting.geometry.block_size
    reader = before + 1 if declared.window_of_first else after
    return [
        0 if window is None or declared.ring else min(max(0, reader - window) // size, len(part))
        for window, part in zip(declared.each_window, setting.parts(held, before), strict=True)
    ]


def dead(model: Model, setting: Setting, request: int, after: int) -> list[int]:
    """The entries that growing to `after` tokens leaves behind the window."""
    pages, before, start = model.pages.get(request, ()), len(model.live.get(request, ())), 0
    found = list[int]()
    left = behind(setting, pages, before, after)
    for part, gone in zip(setting.parts(pages, before), left, strict=True):
        found += [start + i for i, page in enumerate(part[:gone]) if page != GONE]
        start += len(part)
    return found


def _given_back(model: Model, request: int, gone: Sequence[int]) -> list[int]:
    """Those of the dead logical blocks that no other request holds."""
    others = {page for r, held in model.pages.items() if r != request for page in held}
    return [i for i in gone if model.pages[request][i] not in others]


def _fresh(model: Model) -> counting[int]:
    return counting(1 + max((page for held in model.pages.values() for page in held), default=0))


def _numbered(pages: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """The same with the pages numbered as they first appear, requests in the order of names."""
    numbers: dict[int, int] = {GONE: GONE}
    return {
        r: tuple(numbers.setdefault(page, len(numbers) - 1) for page in pages[r])
        for r in sorted(pages)
    }
