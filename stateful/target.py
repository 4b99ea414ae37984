"""A target as it is made: what can't be driven at all is said here, in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from pagedkv.abilities import PROTOCOLS, missing
from pagedkv.declarations import STRICT, Declarations
from pagedkv.protocol import PagedKVManager
from pagedkv.specs.model import Geometry
from pagedkv.stateful.observe import told
from pagedkv.stateful.pool import holds_exactly

Factory = Callable[[int, int, int], PagedKVManager]


class CannotDrive(Exception):
    """The target can't be driven at all: it can't be made, or it can't be observed."""


def own_hook(manager: object, name: str) -> Callable[..., Any] | None:
    """The optional method `name`, only if the manager's own class wrote it.

    An inherited `state_key` or `clone` knows nothing of what the subclass added, and would
    merge states that differ.
    """
    if name in type(manager).__dict__ and name not in getattr(manager, "__dict__", {}):
        hook: Callable[..., Any] = getattr(manager, name)
        return hook
    return None


_HERE, _leave = os.getpid(), os._exit


def stay(status: int) -> NoReturn:
    """What `os._exit` is while a target is called: a fault of the target, and not the end of all.

    A run that ends in mid-call with the exit code 0 would pass for one that found nothing. What a
    target forks may leave as it likes. Raises SystemExit.
    """
    if os.getpid() != _HERE:
        _leave(status)
    raise SystemExit(f"os._exit({status})")


@contextmanager
def driving(what: str) -> Iterator[None]:
    """Whatever a target raises in here means that it can't be driven."""
    leave, os._exit = os._exit, stay
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise CannotDrive(f"{what}: {type(error).__name__}: {told(error)}") from error
    finally:
        os._exit = leave


def made(factory: Factory, geometry: Geometry) -> PagedKVManager:
    """A fresh manager that has what it takes to be driven. Raises CannotDrive."""
    with driving(f"the target can't be made with {geometry}"):
        manager = factory(geometry.num_blocks, geometry.block_size, geometry.head_dim)
    declared = getattr(manager, "declares", None) or STRICT
    if not isinstance(declared, Declarations):
        raise CannotDrive(f"declares must be a pagedkv.Declarations, got {declared!r}")
    for name in ("allocate_for_prefill", "allocate_for_decode", "release_request"):
        if not callable(getattr(manager, name, None)):
            raise CannotDrive(
                f"the target makes a {type(manager).__name__} without a method {name}(req)"
            )
    for ability in missing(manager, declared.abilities):
        names = [name for name in vars(PROTOCOLS[ability]) if not name.startswith("_")]
        raise CannotDrive(
            f"declares the ability {ability}, but {type(manager).__name__} lacks one of "
            f"{', '.join(names)}"
        )
    if declared.tables_outside and not callable(getattr(manager, "snapshot", None)):
        raise CannotDrive(
            f"tables_outside needs a method {type(manager).__name__}.snapshot(), since else nobody "
            "could see the tables"
        )
    return manager


def check_tensor(tensor: Any, geometry: Geometry, highest: int) -> None:
    """Raise CannotDrive unless a pool of this geometry can hold the tags 1 .. `highest`."""
    shape = tuple(getattr(tensor, "shape", ()))
    if not hasattr(tensor, "shape"):
        raise CannotDrive(
            f"physical_kv_cache is a {type(tensor).__name__}, not one tensor [num_blocks, "
            f"{geometry.block_size}, {geometry.head_dim}]; give one layer's, or leave it out"
        )
    if len(shape) != 3 or shape[1:] != (geometry.block_size, geometry.head_dim):
        raise CannotDrive(
            f"physical_kv_cache has shape {list(shape)}, not [num_blocks, "
            f"{geometry.block_size}, {geometry.head_dim}]"
        )
    if not holds_exactly(tensor, highest):
        raise CannotDrive(
            f"physical_kv_cache is {tensor.dtype}, which can't hold -1 and the tags 1 .. "
            f"{highest} exactly; make it float32 for the check, or the pool smaller"
        )
