"""The key of a state: two worlds have the same one only if they behave alike from here on.

Requests' names are interchangeable where the target's own `state_key` can be told them: then a key
is taken under an order of the requests that the names have no part in.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby, permutations, product
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from pagedkv.protocol import PagedKVManager, Request
from pagedkv.specs.growth import outlived
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.steps import Handle, State
from pagedkv.stateful.copying import freeze
from pagedkv.stateful.fingerprint import fingerprint
from pagedkv.stateful.observe import in_words
from pagedkv.stateful.opaque import Opaque
from pagedkv.stateful.pool import Pool, Renaming, renamed_tags, renaming
from pagedkv.stateful.trust import UNSEEN, Trust


class Keyed(Protocol):
    """A world, as far as its key is made of it."""

    manager: PagedKVManager
    handles: dict[int, Request]
    setting: Setting
    state: State
    host: Pool | None

    @property
    def pool(self) -> Pool:
        """Where the tags are kept."""

    def hooks(self) -> Trust:
        """Which of `state_key` and `clone` the manager brings of its own."""


class Taken(NamedTuple):
    """A key that was taken, and what it was made of."""

    handles: Mapping[int, Handle]
    model: Model
    trust: Trust
    order: tuple[int, ...]
    inner: object
    tags: object
    key: bytes


def orders_of(world: Keyed, trust: Trust) -> list[tuple[int, ...]]:
    """The orders that the handles leave open: those that are alike may come in any."""
    handles = world.state.seen.handles
    if trust.key != "own":
        return [tuple(sorted(handles))]
    if not world.setting.declared.abilities:  # Tables tell live requests apart.
        return [tuple(sorted(handles, key=lambda r: (handles[r][1:4], r)))]
    tables = world.state.seen.tables
    said = {r: (handles[r][1:4], tables.get(r, ())) for r in handles}
    first = sorted(handles, key=lambda r: (said[r], r))
    alike = [tuple(group) for _, group in groupby(first, key=said.__getitem__)]
    return [
        tuple(r for group in groups for r in group)
        for groups in product(*(permutations(group) for group in alike))
    ]


def order_of(world: Keyed, trust: Trust) -> tuple[int, ...]:
    """The requests with a handle, in an order that their names have no part in."""
    handles = world.state.seen.handles
    if len(handles) < 2:
        return tuple(handles)
    orders = orders_of(world, trust)
    if len(orders) == 1:
        return orders[0]

    def key(order: tuple[int, ...]) -> bytes:
        taken = take(world, trust, order, None)
        return b"" if taken is None else taken.key

    return min(orders, key=key)


def take(
    world: Keyed, trust: Trust, order: tuple[int, ...] | None, last: Taken | None
) -> Taken | None:
    """The key of a world as it is now, or None where it can't be taken; changes nothing.

    A 128-bit digest of manager and handles together, less what is declared meaningless; the
    manager's own `state_key(names)` stands for the manager where its class has one that is
    trusted, and then states that differ in the requests' names only have one key. order: the
    requests' order, if it is not this world's to choose. last: the key that was taken before.
    """
    if trust.key == "none":
        return None
    try:
        return _taken(world, trust, order, last)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a target's own key may raise anything
        return None


def _taken(world: Keyed, trust: Trust, order: tuple[int, ...] | None, last: Taken | None) -> Taken:
    model, handles = world.state.model, world.state.seen.handles
    if last is not None and not (
        last.handles is handles and last.model is model and last.trust == trust
    ):
        last = None
    if order is None or set(order) != set(handles):
        order = order_of(world, trust) if last is None else last.order
    if _is_own(world, trust):
        inner: Any = world.manager.state_key(_names(order))  # type: ignore[attr-defined]
        tags: Any = world.pool.key(_renaming(world, order))
    else:
        inner, tags = _whole(world, trust), world.pool.key(None)
    if world.setting.declared.abilities:
        tags = (tags, _more(world, order))
    # Most calls are refused and move nothing: then the last key is this one too.
    if last is not None and last[3:6] == (order, inner, tags):
        return last
    key = _digest(model, handles, order, inner, tags)
    return Taken(handles, model, trust, order, inner, tags, key)


def _is_own(world: Keyed, trust: Trust) -> bool:
    return trust.key == "own" and world.hooks().key == "own"


def why_unseen(world: Keyed, trust: Trust) -> str | None:
    """Why the key of a world can't be taken; None if it can. Changes nothing."""
    try:
        _taken(world, trust, None, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a target's own key may raise anything
        return f"{'state_key failed' if _is_own(world, trust) else UNSEEN}: {in_words(error)}"
    return None


def _whole(world: Keyed, trust: Trust) -> bytes:
    """The state of manager and handles; raises Opaque if it can't be seen."""
    declared = () if trust.key == "all" else world.setting.declared.meaningless
    meaningless = {"declares", *declared}
    # In the order of names: when a handle was made is the driver's business.
    whole = (world.manager, [world.handles[r] for r in sorted(world.handles)])
    try:
        return freeze(whole, meaningless)
    except Opaque:
        return fingerprint(whole, meaningless)


def _renaming(world: Keyed, order: tuple[int, ...]) -> Renaming:
    """How tags change if the requests in `order` are called 0, 1, 2, ..."""
    if world.setting.by_content:
        return None
    also = outlived(world.state.model, world.setting, order)
    return renaming((*order, *also), world.setting.stride)


def _more(world: Keyed, order: tuple[int, ...]) -> object:
    """What the core does not have: content, forks, the second pool."""
    model, names = world.state.model, {r: i for i, r in enumerate(order)}
    new = _renaming(world, order)
    held = [model.live.get(r) or model.swapped.get(r) or model.kept.get(r, ()) for r in order]
    tags = [renamed_tags(tags, new) for tags in held]
    pages: dict[int, int] = {}
    same = [
        [pages.setdefault(page, len(pages)) if page >= 0 else page for page in model.pages[r]]
        for r in order
        if r in model.pages
    ]
    out = sorted(names[r] for r in model.swapped)
    host = None if world.host is None else world.host.key(new)
    extra = [world.handles[r].extra_key for r in order]
    return (tags, same, out, model.grouping, host, extra)


@lru_cache(maxsize=4096)
def _names(order: tuple[int, ...]) -> Mapping[int, int]:
    return MappingProxyType({r: i for i, r in enumerate(order)})


def _digest(
    model: Model,
    handles: Mapping[int, Handle],
    order: tuple[int, ...],
    inner: object,
    tags: object,
) -> bytes:
    live = model.live
    whole: Any = (
        [(len(live.get(r, ())), r in live, *handles[r][1:4]) for r in order],
        inner,
        tags,
    )
    # Version 0 writes neither references nor interning, so equal values give equal bytes.
    return blake2b(marshal.dumps(whole, 0), digest_size=16).digest()
