"""The manager that a history behind the line protocol looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from pagedkv.driver import wire
from pagedkv.driver.history import Failure, Node, SaidRaised, SaidRefused, raised
from pagedkv.driver.wire import BadAnswer, SaidOutOfBlocks
from pagedkv.protocol import Request, Snapshot

if TYPE_CHECKING:
    from pagedkv.driver.client import Driver


class RemoteManager:
    """The manager of one history. What the driver has beyond the calls is added by `kind_of`.

    Invariant: `_base` is the pool as the process has it at `_node`, `_mirror` what it is to be.
    """

    runs_elsewhere = True
    """No call inside the allocator can be made to fail from here."""

    def __init__(self, driver: Driver, root: Node, geometry: tuple[int, int, int]) -> None:
        self.num_blocks, self.block_size, self.head_dim = geometry
        assert driver.declares is not None
        self.declares = driver.declares
        self._driver = driver
        self._has: Sequence[str] = root.message["has"]
        self._numbers: dict[int, tuple[Request, int]] = {}  # by identity, which the value keeps
        self._next = 0
        self._known: dict[int, int] = {}  # request id -> the handle that it has or had
        self._live: dict[int, int] = {}  # request id -> its handle
        self._failed: Exception | None = None
        self._mirror: NDArray[Any] = np.zeros((0, self.block_size, self.head_dim))
        self._base = self._mirror
        if "pool" in root.answer:
            self._mirror = _pool_of(root.answer["pool"], geometry)
        self._take(root)
        _check_shown(self._has, root.answer)

    def _take(self, node: Node) -> None:
        """Stand at `node`, and see what its answer shows. Raises BadAnswer."""
        self._node, self._looked = node, None
        answer = node.answer
        self._unobserved: Exception | None = None
        self._fresh = True
        if "unobserved" in answer:
            self._unobserved = _error_of(answer["unobserved"])
        elif "snapshot" in answer:
            self._snapshot = wire.snapshot_from(answer["snapshot"])
        if "free_blocks" in answer:
            self._free = wire.integers(answer["free_blocks"], "free_blocks")
        if "wrote" in answer:
            _put(self._mirror, answer["wrote"])
        self._base = self._mirror.copy()

    # ------------------------------------------------------------ calls

    def allocate_for_prefill(self, req: Request) -> None:
        """See the protocol."""
        number = self._call("prefill", req)
        self._known[req.request_id] = self._live[req.request_id] = number

    def allocate_for_decode(self, req: Request) -> None:
        """See the protocol."""
        self._call("decode", req)

    def release_request(self, req: Request) -> None:
        """See the protocol."""
        name = req.request_id
        self._call("release", req)
        self._live.pop(name, None)

    def _call(self, do: str, req: Request) -> int:
        """One call; returns the handle's number. Raises what the driver says, or how it failed."""
        if self._failed is not None:
            raise self._failed
        number = self._number(req)
        message: dict[str, Any] = {"do": do, "handle": number, **wire.handle_to(req)}
        if written := self._written():
            message["write"] = written
        try:
            channel, answer = self._driver.ask(self._node, message)
            node = Node(self._node, message, answer)
            self._take(node)
            channel.at = node
            wire.handle_from(answer, req)
            outcome = answer.get("outcome")
            if outcome not in wire.OUTCOMES:
                raise BadAnswer(f"an outcome of {', '.join(wire.OUTCOMES)}", answer)
            _check_shown(self._has, answer)
        except Failure as error:
            self._failed = error
            raise
        if outcome != "done":
            _say(outcome, answer)
        return number

    def _number(self, req: Request) -> int:
        known = self._numbers.get(id(req))
        if known is None:
            known = self._numbers[id(req)] = (req, self._next)
            self._next += 1
        return known[1]

    def _written(self) -> list[list[Any]]:
        """Slots that differ from what the process has: [block, offset, value]."""
        if self._mirror is self._base or np.array_equal(self._mirror, self._base, equal_nan=True):
            return []
        return slots_between(self._base, self._mirror)

    # ------------------------------------------------------------ reading

    def _look(self, order: Sequence[int] | None = None) -> Mapping[str, Any]:
        """What the live handles read and report, a snapshot after that, and, with an order of
        requests, the key of the state; changes nothing.
        """
        if self._failed is not None:
            raise self._failed
        message: dict[str, Any] = {"do": "look", "handles": [*self._live.values()]}
        if written := self._written():
            message["write"] = written
        last = self._looked
        if last is None or last[0] != message or (order is not None and last[1] != order):
            named = {} if order is None else {"order": order, "known": self._handles_of(order)}
            channel, answer = self._driver.ask(self._node, {**message, **named})
            channel.at = self._node
            self._looked = last = (message, order, answer)
        return last[2]

    _looked: tuple[object, Sequence[int] | None, dict[str, Any]] | None = None

    def _handles_of(self, order: Sequence[int]) -> list[int]:
        return [self._known[r] for r in order]

    def _of(self, name: str, req: Request) -> Any:
        """One handle's entry in the list `name` of a look."""
        handles, number = [*self._live.values()], self._number(req)
        entries = self._look().get(name)
        if not isinstance(entries, list) or len(entries) != len(handles):
            raise BadAnswer(f"{len(handles)} entries as {name}", entries)
        if number not in handles:
            raise ValueError(f"request {req.request_id} is not live, so that nothing is read of it")
        entry = entries[handles.index(number)]
        if isinstance(entry, dict) and "raised" in entry:
            raise _error_of(entry)
        return entry

    def clone(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        """A copy in the same place of the same history, and copies of the handles."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copies: dict[int, Request] = {}
        copy._numbers = {}
        for name, request in requests.items():
            twin = copies[name] = object.__new__(Request)
            twin.__dict__.update(request.__dict__)
            twin.block_table, twin.tokens = list(request.block_table), list(request.tokens)
            copy._numbers[id(twin)] = (twin, self._number(request))
        copy._next = self._next
        copy._known, copy._live = dict(self._known), dict(self._live)
        copy._mirror = self._mirror.copy()
        return copy, copies

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("its state is in another process")


# ---------------------------------------------------------------- what a driver may have


def _snapshot(self: RemoteManager) -> Snapshot:
    """What came with the last answer, once; from then on it is asked for anew."""
    if (error := self._failed or self._unobserved) is not None:
        raise error
    if self._fresh:
        self._fresh = False
        return self._snapshot
    try:
        return wire.snapshot_from(self._look().get("snapshot"))
    except Failure:
        return self._snapshot  # that a look ends the process is said of what it is to read


def _free_blocks(self: RemoteManager) -> list[int]:
    if (error := self._failed or self._unobserved) is not None:
        raise error
    return list(self._free)


def _get_physical_cache(self: RemoteManager, req: Request) -> NDArray[Any]:
    rows = self._of("contents", req)
    try:
        return np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadAnswer("a list of rows of numbers as contents", rows) from None


def _allocation_report(self: RemoteManager, req: Request) -> Mapping[str, float]:
    report = self._of("reports", req)
    if not isinstance(report, dict):
        raise BadAnswer("an object as report", report)
    return report


def _slots(self: RemoteManager, req: Request) -> list[list[int]]:
    message = {"do": "slots", "handle": self._number(req)}
    channel, answer = self._driver.ask(self._node, message)
    channel.at = self._node
    if "raised" in answer:
        raise _error_of(answer)
    return [wire.integers(slot, "slots") for slot in answer.get("slots", ())]


def _computed(self: RemoteManager, req: Request) -> None:
    self._call("computed", req)


def _state_key(self: RemoteManager, names: Mapping[int, int]) -> object:
    """The driver's own key. Raises SaidRaised if it has none now."""
    if self._failed is not None:
        return f"failed: {self._failed}"
    order = [r for r in sorted(names, key=names.__getitem__) if r in self._known]
    if "key" in self._node.answer and not self._written():
        # It calls requests by their own names, so that it is only good under one naming.
        return [order, self._node.answer["key"]]
    key = self._look(order).get("key")
    if key is None:
        raise raised("NoKey", "the driver has no key for this state")
    return key


_MEMBERS: Mapping[str, tuple[str, Callable[..., Any] | property]] = {
    "snapshot": ("snapshot", _snapshot),
    "free_blocks": ("free_blocks", property(_free_blocks)),
    "pool": ("physical_kv_cache", property(lambda self: self._mirror)),
    "contents": ("get_physical_cache", _get_physical_cache),
    "reports": ("allocation_report", _allocation_report),
    "slots": ("slots", _slots),
    "computed": ("computed", _computed),
    "key": ("state_key", _state_key),
}


def kind_of(has: Sequence[str]) -> type[RemoteManager]:
    """The class of a driver that has these: what is not there must not seem to be."""
    body = dict(_MEMBERS[name] for name in has)
    return type("RemoteManager", (RemoteManager,), {**body, "clone": RemoteManager.clone})


# ---------------------------------------------------------------- pieces of answers


def _check_shown(has: Sequence[str], answer: Mapping[str, Any]) -> None:
    """Raise BadAnswer for an answer without what the driver said that each has."""
    if "unobserved" in answer:
        return
    for name in ("snapshot", "free_blocks"):
        if name in has and name not in answer:
            raise BadAnswer(f'a "{name}", as in each answer of a driver that has it,', answer)


def _error_of(data: object) -> SaidRaised:
    if not isinstance(data, dict):
        raise BadAnswer("an object with raised and message", data)
    return raised(data.get("raised"), data.get("message", ""))


def _say(outcome: str, answer: Mapping[str, Any]) -> NoReturn:
    message = answer.get("message", "")
    if not isinstance(message, str):
        raise BadAnswer("a string as message", message)
    if outcome == "out_of_blocks":
        raise SaidOutOfBlocks(message)
    if outcome == "refused":
        raise SaidRefused(message)
    raise raised(answer.get("raised"), message)


def _pool_of(data: object, geometry: tuple[int, int, int]) -> NDArray[Any]:
    if not isinstance(data, dict) or not {"blocks", "dtype"} <= data.keys():
        raise BadAnswer("an object with blocks and dtype as pool", data)
    try:
        kind = np.dtype(data["dtype"])
    except TypeError:
        raise BadAnswer("a dtype that numpy has, such as float32,", data["dtype"]) from None
    return np.zeros((wire.integer(data["blocks"], "blocks"), *geometry[1:]), kind)


def slots_between(old: NDArray[Any], new: NDArray[Any]) -> list[list[Any]]:
    """The slots in which two pools differ, as [block, offset, what `new` has]; changes nothing.

    What a slot has is one number if its whole row is that, else the row.
    """
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    rows = []
    for block, offset in np.argwhere(~same.all(axis=2)).tolist():
        row = new[block, offset].tolist()
        rows.append([block, offset, row[0] if row.count(row[0]) == len(row) else row])
    return rows


def _put(pool: NDArray[Any], slots: object) -> None:
    """Write [block, offset, value] into the pool. Raises BadAnswer."""
    try:
        assert isinstance(slots, list)
        for block, offset, value in slots:
            pool[block, offset] = value
    except (AssertionError, TypeError, ValueError, IndexError):
        raise BadAnswer("a list of [block, offset, value] in the pool as wrote", slots) from None
