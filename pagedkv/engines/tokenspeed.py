"""TokenSpeed's scheduler, which moves all requests at once, by plans; its prefix cache is on.

A plan decodes every running request, but one that is told to reserve no tokens for it
(`UpdateReserveNumTokens`, as for a step of which nothing was accepted) takes no pages. So before
each plan all requests are held but the one that is meant. Only decoding requests can be held, so
that a prompt goes on to decoding once it is computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
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

from pagedkv.adapter import Adapter, told_apart, unpadded
from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.protocol import Request, Snapshot

GROUP = "full"

DECLARES = Declarations(
    out_of_blocks=(Returns(False), Raises(ValueError, "exceeds cache capacity")),
    wrong_use=NOT_TRIED,
    abilities=frozenset({"prefix"}),
    lookahead=1,
    refuses_early=True,
    engine=True,
    because={
        "out_of_blocks": "Scheduler.next_execution_plan leaves out what it has no pages for; "
        "Scheduler.submit_requests raises for what the whole pool can't hold",
        "wrong_use": "Scheduler.advance promises nothing",
        "lookahead": "admission reserves decode_input_tokens, which is 1, beyond the prompt",
        "refuses_early": "Scheduler.max_single_request_tokens leaves a page for a copied tail",
        "engine": "the scheduler can't be copied",
    },
)


class TokenSpeedScheduler(Adapter[str]):
    """`Scheduler` with one group of full attention behind the protocol; sizes > 0."""

    declares = DECLARES

    def start(self) -> None:
        pages = self.num_blocks + 1  # page 0 is for padding
        config = SchedulerConfig()
        config.num_device_pages, config.max_batch_size = pages, pages
        config.num_host_pages = config.num_snapshot_pages = 1
        config.prefix_granularity, config.max_scheduled_tokens = self.block_size, 1 << 20
        config.disable_l2_cache = config.enable_kv_cache_events = True
        group = CacheGroupConfig(
            GROUP,
            self.block_size,
            pages,
            AttnKind.Full,
            transfer_policy=CacheTransferPolicy.FullSuffix,
        )
        config.cache_groups = [group]
        self._engine = Scheduler(config)
        self.physical_kv_cache = torch.zeros(pages, self.block_size, self.head_dim)
        self._submitted = 0
        self._prefilled: set[str] = set()  # names whose prompt is not computed yet
        self._found: dict[str, int] = {}  # tokens that a prompt found
        self._tables: dict[str, list[int]] = {}  # as the last plan that names them has them
        # Pages that were once in a table, those given back or copied from last at the end; and
        # the hashes of what is kept, as events tell.
        self._used: dict[int, None] = {}
        self._kept: dict[int, None] = {}

    def table(self, req: Request) -> list[int]:
        return self._tables[self.live[req]]

    def allocate_for_prefill(self, req: Request) -> bool:
        self._submitted += 1
        name, spec = str(self._submitted), RequestSpec()
        spec.request_id, spec.tokens = name, told_apart(req)
        self._engine.submit_requests([spec])
        if not self._plan(name):
            self._advance([_event(ForwardEvent.Abort, name)])
            return False
        self._prefilled.add(name)
        return self.holds(req, name)

    def computed(self, req: Request) -> None:
        """A prompt goes on to decoding, by a step that is done again with its first token.

        And a step of nobody, in which full pages are published, or given up for equal ones.
        """
        name = self.live[req]
        if name in self._prefilled:
            self._prefilled.remove(name)
            self._plan(name, accepted=())
        self._plan(None)

    def allocate_for_decode(self, req: Request) -> bool:
        name = self.live[req]
        self._advance([_reserve(name, 1)])
        return self._plan(name) and self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        name = self.lets_go(req)
        self._advance([_event(ForwardEvent.Finish, name)])
        _to_the_end(self._used, self._tables.pop(name))

    def cached_tokens(self, req: Request) -> int:
        """Whole pages, and of the page behind them as many tokens as were published."""
        return self._found[self.live[req]]

    def _plan(self, meant: str | None, accepted: Sequence[int] = (0,)) -> bool:
        """Take a plan in which all others are held, and its results; whether `meant` is in it.

        accepted: the tokens that `meant` gets in it; of none, its step is to be done again.
        """
        self._advance(_reserve(name, 0) for name in self.live.values() if name != meant)
        plan = self._engine.next_execution_plan()
        for page in plan.pages_to_zero.get(GROUP, ()):
            self.physical_kv_cache[page] = 0
        for source, to in plan.pages_to_copy.get(GROUP, ()):
            self.physical_kv_cache[to] = self.physical_kv_cache[source]
            _to_the_end(self._used, [source])
        rows: dict[str, list[int]] = {}
        for batch in plan.forward:
            rows |= zip(batch.request_ids, batch.block_tables.get(GROUP, ()), strict=True)
            self._found |= zip(batch.request_ids, batch.extend_prefix_lens, strict=False)
        self._tables |= {name: unpadded(row) for name, row in rows.items()}
        self._tables |= {abort.request_id: [] for abort in plan.aborts}
        for req in self.live:
            self.granted(req)
        self._advance(
            _event(ForwardEvent.ExtendResult, name, tokens=[*accepted] if name == meant else [])
            for name in rows
        )
        return meant in rows

    def _advance(self, events: Iterable[object]) -> None:
        execution = ExecutionEvent()
        for event in events:
            execution.add_event(event)
        self._engine.advance(execution)
        for told in self._engine.drain_kv_events():
            for key in told.block_hashes:
                self._kept.pop(key, None)
                if told.kind == "BlockStored":
                    self._kept[key] = None

    def snapshot(self) -> Snapshot:
        """What can be seen: tables as the last plans had them, and how many pages are available.

        Which pages are kept for reuse can't: any that was once held may be.
        """
        held = {page for req in self.live for page in self.table(req)}
        return Snapshot(
            **self.of_live(),
            free_blocks=None,
            blocks=range(1, self.num_blocks + 1),
            num_free=self._engine.available_lcm_blocks(),  # with one page to each, and kept ones
            reserved={0},
            cached=self._used.keys() - held,
        )

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """The order of free pages, and of eviction, is taken to follow from what is kept here."""
        engine = self._engine
        return (
            (engine.available_lcm_blocks(), engine.empty_lcm_blocks(), engine.active_lcm_blocks()),
            (engine.tail_entries(), tuple(self._kept), tuple(self._used)),
            self.live_key(names),
        )


def _to_the_end(order: dict[int, None], keys: Iterable[int]) -> None:
    for key in keys:
        order.pop(key, None)
        order[key] = None


def _event(kind: Any, request_id: str, **fields: object) -> Any:
    event = kind()
    event.request_id = request_id
    for name, value in fields.items():
        setattr(event, name, value)
    return event


def _reserve(name: str, tokens: int) -> object:
    fields = {"reserve_num_tokens_in_next_schedule_event": tokens}
    return _event(ForwardEvent.UpdateReserveNumTokens, name, **fields)
