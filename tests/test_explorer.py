"""The explorer against brute force on small random systems, and what it does with limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults import LyingKey, judging, searched, worlds
from pagedkv import Declarations, KVCacheManager, Request, Snapshot
from pagedkv.specs.abilities.core import Prefill, Release
from pagedkv.specs.commands import Command, Handles, Undo, nothing_to_undo
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry, Model, Setting
from pagedkv.specs.properties import HOLDS, Broken, EveryState, EveryStep, Judgement, Property
from pagedkv.specs.steps import DONE, Expected, Grant, Handle, Observation, State, Step
from pagedkv.stateful.exploration import INTERRUPTED, Exploration, Limits, Progress
from pagedkv.stateful.explorer import Search, explore
from pagedkv.stateful.trust import Trust
from untraced import untraced

ONE, TWO = Geometry(1, 1), Geometry(2, 1)
LOSES = (Prefill(0, 1), Release(0), Prefill(0, 1), Release(0))


# ---------------------------------------------------------------- random systems


class Graph(NamedTuple):
    """moves[state]: the command's number -> the next state; where it is not, it makes no sense."""

    moves: tuple[Mapping[int, int], ...]
    bad_states: frozenset[int]
    bad_steps: frozenset[tuple[int, int]]
    odd_states: frozenset[int]


@dataclass(frozen=True, slots=True)
class Go(Command):
    op: ClassVar[str] = "decode"
    number: int

    def enabled(self, model: Model, setting: Setting) -> bool:
        return self.number in model.released

    def expect(self, model: Model, setting: Setting) -> Expected:
        return Grant(0, 0)

    def prepare(self, handles: Handles, state: State) -> Undo:
        return nothing_to_undo

    def perform(self, manager: Any, handles: Handles) -> object:
        return None


class Walk:
    """A graph as the explorer sees a target: the state is the only entry of the free list."""

    def __init__(self, graph: Graph, geometry: Geometry, hooks: Trust, at: int = 0) -> None:
        self.graph, self.at, self._hooks = graph, at, hooks
        self.setting = Setting(geometry, Declarations(), frozenset(), 1)

    @property
    def state(self) -> State:
        shown = Snapshot(block_tables={}, seq_lens={}, free_blocks=(self.at,))
        model = Model({}, dict.fromkeys(self.graph.moves[self.at], 0))
        return State(self.setting, model, Observation(shown, {}, dict, lambda: None))

    @property
    def states(self) -> tuple[State, ...]:
        return (self.state,)

    def candidates(self) -> list[Command]:
        return [Go(0, number) for number in sorted(self.graph.moves[self.at])]

    def apply(self, command: Command) -> Step:
        assert isinstance(command, Go)
        before, handle = self.state, Handle(0, 1, (), ())
        self.at = self.graph.moves[self.at][command.number]
        return Step(0, command, Grant(0, 0), DONE, handle, handle, before, self.state)

    def hooks(self) -> Trust:
        return self._hooks

    def clone(self, trust: Trust) -> Self:
        return type(self)(self.graph, self.setting.geometry, self._hooks, self.at)

    def order(self, trust: Trust) -> tuple[int, ...]:
        return ()

    def key(self, trust: Trust) -> bytes | None:
        return None if trust.key == "none" else bytes([self.at])

    def unseen(self, trust: Trust) -> str | None:
        return None


def _at(state: State) -> int:
    free = state.seen.snapshot.free_blocks
    assert free is not None
    return free[0]


