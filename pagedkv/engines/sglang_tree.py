"""What SGLang's `RadixCache` keeps, read live: nothing is looked up, so that nothing is touched."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from pagedkv.adapter import plain

Path = tuple[int, ...]


def nodes(tree: Any) -> Iterator[tuple[Any, Path]]:
    """Each node but the root, with all tokens from the root to its end."""
    above: list[tuple[Any, Path]] = [(tree.root_node, ())]
    while above:
        node, path = above.pop()
        below = [(child, (*path, *child.key)) for child in node.children.values()]
        yield from below
        above += below


def tree_key(tree: Any) -> Hashable:
    """All that later answers of the tree depend on; of times only the order, as for an LRU."""
    every = list(nodes(tree))
    times = sorted({node.last_access_time for node, _ in every})
    shown = [
        (
            *(node.key.extra_key or "", path, node.value, node.lock_ref),
            times.index(node.last_access_time),
            node in tree.evictable_leaves,
        )
        for node, path in every
    ]
    shown.sort(key=lambda node: node[:2])
    return plain(shown, tree.evictable_size_, tree.protected_size_)
