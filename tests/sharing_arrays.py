"""Making array-backed managers that share blocks, and what always holds of one."""

from __future__ import annotations

from collections import Counter

import numpy as np

from pagedkv.configurable import NULL_BLOCK
from pagedkv.protocol import Request
from pagedkv.shared_arrays import SharedArrayKVCacheManager


def equations(manager: SharedArrayKVCacheManager) -> None:
    """Those at the head of pagedkv/shared_pool.py, as code."""
    tables = {name: held.blocks.tolist() for name, held in manager._live.items()}
    held = [block for t in tables.values() for block in t if block != NULL_BLOCK]
    free = manager._free[: manager._num_free].tolist()
    cached = np.flatnonzero(manager._place >= 0).tolist()
    withheld = [] if manager._withheld is None else manager._withheld.tolist()
    assert all(len({*t}) == len(t) for t in tables.values() if NULL_BLOCK not in t)
    assert Counter(held) == Counter({b: n for b, n in enumerate(manager._refs.tolist()) if n})
    assert sorted([*free, *cached, *withheld, *{*held}]) == [*range(manager.num_blocks)]
    assert len(cached) == manager._num_cached
    for block in cached:
        assert manager._queue[manager._place[block]] == block
        assert manager._head <= manager._place[block] < manager._tail
        assert manager._published[block]
    assert manager._published.tolist() == [key is not None for key in manager._keys]
    assert not manager._published[free].any()
    published = {*np.flatnonzero(manager._published).tolist()} - {*withheld}
    assert manager._index == {manager._keys[block]: block for block in published}
    out = [block for held in manager._swapped.values() for block in held.blocks.tolist()]
    host_free = manager._host_free[: manager._num_host_free].tolist()
    assert sorted(host_free + out) == [*range(manager.num_host_blocks)]
    for name, held_ in manager._live.items():
        assert (held_.handle.request_id, held_.handle.block_table) == (name, tables[name])
        assert -(-held_.handle.seq_len // manager.block_size) == len(tables[name])
    assert not manager._live.keys() & manager._swapped.keys()


def new(name, tokens, **how):
    """A handle with these tokens, given as a text of digits."""
    return Request(name, len(tokens), [int(token) for token in tokens], **how)


def admitted(manager, *texts, first=0):
    """Requests with these tokens, prefilled and computed."""
    requests = [new(first + i, text) for i, text in enumerate(texts)]
    for request in requests:
        manager.allocate_for_prefill(request)
        manager.computed(request)
    return requests


def grow(manager, request, text):
    """Append these tokens, computed."""
    request.tokens += [int(token) for token in text]
    if len(text) == 1:
        manager.allocate_for_decode(request)
    else:
        manager.allocate_for_append(request, len(text))
    manager.computed(request)


def forked(manager, parent, name):
    child = Request(name, parent.seq_len, parent.tokens, extra_key=parent.extra_key)
    manager.fork_request(parent, child)
    return child


def refs(manager):
    return dict(manager.snapshot().ref_counts)


def made(*abilities, geometry=(6, 2), **how):
    num_blocks, block_size = geometry
    return SharedArrayKVCacheManager.configured(*abilities, **how)(num_blocks, block_size, 1)


def rows(manager):
    return manager.physical_kv_cache[:, :, 0].tolist()
