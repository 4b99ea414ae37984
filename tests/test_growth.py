"""What a call needs, against an allocator so plain that a reader can count its blocks by hand."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from able import NULL, able, after
from builders import declaring, setting
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release, Resume
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import candidates
from pagedkv.specs.commands import Command
from pagedkv.specs.growth import blocks_at_most, blocks_due, shares_tail
from pagedkv.specs.model import EMPTY, GONE, Setting
from pagedkv.specs.steps import Grant


class Ideal:
    """Endless blocks, each a set of names; a token is put into its block one by one."""

    def __init__(self, within: Setting) -> None:
        self.size, self.declared = within.geometry.block_size, within.declared
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.out: set[int] = set()
        self.fresh = count()
        self.taken = self.returned = 0

    def take(self) -> int:
        self.taken += 1
        return next(self.fresh)

    def put(self, r: int) -> None:
        """One token more of request r."""
        table, offset = self.tables[r], self.lengths[r] % self.size
        if offset == 0:
            table.append(self.take())
        elif table[-1] != NULL and sum(table[-1] in t for t in self.tables.values()) > 1:
            table[-1] = self.take()
        self.lengths[r] += 1

    def slide(self, r: int, seq_len: int) -> None:
        """Give back what is wholly behind the window of so many tokens."""
        if self.declared.window is not None:
            for i, block in enumerate(self.tables[r]):
                if (i + 1) * self.size <= seq_len - self.declared.window and block != NULL:
                    self.tables[r][i] = NULL
                    self.returned += all(block not in table for table in self.tables.values())

    def run(self, command: Command) -> None:
        """Do what the command says; its method has the name of its op."""
        getattr(self, command.op)(command)

    def prefill(self, command: Prefill) -> None:
        self.fill(command.request, command.tokens)

    def resume(self, command: Resume) -> None:
        self.fill(command.request, self.lengths[command.request])

    def fill(self, r: int, tokens: int) -> None:
        self.tables[r], self.lengths[r] = [], 0
        for _ in range(tokens):
            self.put(r)

    def decode(self, command: Decode) -> None:
        self.append(Append(command.request, 1))

    def append(self, command: Append) -> None:
        r = command.request
        self.slide(r, self.lengths[r] + command.tokens)
        for _ in range(command.tokens):
            self.put(r)

    def truncate(self, command: Truncate) -> None:
        self.lengths[command.request] = command.tokens
        del self.tables[command.request][-(-command.tokens // self.size) :]

    def fork(self, command: Fork) -> None:
        r, parent = command.request, command.parent
        self.tables[r], self.lengths[r] = [*self.tables[parent]], self.lengths[parent]
        if self.declared.forks_eagerly and self.lengths[r] % self.size:
            self.tables[r][-1] = self.take()

    def release(self, command: Release) -> None:
        self.tables.pop(command.request, None)
        self.out.discard(command.request)

    def swap_out(self, command: SwapOut) -> None:
        del self.tables[command.request]
        self.out.add(command.request)

    def swap_in(self, command: SwapIn) -> None:
        r = command.request
        self.tables[r] = [self.take() for _ in range(-(-self.lengths[r] // self.size))]
        self.out.discard(r)


def numbered(tables: dict[int, list[int]]) -> dict[int, tuple[int, ...]]:
    """Blocks called 0, 1, 2, ... as they first appear."""
    names: dict[int, int] = {NULL: GONE}
    made = count()
    for r in sorted(tables):
        for block in tables[r]:
            if block not in names:
                names[block] = next(made)
    return {r: tuple(names[block] for block in tables[r]) for r in sorted(tables)}


SETTINGS = {
    "lazy": able("append", "truncate", "fork", "swap", blocks=6, host=6),
    "eager": able("append", "truncate", "fork", "swap", blocks=6, host=6, forks_eagerly=True),
    "lazy, blocks of 1": able("append", "truncate", "fork", blocks=6, size=1),
    "lazy, blocks of 3": able("append", "truncate", "fork", blocks=4, size=3),
    "window of 1": able("append", "window", blocks=4, size=1, window=1),
    "window of 3": able("append", "window", blocks=4, window=3),
    "window of 4": able("append", "window", blocks=4, size=3, window=4),
    "window and fork": able("append", "fork", "window", blocks=4, window=3),
}


@pytest.mark.parametrize("within", SETTINGS.values(), ids=list(SETTINGS))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_every_call_needs_what_it_takes_less_what_the_window_gives_back(within, data):
    ideal, dense = Ideal(within), EMPTY
    for _ in range(data.draw(st.integers(1, 12))):
        tried = [c for c in candidates(dense, within) if c.op != "misuse"]
        if not tried:
            break
        command = data.draw(st.sampled_from(tried))
        due, ideal.taken, ideal.returned = command.expect(dense, within), 0, 0
        ideal.run(command)
        dense = command.advance(dense, within)
        if not isinstance(command, SwapOut):
            need = max(0, ideal.taken - ideal.returned)
            assert Grant(need, need) == due
        assert dense.pages == numbered(ideal.tables)
        held = {block for table in ideal.tables.values() for block in table} - {NULL}
        assert blocks_due(dense, within) == len(held) == blocks_at_most(dense, within)
        lengths = {r: len(tags) for r, tags in dense.live.items()}
        assert lengths == {r: ideal.lengths[r] for r in ideal.tables}
        assert set(dense.swapped) == ideal.out


def test_without_sharing_nothing_but_lengths_matters():
    within = setting(declared=declaring(lookahead=2))
    dense = after(within, Prefill(0, 3), Prefill(1, 4))
    assert dense.pages == {}
    assert not shares_tail(dense, within, 0)
    assert (blocks_due(dense, within), blocks_at_most(dense, within)) == (4, 8)


def test_every_page_of_a_request_that_comes_anew_is_its_own():
    within = SETTINGS["lazy"]
    dense = after(within, Prefill(0, 3), Fork(1, 0), Release(0), Resume(0))
    assert dense.pages == {0: (0, 1), 1: (2, 3)}
