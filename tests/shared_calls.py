"""Calls on the reference with abilities, and what is seen of it."""

from __future__ import annotations

import torch

from pagedkv import (
    Request,
)
from pagedkv.abilities import ABILITY_NAMES
from pagedkv.shared_reference import SharedKVCacheManager

ALL = frozenset(ABILITY_NAMES) - {"window"}


def kind(*abilities, **options):
    return SharedKVCacheManager.configured(*abilities, **options)


def admit(manager, name, *tokens, extra_key=None):
    """Prefill a request with these tokens and tell that they are computed."""
    request = Request(name, len(tokens), tokens, extra_key=extra_key)
    manager.allocate_for_prefill(request)
    manager.computed(request)
    return request


def decode(manager, request, *tokens):
    """Decode these tokens one by one, each computed."""
    for token in tokens:
        request.tokens.append(token)
        manager.allocate_for_decode(request)
        manager.computed(request)


def fork(manager, request, name):
    child = Request(name, request.seq_len, request.tokens, extra_key=request.extra_key)
    manager.fork_request(request, child)
    manager.computed(child)
    return child


def truncate(manager, request, length):
    manager.truncate_request(request, length)
    del request.tokens[length:]
    manager.computed(request)


def append(manager, request, *tokens):
    request.tokens.extend(tokens)
    manager.allocate_for_append(request, len(tokens))
    manager.computed(request)


def where(manager):
    """The free, in hand-out order, the cached, in the order of eviction, and the counts."""
    seen = manager.snapshot()
    assert {*manager._blocks.cached} == seen.cached
    return list(seen.free_blocks), manager._blocks.cached, seen.ref_counts


def found(manager):
    return dict(manager.snapshot().index)


def number(manager):
    """Write its own number into every slot of the pool: block * block_size + offset."""
    slots = torch.arange(manager.num_blocks * manager.block_size, dtype=torch.float32)
    manager.physical_kv_cache[:] = slots.reshape(manager.num_blocks, manager.block_size, 1)


def read(manager, request):
    return manager.get_physical_cache(request)[:, 0].int().tolist()
