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
from pagedkv.specs.abilities.prefix import Admit
from pagedkv.specs.abilities.swap import SwapIn, SwapOut
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import candidates
from pagedkv.specs.commands import Command
from pagedkv.specs.growth import (
    blocks_at_most,
    blocks_due,
    free_name,
    outlived,
    shares_tail,
)
from pagedkv.specs.model import EMPTY, GONE, Setting
from pagedkv.specs.steps import Grant


class Ideal:
    """Endless blocks, each a set of names; a token is put into its block one by one."""

    def __init__(self, within: Setting) -> None:
        self.size, self.declared = within.geometry.block_size, within.declared
        self.tables: dict[int, list[list[int]]] = {}
        self.lengths: dict[int, int] = {}
        self.out: set[int] = set()
        self.fresh = count()
        self.taken = self.returned = 0

    def take(self) -> int:
        self.taken += 1
        return next(self.fresh)

    def flat(self, r: int) -> list[int]:
        """The tables of a request, one behind the other."""
        return [block for table in self.tables[r] for block in table]

    def owners(self, block: int) -> int:
        return sum(block in self.flat(r) for r in self.tables)

    def put(self, r: int) -> None:
        """One token more of request r, into each of its tables."""
        for window, table in zip(self.declared.each_window, self.tables[r], strict=True):
            turned = self.lengths[r] % window if window and self.declared.ring else self.lengths[r]
            index, offset = divmod(turned, self.size)
            if index == len(table):
                table.append(self.take())
            elif offset and table[-1] != NULL and self.owners(table[-1]) > 1:
                table[-1] = self.take()
        self.lengths[r] += 1

    def slide(self, r: int, seq_len: int) -> None:
        """Give back what is wholly behind the window of so many tokens."""
        for window, table in zip(self.declared.each_window, self.tables[r], strict=True):
            if window is not None and not self.declared.ring:
                for i, block in enumerate(table):
                    if (i + 1) * self.size <= seq_len - window and block != NULL:
                        table[i] = NULL
                        self.returned += self.owners(block) == 0

    def run(self, command: Command) -> None:
        """Do what the command says; its method has the name of its op."""
        getattr(self, command.op)(command)

    def prefill(self, command: Prefill) -> None:
        self.fill(command.request, command.tokens)

    def resume(self, command: Resume) -> None:
        self.fill(command.request, self.lengths[command.request])

    def fill(self, r: int, tokens: int) -> None:
        self.tables[r], self.lengths[r] = [[] for _ in self.declared.each_window], 0
        for _ in range(tokens):
            self.put(r)

    def decode(self, command: Decode) -> None:
        self.append(Append(command.request, 1))

    def append(self, command: Append) -> None:
        r = command.request
        first = self.declared.window_of_first
        self.slide(r, self.lengths[r] + (1 if first else command.tokens))
        for _ in range(command.tokens):
            self.put(r)

    def truncate(self, command: Truncate) -> None:
        self.lengths[command.request] = command.tokens
        (table,) = self.tables[command.request]
        del table[-(-command.tokens // self.size) :]

    def fork(self, command: Fork) -> None:
        r, parent = command.request, command.parent
        (table,) = self.tables[parent]
        if self.declared.forks_eagerly and self.lengths[parent] % self.size:
            table = [*table[:-1], self.take()]
        self.tables[r], self.lengths[r] = [[*table]], self.lengths[parent]

    def release(self, command: Release) -> None:
        self.tables.pop(command.request, None)
        self.out.discard(command.request)

    def swap_out(self, command: SwapOut) -> None:
        del self.tables[command.request]
        self.out.add(command.request)

    def swap_in(self, command: SwapIn) -> None:
        r = command.request
        self.tables[r] = [[self.take() for _ in range(-(-self.lengths[r] // self.size))]]
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
    "window of 3 for the first": able("append", "window", window=3, window_of_first=True),
    "window and fork": able("append", "fork", "window", blocks=4, window=3),
    "two tables": able("append", "window", blocks=8, windows=(3, 1)),
    "three tables": able("append", "window", blocks=9, size=1, windows=(2, None, 1)),
    "ring": able("append", "window", blocks=4, window=3, ring=True, null_block=None),
}


@pytest.mark.parametrize("within", SETTINGS.values(), ids=list(SETTINGS))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
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
        tables = {r: ideal.flat(r) for r in ideal.tables}
        assert dense.pages == numbered(tables)
        held = {block for table in tables.values() for block in table} - {NULL}
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


def test_a_shared_tail_that_goes_with_the_window_is_not_copied():
    within = able("append", "fork", "window", window=1)
    dense = after(within, Prefill(0, 1), Fork(1, 0))
    assert Append(0, 4).expect(dense, within) == Grant(2, 2)


def test_lookahead_blurs_both_ends():
    within = setting(declared=declaring(lookahead=2))
    full = after(within, Prefill(0, 4))
    assert Prefill(0, 4).expect(EMPTY, within) == Grant(2, 4)
    assert Decode(0).expect(full, within) == Grant(0, 3)
    assert Append(0, 6).expect(full, able("append", blocks=8, lookahead=2)) == Grant(1, 5)


def test_what_goes_back_and_what_is_copied_may_both_be_shared_by_content():
    within = able("append", "prefix", "truncate", "window", window=2)
    cut = after(within, Prefill(0, 5), Truncate(0, 3))
    # The first block goes back if nobody else found it; the second is copied if somebody did.
    assert Append(0, 1).expect(cut, within) == Grant(0, 1)
    assert Append(0, 2).expect(cut, within) == Grant(0, 2)


def test_a_cut_block_may_be_one_that_another_request_has_whole():
    within = able("prefix", "truncate", blocks=9, size=3)
    whole = after(within, Prefill(0, 6))
    assert blocks_due(whole, within) == 2
    assert blocks_due(after(within, Prefill(1, 5), Prefill(2, 4), start=whole), within) == 2
    assert blocks_due(after(within, Admit(1, (0, 0, 1), 0), start=whole), within) == 3
    ends = after(within, Admit(1, (0, 0, 1), 0), Prefill(2, 3))
    assert blocks_due(ends, within) == 2
    assert blocks_due(after(within, Truncate(1, 2), start=ends), within) == 1
    assert blocks_due(after(within, Truncate(1, 2), Truncate(2, 1), start=ends), within) == 1
    assert blocks_due(after(within, Admit(1, (1, 0), 0), Prefill(2, 2)), within) == 2


def test_fewest_blocks_by_content_are_full_ones_and_tails():
    within = able("prefix", blocks=6)
    assert blocks_due(after(within, Prefill(0, 4)), within) == 2
    assert blocks_due(after(within, Prefill(0, 4), Prefill(1, 5), Prefill(2, 3)), within) == 4
    forking = able("fork", "prefix", blocks=6)
    shared = after(forking, Prefill(0, 5), Fork(1, 0))
    assert blocks_due(shared, forking) == 3
    grown = after(forking, Decode(1), start=shared)
    assert blocks_due(grown, forking) == 4
    assert blocks_due(after(forking, Decode(0), start=grown), forking) == 3
    assert blocks_at_most(shared, forking) == 6
    threes = able("fork", "prefix", blocks=6, size=3)
    assert blocks_due(after(threes, Prefill(0, 7), Fork(1, 0), Decode(1)), threes) == 4


def test_no_more_requests_are_named_than_live_and_swapped_there_may_be():
    within = able("fork", "swap", requests=2, host=4)
    dense = after(within, Prefill(0, 1), Fork(1, 0))
    assert free_name(after(within, SwapOut(1), start=dense), within) is None
    assert free_name(after(within, Release(1), start=dense), within) == 2


def test_every_token_is_its_writers_that_beyond_the_pool_too():
    within = able("fork", blocks=1, size=1)
    dense = after(within, Prefill(0, 2), Fork(2, 0), Release(0)).without_released()
    assert outlived(dense, within, (2,)) == (0,)
    assert free_name(dense, within) == 1


def test_tags_by_content_are_nobodys_name():
    within = able("fork", "prefix", blocks=1, size=1)
    dense = after(within, Prefill(0, 1))
    assert free_name(dense, within) == 1
    assert outlived(dense, within, (0,)) == ()


def test_what_is_released_has_no_tokens_of_a_name_that_was_given_up():
    within = able("fork")
    dense = after(within, Prefill(0, 1), Fork(1, 0), Release(1))
    assert outlived(dense, within, (0, 1)) == ()
