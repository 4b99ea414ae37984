"""The minimiser: what it leaves can't be cut, still breaks the property, and is always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from faults import PLANTED, Boundary, Planted, WrongReport, broken_history, judging, worlds
from pagedkv import KVCacheManager, Request
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release, Resume
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.stateful.minimise import Case, Minimiser

SEEDS = range(6)


def minimiser(factory: Callable[..., Any], broken: str, *look_past: str) -> Minimiser:
    return Minimiser(worlds(factory, 4, keeps_released=True), judging, broken, look_past)


def minimal(factory: Callable[..., Any], broken: str, geometry: Geometry, *commands: Command):
    case = minimiser(factory, broken).one_minimal(geometry, commands)
    assert case is not None
    return case


def shorter(case: Case) -> Iterator[tuple[Geometry, tuple[Command, ...]]]:
    """Every history without one or two of the commands."""
    for n in (1, 2):
        for gone in combinations(range(len(case.commands)), n):
            yield case.geometry, tuple(c for i, c in enumerate(case.commands) if i not in gone)


def smaller(case: Case) -> Iterator[tuple[Geometry, tuple[Command, ...]]]:
    """The history in every smaller pool, and with every smaller prompt."""
    for blocks in range(1, case.geometry.num_blocks + 1):
        for size in range(1, case.geometry.block_size + 1):
            if (blocks, size) != (case.geometry.num_blocks, case.geometry.block_size):
                yield Geometry(blocks, size), case.commands
    for i, command in enumerate(case.commands):
        if not isinstance(command, Prefill):
            continue
        for tokens in range(1, command.tokens):
            less = Prefill(command.request, tokens)
            yield case.geometry, (*case.commands[:i], less, *case.commands[i + 1 :])


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.factory.__name__)
def test_what_is_left_breaks_the_property_and_nothing_can_go(planted: Planted):
    cut = minimiser(planted.factory, planted.property)
    for seed in SEEDS:
        case = cut.one_minimal(*broken_history(planted, seed))
        assert case is not None
        again = cut.broken(case.geometry, case.commands)
        assert again is not None
        assert (again.commands, again.violation.property.id) == (case.commands, planted.property)
        assert again.violation.step == len(case.commands)
        assert len(case.commands) >= planted.steps
        assert [less for less in shorter(case) if cut.broken(*less)] == []
        for geometry, commands in smaller(case):
            assert cut.broken(geometry, commands) is None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.factory.__name__)
def test_cutting_twice_is_cutting_once(planted: Planted):
    cut = minimiser(planted.factory, planted.property)
    once = cut.one_minimal(*broken_history(planted, 0))
    assert once is not None
    twice = cut.one_minimal(once.geometry, once.commands)
    assert twice is not None
    assert (twice.geometry, twice.commands) == (once.geometry, once.commands)


def test_a_history_that_breaks_nothing_has_no_smallest_case():
    cut = minimiser(KVCacheManager, "conservation")
    assert cut.one_minimal(Geometry(2, 1), (Prefill(0, 1), Release(0))) is None


def test_a_history_that_breaks_something_else_has_no_smallest_case():
    cut = minimiser(Boundary, "rollback")
    assert cut.one_minimal(Geometry(1, 1), (Prefill(0, 1), Decode(0))) is None


def test_what_comes_after_the_violation_is_left_out():
    cut = minimiser(Boundary, "table-cover")
    case = cut.broken(Geometry(3, 1), (Prefill(0, 1), Decode(0), Prefill(1, 1), Release(1)))
    assert case is not None
    assert case.commands == (Prefill(0, 1), Decode(0))


def test_a_command_that_makes_no_sense_where_it_stands_is_left_out():
    cut = minimiser(Boundary, "table-cover")
    case = cut.broken(Geometry(3, 1), (Release(2), Decode(1), Prefill(0, 1), Decode(0)))
    assert case is not None
    assert case.commands == (Prefill(0, 1), Decode(0))


def test_requests_are_called_by_numbers_from_0_as_they_appear():
    history = (Prefill(3, 1), Prefill(1, 1), Decode(1))
    case = minimiser(Boundary, "table-cover").broken(Geometry(3, 1), history)
    assert case is not None
    assert case.commands == (Prefill(0, 1), Prefill(1, 1), Decode(1))


class SecondName(KVCacheManager):
    """Loses a block to the request called 1, whatever came before it."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        if req.request_id == 1:
            self._free = self._free[1:]


