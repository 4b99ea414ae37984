"""The engines that are measured beside this package, as their schedulers call them.

Each has the calls of `bench.peers.Peer`; what a scheduler does anyway is in `make` and `extend`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

SIZE = 16
"""Tokens of a block, everywhere."""


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

    def decode(self, running: Sequence[Any]) -> bool:
        raise NotImplementedError("a pool knows no lengths")


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


class Sglang:
    """SGLang's paged allocator with the rows of slots that `ReqToTokenPool` keeps beside it."""

    def __init__(self, blocks: int) -> None:
        import torch
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

        self.torch = torch
        self.allocator = PagedTokenToKVPoolAllocator(
            blocks * SIZE, SIZE, torch.float16, "cpu", None, need_sort=False
        )

    def make(self, name: int, tokens: int) -> Any:
        return SimpleNamespace(length=tokens, filled=0, row=self.torch.empty(tokens + 4096).long())

    def admit(self, made: Any) -> bool:
        tensor, length = self.torch.tensor, made.length
        before, after = tensor([0]), tensor([length])
        slots = self.allocator.alloc_extend(before, before, after, after, tensor([-1]), length)
        if slots is None:
            return False
        made.row[:length] = slots
        made.filled = length
        return True

    def release(self, made: Any) -> None:
        self.allocator.free_segments([(made.row[: made.filled], 0)])
        made.filled = 0

    def extend(self, running: Sequence[Any]) -> None:
        for one in running:
            one.filled += 1

    def decode(self, running: Sequence[Any]) -> bool:
        last = self.torch.stack([one.row[one.filled - 2] for one in running])
        lengths = self.torch.tensor([one.filled for one in running])
        slots = self.allocator.alloc_decode(lengths, lengths, last)
        if slots is None:
            return False
        for one, slot in zip(running, slots, strict=True):
            one.row[one.filled - 1] = slot
        return True


class Transformers:
    """transformers' PagedAttentionCache without block sharing, one layer of full attention."""

    def __init__(self, blocks: int) -> None:
        import torch
        from transformers import LlamaConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.requests import RequestState

        config = LlamaConfig(
            num_hidden_layers=1, num_attention_heads=1, hidden_size=16, head_dim=16, vocab_size=4
        )
        batching = ContinuousBatchingConfig(
            page_size=SIZE,
            num_blocks=blocks,
            max_batch_tokens=64,
            max_memory_percent=0.5,
            allow_block_sharing=False,
        )
        alone = SimpleNamespace(tp_size=1, are_kv_heads_tp_ed=lambda: False)
        self.cache = PagedAttentionCache(config, batching, "cpu", alone, dtype=torch.float32)
        self.state = RequestState

    def make(self, name: int, tokens: int) -> Any:
        return self.state(request_id=str(name), initial_tokens=[name, *range(1, tokens)])

    def admit(self, made: Any) -> bool:
        tokens = len(made.initial_tokens)
        if not self.cache.can_store_request_tokens(made, tokens):
            return False
        self._stored(made, tokens)
        return True

    def _stored(self, made: Any, tokens: int) -> None:
        complete = self.cache.count_new_complete_blocks(made, tokens)
        made.position_offset += tokens
        self.cache.mark_complete_blocks(made, complete)

    def release(self, made: Any) -> None:
        self.cache.free_blocks(made.request_id)
        made.position_offset = 0

    def extend(self, running: Sequence[Any]) -> None:
        for state in running:
            state.generated_tokens.append(1)

    def decode(self, running: Sequence[Any]) -> bool:
        fits = True
        for state in running:
            if self.cache.can_store_request_tokens(state, 1):
                self._stored(state, 1)
            else:
                fits = False
        return fits


class Max:
    """MAX's BlockManager of one replica."""

    def __init__(self, blocks: int, caching: bool) -> None:
        import numpy as np
        from max.pipelines.context import TextContext, TokenBuffer
        from max.pipelines.kv_cache.paged_kv_cache.block_manager import BlockManager
        from max.pipelines.modeling.types import RequestID

        def context(tokens: list[int]) -> Any:
            buffer = TokenBuffer(np.array(tokens, dtype=np.int64))
            return TextContext(max_length=1 << 20, tokens=buffer, cache_salt=RequestID().value)

        self.manager, self.context = BlockManager(blocks, SIZE, caching), context

    def make(self, name: int, tokens: int) -> Any:
        return self.context([name, *range(1, tokens)])

    def admit(self, made: Any) -> bool:
        self.manager.claim(made)
        self.manager.reuse_blocks_from_prefix_cache(made)
        self.manager.allocate_new_blocks(made)
        return True

    def release(self, made: Any) -> None:
        self.manager.release(made)

    def extend(self, running: Sequence[Any]) -> None:
        for context in running:
            context.update(1)

    def decode(self, running: Sequence[Any]) -> bool:
        step, allocate = self.manager.step, self.manager.allocate_new_blocks
        for context in running:
            step(context)
            allocate(context)
        return True
