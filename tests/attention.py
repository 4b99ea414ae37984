"""A model runner in small: keys and values in paged caches, written and read as engines do it.

It follows the tables of one world. New tokens are written slot by slot, a block that takes another
one's place is copied, swapped ones are copied to the second pool and back, and what nobody holds is
overwritten with NaN. Reading gathers whole blocks in table order, as a kernel does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pagedkv.specs.abilities.fork import Fork
from pagedkv.specs.steps import Step
from pagedkv.stateful.world import World

LAYOUTS = {
    "token-major, apart": ("bshd", "bshd"),
    "head-major, apart": ("bhsd", "bhsd"),
    "head-major keys, token-major values": ("bhsd", "bshd"),
    "token-major, K before V": ("cbshd",),
    "token-major, K and V of a block": ("bcshd",),
    "head-major, K and V of a block": ("bchsd",),
    "K and V of a token": ("bschd",),
    "K and V of a token and head": ("bhscd",),
}
"""The order of block, K or V, slot, head and head_dim; two where K and V are tensors of their own.

Source: vLLM's FlashAttention ("cbshd") and FlashInfer's NHD and HND ("bcshd", "bchsd") layouts.
"""


@dataclass(frozen=True)
class Shape:
    """Of the caches: `groups` query heads read each of `heads` heads of keys and values."""

    heads: int
    groups: int
    dim: int
    dtype: torch.dtype


class Cache:
    """One pool of blocks in one layout."""

    def __init__(self, layout: str, blocks: int, size: int, shape: Shape) -> None:
        self.orders = LAYOUTS[layout]
        sizes = {"b": blocks, "s": size, "h": shape.heads, "d": shape.dim, "c": 2}
        self.parts = [
            torch.full([sizes[axis] for axis in order], torch.nan, dtype=shape.dtype)
            for order in self.orders
        ]

    def at(self, block: int, which: int) -> tuple[Tensor, str]:
        """The keys (0) or values (1) of a block, and the order of what is left of their axes."""
        order = self.orders[which % len(self.orders)]
        part = self.parts[which % len(self.orders)].select(order.index("b"), block)
        order = order.replace("b", "")
        if "c" in order:
            part = part.select(order.index("c"), which)
        return part, order.replace("c", "")

    def write(self, block: int, offset: int, key: Tensor, value: Tensor) -> None:
        """Put one token's [heads, dim] keys and values into a slot."""
        for which, row in enumerate((key, value)):
            part, order = self.at(block, which)
            part.select(order.index("s"), offset).copy_(row)

    def poison(self, block: int) -> None:
        for which in (0, 1):
            self.at(block, which)[0].fill_(torch.nan)

    def copy(self, block: int, there: Cache, to: int) -> None:
        for which in (0, 1):
            there.at(to, which)[0].copy_(self.at(block, which)[0])

    def gather(self, table: list[int], which: int) -> Tensor:
        """The keys or values of these blocks, in this order: [tokens, heads, dim]."""
        order = self.orders[which % len(self.orders)]
        part = self.parts[which % len(self.orders)]
        found = part.index_select(order.index("b"), torch.tensor(table, dtype=torch.long))
        if "c" in order:
            found = found.select(order.index("c"), which)
            order = order.replace("c", "")
        return found.permute([order.index(axis) for axis in "bshd"]).flatten(0, 1)


