"""LMDeploy's `Scheduler` with its `BlockTrie`: prefix caching over the `DefaultBlockManager`.

A request is a session of one sequence, alone in the queue: admitted by `schedule`, extended by
`schedule_running` while its next token is still being sampled, as LMDeploy's engine loop prefetches
it, and ended by `end_session`. A sequence that is refused its next block waits with what it holds;
here it is put back among the running ones as it was.

The trie goes by the time of the last access and keeps whole seconds. Here each look at the clock is
a second later than the one before, since of leaves of the same second it evicts any.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import SchedulerSequence, SequenceMeta, UpdateTokenMode
from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager, base_block_manager
from lmdeploy.pytorch.paging.block_trie.node import Node
from lmdeploy.pytorch.paging.scheduler import Scheduler

from pagedkv.adapter import plain
from pagedkv.engines.lmdeploy import DECLARES, LmdeployManager
from pagedkv.engines.standing_in import left_out
from pagedkv.protocol import Request, Snapshot

with left_out("lmdeploy.pytorch.engine.model_agent"):  # runs the model
    from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

MOST_REQUESTS = 64
base_block_manager.time = SimpleNamespace(perf_counter=count().__next__)


class LmdeployTrie(LmdeployManager):
    """`Scheduler` with prefix caching, by its physical blocks; sizes > 0, else ValueError.

    A handle's extra key is the sequence's adapter.
    """

    declares = replace(
        DECLARES,
        abilities=frozenset({"prefix"}),
        publishes_at_once=True,
        evicts_cached=True,
        because={
            "out_of_blocks": "Scheduler.schedule leaves out, and schedule_running calls invalid, "
            "what RecomputeEvictionHelper.try_make_capacity_for gives False for",
            "wrong_use": "Scheduler promises nothing about it",
            "engine": "a step is some hundreds of microseconds",
            "publishes_at_once": "_PrefillAdmissionAttempt._allocate_and_commit and "
            "schedule_running call BlockTrie.allocate",
            "evicts_cached": "RecomputeEvictionHelper._try_make_block_capacity evicts, then "
            "compares",
        },
    )

    live: dict[Request, Any]  # the engine's own

    def _made(self) -> DefaultBlockManager:
        self._scheduler = Scheduler(
            SchedulerConfig(max_batches=MOST_REQUESTS, max_session_len=1 << 20),
            CacheConfig(
                max_batches=MOST_REQUESTS,
                block_size=self.block_size,
                num_cpu_blocks=0,
                num_gpu_blocks=self.num_blocks + self._reserved,
                num_reserved_gpu_blocks=self._reserved,
                enable_prefix_caching=True,
            ),
            SequenceMeta(self.block_size, strategy=ARSequenceStrategy()),
        )
        return self._scheduler.block_manager

    def allocate_for_prefill(self, req: Request) -> bool:
        adapter = None if req.extra_key is None else str(req.extra_key)
        session = self._scheduler.add_session(req.request_id)
        sequence = session.add_sequence(np.array(req.tokens), adapter_name=adapter)
        if not self._admitted(sequence):
            self._scheduler.end_session(req.request_id)
            return False
        return self.holds(req, sequence)

    def _admitted(self, sequence: SchedulerSequence) -> bool:
        running = self._scheduler.schedule(is_prefill=True).running
        self._scheduler.activate_seqs(running)
        return sequence in running

    def allocate_for_decode(self, req: Request) -> bool:
        sequence = self.live[req]
        if self._scheduler.schedule_running([sequence]) != [True]:
            for _ in ("ready", "running"):
                sequence.state.activate()
            return False
        sequence.update_token_ids(np.array(req.tokens[-1:]), mode=UpdateTokenMode.DECODE)
        return self.granted(req, 1)

    def release_request(self, req: Request) -> None:
        self.lets_go(req)
        self._scheduler.end_session(req.request_id)

    def cached_tokens(self, req: Request) -> int:
        return int(self.live[req].cached_tokens)

    def _nodes(self) -> Iterator[tuple[Node, tuple[Hashable, ...]]]:
        """Each node but the roots, with its adapter and all tokens up to its end."""
        roots = self._scheduler.block_trie._roots
        above: list[tuple[Node, tuple[Hashable, ...]]] = [(n, (it,)) for it, n in roots.items()]
        while above:
            node, path = above.pop()
            below = [(n, (*path, *n.token_ids.tolist())) for n in node.children.values()]
            yield from below
            above += below

    def snapshot(self) -> Snapshot:
        """All that the engine keeps, live; the trie's own reference to each block is left out."""
        memory, seen = self._engine.allocator._log_mem, super().snapshot()
        references, cached = dict(seen.ref_counts or {}), set[int]()
        index = dict[Hashable, int]()
        for node, path in self._nodes():
            block = index[path] = int(memory.phy_map[node.block_id])
            references[block] -= 1
            cached.update([] if references[block] else [block])
        return replace(seen, ref_counts=references, cached=frozenset(cached), index=index)

    def state_key(self, names: Mapping[int, int]) -> Hashable:
        """Everything later answers depend on, requests called by `names`.

        Of times only the order counts, and of blocks that nobody holds: a release sets them anew.
        """
        memory, trie = self._engine.allocator._log_mem, self._scheduler.block_trie
        nodes = [(node, path, memory.ref_count[node.block_id] == 1) for node, path in self._nodes()]
        times = sorted({memory.access_time[node.block_id] for node, _, alone in nodes if alone})
        shown = [
            (
                str(path),
                int(node.block_id),
                int(memory.phy_map[node.block_id]),
                times.index(memory.access_time[node.block_id]) if alone else -1,
                node in trie.leaves,
            )
            for node, path, alone in nodes
        ]
        cursors = [
            (names[r.request_id], str(s.adapter_name), node and node.prefix_len)
            for r, s in self.live.items()
            for node in (s.prefix_cache.trie_cursor,)
        ]
        return plain(super().state_key(names), sorted(shown), len(trie.leaves), sorted(cursors))
