"""What the world makes of an answer: out of blocks as declared, whatever is raised, no target."""

from __future__ import annotations

import os
import sys

import pytest

from allocators import Plain, broken, moved, world
from builders import declaring
from pagedkv import KVCacheManager, Request
from pagedkv.declarations import Raises, Returns
from pagedkv.specs.abilities.core import Decode, Prefill, Release
from pagedkv.specs.steps import Done, NoBlocks, Raised, Refused
from pagedkv.stateful.target import CannotDrive


class Outspoken(Plain):
    """Says that blocks ran out in the way that a test declares."""

    answer: object = None

    def take(self, blocks: int) -> list[int]:
        try:
            return super().take(blocks)
        except RuntimeError:
            if isinstance(self.answer, BaseException):
                raise self.answer from None
            raise StopIteration from None

    def allocate_for_prefill(self, req):
        try:
            return super().allocate_for_prefill(req)
        except StopIteration:
            return self.answer

    def allocate_for_decode(self, req):
        try:
            return super().allocate_for_decode(req)
        except StopIteration:
            return self.answer


def speaking(given: object, *declared: Raises | Returns) -> type[Outspoken]:
    class Speaking(Outspoken):
        answer = given
        declares = declaring(out_of_blocks=declared)

    return Speaking


@pytest.mark.parametrize(
    ("answer", "declared", "words"),
    [
        (None, Returns(None), "returned None"),
        (False, Returns(value=False), "returned False"),
        (MemoryError("pool is empty"), Raises(MemoryError, "pool"), "pool is empty"),
        (AssertionError("no blocks"), Raises(AssertionError, "no blocks"), "no blocks"),
        (ValueError("no blocks"), Raises(ValueError, "no blocks"), "no blocks"),
    ],
    ids=["None", "False", "MemoryError", "AssertionError", "ValueError"],
)
def test_out_of_blocks_is_understood_as_declared(answer, declared, words):
    here = world(speaking(answer, declared))
    assert broken(here, Prefill(0, 8), Prefill(1, 1)) == {}
    assert NoBlocks(words) == here.apply(Decode(0)).outcome


def test_several_ways_to_say_out_of_blocks_can_be_declared():
    ways = (Raises(MemoryError, "pool"), Returns(None))
    for answer in (MemoryError("pool"), None):
        assert isinstance(world(speaking(answer, *ways)).apply(Prefill(0, 9)).outcome, NoBlocks)


def test_an_equal_value_that_is_not_the_declared_one_is_no_refusal():
    here = world(speaking(0, Returns(value=False)))
    assert Done("0") == here.apply(Prefill(0, 9)).outcome


def test_a_refusal_may_be_any_value():
    here = world(speaking(tuple(iter(("no", "blocks"))), Returns(("no", "blocks"))))
    assert isinstance(here.apply(Prefill(0, 9)).outcome, NoBlocks)


def test_a_release_that_returns_none_is_no_refusal():
    class Quiet(speaking(None, Returns(None))):  # type: ignore[misc]  # a class made on the way
        def release_request(self, req):
            super().release_request(req)

    assert broken(world(Quiet), Prefill(0, 1), Release(0)) == {}


def test_another_message_than_the_declared_one_is_another_failure():
    here = world(speaking(MemoryError("broken"), Raises(MemoryError, "pool")))
    found = broken(here, Prefill(0, 9))
    expected = "prefill(0, 9): raised MemoryError: broken; a grant or out-of-blocks was due"
    assert {"answered": expected} == found


def raising(error: BaseException) -> type[Plain]:
    class Raising(Plain):
        def allocate_for_decode(self, req):
            raise error

    return Raising


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KeyError(3), Raised("KeyError", "3")),
        (SystemExit(1), Raised("SystemExit", "1")),
        (RuntimeError("odd"), Raised("RuntimeError", "odd")),
        (UnicodeError("odd"), Refused("odd")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_call_raises_is_its_outcome(error, outcome):
    here = moved(world(raising(error)), Prefill(0, 1))
    assert outcome == here.apply(Decode(0)).outcome


def test_an_interrupt_is_nobodys_outcome():
    here = moved(world(raising(KeyboardInterrupt())), Prefill(0, 1))
    with pytest.raises(KeyboardInterrupt):
        here.apply(Decode(0))


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            lambda *geometry: 1 / 0,
            (
                "the target can't be made with 4 block(s) of 2 token(s): "
                "ZeroDivisionError: division by zero"
            ),
        ),
        (
            lambda *geometry: None,
            "the target makes a NoneType without a method allocate_for_prefill(req)",
        ),
        (
            type("Odd", (Plain,), {"declares": {"lookahead": 1}}),
            "declares must be a pagedkv.Declarations, got {'lookahead': 1}",
        ),
        (
            type("Dumb", (Plain,), {"release_request": None}),
            "the target makes a Dumb without a method release_request(req)",
        ),
        (
            type("Shy", (Plain,), {"snapshot": lambda self: self.nothing}),
            (
                "a fresh target can't be observed: "
                "AttributeError: 'Shy' object has no attribute 'nothing'"
            ),
        ),
        (
            type("Vague", (Plain,), {"snapshot": lambda self: None}),
            (
                "a fresh target can't be observed: "
                "TypeError: snapshot() must give a pagedkv.Snapshot, got None"
            ),
        ),
        (
            type("Counts", (Plain,), {"free_blocks": property(lambda self: len(self.free))}),
            (
                "a fresh target can't be observed: "
                "TypeError: free_blocks is 4: let it be the ids, or give snapshot() instead"
            ),
        ),
        (
            lambda *geometry: sys.exit(3),
            "the target can't be made with 4 block(s) of 2 token(s): SystemExit: 3",
        ),
    ],
    ids=["raises", "nothing", "declares", "method", "snapshot", "None", "free count", "exits"],
)
def test_a_target_that_cannot_be_driven_says_why(factory, words):
    with pytest.raises(CannotDrive) as caught:
        world(factory)
    assert words == str(caught.value)


def test_a_call_that_would_end_the_process_is_an_answer_like_any_other():
    class Leaves(KVCacheManager):
        def allocate_for_decode(self, req: Request) -> None:
            os._exit(0)

    leave = os._exit
    here = moved(world(Leaves), Prefill(0, 1))
    assert here.apply(Decode(0)).outcome == Raised("SystemExit", "os._exit(0)")
    assert os._exit is leave
    with pytest.raises(CannotDrive, match=r"can't be made with .*: SystemExit: os._exit\(3\)"):
        world(lambda *_: os._exit(3))
    assert os._exit is leave


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_call_forks_may_leave_as_it_likes():
    class Forks(KVCacheManager):
        def allocate_for_decode(self, req: Request) -> None:
            child = os.fork()
            if child == 0:
                os._exit(5)
            _, status = os.waitpid(child, 0)
            raise KeyError(os.waitstatus_to_exitcode(status))

    here = moved(world(Forks), Prefill(0, 1))
    assert here.apply(Decode(0)).outcome == Raised("KeyError", "5")
