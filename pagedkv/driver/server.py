"""A Python target behind the line protocol: `python -m pagedkv.driver.server module:attribute`.

Where the system can fork, a second process does the work and this one waits. If a call ends that
process, this one says so and makes another, with all imports done. A target with threads works in
this one, since a fork would leave them behind; the client starts another if a call ends it.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagedkv.declarations import Declarations, Raises, Returns
from pagedkv.driver import wire
from pagedkv.driver.channel import die_with_parent, name_of
from pagedkv.driver.remote import slots_between
from pagedkv.protocol import Request, method_of
from pagedkv.specs.model import Geometry
from pagedkv.stateful.copying import freeze
from pagedkv.stateful.fingerprint import fingerprint
from pagedkv.stateful.observe import snapshot_of, told, view
from pagedkv.stateful.opaque import Opaque
from pagedkv.stateful.target import made, own_hook
from pagedkv.tolerances import Tolerances

CALLS = {
    "prefill": "allocate_for_prefill",
    "decode": "allocate_for_decode",
    "release": "release_request",
}


Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


class Session:
    """One manager at a time, its handles, and the answers to messages about them."""

    def __init__(self, factory: Callable[[int, int, int], Any]) -> None:
        self._factory = factory
        self._manager: Any = None
        self._handles: dict[int, Request] = {}
        self._declared = Declarations()
        self._pool: NDArray[Any] | None = None
        self._verbs: Mapping[Any, Answer] = {
            **dict.fromkeys((*CALLS, "computed"), self._call),
            "look": self._look,
            "slots": self._slots,
        }

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer, without its id; whatever the target raises is part of it."""
        do = message.get("do")
        if do in ("hello", "reset"):
            return self._begin(message)
        if self._manager is None:
            return {"error": f"{do!r} before hello"}
        if self._pool is not None and "write" in message:
            rows = _rows_of(self._manager)
            for block, offset, value in message["write"]:
                rows[block, offset] = self._pool[block, offset] = value
        if do in self._verbs:
            return self._verbs[do](message)
        known = ", ".join(("hello", "reset", *self._verbs, "bye"))
        return {"error": f"{do!r} is none of {known}"}

    def _begin(self, message: Mapping[str, Any]) -> dict[str, Any]:
        geometry = Geometry(message["num_blocks"], message["block_size"], message["head_dim"])
        self._manager, self._handles, self._pool = None, {}, None
        try:
            manager = made(self._factory, geometry)
        except BaseException as error:  # noqa: BLE001 - whatever a target raises is the answer
            return {"error": told(error)}
        self._manager = manager
        self._declared = getattr(manager, "declares", None) or Declarations()
        answer: dict[str, Any] = {}
        if message["do"] == "hello":
            answer = {
                "version": wire.VERSION,
                "has": self._has(),
                "declares": wire.declares_to(self._declared),
            }
        if getattr(manager, "physical_kv_cache", None) is not None:
            rows = _rows_of(manager)
            self._pool = np.zeros_like(rows)
            answer["pool"] = {"blocks": len(rows), "dtype": str(rows.dtype)}
        return {**answer, **self._state()}

    def _has(self) -> list[str]:
        manager = self._manager
        there = {name: method_of(manager, name) is not None for name in wire.HAS}
        there["free_blocks"] = getattr(manager, "free_blocks", None) is not None
        there["pool"] = getattr(manager, "physical_kv_cache", None) is not None
        there["contents"] = there["pool"] and method_of(manager, "get_physical_cache") is not None
        there["reports"] = method_of(manager, "allocation_report") is not None
        there["key"] = True
        return [name for name in wire.HAS if there[name]]

    # ------------------------------------------------------------ calls

    def _call(self, message: Mapping[str, Any]) -> dict[str, Any]:
        request, own = self._handle(message)
        do = message["do"]
        answer = self._outcome(do, getattr(self._manager, CALLS.get(do, do)), request)
        try:
            given = wire.handle_to(view_of(request))
            answer |= {"request_id": given.pop("request"), **given}
        except BaseException as error:  # noqa: BLE001 - a target may put anything there
            answer["unobserved"] = _raised(error)
        if answer["outcome"] != "done" and own is not None:
            request.block_table = own
        return {**answer, **self._state()}

    def _handle(self, message: Mapping[str, Any]) -> tuple[Request, list[int] | None]:
        """The handle as the caller has it, and its own table where it carries another now.

        Lists are changed in place, since a manager may keep them.
        """
        number = message["handle"]
        request = self._handles.get(number)
        if request is None:
            request = self._handles[number] = Request(
                message["request"], message["prompt_len"], [0] * message["prompt_len"]
            )
        tokens = message["tokens"]
        if request.tokens != tokens:
            request.tokens[:] = tokens
        for name in ("request", "prompt_len", "seq_len"):
            field = "request_id" if name == "request" else name
            if getattr(request, field) != message[name]:
                setattr(request, field, message[name])
        own = request.block_table
        if list(own) == message["block_table"]:
            return request, None
        request.block_table = list(message["block_table"])
        return request, own

    def _outcome(
        self, do: str, method: Callable[[Request], object], request: Request
    ) -> dict[str, Any]:
        signals = self._declared.out_of_blocks
        try:
            value = method(request)
        except BaseException as error:  # noqa: BLE001 - whatever a target raises is an outcome
            message = told(error)
            for signal_ in signals:
                if (
                    isinstance(signal_, Raises)
                    and isinstance(error, signal_.exception)
                    and signal_.containing in message
                ):
                    return {"outcome": "out_of_blocks", "message": message}
            if isinstance(error, ValueError):
                return {"outcome": "refused", "message": message}
            return {"outcome": "raised", **_raised(error)}
        for signal_ in signals if do in ("prefill", "decode") else ():
            if isinstance(signal_, Returns) and signal_.says(value):
                return {"outcome": "out_of_blocks", "message": f"returned {signal_.value!r}"}
        return {"outcome": "done"}

    # ------------------------------------------------------------ reading

    def _state(self) -> dict[str, Any]:
        """What can be seen now, and what the target wrote into its pool by itself."""
        manager = self._manager
        state: dict[str, Any] = {}
        try:
            if method_of(manager, "snapshot") is not None:
                state["snapshot"] = wire.snapshot_to(snapshot_of(manager, {}, ()))
            if hasattr(manager, "free_blocks"):
                state["free_blocks"] = [int(block) for block in manager.free_blocks]
            if self._pool is not None:
                rows = np.array(_rows_of(manager))
                if wrote := slots_between(self._pool, rows):
                    state["wrote"] = wrote
                self._pool = rows
        except BaseException as error:  # noqa: BLE001 - whatever a target raises is what was seen
            state = {"unobserved": _raised(error)}
        return state

    def _look(self, message: Mapping[str, Any]) -> dict[str, Any]:
        handles = [self._handles[number] for number in message["handles"]]
        manager, answer = self._manager, dict[str, Any]()
        if method_of(manager, "get_physical_cache") and self._pool is not None:
            answer["contents"] = [
                _or_raised(partial(_rows_read, manager, request)) for request in handles
            ]
        if method_of(manager, "allocation_report"):
            answer["reports"] = [
                _or_raised(partial(_report, manager, request)) for request in handles
            ]
        if "order" in message:
            answer["key"] = self._key(message["order"], message["known"])
        return {**answer, **self._state()}

    def _slots(self, message: Mapping[str, Any]) -> dict[str, Any]:
        request = self._handles[message["handle"]]
        slots = _or_raised(
            lambda: [[int(part) for part in slot] for slot in self._manager.slots(request)]
        )
        return slots if isinstance(slots, dict) else {"slots": slots}

    def _key(self, order: list[int], handles: list[int]) -> object:
        """The target's own key, or a digest of the whole state; None if there is neither."""
        try:
            if own := own_hook(self._manager, "state_key"):
                return ["own", own({r: i for i, r in enumerate(order)})]
            by_name = sorted(zip(order, handles, strict=True))
            whole = (self._manager, [self._handles[number] for _, number in by_name])
            meaningless = {"declares", *self._declared.meaningless}
            try:
                return blake2b(freeze(whole, meaningless), digest_size=16).hexdigest()
            except Opaque:
                return fingerprint(whole, meaningless).hex()
        except BaseException:  # noqa: BLE001 - a target's own key may raise anything
            return None


