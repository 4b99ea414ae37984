"""Recorded histories with commands of abilities: proven over the scope of those that they use."""

from __future__ import annotations

from typing import Any

import pytest

from pagedkv.mutants import asking, growing
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.abilities.group import GroupBegin, GroupEnd
from pagedkv.specs.abilities.truncate import Truncate
from pagedkv.specs.catalogue import used_by
from pagedkv.specs.commands import Command
from pagedkv.specs.model import Geometry
from pagedkv.stateful.proving import Prover
from pagedkv.stateful.report import OneMinimal, Shortest
from pagedkv.stateful.shrink import shrink
from pagedkv.stateful.subject import Subject
from pagedkv.stateful.traces import Trace

POOL = Geometry(8, 2)
NOISE: tuple[Command, ...] = (
    *(Prefill(1, 3), Prefill(2, 4), Decode(1), Decode(2), Decode(1), Release(1)),
    *(Prefill(3, 2), Decode(2), Release(3), Decode(2)),
)


def shrunk(factory: Any, commands: tuple[Command, ...], breaks: str | None, **more: Any) -> Any:
    subject = Subject(factory.__name__, (factory,))
    result = shrink(subject, Trace("x", POOL, commands, breaks), **more)
    assert result.example is not None
    return result.example


class CutsAtTwo(SharedKVCacheManager):
    """The reference with append, fork, group and truncate, which keeps a block too many at 2."""

    abilities = frozenset({"append", "fork", "group", "truncate"})

    def _plan_truncate(self, req: Any, seq_len: Any) -> Any:
        if req.seq_len != 3 or seq_len != 2:
            return super()._plan_truncate(req, seq_len)
        return super()._plan_truncate(req, 3)._replace(seq_len=2)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("breaks", ["table-cover", None])
def test_a_history_with_an_ability_is_proven_shortest(breaks):
    told: list[str] = []
    commands = (*NOISE, Prefill(5, 5), Append(5, 2), Truncate(5, 3), Truncate(5, 2))
    tell = lambda phase, _done, _of: told.append(phase)  # noqa: E731
    example = shrunk(CutsAtTwo, commands, breaks, tell=tell)
    assert example.commands == (Prefill(0, 3), Truncate(0, 2))
    assert example.geometry == Geometry(2, 2)
    assert isinstance(example.proof, Shortest)
    searched = {phase.partition(", at most")[0] for phase in told if phase.startswith("fixed")}
    kept = "fixed scope, released handles kept"
    assert searched == {"fixed scope", kept, "fixed scope of append, truncate"}


@pytest.mark.usefixtures("unmeasured")
def test_a_fault_of_the_core_is_as_short_in_a_history_with_an_ability():
    class Leaks(CutsAtTwo):
        def release_request(self, req: Any) -> None:
            lost = self._blocks.free
            super().release_request(req)
            self._blocks.free = lost

    commands = (*NOISE[:6], Append(2, 1))
    example = shrunk(Leaks, commands, "conservation")
    assert example.commands == (Prefill(0, 1), Release(0))
    assert example.geometry == Geometry(1, 1)
    assert isinstance(example.proof, Shortest)


@pytest.mark.usefixtures("unmeasured")
def test_what_is_wrong_with_an_answer_is_proven_where_it_is_asked():
    kind = asking.AsksForFullBlocks
    example = shrunk(kind, (Prefill(1, 2), Decode(1), Prefill(2, 3)), "asked-agrees")
    assert isinstance(example.proof, Shortest)
    assert len(example.commands) == 1


def test_what_was_found_and_not_searched_for_all_that_is_shorter_is_one_minimal(monkeypatch):
    explore = Prover._explore

    def short(self, scope, name, depth):
        return explore(self, scope, name, depth if scope.abilities else 0)

    monkeypatch.setattr(Prover, "_explore", short)
    kind = growing.KeepsBlockAtExactMultiple
    example = shrunk(kind, (Prefill(0, 4), Truncate(0, 2)), "table-cover")
    assert len(example.commands) == 2
    assert isinstance(example.proof, OneMinimal)
    assert example.proof.reason.startswith("the search of the fixed scope ended")


def test_a_history_uses_the_abilities_that_it_has_commands_of():
    assert used_by(NOISE) == set()
    assert used_by((Append(0, 1), Decode(0), Append(1, 2))) == {"append"}
    used = used_by((Fork(1, 0), Truncate(0, 1), GroupBegin(), GroupEnd()))
    assert used == {"fork", "truncate", "group"}
