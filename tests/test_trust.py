"""Keys and copies are checked before they are relied on: own hooks, renaming, continuations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from allocators import Plain, moved, world
from builders import declaring
from faults import Tired, Unseen
from pagedkv import KVCacheManager, Request
from pagedkv.specs.abilities.core import Decode, Prefill, Release, Resume
from pagedkv.specs.model import Geometry
from pagedkv.stateful.lockstep import Lockstep
from pagedkv.stateful.target import own_hook
from pagedkv.stateful.trust import Distrust, Trust, same_from_here, varies
from pagedkv.stateful.world import World

OWN, GENERIC, NONE = Trust(), Trust("whole", "deep"), Trust("none", "none")
POOL = Geometry(2, 1)


class Unreadable(Plain):
    """Its handles can't be read any more once they were released."""

    class View(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise KeyError("no such request")

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        req.block_table = self.View()


def test_two_targets_that_can_t_be_looked_at_any_more_say_the_same():
    def make() -> World:
        return world(Unreadable)

    assert varies(make, make) is None


class Inherits(KVCacheManager):
    """Has a field of its own, of which the inherited hooks know nothing."""


class NamesItself(Plain):
    """Has a key that is also the name of an attribute."""

    def __init__(self, *geometry):
        super().__init__(*geometry)
        self.stats = {"block_size": 1}


def test_hooks_are_used_where_the_managers_own_class_has_them():
    assert world(KVCacheManager).hooks() == Trust("own", "own")
    assert world(Plain).hooks() == Trust("whole", "deep")
    assert world(Tired).hooks() == Trust("own", "deep")


def test_inherited_hooks_are_not_used():
    assert world(Inherits).hooks() == Trust("whole", "deep")
    assert own_hook(Inherits(2, 1, 1), "clone") is None


def test_a_hook_that_an_instance_put_over_the_class_is_not_used():
    manager = KVCacheManager(2, 1, 1)
    assert own_hook(manager, "state_key") is not None
    manager.state_key = lambda names: ()  # type: ignore[method-assign]
    assert own_hook(manager, "state_key") is None


def test_an_inherited_key_does_not_merge_what_the_subclass_added():
    one, other = moved(world(Inherits), Prefill(0, 1)), moved(world(Inherits), Prefill(0, 1))
    other.manager.extra = 1  # type: ignore[attr-defined]
    assert one.key(OWN) != other.key(OWN)


def test_distrust_gives_up_one_step_of_what_failed():
    key, clone = Distrust("key", "k"), Distrust("clone", "c")
    assert key.less(Trust()) == Trust("whole", "own")
    assert key.less(Trust("whole")) == Trust("all", "own")
    assert key.less(Trust("all")) == Trust("none", "own")
    assert clone.less(Trust()) == Trust("own", "deep")
    assert clone.less(GENERIC) == Trust("whole", "none")
    assert str(clone) == "c"


@pytest.mark.parametrize("trust", [OWN, GENERIC], ids=["own", "generic"])
@pytest.mark.parametrize("factory", [KVCacheManager, Plain])
def test_equal_histories_have_equal_keys_and_others_have_not(factory, trust):
    def key(*commands):
        return moved(world(factory, 2, 1), *commands).key(trust)

    assert key(Prefill(0, 1)) == key(Prefill(0, 1))
    assert len({key(), key(Prefill(0, 1)), key(Prefill(0, 2)), key(Prefill(1, 2))}) >= 3
    longer = key(Prefill(0, 1), Decode(0))
    assert longer not in {key(), key(Prefill(0, 1))}
    assert key(Prefill(0, 1), Release(0)) != key(Prefill(0, 2), Release(0))


def test_own_keys_do_not_tell_names_apart_and_generic_ones_do():
    first = moved(world(KVCacheManager), Prefill(0, 3), Prefill(1, 1))
    second = moved(world(KVCacheManager), Prefill(1, 3), Prefill(0, 1))
    assert first.key(OWN) == second.key(OWN)
    assert first.key(GENERIC) != second.key(GENERIC)
    assert first.key(NONE) is None


def test_requests_are_ordered_by_what_they_hold_not_by_name():
    here = moved(world(KVCacheManager), Prefill(1, 3), Prefill(0, 1))
    assert here.order(OWN) == (0, 1)
    there = moved(world(KVCacheManager), Prefill(0, 3), Prefill(1, 1))
    assert there.order(OWN) == (1, 0)
    assert there.order(GENERIC) == (0, 1)


@pytest.mark.parametrize("trust", [OWN, GENERIC], ids=["own", "generic"])
@pytest.mark.parametrize("factory", [KVCacheManager, Plain])
def test_a_clone_is_in_the_same_state_and_moves_alone(factory, trust):
    here = moved(world(factory), Prefill(0, 3), Prefill(1, 1), Release(1))
    before, key = here.state.seen, here.key(trust)
    twin = here.clone(trust)
    assert key == twin.key(trust)
    assert before.read() == twin.state.seen.read()
    moved(twin, Decode(0), Decode(0), Release(0), Resume(1))
    assert key == here.key(trust)
    assert (before.snapshot, before.handles) == (here.state.seen.snapshot, here.state.seen.handles)
    assert here.state.seen.read() == {0: (1, 2, 3)}
    moved(here, Decode(0))


def test_a_key_that_is_also_an_attributes_name_does_not_tell_a_copy_apart():
    here = world(NamesItself)
    assert here.key(GENERIC) == here.clone(GENERIC).key(GENERIC)


def test_systems_in_the_same_state_go_on_alike():
    def here():
        return moved(world(KVCacheManager, 2, 1), Prefill(0, 1))

    assert same_from_here(here, here, OWN) is None
    assert same_from_here(here, here, GENERIC) is None


def test_systems_that_differ_in_names_only_go_on_alike():
    assert (
        same_from_here(
            lambda: moved(world(KVCacheManager, 3, 1), Prefill(0, 2), Prefill(1, 1)),
            lambda: moved(world(KVCacheManager, 3, 1), Prefill(1, 2), Prefill(0, 1)),
            OWN,
        )
        is None
    )


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ([Prefill(0, 1)], [Prefill(0, 2)], "they allow different commands"),
        ([Prefill(0, 1)], [], "they allow different commands"),
        (
            [Prefill(0, 1), Prefill(1, 1), Release(0)],
            [Prefill(1, 1), Prefill(0, 1), Release(0)],
            "they answer decode(1) differently",
        ),
    ],
    ids=["length", "nothing", "order of the free list"],
)
def test_a_difference_in_what_follows_is_found(one, other, words):
    def at(commands):
        return lambda: moved(world(Plain, 2, 1, keeps_released=False), *commands)

    assert words == same_from_here(at(one), at(other), GENERIC)


