"""The logical model: geometries, tags, and the dense cache that paging replaces."""

from __future__ import annotations

import pytest

from able import able
from builders import declaring, setting
from pagedkv.specs.model import EMPTY, POISON, Geometry, Model


def test_geometries_go_by_blocks_then_block_size_then_width():
    ordered = [Geometry(1, 1), Geometry(1, 1, 2), Geometry(1, 3), Geometry(2, 1), Geometry(2, 2)]
    assert ordered == sorted(ordered[i] for i in (3, 1, 4, 0, 2))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_is_the_ceiling(tokens, blocks):
    assert blocks == Geometry(9, 4).blocks_for(tokens)


def test_a_geometry_reads_as_words():
    assert str(Geometry(3, 2)) == "3 block(s) of 2 token(s)"


def test_capacity_counts_usable_blocks_only():
    assert setting(8, 2, usable=frozenset({4, 6, 7})).capacity == 6


def test_blocks_are_shared_by_forks_and_by_content_only():
    assert able("fork").shares
    assert able("prefix").shares
    assert not able("append", "truncate", "swap", "group", "ask").shares


def test_no_window_is_no_tokens_wide_and_tags_have_room_for_the_widest():
    assert (setting(4, 2).widest, setting(4, 2).stride) == (0, 10)
    behind = able("window", blocks=4, windows=(None, 1, 3))
    assert (behind.widest, behind.stride) == (3, 13)


def test_no_tokens_need_no_block_whatever_is_ahead():
    ahead = setting(4, 2, declared=declaring(lookahead_tokens=3))
    assert [ahead.blocks_for(tokens) for tokens in (0, 1, 2)] == [0, 2, 3]
    assert setting(4, 2).blocks_for(0) == 0


def test_tags_are_unique_positive_and_name_their_token():
    within = setting(num_blocks=4, block_size=3)
    tokens = [(r, p) for r in range(4) for p in range(within.capacity + 2)]
    tags = [within.tag(r, p) for r, p in tokens]
    assert len(tokens) == len(set(tags))
    assert min(tags) > 0
    assert [f"token {p} of request {r}" for r, p in tokens] == [
        within.name_tag(float(tag)) for tag in tags
    ]


def test_tags_of_the_fixed_scope_are_exact_in_eight_bits_of_mantissa():
    within = setting(num_blocks=4, block_size=3, requests=3)
    assert within.tag(2, within.capacity + 1) <= 256


def test_what_is_no_tag_is_named_as_that():
    within = setting()
    assert within.name_tag(POISON) == "nothing (a free or unwritten slot)"
    assert [within.name_tag(value) for value in (0.0, 1.5, float("nan"))] == [
        "0.0 (no token's tag)",
        "1.5 (no token's tag)",
        "nan (no token's tag)",
    ]


def test_prefill_release_and_prefill_again_keep_the_length():
    model = EMPTY.with_live(1, (7, 8))
    assert Model({1: (7, 8)}, {}) == model
    model = model.with_released(1)
    assert Model({}, {1: 2}) == model
    assert Model({1: (7, 8)}, {}) == model.with_live(1, (7, 8))


def test_a_move_leaves_the_others_and_the_old_model_alone():
    before = Model({0: (1,), 1: (5,)}, {2: 3})
    assert Model({0: (1, 2), 1: (5,)}, {2: 3}) == before.with_live(0, (1, 2))
    assert Model({1: (5,)}, {2: 3, 0: 1}) == before.with_released(0)
    assert Model({0: (1,), 1: (5,)}, {2: 3}) == before


def test_released_requests_can_be_forgotten():
    assert Model({0: (1,)}, {}) == Model({0: (1,)}, {1: 2}).without_released()
    live = Model({0: (1,)}, {})
    assert live is live.without_released()


def test_requests_stand_in_the_order_of_their_names_however_they_came():
    model = EMPTY.with_live(1, (7,)).with_live(0, (1,))
    assert list(model.live) == [0, 1]
    assert list(model.with_released(1).with_released(0).released) == [0, 1]
