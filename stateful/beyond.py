"""What a world does beyond the core: asking first, copies that targets want, a second pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pagedkv.protocol import PagedKVManager, Request, method_of
from pagedkv.specs.commands import NOBODY, Command
from pagedkv.specs.model import Geometry, Setting
from pagedkv.specs.steps import Asked, Raised, State
from pagedkv.stateful.observe import snapshot_of, told
from pagedkv.stateful.pool import Pool, ShadowPool, TensorPool
from pagedkv.stateful.target import check_tensor

NO_REQUEST = object.__new__(Request)
"""Stands for the request of a command that is about none."""
vars(NO_REQUEST).update(
    request_id=NOBODY, prompt_len=0, seq_len=0, block_table=[], tokens=[], extra_key=None
)


class Stands(Protocol):
    """A world, as far as asking needs it."""

    manager: PagedKVManager
    handles: dict[int, Request]
    state: State


def ask(command: Command, world: Stands) -> Asked | None:
    """What the manager says it would do; None for what it is not asked about.

    An exception is what it says, too.
    """
    question = command.question()
    if question is None or not hasattr(world.manager, question[0]):
        return None
    name, rest = question
    was = world.state.seen.snapshot
    try:
        answer = getattr(world.manager, name)(world.handles[command.asks_about()], *rest)
        if answer is not None:  # A forgotten return; else yes is what `if` takes for it.
            answer = bool(answer)
        now = snapshot_of(world.manager, world.handles, world.state.model.live)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a target may raise anything
        return Asked(Raised(type(error).__name__, told(error)))
    return Asked(answer, None if now == was else (was, now))


def host_pool(manager: Any, geometry: Geometry, setting: Setting) -> Pool | None:
    """The second pool: its tensor where the manager keeps one; None without the ability.

    Raises CannotDrive where the tags do not fit.
    """
    if "swap" not in setting.declared.abilities:
        return None
    tensor = getattr(manager, "host_kv_cache", None)
    if tensor is None:
        return ShadowPool(geometry.block_size)
    check_tensor(tensor, geometry, setting.highest_tag)
    pool = TensorPool(tensor)
    pool.poison(range(setting.host_blocks))
    return pool


def copied_host(host: Pool | None, manager: Any) -> Pool | None:
    """The second pool of a copied manager; changes nothing."""
    if isinstance(host, ShadowPool):
        return host.copy()
    return None if host is None else TensorPool(manager.host_kv_cache)


def carry(manager: Any, pool: Pool, host: Pool | None, before: State, after: State) -> None:
    """Make the copies that a target without a tensor asks for. Mutates the pools.

    Within the pool they are what `take_copies()` gives, (from, to) in blocks; between the pools
    they follow the tables: block i of a request is block i of it on the other side.
    """
    size = after.setting.geometry.block_size
    take = method_of(manager, "take_copies")
    for source, there in () if take is None else take():
        _copy(pool, source, pool, there, size)
    was, now = before.seen.snapshot, after.seen.snapshot
    if isinstance(host, TensorPool):
        host.poison(_blocks_of(was.swapped) - _blocks_of(now.swapped))
    if not isinstance(host, ShadowPool):
        return
    for r, blocks in _moved(was.swapped, now.swapped).items():
        for source, there in zip(was.block_tables.get(r, ()), blocks, strict=False):
            _copy(pool, source, host, there, size)
    for r, blocks in _moved(now.swapped, was.swapped).items():
        for source, there in zip(blocks, now.block_tables.get(r, ()), strict=False):
            _copy(host, source, pool, there, size)
        host.poison(blocks)


def _moved(
    was: Mapping[int, tuple[int, ...]] | None, now: Mapping[int, tuple[int, ...]] | None
) -> dict[int, tuple[int, ...]]:
    return {r: blocks for r, blocks in (now or {}).items() if r not in (was or {})}


def _blocks_of(swapped: Mapping[int, tuple[int, ...]] | None) -> set[int]:
    return {block for held in (swapped or {}).values() for block in held}


def _copy(source: Pool, block: int, there: Pool, to: int, size: int) -> None:
    read = source.read([(block, offset) for offset in range(size)])
    there.write([(to, offset) for offset in range(size)], [int(tag) for tag in read])
