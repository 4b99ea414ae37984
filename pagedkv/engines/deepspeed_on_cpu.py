"""DeepSpeed-FastGen's sequence and block bookkeeping, imported for the CPU.

What needs an accelerator is stood in: the device's name, pinned memory and fast host buffers.
"""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any

import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it warns that it found none

from deepspeed.inference.v2 import logging as engine_logging
from deepspeed.inference.v2.inference_utils import DtypeEnum
from deepspeed.inference.v2.ragged import (
    blocked_allocator,
    kv_cache,
    manager_configs,
    ragged_manager,
)
from deepspeed.inference.v2.ragged.sequence_descriptor import PlaceholderSequenceDescriptor

__all__ = ["DtypeEnum", "PlaceholderSequenceDescriptor", "manager_configs", "ragged_manager"]


class _Torch:
    """torch, but for pinned memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def arange(self, *ends: int, pin_memory: bool, **options: Any) -> torch.Tensor:
        del pin_memory
        return torch.arange(*ends, **options)


_CPU = SimpleNamespace(current_device=lambda: "cpu")
_HOST = SimpleNamespace(allocate_fast_host_buffer=torch.zeros_like)
blocked_allocator.torch = _Torch()
kv_cache.get_accelerator = ragged_manager.get_accelerator = lambda: _CPU
ragged_manager.RaggedUtilsBuilder = lambda: SimpleNamespace(load=lambda: _HOST)
engine_logging.inference_logger().setLevel(logging.WARNING)
