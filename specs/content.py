"""Tags where blocks are shared by content: all tokens up to the position, and the extra key.

So a tag says what must be in a slot, whoever put it there, and blocks of equal tokens behind
different prefixes have different tags. Tokens are 0 or 1. The first of every block may be 1, and
in one of the first `ENDS` blocks, if its first is 0, the last: so few that pools of 8 blocks have
tags of some ten thousand.

    code(position) = 1, then a bit for each block begun, as a binary number
    end(position) = 0, or 1 + the index of the block whose last token is 1, once that is there
    tag = 1 + ((code * block_size + offset) * (1 + ENDS) + end) * EXTRAS + extra
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ENDS = 2
"""The last token may be another in so many blocks of a prompt."""
EXTRAS = 3
"""Extra keys: none, and two others."""


def tags_of(tokens: Sequence[int], extra: int, block_size: int) -> tuple[int, ...]:
    """The tag of each token of a prompt; () for none.

    Raises ValueError for a token that has none.
    """
    code, end, tags = 1, 0, []
    for position, token in enumerate(tokens):
        index, offset = divmod(position, block_size)
        last = offset == block_size - 1 and index < ENDS and not code % 2 and not end
        if token not in ((0, 1) if offset == 0 or last else (0,)):
            raise ValueError(
                f"tokens[{position}] = {token!r}; a prompt is made of 0, of 1 at the start of a "
                f"block of {block_size}, and of one 1 at the end of one of its first {ENDS} blocks"
            )
        if offset == 0:
            code = 2 * code + token
        elif token:
            end = 1 + index
        tags.append(1 + ((code * block_size + offset) * (1 + ENDS) + end) * EXTRAS + extra)
    return tuple(tags)


def has_tags(tokens: Sequence[int], block_size: int) -> bool:
    """Whether these are the tokens of a prompt that has tags; those of an empty one have."""
    try:
        tags_of(tokens, 0, block_size)
    except ValueError:
        return False
    return True


def tokens_saying(firsts: Iterable[int], end: int, length: int, block_size: int) -> tuple[int, ...]:
    """The tokens of a prompt, by the first of each block and the block that ends in 1.

    end: 1 + its index, or 0. Where first and last are one, that is 1.
    """
    tokens = [token for first in firsts for token in (first, *[0] * (block_size - 1))]
    if end:
        tokens[end * block_size - 1] = 1
    return tuple(tokens[:length])


def said_by(tokens: Sequence[int], block_size: int) -> tuple[list[int], int]:
    """The first token of each block, and 1 + the index of the block that ends in 1, or 0."""
    ends = (i for i in range(ENDS) if any(tokens[i * block_size + 1 : (i + 1) * block_size]))
    return [*tokens[::block_size]], next((1 + i for i in ends), 0)


def extended(tags: tuple[int, ...], count: int, block_size: int) -> tuple[int, ...]:
    """`tags`, and those of `count` more tokens, all 0; of a prompt without an extra key for ()."""
    tokens, extra = tokens_of(tags, block_size) if tags else ((), 0)
    return tags_of((*tokens, *[0] * count), extra, block_size)


def tokens_of(tags: tuple[int, ...], block_size: int) -> tuple[tuple[int, ...], int]:
    """The tokens that these tags of a request say, and the extra key; the reverse of `tags_of`."""
    code, _, end, extra = _parts(tags[-1], block_size)
    return tokens_saying(map(int, bin(code)[3:]), end, len(tags), block_size), extra


def _parts(tag: int, block_size: int) -> tuple[int, int, int, int]:
    """What a tag is made of: code, offset, end and extra key."""
    rest, extra = divmod(tag - 1, EXTRAS)
    rest, end = divmod(rest, 1 + ENDS)
    code, offset = divmod(rest, block_size)
    return code, offset, end, extra


def highest(blocks: int, block_size: int) -> int:
    """No tag of a request of up to so many blocks is higher."""
    return (2 << blocks) * block_size * (1 + ENDS) * EXTRAS


def name(tag: int, block_size: int) -> str:
    """Words for a tag: "token 2 of prompt 1 0 | 0"."""
    code, offset, end, extra = _parts(tag, block_size)
    if code < 2:
        return f"{tag} (no token's tag)"
    bits = [int(bit) for bit in bin(code)[3:]]
    length = (len(bits) - 1) * block_size + offset + 1
    if end * block_size > length:
        return f"{tag} (no token's tag)"
    tokens = tokens_saying(bits, end, length, block_size)
    starts = range(0, length, block_size)
    blocks = [" ".join(map(str, tokens[start : start + block_size])) for start in starts]
    key = f" with the extra key {extra}" if extra else ""
    return f"token {length - 1} of prompt {' | '.join(blocks)}{key}"
