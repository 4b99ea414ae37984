"""What SGLang's caches read and write of a request of its scheduler.

The scheduler's own classes come with the whole engine.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from pagedkv.protocol import Request


@dataclass(eq=False)
class Kv:
    """Of `ReqKvInfo`; no sliding window."""

    req_pool_idx: int | None = None
    cache_protected_len: int = 0
    cache_inserted_len: int = 0
    kv_committed_len: int = 0
    swa_evict_floor: int = 0
    holds_kv = property(lambda self: self.req_pool_idx is not None)

    def get_evicted_seqlen(self, _component: object) -> int:
        return 0

    def swa_dead_lo(self, _page_size: int) -> int:
        return self.cache_protected_len


@dataclass(eq=False)
class Req:
    """Of `Req`."""

    origin_input_ids: array[int]
    extra_key: str | None
    full_untruncated_fill_ids: array[int]
    kv: Kv = field(default_factory=Kv)
    prefix_len: int = 0
    lock: Any = None
    last_node: Any = None
    cache_salt: str | None = None
    priority: int | None = None

    @classmethod
    def of(cls, req: Request) -> Req:
        """The engine's request for a prompt; its extra keys are strings."""
        tokens = array("q", req.tokens)
        extra = None if req.extra_key is None else str(req.extra_key)
        return cls(tokens, extra, tokens)