def test_a_fault_that_depends_on_a_name_keeps_that_name():
    cut = minimiser(SecondName, "conservation")
    case = cut.one_minimal(Geometry(4, 1), (Prefill(0, 1), Prefill(1, 1)))
    assert case is not None
    again = cut.broken(case.geometry, case.commands)
    assert again is not None
    assert again.commands == case.commands


class OddPrompt(KVCacheManager):
    """Loses a block to any prompt of an odd number of at least five tokens."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        if req.seq_len >= 5 and req.seq_len % 2:
            self._free = self._free[1:]


@pytest.mark.parametrize("tokens", [5, 7, 9, 11])
def test_a_length_shrinks_to_the_smallest_that_will_do(tokens):
    case = minimal(OddPrompt, "conservation", Geometry(7, 2), Prefill(0, tokens))
    assert case.commands == (Prefill(0, 5),)
    assert case.geometry == Geometry(4, 2)


class EvenRefusals(KVCacheManager):
    """Loses a block to a prompt after an even number of refused decodes."""

    refused = 0

    def allocate_for_decode(self, req: Request) -> None:
        try:
            super().allocate_for_decode(req)
        except ValueError:
            self.refused += 1
            raise

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        if self.refused % 2 == 0:
            self._free = self._free[1:]


def test_two_commands_go_together_where_neither_can_go_alone():
    wrong = Misuse(0, "decode-fresh")
    case = minimal(EvenRefusals, "conservation", Geometry(2, 1), wrong, wrong, Prefill(0, 1))
    assert case.commands == (Prefill(0, 1),)


def test_pool_block_size_and_width_shrink():
    history = (Prefill(0, 1), Prefill(1, 3), Release(1), Resume(1), Decode(0))
    case = minimal(Boundary, "table-cover", Geometry(6, 1, 4), *history)
    assert (case.geometry, case.commands) == (Geometry(1, 1, 1), (Prefill(0, 1), Decode(0)))


class NeedsRoom(Boundary):
    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        if num_blocks < 3:
            raise ValueError("a pool needs three blocks")
        super().__init__(num_blocks, block_size, head_dim)


def test_a_geometry_that_the_target_can_not_have_is_no_answer():
    case = minimal(NeedsRoom, "table-cover", Geometry(5, 1), Prefill(0, 1), Decode(0))
    assert case.geometry == Geometry(3, 1)


class WrongTwice(WrongReport, Boundary):
    """A redundant fault stands before the other one."""


def test_a_redundant_property_hides_nothing_that_it_is_told_to_look_past():
    history = (Prefill(0, 1), Decode(0))
    assert minimiser(WrongTwice, "table-cover").broken(Geometry(1, 1), history) is None
    case = minimiser(WrongTwice, "table-cover", "report-agrees").broken(Geometry(1, 1), history)
    assert case is not None
    assert case.commands == history


def test_fewer_commands_come_before_a_smaller_pool_and_that_before_smaller_commands():
    broken = minimiser(Boundary, "table-cover").broken(Geometry(2, 1), (Prefill(0, 1), Decode(0)))
    assert broken is not None
    cases = [
        replace(broken, geometry=Geometry(9, 9), commands=(Release(0),)),
        replace(broken, geometry=Geometry(1, 2), commands=(Decode(0), Decode(0))),
        replace(broken, geometry=Geometry(1, 2), commands=(Decode(0), Prefill(0, 9))),
        replace(broken, geometry=Geometry(1, 2), commands=(Decode(0), Prefill(0, 10))),
        replace(broken, geometry=Geometry(1, 2), commands=(Decode(0), Misuse(0, "prefill-live"))),
        replace(broken, geometry=Geometry(2, 1), commands=(Decode(0), Decode(0))),
        replace(broken, geometry=Geometry(2, 1, 2), commands=(Decode(0), Decode(0))),
    ]
    assert sorted(cases, key=lambda case: case.rank) == cases
