"""Calls on a manager that keeps the core protocol, and failing ones."""

from __future__ import annotations

import dis
import sys
from pathlib import Path

import torch

import pagedkv
from pagedkv import (
    Request,
)


def admit(manager, *lengths):
    """Prefill requests 0, 1, ... of these lengths and return them."""
    requests = [Request(name, length) for name, length in enumerate(lengths)]
    for request in requests:
        manager.allocate_for_prefill(request)
    return requests


def key_of(manager):
    """The state key in which each request is called by its own id."""
    return manager.state_key({name: name for name in manager.snapshot().block_tables})


def everything(manager, *handles):
    """All that a call may have changed: what is seen, what is hidden, the pool, the handles."""
    return (
        manager.snapshot(),
        key_of(manager),
        manager.physical_kv_cache.tolist(),
        [(h.request_id, h.seq_len, list(h.block_table), list(h.tokens)) for h in handles],
    )


def number(manager):
    """Write its own number into every slot of the pool: block * block_size + offset."""
    slots = torch.arange(manager.num_blocks * manager.block_size, dtype=torch.float32)
    shape = (manager.num_blocks, manager.block_size, 1)
    manager.physical_kv_cache[:] = slots.reshape(shape)


def read(manager, request):
    return manager.get_physical_cache(request)[:, 0].int().tolist()


class Nth:
    """Make the n-th call inside the library fail on entry, whatever it calls, types included."""

    def __init__(self, n):
        self.left = n
        self.home = str(Path(pagedkv.__file__).parent)

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(self.home):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if operation.startswith("CALL"):
                self.left -= 1
                if self.left == 0:
                    raise MemoryError("injected")
        return self

    def run(self, call):
        """Whether the call failed; True stands for the injected failure."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except MemoryError:
            return True
        finally:
            sys.settrace(before)
        return False