def test_a_difference_that_no_answer_shows_is_found_by_the_keys():
    class Counting(Plain):
        calls = start = 0

        def allocate_for_decode(self, req):
            super().allocate_for_decode(req)
            self.calls += self.start

    def starting(at):
        return lambda: moved(world(type("C", (Counting,), {"start": at}), 2, 1), Prefill(0, 1))

    assert same_from_here(starting(0), starting(1), GENERIC) == "they differ after decode(0)"
    assert same_from_here(starting(0), starting(1), NONE) is None


def test_a_difference_in_the_contents_alone_is_found_without_keys():
    def writing(where):
        class Elsewhere(Plain):
            def slots(self, req):
                first = (req.block_table[0], 0)
                return [
                    (0, *first) if where and p else (0, req.block_table[p], 0)
                    for p in range(req.seq_len)
                ]

        return lambda: moved(world(Elsewhere, 2, 1), Prefill(0, 1))

    found = same_from_here(writing(0), writing(1), NONE)
    assert found == "they answer decode(0) differently"


def test_a_difference_that_shows_late_is_found_by_the_longer_walk():
    class Ageing(Plain):
        age = 0

        def take(self, blocks):
            self.age += 1
            if self.age == 3:
                self.free.pop()
            return super().take(blocks)

    def starting(at):
        return lambda: world(type("A", (Ageing,), {"age": at}), 3, 1)

    found = same_from_here(starting(0), starting(-9), NONE)
    assert found is not None
    assert found.endswith("more commands")


def test_two_in_lockstep_move_as_one():
    pair = Lockstep(world(KVCacheManager, 2, 1), world(Plain, 2, 1))
    assert pair.hooks().key == "whole"
    step = pair.apply(Prefill(0, 1))
    assert step.peer is not None
    assert step.peer.after.seen.tables == {0: (0,)}
    twin = pair.clone(GENERIC)
    assert pair.key(GENERIC) == twin.key(GENERIC)
    twin.apply(Decode(0))
    assert pair.key(GENERIC) != twin.key(GENERIC)
    assert pair.key(NONE) is None
    assert same_from_here(lambda: pair.clone(GENERIC), lambda: pair.clone(GENERIC), GENERIC) is None


def test_of_two_in_lockstep_the_one_that_can_not_be_seen_says_why():
    hidden = "the whole state of the target can't be seen: `generator` is a generator"
    for pair in ((KVCacheManager, Unseen), (Unseen, KVCacheManager)):
        assert Lockstep(*(world(factory, 2, 1) for factory in pair)).unseen(GENERIC) == hidden
    assert Lockstep(world(KVCacheManager), world(Plain)).unseen(GENERIC) is None


def test_a_difference_in_the_second_of_two_is_a_difference():
    def pair(right):
        return lambda: Lockstep(world(KVCacheManager, 2, 1), world(right, 2, 1))

    class Backwards(Plain):
        def take(self, blocks):
            self.free.reverse()
            return super().take(blocks)

    found = same_from_here(pair(Plain), pair(Backwards), NONE)
    assert found == "they answer prefill(0, 1) differently"


def test_the_commands_of_two_are_those_that_make_sense_for_both():
    class Once(KVCacheManager):
        declares = declaring(resumes=False)

    pair = Lockstep(world(KVCacheManager), world(Once))
    pair.apply(Prefill(0, 1))
    pair.apply(Release(0))
    assert Resume(0) in pair.left.candidates()
    assert Resume(0) not in pair.candidates()
