"""Tags where blocks are shared by content: what they say, and back."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from able import able
from pagedkv.specs.content import (
    ENDS,
    EXTRAS,
    extended,
    has_tags,
    highest,
    name,
    said_by,
    tags_of,
    tokens_of,
    tokens_saying,
)
from pagedkv.specs.model import POISON

SIZES = st.integers(1, 4)


@st.composite
def prompts(draw: st.DrawFn, size: int | None = None) -> tuple[tuple[int, ...], int, int]:
    """Tokens, an extra key and a block size."""
    size = draw(SIZES) if size is None else size
    tokens = draw(st.sampled_from(every(size)))
    more = draw(st.lists(st.integers(0, 1), min_size=4, max_size=4))
    longer = (
        (*tokens, *tokens_saying(more, 0, 4 * size, size)) if len(tokens) % size == 0 else tokens
    )
    return longer, draw(st.integers(0, EXTRAS - 1)), size


@cache
def every(size: int) -> list[tuple[int, ...]]:
    """Every prompt of 1 to 3 blocks."""
    found = set()
    for length in range(1, 3 * size + 1):
        blocks = -(-length // size)
        for bits in product((0, 1), repeat=blocks):
            found.add(tokens_saying(bits, 0, length, size))
            ends = [end for end in (1, 2) if end * size <= length and size > 1]
            found |= {tokens_saying(bits, end, length, size) for end in ends if not bits[end - 1]}
    return sorted(found)


@given(prompts())
def test_tags_say_the_tokens_and_the_extra_key(prompt):
    tokens, extra, size = prompt
    assert (tokens, extra) == tokens_of(tags_of(tokens, extra, size), size)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_last_tag_tells_every_prompt_and_extra_key_apart(size):
    known = list(product(every(size), range(EXTRAS)))
    last = {tags_of(tokens, extra, size)[-1] for tokens, extra in known}
    assert len(last) == len(known)
    assert min(last) > 0
    assert max(last) <= highest(3, size)
    assert highest(3, size) - max(last) <= ENDS * EXTRAS


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


@pytest.mark.parametrize(
    ("tokens", "where"),
    [
        ((2, 0, 0), 0),
        ((0, 1, 0), 1),
        ((1, 0, 1), 2),
        ((0, 0, 1, 0, 0, 1), 5),
        ((0, 0, 0, 0, 0, 0, 0, 0, 1), 8),
        ((0, 0, -1), 2),
    ],
)
def test_other_tokens_have_no_tags(tokens, where):
    assert not has_tags(tokens, 3)
    with pytest.raises(ValueError, match=rf"^tokens\[{where}\] = {tokens[where]}; a prompt is"):
        tags_of(tokens, 0, 3)


@given(prompts())
def test_tokens_say_how_they_are_made(prompt):
    tokens, _, size = prompt
    assert has_tags(tokens, size)
    assert tokens_saying(*said_by(tokens, size), len(tokens), size) == tokens


def test_a_prompt_that_ends_no_block_in_one_says_zero():
    assert said_by((0, 0, 0, 1), 3) == ([0, 1], 0)
    assert said_by((0, 0, 0, 0, 0, 1), 3) == ([0, 0], 2)
    assert said_by((), 3) == ([], 0)


@given(prompts(3), prompts(3))
def test_two_prompts_have_one_tag_as_far_as_they_are_one(one, other):
    (tokens, extra, size), (others, key, _) = one, other
    first, second = tags_of(tokens, extra, size), tags_of(others, key, size)
    for end in range(1, min(len(first), len(second)) + 1):
        alike = extra == key and tokens[:end] == others[:end]
        assert (first[end - 1] == second[end - 1]) == alike


def test_blocks_of_equal_tokens_behind_other_prefixes_are_other_blocks():
    first, second = tags_of((0, 0, 0, 0), 0, 2), tags_of((1, 0, 0, 0), 0, 2)
    third = tags_of((0, 1, 0, 0), 0, 2)
    assert len({first[3], second[3], third[3], tags_of((0, 0, 0, 0), 1, 2)[3]}) == 4
    assert first[0] == third[0]


@pytest.mark.parametrize(
    ("tokens", "extra", "size", "words"),
    [
        ((0,), 0, 2, "token 0 of prompt 0"),
        ((1, 0, 0), 0, 2, "token 2 of prompt 1 0 | 0"),
        ((1, 0, 0, 0), 1, 2, "token 3 of prompt 1 0 | 0 0 with the extra key 1"),
        ((0, 1, 1), 0, 1, "token 2 of prompt 0 | 1 | 1"),
        ((0, 0, 0, 1), 0, 3, "token 3 of prompt 0 0 0 | 1"),
        ((0, 0, 1, 0), 2, 3, "token 3 of prompt 0 0 1 | 0 with the extra key 2"),
        ((1, 0, 0, 0, 0, 1), 0, 3, "token 5 of prompt 1 0 0 | 0 0 1"),
    ],
)
def test_a_tag_is_named_by_all_that_it_says(tokens, extra, size, words):
    assert words == name(tags_of(tokens, extra, size)[-1], size)


@pytest.mark.parametrize("tag", [-3, 0, 1, 2, 3, 4])
def test_what_is_below_the_first_prompt_is_no_tag(tag):
    assert name(tag, 2) == f"{tag} (no token's tag)"


@pytest.mark.parametrize("end", [1, 2])
def test_a_block_that_ends_before_it_is_there_has_no_tag(end):
    code, offset, size = 0b10, 1, 3
    tag = 1 + ((code * size + offset) * (1 + ENDS) + end) * EXTRAS
    assert name(tag, size) == f"{tag} (no token's tag)"
    assert name(tag - end * EXTRAS, size) == "token 1 of prompt 0 0"


def test_a_setting_tags_by_content_where_blocks_are_shared_by_it():
    within = able("prefix")
    tags = within.more(0, (), 3)
    assert tags == within.more(1, (), 3) == tags_of((0, 0, 0), 0, 2)
    assert within.name_tag(float(tags[2])) == "token 2 of prompt 0 0 | 0"
    assert within.name_tag(POISON) == "nothing (a free or unwritten slot)"
    assert within.name_tag(tags[0] + 0.5).endswith("(no token's tag)")
    assert max(within.more(0, tags, 7)) <= within.highest_tag
