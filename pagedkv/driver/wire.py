"""What goes over the line: snapshots, declarations and handles as JSON, both ways.

Whatever comes from the other side is checked here, so that nothing behind this needs to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import index
from typing import Any

from pagedkv.declarations import Declarations, Raises
from pagedkv.protocol import Owned, Request, Snapshot

VERSION = 1
LONGEST_LINE = 1 << 20
"""Bytes that one answer may have."""
HAS = ("snapshot", "free_blocks", "pool", "contents", "reports", "slots", "computed", "key")
"""What a driver may have beyond the three calls."""
OUTCOMES = ("done", "out_of_blocks", "refused", "raised")


class BadAnswer(Exception):
    """An answer that the protocol does not have: one line, with what was due and what came."""

    def __init__(self, due: str, came: object) -> None:
        super().__init__(f"{due} was due, and there came {quoted(came)}")


def quoted(came: object, longest: int = 120) -> str:
    """What came, shortened, on one line."""
    text = came if isinstance(came, str) else json.dumps(came, default=repr)
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"


def line_of(message: Mapping[str, Any]) -> bytes:
    """One message as its line."""
    return f"{_encode(message)}\n".encode()


_encode = json.JSONEncoder(separators=(",", ":")).encode


def answer_of(line: bytes, number: int) -> dict[str, Any]:
    """The answer to message `number`. Raises BadAnswer."""
    text = line.decode("utf-8", "backslashreplace")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise BadAnswer("a JSON object on one line", text) from None
    if not isinstance(answer, dict):
        raise BadAnswer("a JSON object", text)
    if answer.get("id") != number or isinstance(answer["id"], bool):
        raise BadAnswer(f'an answer with "id": {number}', text)
    return answer


# ---------------------------------------------------------------- values


def integer(value: object, what: str) -> int:
    """`value` as the integer that it must be. Raises BadAnswer."""
    if type(value) is not int:
        raise BadAnswer(f"an integer as {what}", value)
    return value


def integers(value: object, what: str) -> list[int]:
    """`value` as the list of integers that it must be. Raises BadAnswer."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise BadAnswer(f"a list of integers as {what}", value)
    return value


def _by_request(value: object, what: str, item: Callable[[object, str], Any]) -> dict[int, Any]:
    """An object whose keys are integers, which JSON writes as strings."""
    if not isinstance(value, dict):
        raise BadAnswer(f"an object as {what}", value)
    try:
        return {int(key): item(inner, what) for key, inner in value.items()}
    except ValueError:
        raise BadAnswer(f"an object with integers for keys as {what}", value) from None


def _tables(value: object, what: str) -> dict[int, tuple[int, ...]]:
    return _by_request(value, what, lambda item, _: tuple(integers(item, what)))


def _counts(value: object, what: str) -> dict[int, int]:
    return _by_request(value, what, integer)


def _owner(value: object, what: str) -> int | str:
    return value if isinstance(value, str) else integer(value, what)


def _lists(value: object, what: str, size: int) -> list[list[Any]]:
    if not isinstance(value, list) or not all(
        isinstance(item, list) and len(item) == size for item in value
    ):
        raise BadAnswer(f"a list of lists of {size} as {what}", value)
    return value


def _owned(value: object, what: str) -> frozenset[Owned]:
    return frozenset(
        Owned(_owner(owner, what), integer(logical, what), integer(block, what))
        for owner, logical, block in _lists(value, what, 3)
    )


def _keys(value: object, what: str) -> dict[str, int]:
    pairs = _lists(value, what, 2)
    if not all(isinstance(key, str) for key, _ in pairs):
        raise BadAnswer(f"a list of [text, block] as {what}", value)
    return {key: integer(block, what) for key, block in pairs}


def _capacities(value: object, what: str) -> dict[int | str, int]:
    return {_owner(o, what): integer(n, what) for o, n in _lists(value, what, 2)}


@dataclass(frozen=True, slots=True)
class _Codec:
    """How one field of a snapshot is written and read."""

    write: Callable[[Any], object]
    read: Callable[[object, str], Any]


def _map(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(index(k)): v for k, v in value.items()}


