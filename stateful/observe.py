"""What can be seen of a manager and its requests, taken without trusting either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import index
from typing import Any, ParamSpec, TypeVar

from pagedkv.protocol import Request, Snapshot, method_of, plain_ints
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.steps import Contents, Handle, Observation, Report, State, Unreadable
from pagedkv.stateful.opaque import Opaque
from pagedkv.stateful.pool import Pool, Slot, TensorPool

LONGEST = 300

_P = ParamSpec("_P")
_T = TypeVar("_T")


def told(error: BaseException) -> str:
    """The message of an exception that somebody else's code made; raises nothing."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - even the message is the target's code
        text = "(its message can't be shown)"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def in_words(error: BaseException) -> str:
    """What an exception says, and of which kind it is; raises nothing."""
    return str(error) if isinstance(error, Opaque) else f"{type(error).__name__}: {told(error)}"


def view(request: Request) -> Handle:
    """The request's fields at this moment; raises TypeError if a block or a length is no int."""
    fields = (
        request.request_id,
        index(request.seq_len),
        tuple(map(index, request.block_table)),
        tuple(request.tokens),
        request.prompt_len,
    )
    return tuple.__new__(Handle, fields)  # a third of what Handle(...) takes


def snapshot_of(manager: object, handles: Mapping[int, Request], live: Iterable[int]) -> Snapshot:
    """The manager's own snapshot, or else what the live handles and `free_blocks` say.

    Changes nothing; raises whatever the manager raises, TypeError if its snapshot is none.
    """
    take = method_of(manager, "snapshot")
    if take is not None:
        snapshot = take()
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"snapshot() must give a pagedkv.Snapshot, got {snapshot!r}")
        return snapshot
    return Snapshot(
        block_tables={r: view(handles[r]).block_table for r in live},
        seq_lens={r: handles[r].seq_len for r in live},
        free_blocks=_free_blocks(manager),
    )


def _free_blocks(manager: object) -> tuple[int, ...] | None:
    free = getattr(manager, "free_blocks", None)
    if free is None:
        return None
    if callable(free) or not isinstance(free, Iterable | Sequence):
        raise TypeError(f"free_blocks is {free!r}: let it be the ids, or give snapshot() instead")
    return plain_ints(free)


def reconstruct(
    get: Callable[[Request], Any], request: Request, seq_len: int, width: int
) -> tuple[float, ...] | Unreadable:
    """One value per token of what `get` reads back, `[seq_len, width]`; changes nothing."""
    rows = _attempt(_rows, get, request, seq_len, width)
    if isinstance(rows, Unreadable):
        return rows
    for position, row in enumerate(rows if width > 1 else ()):
        if any(value != row[0] for value in row):
            return Unreadable(f"position {position} reads {row}, from more than one token")
    return tuple([row[0] for row in rows])


def _rows(
    get: Callable[[Request], Any], request: Request, seq_len: int, width: int
) -> list[list[float]] | Unreadable:
    cache = get(request)
    shape = tuple(cache.shape)
    if shape != (seq_len, width):
        return Unreadable(f"shape {list(shape)} != [{seq_len}, {width}]")
    rows: list[list[float]] = cache.tolist()
    return rows


def reports_of(
    manager: object, handles: Mapping[int, Request], live: Iterable[int]
) -> Mapping[int, Report | Unreadable] | None:
    """The allocation report of each live request; None where the manager makes none."""
    own = method_of(manager, "allocation_report")
    if own is None:
        return None
    reports: dict[int, Report | Unreadable] = {}
    for r in live:
        reports[r] = _attempt(_report, own, handles[r])
    return reports


def _report(own: Callable[[Request], Report], request: Request) -> Report:
    return dict(own(request))


