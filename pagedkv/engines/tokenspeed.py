"""TokenSpeed's scheduler, which moves all requests at once, by plans; its prefix cache is on.

Only decoding requests can be held back from a plan, so that a prompt goes on to decoding once it
is computed: from then on it has a page for the token that comes next.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from pagedkv.adapter import Adapter, told_apart, unpadded
from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
from pagedkv.engines.tokenspeed_plans import (
    abort,
    finish,
    let_grow,
    next_plan,
    scheduler,
    submit,
)
from pagedkv.protocol import Request, Snapshot

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
        self._engine = scheduler(pages, self.block_size)
        self.physical_kv_cache = np.zeros((pages, self.block_size, self.head_dim), np.float32)
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
        name = str(self._submitted)
        submit(self._engine, name, told_apart(req))
        if not self._plan(name):
            abort(self._engine, name)
            self._listen()
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
        let_grow(self._engine, self.live[req])
        return self._plan(self.live[req]) and self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        name = self.lets_go(req)
        finish(self._engine, name)
        self._last(*self._tables.pop(name))
        self._listen()

    def cached_tokens(self, req: Request) -> int:
        """Whole pages, and of the page behind them as many tokens as were published."""
        return self._found[self.live[req]]

    def _plan(self, meant: str | None, accepted: Sequence[int] = (0,)) -> bool:
        """Take a plan for one request, and do what it says; whether the request is in it."""
        held = [name for name in self.live.values() if name != meant]
        plan = next_plan(self._engine, held, meant, accepted)
        for page in plan.zeroed:
            self.physical_kv_cache[page] = 0
        for source, to in plan.copied:
            self.physical_kv_cache[to] = self.physical_kv_cache[source]
            self._last(source)
        self._found |= plan.found
        self._tables |= {name: unpadded(row) for name, row in plan.rows.items()}
        self._tables |= {name: [] for name in plan.lost}
        for req in self.live:
            self.granted(req)
        self._listen()
        return meant in plan.rows

    def _listen(self) -> None:
        for told in self._engine.drain_kv_events():
            for key in told.block_hashes:
                self._kept.pop(key, None)
                if told.kind == "BlockStored":
                    self._kept[key] = None

    def _last(self, *pages: int) -> None:
        for page in pages:
            self._used.pop(page, None)
            self._used[page] = None

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
