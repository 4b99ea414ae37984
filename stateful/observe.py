"""What can be seen of a manager and its requests, taken without trusting either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Any

from pagedkv.protocol import Request, Snapshot
from pagedkv.specs.steps import Handle, Report, Unreadable

LONGEST = 300


def told(error: BaseException) -> str:
    """The message of an exception that somebody else's code made; raises nothing."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - even the message is the target's code
        text = "(its message can't be shown)"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def view(request: Request) -> Handle:
    """The request's fields at this moment; raises TypeError if a block or a length is no int."""
    return Handle(
        request.request_id,
        index(request.seq_len),
        tuple(map(index, request.block_table)),
        tuple(request.tokens),
        request.prompt_len,
    )


def snapshot_of(manager: object, live: Mapping[int, Request]) -> Snapshot:
    """The manager's own snapshot, or else what the live handles and `free_blocks` say.

    Changes nothing; raises whatever the manager raises, TypeError if its snapshot is none.
    """
    take = getattr(manager, "snapshot", None)
    if take is not None:
        snapshot = take()
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"snapshot() must give a pagedkv.Snapshot, got {snapshot!r}")
        return snapshot
    free = getattr(manager, "free_blocks", None)
    return Snapshot(
        block_tables={r: view(request).block_table for r, request in live.items()},
        seq_lens={r: request.seq_len for r, request in live.items()},
        free_blocks=None if free is None else tuple(free),
    )


def reconstruct(
    get: Callable[[Request], Any], request: Request, seq_len: int, width: int
) -> tuple[float, ...] | Unreadable:
    """One value per token of what `get` reads back, `[seq_len, width]`; changes nothing."""
    try:
        cache = get(request)
        shape = tuple(cache.shape)
        if shape != (seq_len, width):
            return Unreadable(f"shape {list(shape)} != [{seq_len}, {width}]")
        rows = cache.tolist()
    except Exception as error:  # noqa: BLE001 - whatever a target raises is what was read
        return Unreadable(f"{type(error).__name__}: {told(error)}")
    for position, row in enumerate(rows):
        if any(value != row[0] for value in row):
            return Unreadable(f"position {position} reads {row}, from more than one token")
    return tuple([row[0] for row in rows])


def reports_of(
    manager: object, handles: Mapping[int, Request], live: Iterable[int]
) -> Mapping[int, Report | Unreadable] | None:
    """The allocation report of each live request; None where the manager makes none."""
    own = getattr(manager, "allocation_report", None)
    if own is None:
        return None
    reports: dict[int, Report | Unreadable] = {}
    for r in live:
        try:
            reports[r] = dict(own(handles[r]))
        except Exception as error:  # noqa: BLE001 - whatever a target raises is its report
            reports[r] = Unreadable(f"{type(error).__name__}: {told(error)}")
    return reports
