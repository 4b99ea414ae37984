"""Where the tags of the tokens are kept: the manager's own tensor, or a shadow of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pagedkv.specs.model import POISON

if TYPE_CHECKING:
    from torch import Tensor

Slot = tuple[int, int]
"""(block, offset)."""


Renaming = NDArray[np.int64] | None
"""The new tag of each tag, poison last; None leaves them as they are."""


@lru_cache(maxsize=4096)
def renaming(order: tuple[int, ...], stride: int) -> Renaming:
    """How tags change if the requests in `order` are called 0, 1, 2, ...; changes nothing."""
    if order == tuple(range(len(order))):
        return None
    highest = max(order)
    tags = np.zeros(1 + (highest + 1) * stride + 1, dtype=np.int64)
    for new, old in enumerate(order):
        start = 1 + old * stride
        tags[start : start + stride] = np.arange(stride) + 1 + new * stride
    tags[-1] = POISON
    tags.flags.writeable = False
    return tags


def renamed_tags(tags: tuple[int, ...], renaming: Renaming) -> tuple[int, ...]:
    """The tags by their new names; changes nothing."""
    return tags if renaming is None else tuple(renaming[list(tags)].tolist())


class Pool(Protocol):
    """The slots of all blocks; each holds a tag, or poison."""

    def write(self, slots: Sequence[Slot], tags: Sequence[int]) -> None:
        """Put `tags[k]` into `slots[k]`; a slot outside the pool is left out."""

    def poison(self, blocks: Iterable[int]) -> None:
        """Put poison into every slot of `blocks`."""

    def read(self, slots: Iterable[Slot]) -> tuple[float, ...]:
        """What the slots hold."""

    def key(self, renaming: Renaming) -> bytes | tuple[tuple[Slot, int], ...]:
        """A value that two pools share only if they hold the same, with the tags renamed."""


class ShadowPool:
    """Tags by slot, for managers that have no tensor. A slot that is not there is poison.

    What is written to the `reserved` blocks is lost: they are for padding.
    """

    def __init__(
        self,
        block_size: int,
        reserved: frozenset[int] = frozenset(),
        tags: dict[Slot, int] | None = None,
    ) -> None:
        self._block_size, self._reserved = block_size, reserved
        self._tags = {} if tags is None else tags

    def write(self, slots: Sequence[Slot], tags: Sequence[int]) -> None:
        self._tags.update(zip(slots, tags, strict=True))
        if self._reserved and not self._reserved.isdisjoint(block for block, _ in slots):
            kept = (item for item in self._tags.items() if item[0][0] not in self._reserved)
            self._tags = dict(kept)
        if POISON in tags:  # A copied block need not be full; equal pools are equal dicts.
            self._tags = {slot: tag for slot, tag in self._tags.items() if tag != POISON}

    def poison(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            for offset in range(self._block_size):
                self._tags.pop((block, offset), None)

    def read(self, slots: Iterable[Slot]) -> tuple[float, ...]:
        return tuple(self._tags.get(slot, POISON) for slot in slots)

    def key(self, renaming: Renaming) -> tuple[tuple[Slot, int], ...]:
        if renaming is None:
            return tuple(sorted(self._tags.items()))
        return tuple(sorted((slot, int(renaming[tag])) for slot, tag in self._tags.items()))

    def copy(self) -> ShadowPool:
        """A pool of its own with the same tags; changes nothing."""
        return ShadowPool(self._block_size, self._reserved, dict(self._tags))


class TensorPool:
    """The manager's own `[blocks, block_size, head_dim]` tensor; a tag fills its slot's row.

    On the CPU it is written through a numpy view of the same memory, since one small tensor
    operation costs as much as fifty of numpy's.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._rows: Any = _numpy_view(tensor)
        self._blocks, self._block_size = int(tensor.shape[0]), int(tensor.shape[1])

    def write(self, slots: Sequence[Slot], tags: Sequence[int]) -> None:
        rows = self._rows
        for (block, offset), tag in zip(slots, tags, strict=True):
            if 0 <= block < self._blocks:
                rows[block, offset] = tag

    def poison(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if 0 <= block < self._blocks:
                self._rows[block] = POISON

    def read(self, slots: Iterable[Slot]) -> tuple[float, ...]:
        return tuple(
            float(self._rows[block, offset].reshape(-1)[0]) if 0 <= block < self._blocks else POISON
            for block, offset in slots
        )

    def key(self, renaming: Renaming) -> bytes:
        rows = self._rows
        if not isinstance(rows, np.ndarray):
            rows = np.asarray(rows.tolist(), dtype=np.float64)
        if renaming is not None:
            # Poison is -1, which indexes the last entry: that is poison again. What is no tag
            # can't be renamed and stays, so that such states are told apart by names too.
            with suppress(IndexError):
                rows = renaming[rows.astype(np.intp)].astype(rows.dtype)
        whole: bytes = rows.tobytes()
        return whole


_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}
_EXACT |= {"int8": 2**7 - 1, "int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}


def holds_exactly(tensor: Tensor, highest: int) -> bool:
    """Whether the dtype has -1 and every integer up to `highest`; changes nothing."""
    return highest <= _EXACT.get(str(tensor.dtype).removeprefix("torch."), 0)


def _numpy_view(tensor: Any) -> Any:
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError):  # bfloat16 has no numpy type, an accelerator no numpy view
        return tensor.detach()
