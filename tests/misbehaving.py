"""Targets that misbehave in every way, for tests that run them in processes of their own."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace

from faults import TINY
from pagedkv import KVCacheManager, Request
from pagedkv.stateful.plan import Plan
from pagedkv.stateful.subject import Subject

exit_c = ctypes.CDLL(None)._exit
"""The end of the process in mid-call, which no Python can keep from coming."""

TINIER = replace(TINY, name="quick", depth=2, examples=5, steps=10)
PLAN = Plan(TINIER, 1.0, expected={})


class Good(KVCacheManager):
    pass


class Dies(KVCacheManager):
    """Leaves the interpreter in the second decode."""

    def allocate_for_decode(self, req: Request) -> None:
        if req.seq_len > 1:
            exit_c(7)
        super().allocate_for_decode(req)


class Crashes(KVCacheManager):
    """Segmentation fault where two requests are live, and one grows."""

    def allocate_for_decode(self, req: Request) -> None:
        if len(self._live) == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().allocate_for_decode(req)


class Killed(KVCacheManager):
    """Ended from outside, as the system does it when memory runs out."""

    def allocate_for_decode(self, req: Request) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(KVCacheManager):
    def release_request(self, req: Request) -> None:
        while True:
            time.sleep(0.05)


class Eats(KVCacheManager):
    """Takes memory without end."""

    def release_request(self, req: Request) -> None:
        taken = []
        while True:
            taken.append(bytearray(os.urandom(1 << 20)) * 16)
            time.sleep(0.02)


class Interrupts(KVCacheManager):
    def release_request(self, req: Request) -> None:
        raise KeyboardInterrupt("the target's own")


class Leaves(KVCacheManager):
    def release_request(self, req: Request) -> None:
        sys.exit("the target wants to leave")


class Ends(KVCacheManager):
    """Raises what no `except Exception` catches."""

    def release_request(self, req: Request) -> None:
        raise BaseException("not an Exception")


class Mutates(KVCacheManager):
    """Renames the request that it was given."""

    def release_request(self, req: Request) -> None:
        super().release_request(req)
        req.request_id += 1


class Retokens(KVCacheManager):
    """Changes the token ids that it was given."""

    def allocate_for_prefill(self, req: Request) -> None:
        super().allocate_for_prefill(req)
        req.tokens = [7] * len(req.tokens)


class Prints(KVCacheManager):
    def allocate_for_prefill(self, req: Request) -> None:
        print("all work and no play " * 200)  # noqa: T201 - that is its fault
        super().allocate_for_prefill(req)


class DiesOnce(KVCacheManager):
    """Dies in the first process that has the chance to, and in no other."""

    def release_request(self, req: Request) -> None:
        mark = os.environ["PAGEDKV_TEST_MARK"]
        if not os.path.exists(mark):  # noqa: PTH110 - nothing to import in a process that dies
            with open(mark, "w", encoding="utf-8"):  # noqa: PTH123
                exit_c(7)
        super().release_request(req)


TARGETS = {
    "good": Good,
    "dies": Dies,
    "crashes": Crashes,
    "killed": Killed,
    "hangs": Hangs,
    "eats": Eats,
    "interrupts": Interrupts,
    "leaves": Leaves,
    "ends": Ends,
    "mutates": Mutates,
    "retokens": Retokens,
    "prints": Prints,
    "dies-once": DiesOnce,
}


def resolve(name: str) -> Subject:
    """Called in the child."""
    return Subject(name, (TARGETS[name],))