_NUMBERS = _Codec(lambda v: [index(b) for b in v], lambda v, what: tuple(integers(v, what)))
_TABLES = _Codec(lambda v: {k: [index(b) for b in table] for k, table in _map(v).items()}, _tables)
_INDEX = _Codec(
    lambda v: [[key if isinstance(key, str) else repr(key), index(b)] for key, b in v.items()],
    _keys,
)
_SET = _Codec(lambda v: sorted(index(b) for b in v), lambda v, what: frozenset(integers(v, what)))
_COUNTS = _Codec(lambda v: {k: index(n) for k, n in _map(v).items()}, _counts)
SNAPSHOT: Mapping[str, _Codec] = {
    "block_tables": _TABLES,
    "seq_lens": _COUNTS,
    "free_blocks": _NUMBERS,
    "blocks": _SET,
    "num_free": _Codec(index, integer),
    "ref_counts": _COUNTS,
    "pending": _COUNTS,
    "cached": _SET,
    "reserved": _SET,
    "reverse_map": _Codec(
        lambda v: sorted(([e.owner, index(e.logical), index(e.block)] for e in v), key=str),
        _owned,
    ),
    "capacities": _Codec(lambda v: [[owner, index(n)] for owner, n in v.items()], _capacities),
    "index": _INDEX,
    "withheld": _SET,
    "swapped": _TABLES,
    "host_free": _NUMBERS,
    "eviction_order": _NUMBERS,
}
"""Every field of a Snapshot; null, or a field that is left out, is its default."""
_REQUIRED = ("block_tables", "seq_lens")


def snapshot_to(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON. Raises whatever is raised by values that are none."""
    written = {}
    for f in fields(snapshot):
        value = getattr(snapshot, f.name)
        if value is not None and (value or f.name not in ("cached", "reserved")):
            written[f.name] = SNAPSHOT[f.name].write(value)
    return written


def snapshot_from(data: object) -> Snapshot:
    """The snapshot that JSON describes. Raises BadAnswer."""
    if not isinstance(data, dict):
        raise BadAnswer("an object as snapshot", data)
    if unknown := data.keys() - SNAPSHOT.keys():
        raise BadAnswer(f"a snapshot of {', '.join(SNAPSHOT)}", {k: data[k] for k in unknown})
    if missing := [name for name in _REQUIRED if name not in data]:
        raise BadAnswer(f"{' and '.join(missing)} in the snapshot", data)
    given = {
        name: SNAPSHOT[name].read(value, f"{name} of the snapshot")
        for name, value in data.items()
        if value is not None
    }
    return Snapshot(**{"free_blocks": None, **given})


# ---------------------------------------------------------------- declarations


class SaidOutOfBlocks(RuntimeError):
    """The driver answered that blocks ran out; the message is its own."""


_SIGNAL = (Raises(SaidOutOfBlocks, ""),)
_BECAUSE = {"out_of_blocks": "docs/driver-protocol.md: the outcome out_of_blocks"}


def declares_to(declared: Declarations) -> dict[str, Any]:
    """What differs from the default, as JSON; how blocks run out is the protocol's own."""
    default = Declarations()
    told = {
        f.name: getattr(declared, f.name)
        for f in fields(declared)
        if f.name != "out_of_blocks" and getattr(declared, f.name) != getattr(default, f.name)
    }
    because = {k: v for k, v in declared.because.items() if k != "out_of_blocks"}
    return {**told, "because": because} if because else told


def declares_from(data: object) -> Declarations:
    """The declarations that JSON describes. Raises BadAnswer."""
    if not isinstance(data, dict):
        raise BadAnswer("an object as declares", data)
    known = {f.name for f in fields(Declarations)} - {"out_of_blocks"}
    if unknown := data.keys() - known:
        due = f"declares of {', '.join(sorted(known))}"
        raise BadAnswer(due, {name: data[name] for name in sorted(unknown)})
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    try:
        because = {**_BECAUSE, **values.pop("because", {})}
        return Declarations(out_of_blocks=_SIGNAL, because=because, **values)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadAnswer(f"valid declarations ({error})", data) from None


# ---------------------------------------------------------------- handles

HANDLE = ("request_id", "prompt_len", "seq_len", "block_table", "tokens")
"""The fields of a request that a target can change; the first is `request` in messages."""


def handle_to(request: Request) -> dict[str, Any]:
    """A request's fields, as a message has them."""
    return {
        "request": request.request_id,
        "prompt_len": request.prompt_len,
        "seq_len": request.seq_len,
        "block_table": list(request.block_table),
        "tokens": list(request.tokens),
    }


def handle_from(answer: Mapping[str, Any], request: Request) -> None:
    """Put what the answer says of the handle into `request`. Raises BadAnswer."""
    for name in ("request_id", "prompt_len", "seq_len"):
        if name in answer:
            setattr(request, name, integer(answer[name], name))
    for name in ("block_table", "tokens"):
        if name in answer and (new := integers(answer[name], name)) != getattr(request, name):
            setattr(request, name, new)
