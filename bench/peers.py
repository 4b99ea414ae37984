"""Every manager that can be measured, behind three calls: admit, decode all, release.

An engine is imported only where it is asked for; one that is not installed is a line that says so.
Only the calls that a scheduler makes are timed: a request is made, and its tokens are appended,
outside of the clock.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from pagedkv import ArrayKVCacheManager, KVCacheManager, Request

SIZE = 16
"""Tokens of a block, everywhere."""


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


class Vllm:
    """vLLM's KVCacheManager, as its scheduler calls it."""

    def __init__(self, blocks: int, caching: bool) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import torch
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager as Manager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request as Theirs

        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        config = KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)
        self.manager = Manager(config, 2**20, SIZE, SIZE, enable_caching=caching)
        self.hasher = get_request_block_hasher(SIZE, sha256) if caching else None
        self.request, self.params = Theirs, SamplingParams(max_tokens=64)

    def make(self, name: int, tokens: int) -> Any:
        return self.request(
            request_id=str(name),
            prompt_token_ids=[name, *range(1, tokens)],
            sampling_params=self.params,
            pooling_params=None,
            block_hasher=self.hasher,
        )

    def admit(self, made: Any) -> bool:
        hit, cached, *_ = self.manager.get_computed_blocks(made)
        new = self.manager.allocate_slots(made, made.num_tokens - cached, cached, hit)
        return new is not None

    def release(self, made: Any) -> None:
        self.manager.free(made)
        made.num_computed_tokens = 0

    def extend(self, running: Sequence[Any]) -> None:
        for request in running:
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids(1)

    def decode(self, running: Sequence[Any]) -> bool:
        allocate, fits = self.manager.allocate_slots, True
        for request in running:
            if allocate(request, 1) is None:
                fits = False
        return fits


class VllmPool:
    """vLLM's BlockPool alone: blocks without requests, tables or lengths."""

    def __init__(self, blocks: int) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm.v1.core.block_pool import BlockPool

        self.pool = BlockPool(blocks + 1, enable_caching=False, hash_block_size=SIZE)

    def make(self, name: int, tokens: int) -> Any:
        return SimpleNamespace(count=-(-tokens // SIZE), blocks=[])

    def admit(self, made: Any) -> bool:
        made.blocks = self.pool.get_new_blocks(made.count)
        return True

    def release(self, made: Any) -> None:
        self.pool.free_blocks(made.blocks)

    def extend(self, running: Sequence[Any]) -> None:
        raise NotImplementedError("a pool knows no lengths")

    decode = extend


class Lmdeploy:
    """LMDeploy's DefaultBlockManager."""

    def __init__(self, blocks: int) -> None:
        from lmdeploy.pytorch.messages import LogicalTokenBlocks
        from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager

        self.manager, self.table = DefaultBlockManager(blocks, 0), LogicalTokenBlocks

    def make(self, name: int, tokens: int) -> Any:
        return SimpleNamespace(
            num_all_ids=tokens,
            num_history_ids=0,
            num_ignored_history=0,
            kv_token_limit=None,
            block_size=SIZE,
            logical_blocks=self.table(),
        )

    def admit(self, made: Any) -> bool:
        if not self.manager.can_allocate(made, 0):
            return False
        self.manager.allocate(made, 0)
        return True

    def release(self, made: Any) -> None:
        self.manager.free(made)

    def extend(self, running: Sequence[Any]) -> None:
        for sequence in running:
            sequence.num_all_ids += 1

    def decode(self, running: Sequence[Any]) -> bool:
        manager = self.manager
        for sequence in running:
            if manager.can_allocate(sequence, 0):
                manager.allocate(sequence, 0)
        return True


class NanoVllm:
    """nano-vllm's BlockManager; it hashes each full block."""

    def __init__(self, blocks: int) -> None:
        if "nanovllm" not in sys.modules:  # Its own __init__ imports the model runner.
            found = importlib.util.find_spec("nanovllm")
            if found is None:
                raise ModuleNotFoundError("No module named 'nanovllm'")
            bare = types.ModuleType("nanovllm")
            bare.__path__ = list(found.submodule_search_locations or ())
            sys.modules["nanovllm"] = bare
        from nanovllm.engine.block_manager import BlockManager
        from nanovllm.engine.sequence import Sequence as Theirs

        Theirs.block_size = SIZE
        self.manager, self.sequence = BlockManager(blocks, SIZE), Theirs

    def make(self, name: int, tokens: int) -> Any:
        return self.sequence([name, *range(1, tokens)])

    def admit(self, made: Any) -> bool:
        if not self.manager.can_allocate(made):
            return False
        self.manager.allocate(made)
        return True

    def release(self, made: Any) -> None:
        self.manager.deallocate(made)

    def extend(self, running: Sequence[Any]) -> None:
        for sequence in running:
            sequence.append_token(1)

    def decode(self, running: Sequence[Any]) -> bool:
        manager = self.manager
        for sequence in running:
            if manager.can_append(sequence):
                manager.may_append(sequence)
        return True


MADE: dict[str, tuple[Callable[[int], Peer], str]] = {
    "array": (lambda blocks: Ours(ArrayKVCacheManager, blocks), ""),
    "reference": (lambda blocks: Ours(KVCacheManager, blocks), "copies its free list"),
    "vLLM": (lambda blocks: Vllm(blocks, caching=False), "caching off"),
    "vLLM, caching": (lambda blocks: Vllm(blocks, caching=True), "hashes and looks up blocks"),
    "vLLM's pool": (VllmPool, "blocks only: no requests, no tables"),
    "LMDeploy": (Lmdeploy, "two levels of blocks"),
    "nano-vllm": (NanoVllm, "hashes blocks"),
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
