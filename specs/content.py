"""Tags where blocks are shared by content: all tokens up to the position, and the extra key.

So a tag says what must be in a slot, whoever put it there, and blocks of equal tokens behind
different prefixes have different tags. Tokens are 0 or 1, and only the first of a block may be 1:
every block says 0 or 1, so that pools of 8 blocks have tags of a few thousand.

    code(position) = 1, then a bit for each block begun, as a binary number
    tag = 1 + (code * block_size + offset) * EXTRAS + extra
"""

from __future__ import annotations

from collections.abc import Sequence

EXTRAS = 2
"""Extra keys: none, and another."""


def tags_of(tokens: Sequence[int], extra: int, block_size: int) -> tuple[int, ...]:
    """The tag of each token of a prompt; () for none.

    Raises ValueError for a token that is neither 0 nor, at the start of a block, 1.
    """
    code, tags = 1, []
    for position, token in enumerate(tokens):
        offset = position % block_size
        if token not in ((0, 1) if offset == 0 else (0,)):
            raise ValueError(
                f"tokens[{position}] = {token!r}; a prompt is made of 0, and of 1 at the start of "
                f"a block of {block_size}"
            )
        if offset == 0:
            code = 2 * code + token
        tags.append(1 + (code * block_size + offset) * EXTRAS + extra)
    return tuple(tags)


def extended(tags: tuple[int, ...], count: int, block_size: int) -> tuple[int, ...]:
    """`tags`, and those of `count` more tokens, all 0; of a prompt without an extra key for ()."""
    tokens, extra = tokens_of(tags, block_size) if tags else ((), 0)
    return tags_of((*tokens, *[0] * count), extra, block_size)


def tokens_of(tags: tuple[int, ...], block_size: int) -> tuple[tuple[int, ...], int]:
    """The tokens that these tags of a request say, and the extra key; the reverse of `tags_of`."""
    rest, extra = divmod(tags[-1] - 1, EXTRAS)
    code = rest // block_size
    bits = bin(code)[3:]
    return tuple(
        int(bits[p // block_size]) if p % block_size == 0 else 0 for p in range(len(tags))
    ), extra


def block_of(tag: int, block_size: int) -> tuple[int, int]:
    """What all tags of one block have in common: where a block is shared, only these are."""
    rest, extra = divmod(tag - 1, EXTRAS)
    return rest // block_size, extra


def highest(blocks: int, block_size: int) -> int:
    """No tag of a request of up to so many blocks is higher."""
    return (2 << blocks) * block_size * EXTRAS


def name(tag: int, block_size: int) -> str:
    """Words for a tag: "token 2 of prompt 1 0 | 0"."""
    rest, extra = divmod(tag - 1, EXTRAS)
    code, offset = divmod(rest, block_size)
    bits = bin(code)[3:]
    if code < 2:
        return f"{tag} (no token's tag)"
    position = (len(bits) - 1) * block_size + offset
    blocks = [bit + " 0" * (block_size - 1) for bit in bits[:-1]]
    blocks.append(bits[-1] + " 0" * offset)
    key = f" with the extra key {extra}" if extra else ""
    return f"token {position} of prompt {' | '.join(blocks)}{key}"