class Runner:
    """The caches of all layouts beside one world, and the dense cache that they are to equal."""

    def __init__(self, world: World, shape: Shape, seed: int) -> None:
        self.world, self.shape = world, shape
        self.size = world.setting.geometry.block_size
        self.made = torch.Generator().manual_seed(seed)
        blocks, host = max(world.setting.usable) + 1, world.setting.host_blocks
        self.caches = {name: Cache(name, blocks, self.size, shape) for name in LAYOUTS}
        self.hosts = {name: Cache(name, host, self.size, shape) for name in LAYOUTS}
        self.known: dict[int, tuple[Tensor, Tensor]] = {}

    def random(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=self.made)

    def token(self, tag: int) -> tuple[Tensor, Tensor]:
        """The [heads, dim] keys and values of the token with this tag, the same each time."""
        if tag not in self.known:
            rows = self.random(2, self.shape.heads, self.shape.dim).to(self.shape.dtype)
            self.known[tag] = (rows[0], rows[1])
        return self.known[tag]

    # ---------------------------------------------------------------- following the tables

    def follow(self, step: Step) -> None:
        """Do what a model runner does after this call."""
        if not step.granted:
            return
        self._swap(step)
        for block, to in _replaced(step):
            for cache in self.caches.values():
                cache.copy(block, cache, to)
        self._write(step)
        seen = step.after.seen
        kept = seen.held.union(seen.snapshot.cached, seen.snapshot.withheld or ())
        for block in step.after.setting.usable - kept:
            for cache in self.caches.values():
                cache.poison(block)

    def _swap(self, step: Step) -> None:
        was, now = step.before.seen.snapshot, step.after.seen.snapshot
        own = step.command.request
        out = _moved(was.block_tables, now.swapped, own)
        back = _moved(was.swapped, now.block_tables, own)
        for name, cache in self.caches.items():
            for block, to in out:
                cache.copy(block, self.hosts[name], to)
            for block, to in back:
                self.hosts[name].copy(block, cache, to)
                self.hosts[name].poison(block)

    def _write(self, step: Step) -> None:
        own, manager = step.command.request, self.world.manager
        tags, table = step.after.model.live.get(own, ()), step.after.seen.tables.get(own, ())
        if not tags:
            return
        there = step.command.written(manager, step.before, self.world.handles[own])
        for position in range(there, len(tags)):
            block, row = table[position // self.size], self.token(tags[position])
            if block in step.after.setting.usable:
                for cache in self.caches.values():
                    cache.write(block, position % self.size, *row)

    # ---------------------------------------------------------------- attention

    def dense(self, request: int) -> tuple[Tensor, Tensor]:
        """The keys and values that a plain cache would hold, as far as the window reads them."""
        model, setting = self.world.state.model, self.world.setting
        rows = [self.token(tag) for tag in setting.readable(model.live[request])]
        return torch.stack([key for key, _ in rows]), torch.stack([value for _, value in rows])

    def paged(self, name: str, request: int) -> tuple[Tensor, Tensor]:
        """The same, read through the block table."""
        setting, state = self.world.setting, self.world.state
        length = len(state.model.live[request])
        start = length - len(setting.readable(state.model.live[request]))
        first = start // self.size
        table = list(state.seen.tables[request][first:])
        rows = [self.caches[name].gather(table, which) for which in (0, 1)]
        keys, values = (row[start - first * self.size : length - first * self.size] for row in rows)
        return keys, values

    def reread(self, request: int) -> tuple[Tensor, Tensor]:
        """The same, by the tags that the manager itself reads back."""
        read = self.world.read()[request]
        assert isinstance(read, tuple), read
        rows = [self.token(int(tag)) for tag in read]
        return torch.stack([key for key, _ in rows]), torch.stack([value for _, value in rows])

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """In float64, each query token over all keys up to its own."""
        wide = [rows.double().transpose(0, 1) for rows in (keys, values)]
        k, v = (rows.repeat_interleave(self.shape.groups, 0) for rows in wide)
        tokens, new = keys.shape[0], queries.shape[1]
        mask = torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)
        return scaled_dot_product_attention(queries.double(), k, v, attn_mask=mask)

    def differences(self) -> list[str]:
        """Where attention over a paged cache is not, bit for bit, that over the dense one."""
        found = []
        for r in self.world.state.model.live:
            dense = self.dense(r)
            # Where a window cuts, only the last token sees exactly what is read.
            new = dense[0].shape[0] if self.world.setting.declared.window is None else 1
            heads = self.shape.heads * self.shape.groups
            queries = self.random(heads, new, self.shape.dim).to(self.shape.dtype)
            due = self.attend(queries, *dense)
            assert not due.isnan().any()
            ways = {name: self.paged(name, r) for name in LAYOUTS} | {"own": self.reread(r)}
            for name, (keys, values) in ways.items():
                same = keys.shape == dense[0].shape
                if not (same and torch.equal(self.attend(queries, keys, values), due)):
                    found.append(f"request {r}, {name}")
        return found


def _replaced(step: Step) -> list[tuple[int, int]]:
    """The blocks of a table that another one has taken the place of, and that one."""
    own, command = step.command.request, step.command
    source = command.parent if isinstance(command, Fork) else own
    before, after = step.before.seen.tables.get(source, ()), step.after.seen.tables.get(own, ())
    usable = step.after.setting.usable
    pairs = zip(before, after, strict=False)
    return [(was, now) for was, now in pairs if was != now and {was, now} <= usable]


def _moved(
    was: Mapping[int, tuple[int, ...]] | None,
    now: Mapping[int, tuple[int, ...]] | None,
    request: int,
) -> list[tuple[int, int]]:
    """Block by block, where what the request had in one pool is in the other."""
    there = (now or {}).get(request, ())
    return list(zip((was or {}).get(request, ()), there, strict=False))
