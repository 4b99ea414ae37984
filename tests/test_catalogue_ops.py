"""What the catalogue says: its commands and what they say of themselves, and who judges whom."""

from __future__ import annotations

import pytest

from able import PLAIN, able, seen
from pagedkv.abilities import ABILITY_NAMES
from pagedkv.specs.abilities import ask, finding, group, swap, window
from pagedkv.specs.abilities.append import Append
from pagedkv.specs.abilities.core import Decode, Prefill
from pagedkv.specs.abilities.group import GroupBegin
from pagedkv.specs.catalogue import ABILITIES, COMMANDS, PROPERTIES, offered, ops_of, used_by
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import EMPTY
from pagedkv.specs.properties import EveryState, EveryStep


def test_without_abilities_only_the_core_is_tried():
    assert ops_of(frozenset()) == ("decode", "prefill", "release", "resume", "misuse")


def test_an_ability_brings_its_own_commands_and_all_bring_all():
    assert ops_of({"fork", "ask"}) == (*ops_of(frozenset()), "fork")
    assert ops_of(frozenset(ABILITY_NAMES)) == tuple(COMMANDS)


def test_the_canonical_order_of_commands():
    assert tuple(COMMANDS) == (
        *("decode", "prefill", "release", "resume", "misuse"),
        *("append", "truncate", "fork", "admit"),
        *("swap_out", "swap_in", "group_begin", "group_end"),
    )


@pytest.mark.parametrize(
    ("says", "ops"),
    [
        ("takes", {"prefill", "resume", "fork", "admit"}),
        ("begins", {"prefill", "fork", "admit"}),
        ("sizes", {"prefill", "append", "truncate"}),
    ],
)
def test_commands_say_what_they_are(says, ops):
    assert {op for op, kind in COMMANDS.items() if getattr(kind, says)} == ops


def test_a_command_that_takes_no_block_says_so():
    without = {op for op, kind in COMMANDS.items() if not kind.takes_blocks}
    assert without == {"release", "truncate", "group_begin", "group_end"}


# ---------------------------------------------------------------- who judges, and whom


@pytest.mark.parametrize(
    ("name", "judge"),
    [
        ("prefix-found", finding.judge_found),
        ("prefix-counted", finding.judge_counted),
        ("prefix-published", finding.judge_published),
        ("prefix-kept", finding.judge_kept),
        ("prefix-whole", finding.judge_whole),
        ("window-freed", window.judge_freed),
        ("asked-agrees", ask.judge_agrees),
        ("asked-pure", ask.judge_pure),
        ("withheld", group.judge_withheld),
    ],
)
def test_every_step_is_judged_by_its_function(name, judge):
    assert PROPERTIES[name].expectation == EveryStep(judge)


@pytest.mark.parametrize(
    ("name", "judge"),
    [
        ("index-exact", finding.judge_index),
        ("host-conserved", swap.judge_host),
        ("window-kept", window.judge_kept),
    ],
)
def test_every_state_is_judged_by_its_function(name, judge):
    assert PROPERTIES[name].expectation == EveryState(judge)


def judged(within, **shown):
    """Which properties of abilities are judged of a target that shows so much."""
    needs = offered(seen(within, EMPTY, {}, **shown))
    every = [prop for ability in ABILITIES[1:] for prop in ability.properties]
    return {prop.id for prop in Judge(every, needs).properties}


GOALS = {
    "append": {"appended-blocks"},
    "truncate": {"truncated-blocks"},
    "fork": {"block-shared", "tail-copied"},
    "prefix": {"prefix-hit", "cached-evicted"},
    "swap": {"swapped-in"},
    "ask": {"asked-agrees", "asked-pure", "asked-no"},
    "group": {"withheld", "group-freed"},
}
"""What is judged of each ability if nothing is shown."""


def test_of_an_ability_only_what_is_declared_and_shown_is_judged():
    assert judged(PLAIN, index={}, eviction_order=()) == set()
    for name, ids in GOALS.items():
        assert judged(able(name)) == ids
    assert judged(able("fork", forks_eagerly=True)) == {"block-shared"}
    index = {"index-exact", *(f"prefix-{n}" for n in ("found", "counted", "published", "kept"))}
    index |= {"prefix-whole", *GOALS["prefix"]}
    assert judged(able("prefix"), index={}) == index | {"prefix-computed"}
    assert judged(able("prefix", publishes_at_once=True), index={}) == index
    lru = able("prefix", evicts="lru")
    assert judged(lru, eviction_order=()) == {"eviction-order", *GOALS["prefix"]}
    assert judged(able("swap", host=2), swapped={}, host_free=(0, 1)) == {
        "host-conserved",
        "swapped-in",
    }


def test_of_a_window_null_entries_are_judged_or_that_a_ring_turns():
    nulls = {"window-kept", "window-freed", "window-left"}
    assert judged(able("window", window=2)) == nulls
    assert judged(able("window", window=2, null_block=None, ring=True)) == {"window-turned"}


# ---------------------------------------------------------------- commands as a reader sees them


def test_abilities_are_used_by_their_own_commands():
    assert used_by([Decode(0), Append(0, 1), GroupBegin()]) == {"append", "group"}
    assert used_by([Decode(0)]) == used_by([]) == frozenset()


def test_in_smaller_blocks_the_last_is_full_or_has_one_token():
    assert Prefill(0, 7).scaled(3, 2, full=True) == Prefill(0, 6)
    assert Prefill(0, 7).scaled(3, 2, full=False) == Prefill(0, 5)
    assert Append(0, 1).scaled(3, 2, full=False) == Append(0, 1)
    assert list(Decode(0).simpler()) == []


def test_hypothesis_shows_a_command_on_one_line():
    shown = list[str]()

    class Printer:
        text = shown.append

    Prefill(0, 7)._repr_pretty_(Printer, False)
    assert shown == ["Prefill(request=0, tokens=7)"]
