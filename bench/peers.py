"""Every manager that can be measured, behind three calls: admit, decode all, release.

An engine is imported only where it is asked for; one that is not installed is a line that says so.
Only the calls that a scheduler makes are timed: a request is made, and its tokens are appended,
outside of the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bench.engines import SIZE, Lmdeploy, Max, NanoVllm, Sglang, Transformers, Vllm, VllmPool
from pagedkv import ArrayKVCacheManager, KVCacheManager, Request


class Peer(Protocol):
    """One manager. `make` and `extend` are the caller's work, and are not timed.

    `admit` returns False where there are too few blocks, if it does not raise.
    """

    def make(self, name: int, tokens: int) -> Any: ...
    def admit(self, made: Any) -> object: ...
    def release(self, made: Any) -> object: ...
    def extend(self, running: Sequence[Any]) -> None: ...
    def decode(self, running: Sequence[Any]) -> bool: ...


class Ours:
    """One of this package's managers, one request at a time."""

    def __init__(self, kind: Callable[[int, int, int], Any], blocks: int) -> None:
        self.manager = kind(blocks, SIZE, 1)
        # Each is one call of the manager's, and there is nothing around it to be timed.
        self.admit, self.release = self.manager.allocate_for_prefill, self.manager.release_request

    def make(self, name: int, tokens: int) -> Request:
        request = Request(name, 1)
        request.seq_len = tokens
        return request

    def extend(self, running: Sequence[Request]) -> None:
        pass

    def decode(self, running: Sequence[Request]) -> bool:
        decode = self.manager.allocate_for_decode
        for request in running:
            decode(request)
        return True


MADE: dict[str, tuple[Callable[[int], Peer], str]] = {
    "array": (lambda blocks: Ours(ArrayKVCacheManager, blocks), ""),
    "reference": (lambda blocks: Ours(KVCacheManager, blocks), "copies its free list"),
    "vLLM": (lambda blocks: Vllm(blocks, caching=False), "caching off"),
    "vLLM, caching": (lambda blocks: Vllm(blocks, caching=True), "hashes and looks up blocks"),
    "vLLM's pool": (VllmPool, "blocks only: no requests, no tables"),
    "LMDeploy": (Lmdeploy, "two levels of blocks"),
    "nano-vllm": (NanoVllm, "hashes blocks"),
    "SGLang": (Sglang, "tensors, decodes a batch at a time"),
    "transformers": (Transformers, "groups, sectors, counts"),
    "MAX": (lambda blocks: Max(blocks, caching=False), "caching off; counts, a set and a queue"),
    "MAX, caching": (lambda blocks: Max(blocks, caching=True), "hashes and looks up blocks"),
}


def available(*names: str, blocks: int = 64) -> tuple[list[str], list[str]]:
    """Those of `names` that can be made here, and a line on each that can't."""
    there, missing = [], []
    for name in names:
        try:
            MADE[name][0](blocks)
        except ImportError as error:
            missing.append(f"{name}: {error}")
        else:
            there.append(name)
    return there, missing