def view_of(request: Request) -> Request:
    """A copy whose fields are plain integers. Raises TypeError if they are none."""
    seen = view(request)
    copy = Request(0, 1)
    copy.request_id, copy.prompt_len = int(seen.request_id), int(seen.prompt_len)
    copy.seq_len, copy.block_table = seen.seq_len, list(seen.block_table)
    copy.tokens = [int(token) for token in seen.tokens]
    return copy


def _raised(error: BaseException) -> dict[str, str]:
    return {"raised": type(error).__name__, "message": told(error)}


def _or_raised(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except BaseException as error:  # noqa: BLE001 - whatever a target raises is what was read
        return _raised(error)


def _rows_read(manager: Any, request: Request) -> object:
    return manager.get_physical_cache(request).tolist()


def _report(manager: Any, request: Request) -> dict[str, float]:
    report = manager.allocation_report(request)
    return {str(name): float(value) for name, value in report.items()}


def _rows_of(manager: Any) -> Any:
    """The pool as an array that shares its memory; raises TypeError if numpy can't have that."""
    tensor = manager.physical_kv_cache
    return tensor if isinstance(tensor, np.ndarray) else tensor.detach().numpy()


# ---------------------------------------------------------------- the process


def serve(answer: Answer, source: int, out: int) -> None:
    """Answer each line until there is none, or one says bye."""
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            message = json.loads(line)
            if message.get("do") == "bye":
                return
            _current(message["id"])
            _send(out, {"id": message["id"], **answer(message)})
            _current(0)


_PLACE = mmap(-1, 8)
"""The message that is being answered, where the waiting process sees it; 0 is none."""


def _current(number: int) -> None:
    _PLACE[:] = struct.pack("q", number)


def _send(out: int, answer: Mapping[str, Any]) -> None:
    data = wire.line_of(answer)
    while data:
        data = data[os.write(out, data) :]


def main(name: str, table: str | None = None) -> int:
    """Serve the target of this name on stdin and stdout. table: declarations over its own."""
    # What the target prints, or reads, must not get into the protocol.
    source, out = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    before = _threads()  # those that numpy started, which does so again after a fork
    answer = _answers(name, {} if table is None else {name: json.loads(table)})
    if not hasattr(os, "fork") or _threads() > before:
        serve(answer, source, out)
        return 0
    while True:
        worker = os.fork()
        if worker == 0:
            if (die := die_with_parent()) is not None:
                die()
            serve(answer, source, out)
            return 0
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        (number,) = struct.unpack("q", _PLACE[:])
        if not number:  # it was not asked anything: the input has ended
            return 0 if code == 0 else 1
        _current(0)
        _send(out, {"id": number, "died": name_of(code)})


def _threads() -> int:
    """How many threads this process has now, those of C code among them where that can be seen."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


def _answers(name: str, tolerances: Tolerances) -> Answer:
    from pagedkv.loading import BadTarget
    from pagedkv.targets import Target, resolve

    try:
        target = resolve(name, tolerances)
        assert isinstance(target, Target)
    except BadTarget as error:
        why = str(error)
        return lambda _: {"error": why}
    return Session(target.factory).answer


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
