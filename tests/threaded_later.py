"""Targets that start threads where no threading of Python's sees them, or not at import."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from pagedkv import KVCacheManager, Request


@cache
def pool() -> ThreadPoolExecutor:
    """One for all managers, from the first one on."""
    one = ThreadPoolExecutor(1)
    one.submit(int).result()
    return one


def threads() -> set[str]:
    """The names of all threads of this process."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


@cache
def native() -> set[str]:
    """A thread of C code, which waits for ever, started by the first call."""
    before, libc = threads(), ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
    return threads() - before


class MakesItsPool(KVCacheManager):
    """Starts its thread with the first manager."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        pool()

    def allocate_for_prefill(self, req: Request) -> None:
        pool().submit(super().allocate_for_prefill, req).result()


class Native(KVCacheManager):
    """Has a thread of C code, and says where that is not there any more."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        super().__init__(num_blocks, block_size, head_dim)
        native()

    def allocate_for_prefill(self, req: Request) -> None:
        if not native() <= threads():
            raise TypeError("its thread is gone")
        super().allocate_for_prefill(req)
