"""Targets whose calls need threads that were started before the first of them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from misbehaving import exit_c
from pagedkv import KVCacheManager, Request

POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()
LOOP = asyncio.new_event_loop()
threading.Thread(target=LOOP.run_forever, daemon=True).start()


class Pooled(KVCacheManager):
    def allocate_for_prefill(self, req: Request) -> None:
        POOL.submit(super().allocate_for_prefill, req).result()


class Dies(Pooled):
    def release_request(self, req: Request) -> None:
        exit_c(7)


class Looped(KVCacheManager):
    """As engines have it whose calls are coroutines."""

    def allocate_for_prefill(self, req: Request) -> None:
        asyncio.run_coroutine_threadsafe(self._prefill(req), LOOP).result()

    async def _prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
