"""The planted faults are what they are said to be, and no property of the suite is idle."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest

from allocators import world
from looks import looks, needs_more
from pagedkv import KVCacheManager
from pagedkv.api import subject
from pagedkv.mutants import KINDS, Mutant, able, bases, mutants
from pagedkv.mutants.registry import PLANTED, planted
from pagedkv.scoring import by_chance, campaign_of, cut_down, plan_of
from pagedkv.specs.abilities.core import Decode, Misuse, Prefill, Release
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.commands import Command
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import Geometry
from pagedkv.specs.properties import Need, Sometimes
from pagedkv.stateful.exploration import Exploration, Limits
from pagedkv.stateful.explorer import explore
from pagedkv.stateful.profiles import Scope
from pagedkv.stateful.replay import replay
from pagedkv.stateful.report import Counterexample
from pagedkv.targets import resolve
from untraced import untraced

ALL = tuple(mutants().values())
JUDGED = tuple(
    prop
    for prop in PROPERTIES.values()
    # What needs failing calls is not part of the ordinary suite.
    if not isinstance(prop.expectation, Sometimes) and Need.FAULTS not in prop.needs
)

# The smallest pools in which every one of them shows.
SMALL = tuple(Geometry(n, size) for n, size in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)))
SCOPES = (
    Scope("fixed", SMALL, 3),
    Scope("resume", SMALL[:4], 2, keeps_released=True),
)
WIDER = {
    "drifts-every-fourth-decode": (Geometry(2, 3),),
    "copies-first-block": (Geometry(3, 2),),
    "leaves-whole-block-to-compute": (Geometry(2, 2),),
    "finds-first-block-only": (Geometry(4, 1),),
    "keeps-flag-of-recycled": (Geometry(1, 2),),
    "keeps-key-of-truncated": (Geometry(1, 3),),
    "writes-into-shared-published": (Geometry(2, 2),),
    "evicts-newest-first": (Geometry(2, 1),),
    "caches-before-others": (Geometry(2, 1),),
}
# Prompts differ in content, so that there are many more of them.
SMALLER = tuple(Geometry(n, size) for n, size in ((1, 1), (1, 2), (2, 1)))


@cache
def checked(mutant: Mutant) -> Any:
    return subject(resolve(mutant.target))


def kind_of(mutant: Mutant) -> Any:
    return checked(mutant).factories[-1]


def scopes_of(kind: Any) -> tuple[Scope, ...]:
    """The small scopes; where there are abilities, that of all of them at once."""
    abilities = kind(2, 1, 1).declares.abilities if hasattr(kind, "declares") else frozenset()
    pools = SMALLER if "prefix" in abilities else SMALL
    return (Scope("together", pools, 3, abilities=abilities),) if abilities else SCOPES


def explored(
    mutant: Mutant, depth: int, *, without: frozenset[str] = frozenset()
) -> list[Exploration]:
    """The small scopes, up to so many commands or the first violation, judged by the rest."""
    made = checked(mutant)
    left = [prop for prop in PROPERTIES.values() if prop.id not in without]
    limits = Limits(depth=depth, enough="any")
    done = []
    for scope in scopes_of(kind_of(mutant)):
        pools = WIDER.get(mutant.name, scope.geometries)

        def make(geometry, scope=scope):
            return made.world(scope, geometry)

        judge = partial(Judge, left, offered(*make(pools[0]).states))
        done.append(explore(make, pools, judge, limits)[0])
        if done[-1].found:
            break
    return done


def found(explorations: list[Exploration]) -> dict[str, int]:
    return {name: len(one.commands) for e in explorations for name, one in e.found.items()}


# ---------------------------------------------------------------- the registry


def test_there_are_at_least_sixty():
    assert len(ALL) >= 60


def test_every_module_has_some():
    assert {mutant.target.split(".")[2].split(":")[0] for mutant in ALL} == set(KINDS)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_is_well_formed(mutant):
    assert mutant.breaks in PROPERTIES
    assert mutant.optimum >= 0
    assert mutant.statement.endswith(".")
    assert mutant.seen
    kind = kind_of(mutant)
    assert mutant.target.rpartition("+")[2] == f"{kind.__module__}:{kind.__qualname__}"


def test_no_two_have_one_statement():
    assert len({mutant.statement for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize(
    "mutant", [m for m in ALL if m.hidden is not None], ids=lambda mutant: mutant.name
)
def test_the_key_of_a_mutant_has_all_that_its_class_adds(mutant):
    kind = kind_of(mutant)
    keyed = next(base for base in kind.__mro__[1:] if "state_key" in vars(base))
    added = vars(kind(4, 2, 1)).keys() - vars(keyed(4, 2, 1)).keys()
    assert added <= set(mutant.hidden)
    assert set(mutant.hidden) <= vars(kind(4, 2, 1)).keys()


@pytest.mark.parametrize(
    "mutant", [m for m in ALL if m.hidden is None], ids=lambda mutant: mutant.name
)
def test_a_mutant_whose_key_would_lie_has_none(mutant):
    assert not {"state_key", "clone"} & vars(kind_of(mutant)).keys()


def test_a_name_is_given_once():
    (first, *_) = PLANTED.values()
    kind = type(kind_of(first).__name__, (KVCacheManager,), {"__doc__": "Another one."})
    with pytest.raises(ValueError, match=f"two mutants are called {first.name}"):
        planted("conservation", 1)(kind)


# ---------------------------------------------------------------- correct but for the fault

HARMLESS = (
    (Prefill(0, 1), Release(0)),
    (Prefill(0, 1), Decode(0), Release(0)),
    (Prefill(0, 4), Prefill(1, 1)),
    (Prefill(0, 4), Decode(0)),
    (Prefill(0, 12),),
    (Prefill(0, 13), Misuse(0, "decode-fresh")),
)


def answers(factory: Any, history: Any) -> list[object]:
    """Outcomes, lengths and sizes of tables; which block is which has no meaning."""
    here = world(factory, 4, 3)
    told: list[object] = []
    for command in history:
        step = here.apply(command)
        seen = step.after.seen
        sizes = {r: len(table) for r, table in seen.tables.items()}
        told.append((type(step.outcome), dict(seen.snapshot.seq_lens), sizes))
    return told


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_is_its_parent_in_some_history(mutant):
    kind = kind_of(mutant)
    parent = next(b for b in kind.__mro__[1:] if b.__module__ != kind.__module__)
    assert any(answers(kind, h) == answers(parent, h) for h in HARMLESS)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    "base", [bases.Indexed, bases.Unlisted, bases.Padded, bases.Late, bases.KnowsNames]
)
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_what_the_mutants_stand_on_is_correct(base, scope):
    assert_correct(base, scope, 4)


ABLE = [
    kind
    for kind in vars(able).values()
    if isinstance(kind, type) and kind.__module__ == able.__name__ and kind is not able.Sharing
]


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("base", ABLE)
def test_what_the_mutants_with_abilities_stand_on_is_correct(base):
    (scope,) = scopes_of(base)
    assert_correct(base, scope, 3 if scope.geometries == SMALL else 2)


def assert_correct(base, scope, depth):
    def make(geometry):
        return checked_base.world(scope, geometry)

    checked_base = subject(type("T", (), {"name": "base", "factory": base})())
    fresh = offered(*make(SMALL[0]).states)
    # What is reserved leaves little of the smallest pools.
    pools = scope.geometries[2:] if getattr(base, "lookahead", 0) else scope.geometries[:4]
    exploration, judge = explore(
        make, pools, lambda: Judge(PROPERTIES.values(), fresh), Limits(depth=depth)
    )
    assert exploration.found == {}
    assert exploration.doubts == ()
    assert judge.evaluations["contents"] > 10
    assert exploration.transitions > 100


# ---------------------------------------------------------------- found, and how short


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found_at_its_optimum(mutant):
    with untraced():
        explorations = explored(mutant, mutant.optimum)
    assert found(explorations).get(mutant.breaks) == mutant.optimum
    assert [doubt for exploration in explorations for doubt in exploration.doubts] == []
    (shown,) = (e.found[mutant.breaks] for e in explorations if mutant.breaks in e.found)
    scope = scopes_of(kind_of(mutant))[len(explorations) - 1]
    make = partial(checked(mutant).world, scope, shown.geometry)
    ran = replay(make, shown.commands, Judge(PROPERTIES.values(), offered(*make().states)))
    assert mutant.breaks in {violation.property.id for violation in ran.violations}


SAMPLE = (
    "counts-one-block-too-many",
    "forgets-last-block",
    "leaves-grown-block-free",
    "starts-block-at-remainder-one",
    "shares-with-neighbour",
    "notes-length-at-block-edge-only",
    "puts-back-in-reverse",
    "frees-up-to-flaw",
    "counts-room-in-tails",
    "releases-fresh-request",
    "reads-across-blocks",
    "counts-no-growth",
    "stays-cautious",
    "maps-owners-by-count",
    "never-slides",
)


def essence(example: Counterexample) -> tuple[str, Geometry, tuple[Command, ...], str]:
    return (example.property, example.geometry, example.commands, example.proof.name)


def of_search(mutant: Mutant, seed: int | None) -> Counterexample:
    examples = campaign_of((mutant.target, plan_of(seed))).counterexamples
    return next(e for e in examples if e.property == mutant.breaks)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", SAMPLE)
def test_seed_and_order_of_drivers_do_not_change_the_counterexample(name):
    mutant = mutants()[name]
    due = essence(of_search(mutant, None))
    assert due[-1] == "shortest"
    assert len(due[2]) == mutant.optimum
    assert essence(of_search(mutant, 1)) == due
    longer = by_chance((mutant, 2))
    assert longer is not None
    assert (example := cut_down(longer).example) is not None
    assert essence(example) == due


# ---------------------------------------------------------------- no property is idle

ALONE = {
    "table-valid": "grows-past-pool",
    "table-unique": "shares-with-neighbour",
    "free-valid": "passes-over-duplicate",
    "free-disjoint": "passes-over-taken",
    "conservation": "forgets-last-block",
    "free-count": "counts-no-growth",
    "pending": "waits-for-block-edge",
    "seq-len": "notes-length-at-block-edge-only",
    "table-cover": "one-more-at-exact-multiple",
    "handle-filled": "swallows-token",
    "others-untouched": "compacts-on-release",
    "rollback": "puts-back-in-reverse",
    "out-of-blocks": "refuses-exact-fit",
    "misuse-refused": "releases-fresh-request",
    "answered": "pops-from-empty-list",
    "contents": "reads-one-run",
    "handles-agree": "recycles-lists",
    "reverse-map": "places-growth-from-zero",
    "capacities": "grows-without-room",
    "free-listed": "lists-blocks-that-are-true",
    "reads-pure": "borrows-scratch-block",
    "ref-counts": "grows-without-reference",
    "report-agrees": "reports-whole-percent",
    "lockstep": "declares-watermark",
    "asked-agrees": "asks-for-full-blocks",
    "asked-pure": "reorders-when-asked",
    "host-conserved": "keeps-host-blocks",
    "index-exact": "publishes-over-others",
    "prefix-found": "finds-held-blocks-only",
    "prefix-counted": "counts-found-as-needed",
    "prefix-published": "publishes-first-block-only",
    "prefix-kept": "forgets-at-release",
    "prefix-whole": "keeps-key-of-truncated",
    "prefix-computed": "publishes-before-computed",
    "eviction-order": "evicts-newest-first",
    "window-kept": "slides-one-block-too-far",
    "window-freed": "slides-when-it-has-to",
    "withheld": "gives-back-at-once",
}
"""A mutant that only this property catches, of those that need no more observation."""
SOONER = {"window-freed"}
"""What is left behind a window is missed by the next call that needs it, and by no other property
before."""


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("prop", JUDGED, ids=lambda prop: prop.id)
def test_no_property_is_idle(prop):
    mutant = mutants()[ALONE[prop.id]]
    assert mutant.breaks == prop.id
    more = frozenset(other.id for other in JUDGED if needs_more(other, prop))
    with_it = explored(mutant, mutant.optimum, without=more)
    assert found(with_it) == {prop.id: mutant.optimum}
    longer = mutant.optimum + (prop.id not in SOONER)
    without_it = explored(mutant, longer, without=more | {prop.id})
    assert found(without_it) == {}


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ("contents", "rollback"),
        ("conservation", "free-disjoint"),
        ("free-disjoint", "free-valid"),
        ("handle-filled", "answered"),
    ],
)
def test_what_looks_at_more_needs_more(more, less):
    assert needs_more(PROPERTIES[more], PROPERTIES[less])
    assert not needs_more(PROPERTIES[less], PROPERTIES[more])


def test_what_a_property_looks_at_is_measured():
    seen = looks()
    assert seen["free-valid"] == {"free_blocks"}
    assert {"free_blocks", "block_tables", "cached"} <= seen["conservation"]
    assert "read" in seen["contents"]
    assert {"handles", "block_tables"} <= seen["others-untouched"]
    assert seen["misuse-refused"] == {"outcome"}
