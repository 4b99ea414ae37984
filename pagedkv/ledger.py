"""What a paged cache costs in tokens and bytes: pure arithmetic, no state, no torch.

Paging wastes at most the tail of each request's last block. Contiguous reservation at a maximum
length wastes all that a request does not use of it. Source: Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention" (SOSP 2023), section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex, TypedDict

from pagedkv.protocol import as_int


class CacheEstimate(TypedDict):
    """What a pool takes: sizes in bytes, `layout_shape` in elements of one block."""

    kv_bytes_per_token: int
    kv_bytes_per_block: int
    total_cache_bytes: int
    layout_shape: list[int]


class WasteComparison(TypedDict):
    """The same requests, reserved contiguously and paged: tokens, bytes, and shares of 1."""

    logical_tokens: int
    contiguous_tokens: int
    contiguous_waste_tokens: int
    contiguous_waste_bytes: int
    contiguous_utilization: float
    paged_tokens: int
    paged_waste_tokens: int
    paged_waste_bytes: int
    paged_utilization: float
    saved_bytes: int


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of blocks that hold `tokens`, ceil(tokens / block_size); 0 for none."""
    return -(-tokens // block_size)


def estimate_kv_cache_bytes(
    num_blocks: SupportsIndex,
    block_size: SupportsIndex,
    num_layers: SupportsIndex,
    num_kv_heads: SupportsIndex,
    head_dim: SupportsIndex,
    dtype_bytes: SupportsIndex = 2,
) -> CacheEstimate:
    """Return the bytes that keys and values take per token, per block and in all.

    kv_bytes_per_token = 2 (K and V) x num_layers x num_kv_heads x head_dim x dtype_bytes.
    `layout_shape` of one block is [num_layers, 2, num_kv_heads, block_size, head_dim]. Changes
    nothing. Raises ValueError for a value below 1, TypeError for booleans and floats.
    """
    blocks = as_int("num_blocks", num_blocks, minimum=1)
    tokens = as_int("block_size", block_size, minimum=1)
    layers = as_int("num_layers", num_layers, minimum=1)
    heads = as_int("num_kv_heads", num_kv_heads, minimum=1)
    dim = as_int("head_dim", head_dim, minimum=1)
    per_token = 2 * layers * heads * dim * as_int("dtype_bytes", dtype_bytes, minimum=1)
    return {
        "kv_bytes_per_token": per_token,
        "kv_bytes_per_block": per_token * tokens,
        "total_cache_bytes": per_token * tokens * blocks,
        "layout_shape": [layers, 2, heads, tokens, dim],
    }


def allocation_report(
    seq_len: SupportsIndex, num_blocks_held: SupportsIndex, block_size: SupportsIndex
) -> dict[str, float]:
    """Return how full the blocks of one request are; a fresh dict, changes nothing.

    `logical_tokens` is `seq_len`, `allocated_tokens` the room of the blocks held,
    `unused_tail_tokens` what is left in the last one, `utilization` logical / allocated.
    A request that holds nothing (not yet prefilled, or released: `seq_len` is kept then) has its
    logical tokens, but 0 allocated, 0 unused and utilization 0.0: there is no tail to waste.
    Raises ValueError where the blocks held are too few for `seq_len`, and for negative values;
    TypeError for booleans and floats.
    """
    logical = as_int("seq_len", seq_len, minimum=0)
    held = as_int("num_blocks_held", num_blocks_held, minimum=0)
    size = as_int("block_size", block_size, minimum=1)
    allocated = held * size
    if held and allocated < logical:
        raise ValueError(
            f"seq_len = {logical} does not fit into {held} block(s) of {size} tokens; "
            f"it needs {blocks_for(logical, size)}"
        )
    return {
        "logical_tokens": logical,
        "allocated_tokens": allocated,
        "unused_tail_tokens": allocated - logical if held else 0,
        "utilization": logical / allocated if held else 0.0,
    }


def contiguous_waste(
    seq_lens: Iterable[SupportsIndex],
    max_len: SupportsIndex,
    block_size: SupportsIndex,
    bytes_per_token: SupportsIndex,
) -> WasteComparison:
    """Return what contiguous reservation at `max_len` wastes, beside paging, for these requests.

    Contiguous: each request reserves `max_len` tokens. Paged: each holds ceil(seq_len /
    block_size) blocks. `saved_bytes` is the contiguous waste less the paged one; it is negative
    where `max_len` is shorter than the blocks of a full request. `bytes_per_token` is
    `estimate_kv_cache_bytes(...)["kv_bytes_per_token"]`. Fragmentation between reservations
    (external) is not counted: it depends on the allocator. No requests: all zero, utilization
    0.0. Changes nothing. Raises ValueError for a value below 1 or a length above `max_len`,
    TypeError for booleans and floats. Source: SOSP 2023, section 3.1, as above.
    """
    longest = as_int("max_len", max_len, minimum=1)
    size = as_int("block_size", block_size, minimum=1)
    token_bytes = as_int("bytes_per_token", bytes_per_token, minimum=1)
    lengths = [as_int("each of seq_lens", length, minimum=1) for length in seq_lens]
    for length in lengths:
        if length > longest:
            raise ValueError(
                f"a request of {length} tokens does not fit a reservation of "
                f"max_len = {longest}; raise max_len or leave the request out"
            )
    logical = sum(lengths)
    contiguous = longest * len(lengths)
    paged = size * sum(blocks_for(length, size) for length in lengths)
    return {
        "logical_tokens": logical,
        "contiguous_tokens": contiguous,
        "contiguous_waste_tokens": contiguous - logical,
        "contiguous_waste_bytes": (contiguous - logical) * token_bytes,
        "contiguous_utilization": logical / contiguous if lengths else 0.0,
        "paged_tokens": paged,
        "paged_waste_tokens": paged - logical,
        "paged_waste_bytes": (paged - logical) * token_bytes,
        "paged_utilization": logical / paged if lengths else 0.0,
        "saved_bytes": (contiguous - paged) * token_bytes,
    }
