"""Tags where blocks are shared by content: what they say, and back."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from able import able
from pagedkv.specs.content import (
    EXTRAS,
    block_of,
    extended,
    highest,
    name,
    tags_of,
    tokens_of,
)
from pagedkv.specs.model import POISON

SIZES = st.integers(1, 4)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    """Tokens, an extra key and a block size."""
    size, length = draw(SIZES), draw(st.integers(1, 20))
    firsts = draw(st.lists(st.integers(0, 1), min_size=20, max_size=20))
    tokens = tuple(firsts[p // size] if p % size == 0 else 0 for p in range(length))
    return tokens, draw(st.integers(0, EXTRAS - 1)), size


def every(size: int, most: int) -> list[tuple[tuple[int, ...], int]]:
    """Every prompt of up to so many tokens, under each extra key."""
    found = set()
    for length in range(1, most + 1):
        for bits in product((0, 1), repeat=-(-length // size)):
            tokens = tuple(bits[p // size] if p % size == 0 else 0 for p in range(length))
            found |= {(tokens, extra) for extra in range(EXTRAS)}
    return sorted(found)


@given(prompts())
def test_tags_say_the_tokens_and_the_extra_key(prompt):
    tokens, extra, size = prompt
    assert (tokens, extra) == tokens_of(tags_of(tokens, extra, size), size)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_last_tag_tells_every_prompt_and_extra_key_apart(size):
    known = every(size, 3 * size)
    last = {tags_of(tokens, extra, size)[-1] for tokens, extra in known}
    assert len(last) == len(known)
    assert min(last) > 0
    assert max(last) == highest(3, size)


@given(prompts(), st.integers(1, 20))
def test_the_tags_of_the_beginning_are_the_beginning_of_the_tags(prompt, length):
    tokens, extra, size = prompt
    whole = tags_of(tokens, extra, size)
    assert whole[:length] == tags_of(tokens[:length], extra, size)


@given(prompts(), st.integers(0, 9))
def test_more_tokens_are_zeros_under_the_same_key(prompt, count):
    tokens, extra, size = prompt
    more = extended(tags_of(tokens, extra, size), count, size)
    assert more == tags_of((*tokens, *[0] * count), extra, size)


def test_without_a_token_there_is_no_tag_and_growth_begins_without_an_extra_key():
    assert tags_of((), 0, 2) == ()
    assert extended((), 3, 2) == tags_of((0, 0, 0), 0, 2)


@pytest.mark.parametrize(("tokens", "where"), [((2, 0), 0), ((0, 1), 1), ((0, 0, -1), 2)])
def test_other_tokens_have_no_tags(tokens, where):
    with pytest.raises(ValueError, match=rf"^tokens\[{where}\] = {tokens[where]}; a prompt is"):
        tags_of(tokens, 0, 2)


@given(prompts())
def test_the_tags_of_one_block_have_in_common_what_the_block_is(prompt):
    tokens, extra, size = prompt
    tags = tags_of(tokens, extra, size)
    blocks = [block_of(tag, size) for tag in tags]
    assert len(set(blocks)) == -(-len(tokens) // size)
    assert blocks == [blocks[p - p % size] for p in range(len(tags))]
    assert {key for _, key in blocks} == {extra}


def test_blocks_of_equal_tokens_behind_other_prefixes_are_other_blocks():
    first, second = tags_of((0, 0, 0, 0), 0, 2), tags_of((1, 0, 0, 0), 0, 2)
    assert block_of(first[3], 2) != block_of(second[3], 2)
    assert block_of(first[3], 2) != block_of(tags_of((0, 0, 0, 0), 1, 2)[3], 2)


@pytest.mark.parametrize(
    ("tokens", "extra", "size", "words"),
    [
        ((0,), 0, 2, "token 0 of prompt 0"),
        ((1, 0, 0), 0, 2, "token 2 of prompt 1 0 | 0"),
        ((1, 0, 0, 0), 1, 2, "token 3 of prompt 1 0 | 0 0 with the extra key 1"),
        ((0, 1, 1), 0, 1, "token 2 of prompt 0 | 1 | 1"),
        ((0, 0, 0, 1), 0, 3, "token 3 of prompt 0 0 0 | 1"),
    ],
)
def test_a_tag_is_named_by_all_that_it_says(tokens, extra, size, words):
    assert words == name(tags_of(tokens, extra, size)[-1], size)


@pytest.mark.parametrize("tag", [-3, 0, 1, 2, 3, 4])
def test_what_is_below_the_first_prompt_is_no_tag(tag):
    assert name(tag, 2) == f"{tag} (no token's tag)"


def test_a_setting_tags_by_content_where_blocks_are_shared_by_it():
    within = able("prefix")
    tags = within.more(0, (), 3)
    assert tags == within.more(1, (), 3) == tags_of((0, 0, 0), 0, 2)
    assert within.name_tag(float(tags[2])) == "token 2 of prompt 0 0 | 0"
    assert within.name_tag(POISON) == "nothing (a free or unwritten slot)"
    assert within.name_tag(tags[0] + 0.5).endswith("(no token's tag)")
    assert max(within.more(0, tags, 7)) <= within.highest_tag
