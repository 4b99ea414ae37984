"""The world: one manager, its requests and the logical model, moved by commands.

Every driver makes its histories through `World.apply`, and nothing else calls a manager.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from copy import deepcopy
from hashlib import blake2b
from typing import Any, Self

from pagedkv.declarations import Declarations, Raises, Returns
from pagedkv.protocol import Request, Snapshot
from pagedkv.specs.catalogue import candidates
from pagedkv.specs.commands import Command
from pagedkv.specs.model import EMPTY, Geometry, Model, Setting
from pagedkv.specs.steps import (
    DONE,
    Contents,
    Done,
    Grant,
    Handle,
    NoBlocks,
    Observation,
    Outcome,
    Raised,
    Refused,
    Report,
    State,
    Step,
    Unreadable,
)
from pagedkv.stateful.copying import freeze, thaw
from pagedkv.stateful.fingerprint import Opaque, fingerprint
from pagedkv.stateful.observe import reconstruct, reports_of, snapshot_of, told, view
from pagedkv.stateful.pool import (
    Pool,
    ShadowPool,
    Slot,
    TensorPool,
    renaming,
)
from pagedkv.stateful.target import Factory, check_tensor, driving, made, own_hook
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
    ) -> None:
        """Make a fresh manager. Raises CannotDrive if that fails."""
        self.manager = made(factory, geometry)
        self.handles: dict[int, Request] = {}
        self._freed: frozenset[int] = frozenset()
        self._menus: dict[object, list[Command]] = {}
        self.steps = 0
        self._model = EMPTY
        self._views: Mapping[int, Handle] = {}
        self._tensor: Any = None
        with driving("a fresh target can't be observed"):
            self._seen = snapshot_of(self.manager, {})
            self._tensor = getattr(self.manager, "physical_kv_cache", None)
        usable = self._seen.blocks
        if usable is None:
            usable = frozenset(range(geometry.num_blocks)) - self._seen.reserved
        declared = getattr(self.manager, "declares", None) or Declarations()
        self.setting = Setting(geometry, declared, usable, requests, keeps_released)
        self.pool: Pool = ShadowPool(geometry.block_size)
        if self._tensor is not None:
            check_tensor(self._tensor, geometry, requests * self.setting.stride)
            self.pool = TensorPool(self._tensor)
        self.pool.poison(usable)

    @property
    def states(self) -> tuple[State, ...]:
        """The one state."""
        return (self.state,)

    @property
    def state(self) -> State:
        """What is known and seen now; made anew each time, since a world that kept it would hold
        itself, and a search makes and drops a million worlds.
        """
        seen = self._observation(self._seen, self._views)
        return State(self.setting, self._model, seen)

    def candidates(self) -> list[Command]:
        """Every command that makes sense now, in canonical order; changes nothing."""
        model = self._model
        # Few shapes, many states: which commands make sense depends on names and lengths only.
        shape = (
            tuple([(r, len(tags)) for r, tags in model.live.items()]),
            tuple(model.released.items()),
        )
        menu = self._menus.get(shape)
        if menu is None:
            menu = self._menus[shape] = candidates(model, self.setting)
        return menu

    def apply(self, command: Command) -> Step:
        """Run one command and return what it did. Mutates the world.

        A manager that can't be observed after the call is a call that raised: the step's
        `after` is then what was seen before, and the world is of no further use.
        """
        before, setting = self.state, self.setting
        self.steps += 1
        expected = command.expect(before.model, setting)
        undo = command.prepare(self.handles, before)
        request = self.handles[command.request]
        given = returned = view(request)
        outcome = self._call(command, request)
        reused: frozenset[int] = frozenset()
        try:
            returned = view(request)
            if isinstance(outcome, Done) and isinstance(expected, Grant):
                model = command.advance(before.model, setting)
                seen = self._observe(model)
                seen, reused = self._write(before, model, seen, request)
            else:
                undo()
                model = before.model
                seen = self._observe(model)
            after = State(setting, model, seen)
            observed = True
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a target may raise anything
            what = f"{told(error)} (when it was observed after {command}: {outcome})"
            outcome, after, observed = Raised(type(error).__name__, what), before, False
        self._model, self._seen, self._views = after.model, after.seen.snapshot, after.seen.handles
        if after.model.released and not setting.keeps_released:
            self._forget()
        return Step(
            index=self.steps,
            command=command,
            expected=expected,
            outcome=outcome,
            given=given,
            returned=returned,
            before=before,
            after=after,
            reused=reused,
            observed=observed,
        )

    def _call(self, command: Command, request: Request) -> Outcome:
        signals = self.setting.declared.out_of_blocks
        try:
            value = command.perform(self.manager, request)
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
        for signal in signals if command.takes_blocks else ():
            if isinstance(signal, Returns) and signal.says(value):
                return NoBlocks(f"returned {signal.value!r}")
        return DONE

    def _write(
        self, before: State, model: Model, seen: Observation, request: Request
    ) -> tuple[Observation, frozenset[int]]:
        """Write the new tokens' tags where the tables say, and poison what was freed."""
        was, now = before.seen.held, seen.held
        taken, freed = now - was, was - now
        self._follow_tensor()
        if freed:
            self.pool.poison(freed)
            self._freed |= freed
        for r, tags in model.live.items():
            old = before.model.live.get(r, ())
            if len(tags) > len(old):
                slots = self._slots(r, seen.tables, len(tags))[len(old) :]
                self.pool.write(slots, tags[len(old) : len(old) + len(slots)])
        computed = getattr(self.manager, "computed", None)
        if computed is not None and request.request_id in model.live:
            computed(request)
            seen = self._observe(model)
        return seen, taken & self._freed

    def _follow_tensor(self) -> None:
        """Use the tensor that the manager has now: it may have put another in its place."""
        if self._tensor is None:
            return
        tensor = self.manager.physical_kv_cache
        if tensor is not self._tensor:
            self._tensor, self.pool = tensor, TensorPool(tensor)

    def _slots(
        self, request: int, tables: Mapping[int, tuple[int, ...]], seq_len: int
    ) -> list[Slot]:
        """The slot of each position, as the manager's own map or else the table says."""
        own = getattr(self.manager, "slots", None)
        if own is not None:
            return [(block, offset) for _, block, offset in own(self.handles[request])]
        size, table = self.setting.geometry.block_size, tables.get(request, ())
        return [(table[p // size], p % size) for p in range(min(seq_len, len(table) * size))]

    def _observe(self, model: Model) -> Observation:
        snapshot = self._snapshot(model)
        handles = {r: view(request) for r, request in self.handles.items()}
        return self._observation(snapshot, handles)

    def _observation(self, snapshot: Snapshot, handles: Mapping[int, Handle]) -> Observation:
        return Observation(snapshot, handles, self.read, self.reports, self.again, self.listed)

    def _snapshot(self, model: Model) -> Snapshot:
        return snapshot_of(self.manager, {r: self.handles[r] for r in model.live})

    def read(self) -> Contents:
        """What each live request reads back now; changes nothing."""
        # What reads from a pool that the tags were not written to would only read zeros.
        own = None if self._tensor is None else getattr(self.manager, "get_physical_cache", None)
        width = self.setting.geometry.head_dim
        read: dict[int, tuple[float, ...] | Unreadable] = {}
        for r, tags in self._model.live.items():
            if own is None:
                read[r] = self.pool.read(self._slots(r, self._seen.block_tables, len(tags)))
            else:
                read[r] = reconstruct(own, self.handles[r], len(tags), width)
        return read

    def reports(self) -> Mapping[int, Report | Unreadable] | None:
        """The allocation report of each live request; None where the manager makes none."""
        return reports_of(self.manager, self.handles, self._model.live)

    def again(self) -> Snapshot:
        """Another snapshot; changes nothing, if the manager keeps its word."""
        return self._snapshot(self._model)

    def listed(self) -> tuple[int, ...] | None:
        """The manager's `free_blocks` where its snapshot is another thing; else None."""
        free = getattr(self.manager, "free_blocks", None)
        if free is None or getattr(self.manager, "snapshot", None) is None:
            return None
        return tuple(free)

    def _forget(self) -> None:
        """Drop the handles of released requests."""
        for r in self._model.released:
            self.handles.pop(r, None)
        self._model = self._model.without_released()
        self._views = {r: handle for r, handle in self._views.items() if r in self._model.live}

    def hooks(self) -> Trust:
        """Which of `state_key` and `clone` the manager brings of its own."""
        return Trust(
            "own" if own_hook(self.manager, "state_key") else "whole",
            "own" if own_hook(self.manager, "clone") else "deep",
        )

    def clone(self, trust: Trust) -> Self:
        """A world of its own in the same state; changes nothing.

        Raises whatever the manager's copying raises: a target need not be copyable.
        """
        own = own_hook(self.manager, "clone") if trust.clone == "own" else None
        copy = object.__new__(type(self))
        whole = (self.manager, self.handles)
        if own is not None:
            copy.manager, copy.handles = own(self.handles)
        else:
            try:
                copy.manager, copy.handles = thaw(freeze(whole))
            except Opaque:
                copy.manager, copy.handles = deepcopy(whole)
        copy.setting, copy.steps, copy._freed = self.setting, self.steps, self._freed
        copy._menus = self._menus
        copy._tensor = None
        if isinstance(self.pool, ShadowPool):
            copy.pool = self.pool.copy()
        else:
            copy._tensor = copy.manager.physical_kv_cache
            copy.pool = TensorPool(copy._tensor)
        copy._model, copy._seen, copy._views = self._model, self._seen, self._views
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
        handles = self._views
        if len(handles) < 2:
            return tuple(handles)
        if trust.key != "own":
            return tuple(sorted(handles))
        return tuple(sorted(handles, key=lambda r: (handles[r][1:4], r)))

    def key(self, trust: Trust, order: tuple[int, ...] | None = None) -> bytes | None:
        """A 128-bit digest of the whole state, or None where it can't be taken.

        Manager and handles together, less what is declared meaningless; the manager's own
        `state_key(names)` stands for the manager where its class has one that is trusted, and
        then states that differ in the requests' names only have one key. order: the requests'
        order, if it is not this world's to choose.
        """
        if trust.key == "none":
            return None
        if order is None or set(order) != set(self._views):
            order = self.order(trust)
        model, handles = self._model, self._views
        own = own_hook(self.manager, "state_key") if trust.key == "own" else None
        try:
            if own is not None:
                inner: object = own({r: i for i, r in enumerate(order)})
                tags = renaming(order, self.setting.stride)
            else:
                inner, tags = self._whole(trust), None
            whole: Any = (
                [(len(model.live.get(r, ())), r in model.live, *handles[r][1:4]) for r in order],
                inner,
                self.pool.key(tags),
            )
            # Version 0 writes neither references nor interning, so equal values give equal bytes.
            return blake2b(marshal.dumps(whole, 0), digest_size=16).digest()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - a target's own key may raise anything
            return None
