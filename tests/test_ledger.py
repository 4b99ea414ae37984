"""The arithmetic of a paged cache: bytes, utilization, and waste beside contiguous reservation."""

from __future__ import annotations

import numpy as np
import pytest

from pagedkv import allocation_report, contiguous_waste, estimate_kv_cache_bytes
from pagedkv.ledger import blocks_for


@pytest.mark.parametrize(
    ("tokens", "block_size", "blocks"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (3, 1, 3)]
)
def test_blocks_for_is_the_ceiling_of_tokens_over_block_size(tokens, block_size, blocks):
    assert blocks == blocks_for(tokens, block_size)


def test_estimate_gives_bytes_per_token_per_block_and_in_all():
    estimate = estimate_kv_cache_bytes(
        num_blocks=4, block_size=4, num_layers=2, num_kv_heads=8, head_dim=16, dtype_bytes=2
    )
    assert estimate == {
        "kv_bytes_per_token": 1024,
        "kv_bytes_per_block": 4096,
        "total_cache_bytes": 16384,
        "layout_shape": [2, 2, 8, 4, 16],
    }


def test_estimate_assumes_two_bytes_an_element():
    assert estimate_kv_cache_bytes(3, 4, 2, 8, 16, 2) == estimate_kv_cache_bytes(3, 4, 2, 8, 16)
    assert estimate_kv_cache_bytes(1, 1, 1, 1, 1, 4)["kv_bytes_per_token"] == 2 * 1 * 1 * 1 * 4


def test_estimate_does_not_overflow_with_numpy_integers():
    big = np.int32(2**16)
    estimate = estimate_kv_cache_bytes(big, big, big, big, big, np.int8(2))
    assert estimate["total_cache_bytes"] == 2 * 2**80 * 2
    assert all(type(size) is int for size in estimate["layout_shape"])


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (True, TypeError), (2.0, TypeError), ("2", TypeError)],
)
def test_estimate_refuses_what_is_no_positive_integer(place, value, error):
    arguments = [2] * 6
    arguments[place] = value
    with pytest.raises(error, match=r"(must be >= 1|must be an integer), got"):
        estimate_kv_cache_bytes(*arguments)


def test_report_of_five_tokens_in_two_blocks_of_four():
    assert allocation_report(5, 2, 4) == {
        "logical_tokens": 5,
        "allocated_tokens": 8,
        "unused_tail_tokens": 3,
        "utilization": 0.625,
    }


def test_report_of_full_blocks_has_no_tail():
    report = allocation_report(8, 2, 4)
    assert (report["unused_tail_tokens"], report["utilization"]) == (0, 1.0)


def test_report_of_a_request_that_holds_nothing_wastes_nothing():
    assert allocation_report(5, 0, 4) == {
        "logical_tokens": 5,
        "allocated_tokens": 0,
        "unused_tail_tokens": 0,
        "utilization": 0.0,
    }


def test_report_counts_lookahead_blocks_as_unused():
    assert (
        allocation_report(1, 2, 4)["unused_tail_tokens"],
        allocation_report(1, 2, 4)["utilization"],
    ) == (7, 0.125)


def test_report_refuses_blocks_that_are_too_few():
    with pytest.raises(ValueError, match=r"seq_len = 9 does not fit into 2 block\(s\) .* needs 3"):
        allocation_report(9, 2, 4)


@pytest.mark.parametrize("arguments", [(-1, 1, 4), (1, -1, 4), (1, 1, 0)])
def test_report_refuses_negative_values(arguments):
    with pytest.raises(ValueError, match="must be >="):
        allocation_report(*arguments)


@pytest.mark.parametrize("arguments", [(True, 1, 4), (1, 1.0, 4), (1, 1, None)])
def test_report_refuses_what_is_no_integer(arguments):
    with pytest.raises(TypeError, match="must be an integer"):
        allocation_report(*arguments)


