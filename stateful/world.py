"""The world: one manager, its requests and the logical model, moved by commands.

Every driver makes its histories through `World.apply`, and nothing else calls a manager.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby, permutations, product
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pagedkv.abilities import AbilityName
from pagedkv.declarations import STRICT, Raises, Returns
from pagedkv.protocol import Request, Snapshot
from pagedkv.specs.commands import Command
from pagedkv.specs.growth import outlived
from pagedkv.specs.model import Geometry, Model, Setting
from pagedkv.specs.steps import (
    DONE,
    Contents,
    Done,
    Grant,
    Handle,
    NoBlocks,
    Outcome,
    Raised,
    Refused,
    State,
    Step,
)
from pagedkv.stateful.beyond import NO_REQUEST, ask, carry, copied_host, host_pool
from pagedkv.stateful.copying import freeze, thaw
from pagedkv.stateful.fingerprint import Opaque, fingerprint
from pagedkv.stateful.logic import Logic
from pagedkv.stateful.observe import Observer, snapshot_of, told, view
from pagedkv.stateful.pool import (
    Pool,
    Renaming,
    ShadowPool,
    TensorPool,
    renamed_tags,
    renaming,
)
from pagedkv.stateful.target import (
    CannotDrive,
    Factory,
    check_tensor,
    driving,
    made,
    own_hook,
    stay,
)
from pagedkv.stateful.trust import Trust


class _Keyed(NamedTuple):
    """A key that was taken, and what it was made of."""

    handles: Mapping[int, Handle]
    model: Model
    trust: Trust
    order: tuple[int, ...]
    inner: object
    tags: object
    key: bytes


class World:
    """A manager under test. `apply` moves it; `state` is what is known and seen of it now."""

    def __init__(
        self,
        factory: Factory,
        geometry: Geometry,
        *,
        requests: int = 3,
        keeps_released: bool = False,
        abilities: frozenset[AbilityName] = frozenset(),
    ) -> None:
        """Make a fresh manager. Raises CannotDrive if that fails."""
        self.manager = made(factory, geometry)
        self.handles: dict[int, Request] = {}
        self._freed: frozenset[int] = frozenset()
        self.steps = 0
        self._keyed: _Keyed | None = None
        declared = getattr(self.manager, "declares", None) or STRICT
        with driving("a fresh target can't be observed"):
            seen = snapshot_of(self.manager, {}, ())
            tensor = getattr(self.manager, "physical_kv_cache", None)
        usable = seen.blocks
        if usable is None:
            usable = frozenset(range(geometry.num_blocks)) - seen.reserved
        active = abilities & declared.abilities
        host = int(self.manager.num_host_blocks) if "swap" in declared.abilities else 0  # type: ignore[attr-defined]
        setting = Setting(geometry, declared, usable, requests, keeps_released, active, host)
        self.setting = setting
        pool: Pool = ShadowPool(geometry.block_size, seen.reserved)
        if tensor is not None:
            check_tensor(tensor, geometry, setting.highest_tag)
            pool = TensorPool(tensor)
        elif "fork" in declared.abilities and not hasattr(self.manager, "take_copies"):
            raise CannotDrive("declares fork without physical_kv_cache; give it take_copies()")
        pool.poison(usable)
        self._host = host_pool(self.manager, geometry, setting)
        self._hooks = Trust(
            "own" if own_hook(self.manager, "state_key") else "whole",
            "own" if own_hook(self.manager, "clone") else "deep",
        )
        self._eyes = Observer(self.manager, self.handles, setting, pool, tensor)
        self._stand(Logic.start(setting), seen, {})

    @property
    def states(self) -> tuple[State, ...]:
        """The one state."""
        return (self.state,)

    @property
    def pool(self) -> Pool:
        """Where the tags are kept."""
        return self._eyes.pool

    def _stand(self, logic: Logic, seen: Snapshot, views: Mapping[int, Handle]) -> None:
        """Be in this state from now on."""
        self._logic = logic
        self.state = self._eyes.state(logic.model, seen, views)

    def candidates(self) -> list[Command]:
        """Every command that makes sense now, in canonical order; changes nothing."""
        return self._logic.menu()

    def apply(self, command: Command) -> Step:
        """Run one command and return what it did. Mutates the world.

        A manager that can't be observed after the call is a call that raised: the step's
        `after` is then what was seen before, and the world is of no further use.
        """
        before, here = self.state, self._logic
        self.steps += 1
        expected = here.due(command)
        undo = command.prepare(self.handles, before)
        request = self.handles.get(command.request, NO_REQUEST)
        given = returned = view(request)
        asked = ask(command, self) if "ask" in self.setting.active else None
        outcome = self._call(command)
        reused, early, observed = frozenset[int](), None, True
        try:
            returned = view(request)
            if isinstance(outcome, Done) and isinstance(expected, Grant):
                reused, early = self._grant(before, here.after(command), command, request)
                # Being told that a block is computed may let it be replaced by an equal one.
                returned = view(request) if self.setting.by_content else returned
            else:
                undo()
                self._refuse(before)
            after = self.state
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a target may raise anything
            what = f"{told(error)} (when it was observed after {command}: {outcome})"
            if outcome != Raised(type(error).__name__, told(error)):  # it would be said twice
                outcome = Raised(type(error).__name__, what)
            after, observed = before, False
            self._stand(here, before.seen.snapshot, before.seen.handles)
        if after.model.released and not self.setting.keeps_released:
            self._forget()
        return Step(
            self.steps,
            command,
            expected,
            outcome,
            given,
            returned,
            before,
            after,
            reused,
            None,
            observed,
            asked,
            early,
        )

    def _refuse(self, before: State) -> None:
        """See what is there after a call that was not granted."""
        seen, views = self._eyes.look(before.model.live)
        # The very same state says at once, to all who judge it, that nothing has changed.
        if seen != before.seen.snapshot or views != before.seen.handles:
            self._stand(self._logic, seen, views)
            if self.setting.declared.drops_behind_window:
                self._eyes.pool.poison(self._freed_by(before, seen))

    def _call(self, command: Command) -> Outcome:
        signals = self.setting.declared.out_of_blocks
        leave, os._exit = os._exit, stay
        try:
            value = command.perform(self.manager, self.handles)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a target raises is an outcome
            message = told(error)
            for signal in signals:
                if (
                    isinstance(signal, Raises)
                    and isinstance(error, signal.exception)
                    and signal.containing in message
                ):
                    return NoBlocks(message)
            if isinstance(error, ValueError):
                return Refused(message)
            return Raised(type(error).__name__, message)
        finally:
            os._exit = leave
        for signal in signals if command.takes_blocks else ():
            if isinstance(signal, Returns) and signal.says(value):
                return NoBlocks(f"returned {signal.value!r}")
        return Done(repr(value)) if isinstance(value, bool | int | str) else DONE

    def _grant(
        self, before: State, logic: Logic, command: Command, request: Request
    ) -> tuple[frozenset[int], frozenset[int] | None]:
        """Follow a grant: write the new tokens' tags where the tables say, poison what was freed.

        Returns the blocks taken that were freed before in this history, and `Step.early`.
        """
        eyes, model = self._eyes, logic.model
        seen, views = eyes.look(model.live)
        self._stand(logic, seen, views)
        was, now = before.seen.held, self.state.seen.held
        taken, freed = now - was, was - now
        eyes.follow_tensor()
        if self.setting.declared.abilities:
            carry(self.manager, eyes.pool, self._host, before, self.state)
            freed = self._freed_by(before, seen)
        if freed:
            eyes.pool.poison(freed)
            self._freed |= freed
        tags = model.live.get(command.request, ())
        there, early = command.written(self.manager, before, request), None
        if len(tags) > there:
            every = eyes.slots(command.request, seen.block_tables, len(tags))
            if self.setting.by_content and seen.index is not None:
                # What was found and is written again, as it may be, could be found before.
                new = seen.index.items() - (before.seen.snapshot.index or {}).items()
                named = frozenset(block for slots in every for block, _ in slots[there:])
                early = named.intersection(block for _, block in new)
            for slots in every:
                eyes.pool.write(slots[there:], tags[there : len(slots)])
        computed = getattr(self.manager, "computed", None)
        if computed is not None and command.request in model.live:
            computed(request)
            self._stand(logic, *eyes.look(model.live))
        elif self.setting.by_content:
            self._stand(logic, seen, views)
        return taken & self._freed, early

    def _freed_by(self, before: State, seen: Snapshot) -> frozenset[int]:
        """The blocks whose content is nobody's from now on."""
        was, kept = before.seen.snapshot, seen.cached
        if self.setting.by_content:  # What is withheld may be found again.
            kept = kept.union(seen.withheld or ())
        had = before.seen.held.union(was.cached, was.withheld or ())
        null = self.setting.declared.null_block
        return frozenset(b for b in had - self.state.seen.held - kept if b != null)

    def read(self) -> Contents:
        """What each live request reads back now; changes nothing."""
        return self._eyes.read()

    def _forget(self) -> None:
        """Drop the handles of released requests."""
        for r in self.state.model.released:
            self.handles.pop(r, None)
        logic, seen = self._logic.without_released(), self.state.seen
        views = {r: handle for r, handle in seen.handles.items() if r in self.handles}
        self._stand(logic, seen.snapshot, views)

    def hooks(self) -> Trust:
        """Which of `state_key` and `clone` the manager brings of its own."""
        return self._hooks

    def clone(self, trust: Trust) -> Self:
        """A world of its own in the same state; changes nothing.

        Raises whatever the manager's copying raises: a target need not be copyable.
        """
        copy = object.__new__(type(self))
        whole: Any = (self.manager, self.handles)
        if trust.clone == "own" and self._hooks.clone == "own":
            manager, handles = self.manager.clone(self.handles)  # type: ignore[attr-defined]
        else:
            try:
                manager, handles = thaw(freeze(whole))
            except Opaque:
                manager, handles = deepcopy(whole)
        copy.manager, copy.handles = manager, handles
        copy.setting, copy.steps, copy._freed = self.setting, self.steps, self._freed
        copy._hooks, copy._logic, copy._keyed = self._hooks, self._logic, self._keyed
        copy._host = copied_host(self._host, manager)
        pool = self._eyes.pool
        tensor = None
        if isinstance(pool, ShadowPool):
            pool = pool.copy()
        else:
            tensor = manager.physical_kv_cache
            pool = TensorPool(tensor)
        copy._eyes = Observer(manager, handles, self.setting, pool, tensor)
        seen = self.state.seen
        copy.state = copy._eyes.state(self.state.model, seen.snapshot, seen.handles)
        return copy

    def _whole(self, trust: Trust) -> bytes:
        """The state of manager and handles; raises Opaque if it can't be seen."""
        declared = () if trust.key == "all" else self.setting.declared.meaningless
        meaningless = {"declares", *declared}
        # In the order of names: when a handle was made is the driver's business.
        whole = (self.manager, [self.handles[r] for r in sorted(self.handles)])
        try:
            return freeze(whole, meaningless)
        except Opaque:
            return fingerprint(whole, meaningless)

    def order(self, trust: Trust) -> tuple[int, ...]:
        """The requests with a handle, in an order that their names have no part in."""
        handles = self.state.seen.handles
        if len(handles) < 2:
            return tuple(handles)
        orders = self.orders(trust)
        if len(orders) == 1:
            return orders[0]
        return min(orders, key=lambda order: self.key(trust, order) or b"")

    def orders(self, trust: Trust) -> list[tuple[int, ...]]:
        """The orders that the handles leave open: those that are alike may come in any."""
        handles = self.state.seen.handles
        if trust.key != "own":
            return [tuple(sorted(handles))]
        if not self.setting.declared.abilities:  # Tables tell live requests apart.
            return [tuple(sorted(handles, key=lambda r: (handles[r][1:4], r)))]
        tables = self.state.seen.tables
        said = {r: (handles[r][1:4], tables.get(r, ())) for r in handles}
        first = sorted(handles, key=lambda r: (said[r], r))
        alike = [tuple(group) for _, group in groupby(first, key=said.__getitem__)]
        return [
            tuple(r for group in groups for r in group)
            for groups in product(*(permutations(group) for group in alike))
        ]

    def key(self, trust: Trust, order: tuple[int, ...] | None = None) -> bytes | None:
        """A 128-bit digest of the whole state, or None where it can't be taken.

        Manager and handles together, less what is declared meaningless; the manager's own
        `state_key(names)` stands for the manager where its class has one that is trusted, and
        then states that differ in the requests' names only have one key. order: the requests'
        order, if it is not this world's to choose.
        """
        if trust.key == "none":
            return None
        model, handles, last = self.state.model, self.state.seen.handles, self._keyed
        if last is not None and not (
            last.handles is handles and last.model is model and last.trust == trust
        ):
            last = None
        if order is None or set(order) != set(handles):
            order = self.order(trust) if last is None else last.order
        try:
            if trust.key == "own" and self._hooks.key == "own":
                inner: Any = self.manager.state_key(_names(order))  # type: ignore[attr-defined]
                tags: Any = self.pool.key(self._renaming(order))
            else:
                inner, tags = self._whole(trust), self.pool.key(None)
            if self.setting.declared.abilities:
                tags = (tags, self._more(order))
            # Most calls are refused and move nothing: then the last key is this one too.
            if last is not None and last[3:6] == (order, inner, tags):
                return last.key
            key = _digest(model, handles, order, inner, tags)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a target's own key may raise anything
            return None
        self._keyed = _Keyed(handles, model, trust, order, inner, tags, key)
        return key

    def _renaming(self, order: tuple[int, ...]) -> Renaming:
        """How tags change if the requests in `order` are called 0, 1, 2, ..."""
        if self.setting.by_content:
            return None
        also = outlived(self.state.model, self.setting, order)
        return renaming((*order, *also), self.setting.stride)

    def _more(self, order: tuple[int, ...]) -> object:
        """What the core does not have: content, forks, the second pool."""
        model, names = self.state.model, {r: i for i, r in enumerate(order)}
        new = self._renaming(order)
        held = [model.live.get(r) or model.swapped.get(r) or model.kept.get(r, ()) for r in order]
        tags = [renamed_tags(tags, new) for tags in held]
        pages: dict[int, int] = {}
        same = [
            [pages.setdefault(page, len(pages)) if page >= 0 else page for page in model.pages[r]]
            for r in order
            if r in model.pages
        ]
        out = sorted(names[r] for r in model.swapped)
        host = None if self._host is None else self._host.key(new)
        extra = [self.handles[r].extra_key for r in order]
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