def properties(graphs: Mapping[Geometry, Graph]) -> tuple[Property, ...]:
    def of(state: State) -> Graph:
        return graphs[state.setting.geometry]

    def bad_state(state: State) -> Judgement:
        return Broken("bad") if _at(state) in of(state).bad_states else HOLDS

    def odd_state(state: State) -> Judgement:
        return Broken("odd") if _at(state) in of(state).odd_states else HOLDS

    def bad_step(step: Step) -> Judgement:
        assert isinstance(step.command, Go)
        pair = (_at(step.before), step.command.number)
        return Broken("bad") if pair in of(step.before).bad_steps else HOLDS

    return (
        Property("state", "", "", EveryState(bad_state)),
        Property("step", "", "", EveryStep(bad_step)),
        Property("odd", "", "", EveryState(odd_state), redundant=True),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    states = draw(st.integers(1, 4))
    state = st.integers(0, states - 1)
    moves = st.dictionaries(st.integers(0, 2), state, min_size=1, max_size=3)
    which = st.frozensets(state, max_size=2)
    steps = st.frozensets(st.tuples(state, st.integers(0, 2)), max_size=2)
    every = tuple(draw(moves) for _ in range(states))
    return Graph(every, draw(which), draw(steps), draw(which))


class Seen(NamedTuple):
    geometry: Geometry
    commands: tuple[int, ...]


def brute_force(graphs: Mapping[Geometry, Graph], depth: int) -> dict[str, Seen]:
    """The first history of each property, by trying all of them in canonical order."""
    found: dict[str, Seen] = {}
    for length in range(depth + 1):
        for geometry, graph in graphs.items():
            for commands in itertools.product(range(3), repeat=length):
                for broken in _broken_by(graph, commands):
                    found.setdefault(broken, Seen(geometry, commands))
    return found


def _broken_by(graph: Graph, commands: tuple[int, ...]) -> Iterator[str]:
    """What the last command breaks, if the history gets there."""
    at, now = 0, set(_of_state(graph, 0))
    for command in commands:
        if now & {"state", "step"} or command not in graph.moves[at]:
            return
        now = {"step"} if (at, command) in graph.bad_steps else set()
        at = graph.moves[at][command]
        now |= set(_of_state(graph, at))
    yield from now


def _of_state(graph: Graph, at: int) -> Iterator[str]:
    if at in graph.bad_states:
        yield "state"
    if at in graph.odd_states:
        yield "odd"


def reachable(graph: Graph) -> tuple[int, int]:
    """States that hold, and what is tried from them; a fresh state is always one."""
    if 0 in graph.bad_states:
        return 1, 0
    good, grown = {0}, True
    while grown:
        steps = [(s, c, t) for s in good for c, t in graph.moves[s].items()]
        now = {
            t for s, c, t in steps if (s, c) not in graph.bad_steps and t not in graph.bad_states
        }
        grown = not now <= good
        good |= now
    return len(good), sum(len(graph.moves[s]) for s in good)


def begun(systems: Mapping[Geometry, Graph], hooks: Trust) -> Search:
    def make(geometry: Geometry) -> Walk:
        return Walk(systems[geometry], geometry, hooks)

    def judge() -> Judge:
        return Judge(properties(systems), frozenset())

    return Search(make, tuple(systems), judge)


def explored(systems: Mapping[Geometry, Graph], hooks: Trust, **limits: Any) -> Exploration:
    return begun(systems, hooks).until(Limits(**limits))


def histories(exploration: Exploration) -> dict[str, Seen]:
    return {
        name: Seen(found.geometry, tuple(c.to_json()["number"] for c in found.commands))
        for name, found in exploration.found.items()
    }


def told(exploration: Exploration) -> tuple[object, ...]:
    done = exploration
    return done.states, done.transitions, done.depth, done.stopped, histories(done)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(graphs(), graphs(), st.sampled_from([Trust(), Trust("whole", "none")]))
def test_search_finds_what_brute_force_finds_and_nothing_else(first, second, hooks):
    systems = {ONE: first, TWO: second}
    with untraced():
        done, due = explored(systems, hooks), brute_force(systems, 5)
    assert histories(done) == due
    one, two = reachable(first), reachable(second)
    assert (done.states, done.transitions) == (one[0] + two[0], one[1] + two[1])
    assert done.exhausted


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(graphs(), st.integers(0, 3))
def test_search_without_merging_finds_the_same_up_to_its_depth(graph, depth):
    done = explored({ONE: graph}, Trust("none", "none"), depth=depth)
    assert histories(done) == brute_force({ONE: graph}, depth)
    assert done.covers(depth)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(graphs(), graphs(), st.integers(0, 3), st.sampled_from(["state", "step", "odd"]))
def test_limits_cut_the_search_and_never_change_what_it_found(first, second, depth, wanted):
    systems = {ONE: first, TWO: second}
    with untraced():
        whole = histories(explored(systems, Trust()))
        short = explored(systems, Trust(), depth=depth)
        asked = explored(systems, Trust(), enough={wanted})
    assert histories(short) == {n: s for n, s in whole.items() if len(s.commands) <= depth}
    assert (wanted in asked.found) == (wanted in whole)
    assert histories(asked).items() <= whole.items()


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(graphs(), graphs(), st.integers(0, 3), st.integers(0, 3))
def test_a_search_that_goes_on_comes_to_what_one_without_a_stop_does(first, second, depth, more):
    systems = {ONE: first, TWO: second}
    search, whole = begun(systems, Trust()), begun(systems, Trust())
    short = search.until(Limits(depth=depth))
    known = told(short)
    limits = Limits(depth=depth + more)
    assert told(search.until(limits)) == told(whole.until(limits))
    assert search.judge.evaluations == whole.judge.evaluations
    assert told(short) == known


CHAIN = Graph((*({0: s + 1} for s in range(9)), {0: 9}), *3 * [frozenset()])


def test_search_goes_beyond_a_violation_by_as_much_as_it_is_told():
    graph = CHAIN._replace(moves=({0: 1, 1: 9}, *CHAIN.moves[1:]), bad_states=frozenset({9}))
    assert explored({ONE: graph}, Trust(), beyond=2).depth == 3
    assert explored({ONE: graph}, Trust(), beyond=2, at_least=5).depth == 5
    assert explored({ONE: graph}, Trust()).exhausted


def test_search_goes_on_past_a_redundant_property():
    graph = CHAIN._replace(odd_states=frozenset({2}), bad_states=frozenset({7}))
    done = explored({ONE: graph}, Trust(), beyond=0)
    assert {name: len(f.commands) for name, f in done.found.items()} == {"odd": 2, "state": 7}


def test_search_stops_at_its_number_of_states():
    done = explored({ONE: CHAIN}, Trust(), states=4)
    assert (done.states, done.stopped) == (5, "limit of 4 states")
    assert not done.exhausted


def test_spent_time_ends_a_search_only_once_it_is_deep_enough_unless_it_is_hard():
    assert explored({ONE: CHAIN}, Trust(), seconds=0.0).depth == 0
    done = explored({ONE: CHAIN}, Trust(), seconds=0.0, at_least=3)
    assert (done.depth, done.covers(3), done.covers(4)) == (3, True, False)
    assert "were spent" in str(done.stopped)
    assert explored({ONE: CHAIN}, Trust(), seconds=0.0, at_least=3, hard_seconds=0.0).depth == 0


def test_a_search_goes_on_from_its_depth_and_tries_nothing_twice():
    search = begun({ONE: CHAIN}, Trust())
    assert search.until(Limits(depth=4)).depth == 4
    judge = search.judge
    assert search.until(Limits(depth=3)).depth == 4
    assert search.until(Limits()).states == 10
    assert search.judge is judge
    assert judge.evaluations["state"] == 10


@pytest.mark.parametrize("ended", [Limits(states=4), Limits(enough={"odd"}), Limits()])
def test_a_search_that_ended_otherwise_begins_again(ended):
    search = begun({ONE: CHAIN._replace(odd_states=frozenset({2}))}, Trust())
    search.until(ended)
    assert told(search.until(Limits())) == told(search.until(Limits()))
    assert search.judge.evaluations["state"] == 10


def test_what_is_found_out_about_a_key_later_is_not_trusted_from_the_start():
    search = Search(worlds(LyingKey), (ONE, TWO), judging)
    assert search.until(Limits(depth=1)).doubts == ()
    done = search.until(Limits(depth=4, enough={"conservation"}))
    assert done.found["conservation"].commands == LOSES
    assert len(done.doubts) == 1
    again = search.until(Limits(depth=1))
    assert (again.doubts, again.trust) == (done.doubts, done.trust)


class Interrupts(KVCacheManager):
    """Somebody presses Ctrl-C while a prompt of two tokens waits for its blocks."""

    def allocate_for_prefill(self, req: Request) -> None:
        if req.seq_len == 2 and self.num_blocks == 2:
            raise KeyboardInterrupt
        super().allocate_for_prefill(req)

    def allocation_report(self, req: Request) -> dict[str, float]:
        return {}


def test_ctrl_c_ends_a_search_with_what_is_known():
    done = searched(Interrupts, ONE, TWO)
    assert (done.stopped, done.exhausted) == (INTERRUPTED, False)
    assert done.found["report-agrees"].commands == (Prefill(0, 1),)


def test_progress_is_told_and_never_ahead_of_the_result():
    told: list[Progress] = []
    done, _ = explore(worlds(KVCacheManager), (Geometry(3, 1),), judging, Limits(), told.append)
    assert told
    assert all(now.states <= done.states and now.depth <= done.depth for now in told)
    assert [now.transitions for now in told] == sorted(now.transitions for now in told)


def test_a_state_without_any_command_ends_its_histories_only():
    graph = CHAIN._replace(moves=({0: 1, 1: 2}, {}, {0: 2}, *CHAIN.moves[3:]))
    done = explored({ONE: graph}, Trust())
    assert (done.states, done.transitions, done.exhausted) == (3, 3, True)
