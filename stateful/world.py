"""The world: one manager, its requests and the logical model, moved by commands.

Every driver makes its histories through `World.apply`, and nothing else calls a manager.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from pagedkv.abilities import AbilityName
from pagedkv.declarations import STRICT, Raises, Returns
from pagedkv.protocol import Request, Snapshot, method_of
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry, Setting
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
from pagedkv.stateful.copying import deep_copy, freeze, thaw
from pagedkv.stateful.keys import Taken, order_of, orders_of, take, why_unseen
from pagedkv.stateful.logic import Logic
from pagedkv.stateful.observe import Observer, snapshot_of, told, view
from pagedkv.stateful.opaque import Opaque
from pagedkv.stateful.pool import Pool, ShadowPool, TensorPool
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
        varied: bool = False,
    ) -> None:
        """Make a fresh manager. Raises CannotDrive if that fails."""
        self.manager = made(factory, geometry)
        self.handles: dict[int, Request] = {}
        self._freed: frozenset[int] = frozenset()
        self.steps = 0
        self._taken: Taken | None = None
        declared = getattr(self.manager, "declares", None) or STRICT
        with driving("a fresh target can't be observed"):
            seen = snapshot_of(self.manager, {}, ())
            tensor = getattr(self.manager, "physical_kv_cache", None)
        usable = seen.blocks
        if usable is None:
            usable = frozenset(range(geometry.num_blocks)) - seen.reserved
        active = abilities & declared.abilities
        host = int(self.manager.num_host_blocks) if "swap" in declared.abilities else 0  # type: ignore[attr-defined]
        kept = keeps_released
        setting = Setting(geometry, declared, usable, requests, kept, active, host, varied)
        self.setting = setting
        pool: Pool = ShadowPool(geometry.block_size, seen.reserved)
        if tensor is not None:
            check_tensor(tensor, geometry, setting.highest_tag)
            pool = TensorPool(tensor)
        elif "fork" in declared.abilities and not hasattr(self.manager, "take_copies"):
            raise CannotDrive("declares fork without physical_kv_cache; give it take_copies()")
        pool.poison(usable)
        self.host = host_pool(self.manager, geometry, setting)
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
            carry(self.manager, eyes.pool, self.host, before, self.state)
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
        computed = method_of(self.manager, "computed")
        if computed is not None and command.request in model.live:
            computed(request)
            self._stand(logic, *eyes.look(model.live))
        elif self.setting.by_content:
            self._stand(logic, seen, views)
        return taken & self._freed, early

    def _freed_by(self, before: State, seen: Snapshot) -> frozenset[int]:
        """The blocks whose content is nobody's from now on."""
        was, kept = before.seen.snapshot, seen.cached
        if self.setting.by_content:  # What is withheld, or waits, may be found again.
            kept = kept.union(seen.withheld or (), seen.pending or ())
        had = before.seen.held.union(was.cached, was.withheld or (), was.pending or ())
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
                manager, handles = deep_copy(whole)
        copy.manager, copy.handles = manager, handles
        copy.setting, copy.steps, copy._freed = self.setting, self.steps, self._freed
        copy._hooks, copy._logic, copy._taken = self._hooks, self._logic, self._taken
        copy.host = copied_host(self.host, manager)
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

    def orders(self, trust: Trust) -> list[tuple[int, ...]]:
        """The orders of the requests with a handle that their names have no part in."""
        return orders_of(self, trust)

    def order(self, trust: Trust) -> tuple[int, ...]:
        """One of these orders, for which the names have no part in the choice either."""
        return order_of(self, trust)

    def key(self, trust: Trust, order: tuple[int, ...] | None = None) -> bytes | None:
        """A digest of the whole state, or None where it can't be taken; changes nothing.

        order: the requests' order, if it is not this world's to choose.
        """
        taken = take(self, trust, order, self._taken)
        if taken is None:
            return None
        self._taken = taken
        return taken.key

    def unseen(self, trust: Trust) -> str | None:
        """Why the key can't be taken, for a reader; None if it can. Changes nothing."""
        return why_unseen(self, trust)