def _attempt(look: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T | Unreadable:
    """What `look` gives, or what the target raised in it: a target may raise anything."""
    try:
        return look(*args, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as said
        return Unreadable(f"{type(error).__name__}: {told(error)}")


class Observer:
    """Looks at one manager, its handles and the tags of its tokens; holds no world.

    So a world can keep its state without a ring of references: a search makes and drops a
    million worlds. What is asked later is asked of the last state made, and contents and reports
    only once until somebody looks again: several properties are about them.
    """

    __slots__ = ("_read", "_reports", "handles", "last", "manager", "pool", "setting", "tensor")

    def __init__(
        self,
        manager: Any,
        handles: Mapping[int, Request],
        setting: Setting,
        pool: Pool,
        tensor: Any = None,
    ) -> None:
        self.manager, self.handles, self.setting = manager, handles, setting
        self.pool, self.tensor = pool, tensor
        self._read: Contents | None = None
        self._reports: Mapping[int, Report | Unreadable] | None = None

    def state(self, model: Model, snapshot: Snapshot, handles: Mapping[int, Handle]) -> State:
        """The state made of these, and of what else can be asked of the manager from now on."""
        self.last = (model.live, snapshot)
        seen = Observation(snapshot, handles, self.read, self.reports, self.again, self.listed)
        if self.setting.by_content:
            seen = seen._replace(ends=self._ends(seen.held | snapshot.cached))
        return State(self.setting, model, seen)

    def _ends(self, blocks: Iterable[int]) -> Mapping[int, float]:
        last, named = self.setting.geometry.block_size - 1, sorted(blocks)
        return dict(zip(named, self.pool.read([(block, last) for block in named]), strict=True))

    def look(self, live: Iterable[int]) -> tuple[Snapshot, dict[int, Handle]]:
        """The manager and all handles as they are now; changes nothing, if it keeps its word."""
        self._read = self._reports = None
        handles = {r: view(request) for r, request in self.handles.items()}
        return snapshot_of(self.manager, self.handles, live), handles

    def slots(
        self, request: int, tables: Mapping[int, tuple[int, ...]], seq_len: int
    ) -> list[list[Slot]]:
        """The slot of each position, of each table, as the manager's own map or the table says."""
        own, declared = method_of(self.manager, "slots"), self.setting.declared
        if own is not None:
            every = own(self.handles[request])
            if not declared.windows:
                return [[(block, offset) for _, block, offset in every]]
            several = range(len(declared.windows))
            return [[(b, at) for which, b, at in every if which == i] for i in several]
        size, table = self.setting.geometry.block_size, tables.get(request, ())
        if not (declared.windows or declared.ring):
            return [[(table[p // size], p % size) for p in range(min(seq_len, len(table) * size))]]
        found = []
        parts = self.setting.parts(table, seq_len)
        for window, part in zip(declared.each_window, parts, strict=True):
            places = (self.setting.place(window, p) for p in range(seq_len))
            found.append([(part[index], at) for index, at in places if index < len(part)])
        return found

    def follow_tensor(self) -> None:
        """Use the tensor that the manager has now: it may have put another in its place."""
        if self.tensor is None:
            return
        tensor = self.manager.physical_kv_cache
        if tensor is not self.tensor:
            self.tensor, self.pool = tensor, TensorPool(tensor)

    def read(self) -> Contents:
        """What each live request reads back now; changes nothing."""
        if self._read is None:
            self._read = self._read_now()
        return self._read

    def _read_now(self) -> Contents:
        # What reads from a pool that the tags were not written to would only read zeros.
        own = None if self.tensor is None else method_of(self.manager, "get_physical_cache")
        width = self.setting.geometry.head_dim
        read: dict[int, tuple[float, ...] | Unreadable] = {}
        for r, tags in self.last[0].items():
            if own is None:
                read[r] = self._read_slots(r, len(tags))
            else:
                due = len(self.setting.readable(tags))
                read[r] = reconstruct(own, self.handles[r], due, width)
        return read

    def _read_slots(self, request: int, seq_len: int) -> tuple[float, ...] | Unreadable:
        tables, each = self.last[1].block_tables, self.setting.declared.each_window

        def read() -> tuple[float, ...]:
            parts = zip(each, self.slots(request, tables, seq_len), strict=True)
            last = (slots[-min(window or seq_len, seq_len) :] for window, slots in parts)
            return self.pool.read(list(chain.from_iterable(last)))

        return _attempt(read)

    def reports(self) -> Mapping[int, Report | Unreadable] | None:
        """The allocation report of each live request; None where the manager makes none."""
        if self._reports is None:
            self._reports = reports_of(self.manager, self.handles, self.last[0])
        return self._reports

    def again(self) -> Snapshot | Unreadable:
        """Another snapshot; changes nothing, if the manager keeps its word."""
        return _attempt(snapshot_of, self.manager, self.handles, self.last[0])

    def listed(self) -> tuple[int, ...] | Unreadable | None:
        """The manager's `free_blocks` where its snapshot is another thing; else None."""
        if method_of(self.manager, "snapshot") is None:
            return None
        return _attempt(_free_blocks, self.manager)
