"""Plans of TokenSpeed's scheduler that move one request, whoever else is running.

A plan decodes every running request, but one that is told to reserve no tokens for it
(`UpdateReserveNumTokens`, as for a step of which nothing was accepted) takes no pages. So before
each plan all requests are held but the one that is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenspeed_scheduler import (
    AttnKind,
    CacheGroupConfig,
    CacheTransferPolicy,
    ExecutionEvent,
    ForwardEvent,
    RequestSpec,
    Scheduler,
    SchedulerConfig,
)

GROUP = "full"


def scheduler(pages: int, page_size: int) -> Any:
    """One group of full attention, with a prefix cache and no second tier."""
    config = SchedulerConfig()
    config.num_device_pages, config.max_batch_size = pages, pages
    config.num_host_pages = config.num_snapshot_pages = 1
    config.prefix_granularity, config.max_scheduled_tokens = page_size, 1 << 20
    config.disable_l2_cache = config.enable_kv_cache_events = True
    policy = CacheTransferPolicy.FullSuffix
    group = CacheGroupConfig(GROUP, page_size, pages, AttnKind.Full, transfer_policy=policy)
    config.cache_groups = [group]
    return Scheduler(config)


@dataclass(frozen=True)
class Plan:
    """What a plan says: who is in it, with which pages, and what is to be done to the contents.

    rows: of block tables, padded. found: tokens that prompts found. zeroed: pages. copied: pages
    as (from, to).
    """

    rows: dict[str, Sequence[int]] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    zeroed: Sequence[int] = ()
    copied: Sequence[tuple[int, int]] = ()


def submit(engine: Any, name: str, tokens: list[int]) -> None:
    """Queue a prompt. Raises ValueError for one that the whole pool can't hold."""
    spec = RequestSpec()
    spec.request_id, spec.tokens = name, tokens
    engine.submit_requests([spec])


def next_plan(engine: Any, held: Iterable[str], meant: str | None, accepted: Sequence[int]) -> Plan:
    """Take a plan in which `held` take no pages, and tell its results.

    meant: who gets the `accepted` tokens; of none, its step is to be done again.
    """
    _advance(engine, *(_reserve(name, 0) for name in held))
    plan = engine.next_execution_plan()
    rows, found = dict[str, Sequence[int]](), dict[str, int]()
    for batch in plan.forward:
        rows |= zip(batch.request_ids, batch.block_tables.get(GROUP, ()), strict=True)
        found |= zip(batch.request_ids, batch.extend_prefix_lens, strict=False)
    results = {name: [*accepted] if name == meant else [] for name in rows}
    _advance(engine, *(_event(ForwardEvent.ExtendResult, n, tokens=t) for n, t in results.items()))
    lost = [abort.request_id for abort in plan.aborts]
    zeroed, copied = plan.pages_to_zero.get(GROUP, ()), plan.pages_to_copy.get(GROUP, ())
    return Plan(rows, found, lost, zeroed, copied)


def let_grow(engine: Any, name: str) -> None:
    """Give a request that was held room for one token again."""
    _advance(engine, _reserve(name, 1))


def abort(engine: Any, name: str) -> None:
    """Take a prompt out of the queue."""
    _advance(engine, _event(ForwardEvent.Abort, name))


def finish(engine: Any, name: str) -> None:
    """Give back what a request holds."""
    _advance(engine, _event(ForwardEvent.Finish, name))


def _advance(engine: Any, *events: object) -> None:
    """Tell the engine what happened."""
    execution = ExecutionEvent()
    for one in events:
        execution.add_event(one)
    engine.advance(execution)


def _event(kind: Any, request_id: str, **fields: object) -> Any:
    """An event about one request."""
    made = kind()
    made.request_id = request_id
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _reserve(name: str, tokens: int) -> object:
    fields = {"reserve_num_tokens_in_next_schedule_event": tokens}
    return _event(ForwardEvent.UpdateReserveNumTokens, name, **fields)