def test_contiguous_waste_is_what_the_maximum_length_leaves_unused():
    assert contiguous_waste([5, 1], max_len=10, block_size=4, bytes_per_token=1024) == {
        "logical_tokens": 6,
        "contiguous_tokens": 20,
        "contiguous_waste_tokens": 14,
        "contiguous_waste_bytes": 14336,
        "contiguous_utilization": 0.3,
        "paged_tokens": 12,
        "paged_waste_tokens": 6,
        "paged_waste_bytes": 6144,
        "paged_utilization": 0.5,
        "saved_bytes": 8192,
    }


def test_paging_wastes_less_than_a_block_for_each_request():
    lengths = range(1, 33)
    for block_size in range(1, 9):
        waste = contiguous_waste(lengths, 32, block_size, 1)["paged_waste_tokens"]
        assert waste == sum(-length % block_size for length in lengths)
        assert waste <= len(lengths) * (block_size - 1)


def test_requests_of_the_maximum_length_save_nothing():
    assert contiguous_waste([8, 8], 8, 4, 2)["saved_bytes"] == 0


def test_a_maximum_length_below_a_full_block_saves_less_than_nothing():
    assert contiguous_waste([5], 5, 8, 2)["saved_bytes"] == -3 * 2


def test_no_requests_waste_nothing():
    assert {0} == set(contiguous_waste([], 8, 4, 2).values())


def test_contiguous_waste_takes_any_iterable_once():
    assert contiguous_waste([5, 1], 10, 4, 8) == contiguous_waste(iter([5, 1]), 10, 4, 8)


def test_contiguous_waste_refuses_a_request_above_the_maximum_length():
    with pytest.raises(ValueError, match=r"11 tokens does not fit .* max_len = 10"):
        contiguous_waste([1, 11], 10, 4, 2)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([0], 8, 4, 2), ValueError),
        (([1], 0, 4, 2), ValueError),
        (([1], 8, 0, 2), ValueError),
        (([1], 8, 4, 0), ValueError),
        (([1.0], 8, 4, 2), TypeError),
        (([1], True, 4, 2), TypeError),
    ],
)
def test_contiguous_waste_refuses_what_is_no_positive_integer(arguments, error):
    with pytest.raises(error):
        contiguous_waste(*arguments)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (0, "num_blocks"),
        (1, "block_size"),
        (2, "num_layers"),
        (3, "num_kv_heads"),
        (4, "head_dim"),
        (5, "dtype_bytes"),
    ],
)
def test_estimate_names_what_it_refuses(place, name):
    arguments = [2] * 6
    arguments[place] = 0
    with pytest.raises(ValueError, match=f"^{name} must be >= 1, got 0$"):
        estimate_kv_cache_bytes(*arguments)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (([0], 8, 4, 2), "each of seq_lens"),
        (([1], 0, 4, 2), "max_len"),
        (([1], 8, 0, 2), "block_size"),
        (([1], 8, 4, 0), "bytes_per_token"),
    ],
)
def test_contiguous_waste_names_what_it_refuses(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must be >= 1, got 0$"):
        contiguous_waste(*arguments)


def test_a_reservation_of_one_token_wastes_none():
    waste = contiguous_waste([1], max_len=1, block_size=1, bytes_per_token=1)
    assert (waste["contiguous_waste_tokens"], waste["paged_waste_tokens"]) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((-1, 1, 4), "seq_len must be >= 0, got -1"),
        ((1, -1, 4), "num_blocks_held must be >= 0, got -1"),
        ((1, 1, 0), "block_size must be >= 1, got 0"),
    ],
)
def test_report_names_what_it_refuses(arguments, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        allocation_report(*arguments)


def test_report_of_no_token_in_a_held_block_is_all_tail():
    assert allocation_report(0, 1, 4) == {
        "logical_tokens": 0,
        "allocated_tokens": 4,
        "unused_tail_tokens": 4,
        "utilization": 0.0,
    }
