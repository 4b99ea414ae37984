"""TokenSpeed's scheduler, which moves all requests at once, by plans.

A plan decodes every running request, but one that is told to reserve no tokens for it
(`UpdateReserveNumTokens`, as for a step of which nothing was accepted) takes no pages. So before
each plan all requests are held but the one that is meant. A prefill takes two plans, since only
decoding requests can be held: from then on a request holds a page for the token that comes next.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
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

from pagedkv.adapter import Adapter, unpadded
from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.protocol import Request, Snapshot

GROUP = "full"

DECLARES = Declarations(
    out_of_blocks=(Returns(False), Raises(ValueError, "exceeds cache capacity")),
    wrong_use=NOT_TRIED,
    lookahead=1,
    engine=True,
    because={
        "out_of_blocks": "Scheduler.next_execution_plan leaves out what it has no pages for; "
        "Scheduler.submit_requests raises for what the whole pool can't hold",
        "wrong_use": "Scheduler.advance promises nothing",
        "lookahead": "admission reserves decode_input_tokens, which is 1, beyond the prompt",
        "engine": "the scheduler can't be copied",
    },
)


def _event(kind: Any, request_id: str, **fields: object) -> Any:
    event = kind()
    event.request_id = request_id
    for name, value in fields.items():
        setattr(event, name, value)
    return event


class TokenSpeedScheduler(Adapter[str]):
    """`Scheduler` with one group of full attention behind the protocol; sizes > 0."""

    declares = DECLARES

    def start(self) -> None:
        pages = self.num_blocks + 1  # page 0 is for padding
        config = SchedulerConfig()
        config.num_device_pages, config.max_batch_size = pages, pages
        config.num_host_pages = config.num_snapshot_pages = 1
        config.prefix_granularity, config.max_scheduled_tokens = self.block_size, 1 << 20
        config.disable_l2_cache = config.disable_prefix_cache = True
        group = CacheGroupConfig(
            GROUP,
            self.block_size,
            pages,
            AttnKind.Full,
            transfer_policy=CacheTransferPolicy.FullSuffix,
        )
        config.cache_groups = [group]
        self._engine = Scheduler(config)
        self._tables: dict[str, list[int]] = {}  # as the last plan that names them has them
        # Each page that was given back, in order, and whether it was full: for the key alone.
        self._given_back: dict[int, bool] = {}
        self._submitted = 0

    def table(self, req: Request) -> list[int]:
        return self._tables[self.live[req]]

    def allocate_for_prefill(self, req: Request) -> bool:
        self._submitted += 1
        name = str(self._submitted)
        spec = RequestSpec()
        # A first token of its own: even with the prefix cache off, equal full pages become one.
        tokens = [self._submitted, *req.tokens[1:]]
        spec.request_id, spec.tokens = name, tokens
        self._engine.submit_requests([spec])
        if not self._plan(name):
            self._advance([_event(ForwardEvent.Abort, name)])
            return False
        self.live[req] = name
        self._plan(name)  # from prefilled to decoding
        return self.granted(req)

    def allocate_for_decode(self, req: Request) -> bool:
        name = self.live[req]
        self._advance([_reserve(name, 1)])
        return self._plan(name) and self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        name = self.lets_go(req)
        self._advance([_event(ForwardEvent.Finish, name)])
        for logical, page in enumerate(self._tables.pop(name)):
            self._given_back.pop(page, None)
            self._given_back[page] = (logical + 1) * self.block_size <= req.seq_len

    def _plan(self, meant: str) -> bool:
        """Take a plan in which all others are held, and its results; whether `meant` is in it."""
        self._advance(_reserve(name, 0) for name in self.live.values() if name != meant)
        plan = self._engine.next_execution_plan()
        rows = {
            name: row
            for batch in plan.forward
            for name, row in zip(batch.request_ids, batch.block_tables.get(GROUP, ()), strict=True)
        }
        self._tables |= {name: unpadded(row) for name, row in rows.items()}
        self._tables |= {abort.request_id: [] for abort in plan.aborts}
        for req in self.live:
            self.granted(req)
        self._advance(
            _event(ForwardEvent.ExtendResult, name, tokens=[0] if name == meant else [])
            for name in rows
        )
        return meant in rows

    def _advance(self, events: Iterable[object]) -> None:
        execution = ExecutionEvent()
        for event in events:
            execution.add_event(event)
        self._engine.advance(execution)

    def snapshot(self) -> Snapshot:
        """What can be seen: tables as the last plans had them, and how many pages are available."""
        return Snapshot(
            **self.of_live(),
            free_blocks=None,
            blocks=range(1, self.num_blocks + 1),
            num_free=self._engine.available_lcm_blocks(),  # with one page to each, and cached ones
            reserved={0},
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """The order of the free pages can't be seen: it is taken to follow from the releases."""
        engine, held = self._engine, {page for table in self._tables.values() for page in table}
        return (
            (engine.available_lcm_blocks(), engine.empty_lcm_blocks(), engine.active_lcm_blocks()),
            tuple((page, full) for page, full in self._given_back.items() if page not in held),
            self.live_key(names),
        )


def _reserve(name: str, tokens: int) -> object:
    fields = {"reserve_num_tokens_in_next_schedule_event": tokens}
    return _event(ForwardEvent.UpdateReserveNumTokens, name, **fields)
