"""Locks, and what Python builds of them, are copied as new ones in the same state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import PriorityQueue, Queue
from types import SimpleNamespace
from typing import Any

import pytest

from pagedkv.stateful.copying import deep_copy, freeze, thaw
from pagedkv.stateful.fingerprint import fingerprint
from pagedkv.stateful.opaque import Opaque


def frozen(value: Any) -> Any:
    return thaw(freeze(value))


WAYS = pytest.mark.parametrize("copied", [frozen, deep_copy])
LOOKS = pytest.mark.parametrize("look", [freeze, fingerprint, deep_copy])


def held() -> Any:
    lock = threading.Lock()
    lock.acquire()
    return lock


def done() -> Future[int]:
    future: Future[int] = Future()
    future.set_result(3)
    return future


MAKERS: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "held lock": held,
    "lock that may be taken twice": threading.RLock,
    "condition": threading.Condition,
    "condition with a lock": lambda: threading.Condition(threading.Lock()),
    "event": threading.Event,
    "semaphore": lambda: threading.BoundedSemaphore(2),
    "barrier": lambda: threading.Barrier(2),
    "local": threading.local,
    "queue": lambda: Queue(3),
    "queue in order": PriorityQueue,
    "future": done,
}


@WAYS
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_copy_is_in_the_same_state_and_shares_nothing(make, copied):
    value = SimpleNamespace(one=make(), many=[make()])
    copy = copied(value)
    assert copy.one is not value.one
    assert type(copy.one) is type(value.one)
    assert freeze(copy) == freeze(value) == freeze(copied(copy))
    assert fingerprint(copy) == fingerprint(value)


@WAYS
def test_a_held_lock_is_copied_as_a_held_one_and_let_go_alone(copied):
    value = SimpleNamespace(lock=held(), free=threading.Lock())
    copy = copied(value)
    assert (copy.lock.locked(), copy.free.locked()) == (True, False)
    copy.lock.release()
    copy.free.acquire()
    assert (value.lock.locked(), value.free.locked()) == (True, False)


@pytest.mark.parametrize("look", [freeze, fingerprint])
def test_a_held_lock_is_another_state_until_it_is_let_go(look):
    value = SimpleNamespace(lock=threading.Lock())
    before = look(value)
    value.lock.acquire()
    assert look(value) != before
    value.lock.release()
    assert look(value) == before


@WAYS
@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_lock_that_is_shared_is_shared_in_the_copy(kind, copied):
    lock = kind()
    changed = threading.Condition(lock)
    value = SimpleNamespace(
        lock=lock, pool=SimpleNamespace(same=lock), changed=changed, also=[changed]
    )
    copy = copied(value)
    assert copy.lock is copy.pool.same is copy.changed._lock
    assert copy.changed is copy.also[0]
    with copy.changed:
        assert repr(copy.lock).startswith("<locked")
        assert repr(lock).startswith("<unlocked")
        copy.changed.notify_all()
    assert repr(copy.lock).startswith("<unlocked")


@WAYS
def test_a_copied_condition_waits_on_its_own_lock(copied):
    value = SimpleNamespace(changed=threading.Condition())
    copy = copied(value)
    with copy.changed:
        assert not copy.changed.wait(timeout=0.001)
        assert value.changed.acquire(blocking=False)
        value.changed.release()


@WAYS
def test_a_copied_queue_has_its_own_content(copied):
    value = SimpleNamespace(queue=Queue(2))
    value.queue.put([1])
    copy = copied(value)
    copy.queue.put([2])
    assert (value.queue.qsize(), copy.queue.full()) == (1, True)
    assert copy.queue.get_nowait() == [1]


def test_two_locks_are_not_one():
    one, other = threading.Lock(), threading.Lock()
    for look in (freeze, fingerprint):
        assert look(SimpleNamespace(a=one, b=one)) != look(SimpleNamespace(a=one, b=other))


# ---------------------------------------------------------------- what is refused


def owned() -> Any:
    lock = threading.RLock()
    lock.acquire()
    return lock


def filled() -> threading.local:
    made = threading.local()
    made.value = 1
    return made


REFUSED: dict[str, Callable[[], Any]] = {
    "an RLock that is held": owned,
    "a threading.local with something in it": filled,
    "a Thread": lambda: threading.Thread(target=list),
    "a Future": Future,
}


@LOOKS
@pytest.mark.parametrize("words", REFUSED)
def test_what_another_thread_may_have_a_part_in_is_refused(words, look):
    with pytest.raises(Opaque) as caught:
        look(SimpleNamespace(inner=REFUSED[words](), lock=threading.Lock()))
    assert str(caught.value).endswith(words)


@contextmanager
def while_a_thread(runs: Callable[[], object], wake: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=runs)
    thread.start()
    try:
        yield
    finally:
        wake()
        thread.join()


@LOOKS
def test_a_lock_that_another_thread_holds_is_refused(look):
    lock, taken, enough = threading.RLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            enough.wait()

    with while_a_thread(hold, enough.set):
        taken.wait()
        with pytest.raises(Opaque, match="an RLock that is held"):
            look(SimpleNamespace(lock=lock))
    look(SimpleNamespace(lock=lock))


@LOOKS
def test_a_condition_that_is_waited_for_is_refused(look):
    changed, waits = threading.Condition(), threading.Event()

    def wait() -> None:
        with changed:
            waits.set()
            changed.wait()

    def wake() -> None:
        with changed:
            changed.notify_all()

    with while_a_thread(wait, wake):
        waits.wait()
        with changed:  # The thread has let go of it, so that it waits.
            pass
        with pytest.raises(Opaque, match="a Condition that a thread waits for"):
            look(SimpleNamespace(changed=changed))
    look(SimpleNamespace(changed=changed))


class Named(threading.Condition):
    """A condition of a class of its own."""


@pytest.mark.parametrize(
    "make",
    [lambda lock: SimpleNamespace(take=lock.acquire), Named],
    ids=["a method", "a class of its own"],
)
def test_a_method_of_a_lock_follows_it_or_is_refused(make):
    lock = threading.Lock()
    value = SimpleNamespace(lock=lock, user=make(lock))
    copy = frozen(value)
    (copy.user.take if isinstance(copy.user, SimpleNamespace) else copy.user.acquire)()
    assert (copy.lock.locked(), lock.locked()) == (True, False)
    with pytest.raises(Opaque, match=r"^a method of a lock$"):
        deep_copy(value)


def test_a_condition_with_more_in_it_is_frozen_whole_or_refused():
    changed = threading.Condition()
    changed.reason = [1]  # type: ignore[attr-defined]
    assert frozen(changed).reason == [1]
    with pytest.raises(Opaque):
        deep_copy(changed)


def test_what_can_not_be_copied_for_another_reason_says_its_own():
    class Refuses:
        def __deepcopy__(self, memo: object) -> Refuses:
            raise KeyError("no copies")

    with pytest.raises(KeyError, match="no copies"):
        deep_copy(SimpleNamespace(refuses=Refuses()))
    with pytest.raises(KeyError, match="no copies"):
        deep_copy(SimpleNamespace(lock=threading.Lock(), refuses=Refuses()))
    with pytest.raises(Opaque, match="`ids` is a generator"):
        deep_copy(SimpleNamespace(ids=(n for n in range(3)), lock=threading.Lock()))
