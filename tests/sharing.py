"""Random calls on a manager with all abilities, beside a dictionary of what each block contains.

`Drive` knows no manager: contents are chains of tokens, written into the tensor as numbers, and
every answer is foretold from the snapshot before the call and from the requests' tokens.
"""

from __future__ import annotations

import random
from typing import Any

from pagedkv import HoldsNothing, MisuseError, OutOfBlocks, Request

POISON = -1.0

NAMES = {
    "prefill": "allocate_for_prefill",
    "decode": "allocate_for_decode",
    "append": "allocate_for_append",
    "release": "release_request",
    "truncate": "truncate_request",
    "fork": "fork_request",
}


class Drive:
    """One manager under random calls; `step` makes one, and asserts what must hold after it.

    `seen` counts what happened. `since` says when each cached block got there: the call, and the
    place among those of the call.
    """

    def __init__(self, manager: Any, seed: int, vocabulary: int = 2) -> None:
        self.manager, self.draw, self.vocabulary = manager, random.Random(seed), vocabulary
        self.size, self.on = manager.block_size, manager.abilities
        self.live: dict[int, Request] = {}
        self.out: dict[int, Request] = {}
        self.gone: dict[int, Request] = {}
        self.numbers: dict[Any, float] = {}
        self.found: dict[int, int] = {}
        self.since: dict[int, tuple[int, int]] = {}
        self.given: list[int] = []
        self.calls = 0
        self.seen: dict[str, int] = {}
        manager.physical_kv_cache[:] = POISON

    # ---------------------------------------------------------------- what the calls are

    def step(self) -> None:
        self.calls += 1
        choices = ["prefill", "prefill", "decode", "decode", "decode", "release", "resume"]
        choices += [name for name in ("append", "truncate", "fork", "group") if name in self.on]
        choices += ["swap_out", "swap_in"] if "swap" in self.on else []
        choices += ["misuse"] + ["group"] * (self.manager.snapshot().withheld is not None)
        getattr(self, self.draw.choice(choices))()
        self.check()

    def token(self) -> int:
        return self.draw.randrange(self.vocabulary)

    def pick(self, requests: dict[int, Request]) -> Request | None:
        return self.draw.choice([*requests.values()]) if requests else None

    def prefill(self) -> None:
        name = min({*range(9)} - {*self.live} - {*self.out} - {*self.gone}, default=None)
        if name is None or len(self.live) > 3:
            return
        most = self.manager.num_blocks * self.size
        length = self.draw.randint(1, 2 * self.size + 1)
        if self.draw.random() < 0.1:
            length = most + self.draw.randint(0, 1)
        tokens = [self.token() for _ in range(length)]
        self.admit(
            Request(name, length, tokens, extra_key=self.draw.choice([None, None, None, "a"]))
        )

    def resume(self) -> None:
        request = self.pick(self.gone)
        if request is not None:
            self.admit(request)

    def admit(self, request: Request) -> None:
        before = self.manager.snapshot()
        hits = []
        if "prefix" in self.on:
            found = {self.named(block): block for block in before.index.values()}
            for i in range((request.seq_len - 1) // self.size):
                block = found.get(self.chain(request, i))
                if block is None:
                    break
                hits.append(block)
        needed = -(-request.seq_len // self.size) - len(hits)
        room = len(before.free_blocks) + len(before.cached) - len({*hits} & before.cached)
        granted = self.call("prefill", request, needed, room, hits=hits)
        if granted:
            self.gone.pop(request.request_id, None)
            self.live[request.request_id] = request
            self.found[request.request_id] = len(hits) * self.size
            assert request.block_table[: len(hits)] == hits
            self.wrote(request, len(hits) * self.size)

    def decode(self) -> None:
        self.grow("decode", 1)

    def append(self) -> None:
        self.grow("append", self.draw.randint(1, 2 * self.size + 1))

    def grow(self, name: str, count: int) -> None:
        request = self.pick(self.live)
        if request is None:
            return
        before, was = self.manager.snapshot(), request.seq_len
        request.tokens += [self.token() for _ in range(count)]
        table = request.block_table
        needed = -(-(was + count) // self.size) - len(table)
        tail = table[-1]
        shared = was % self.size and sum(tail in t for t in before.block_tables.values()) > 1
        room = len(before.free_blocks) + len(before.cached)
        if self.manager.window is not None and before.withheld is None:
            last = was + count - self.manager.window
            ends = [(i + 1) * self.size for i in range(len(table))]
            room += sum(e <= last and b != -1 for e, b in zip(ends, table, strict=True))
        arguments = () if name == "decode" else (count,)
        if self.call(name, request, needed + bool(shared), room, *arguments):
            if shared:
                self.seen["copied"] = self.seen.get("copied", 0) + 1
            self.wrote(request, was)
        else:
            del request.tokens[was:]

    def release(self) -> None:
        out = self.draw.random() < 0.2
        request = self.pick(self.out if out else self.live)
        if request is None:
            return
        self.call("release", request, 0, 0)
        (self.out if out else self.live).pop(request.request_id)
        if self.draw.random() < 0.5:
            self.gone[request.request_id] = request

    def truncate(self) -> None:
        request = self.pick(self.live)
        if request is not None:
            kept = self.draw.randint(1, request.seq_len)
            self.call("truncate", request, 0, 0, kept)
            assert (request.seq_len, len(request.block_table)) == (kept, -(-kept // self.size))
            del request.tokens[kept:]
            self.computed(request)

    def fork(self) -> None:
        request = self.pick(self.live)
        name = min({*range(9)} - {*self.live} - {*self.out} - {*self.gone}, default=None)
        if request is None or name is None or len(self.live) > 4:
            return
        child = Request(name, request.seq_len, request.tokens, extra_key=request.extra_key)
        before = self.manager.snapshot()
        copies = self.manager.forks_eagerly and request.seq_len % self.size != 0
        room = len(before.free_blocks) + len(before.cached)
        if self.call("fork", request, int(copies), room, child):
            self.live[name] = child
            self.found[name] = 0
            differs = [a != b for a, b in zip(request.block_table, child.block_table, strict=True)]
            assert differs == [False] * (len(differs) - 1) + [copies]
            self.computed(child)

    def swap_out(self) -> None:
        request = self.pick(self.live)
        if request is not None:
            room = len(self.manager.snapshot().host_free)
            if self.call("swap_out", request, len(request.block_table), room):
                self.out[request.request_id] = self.live.pop(request.request_id)

    def swap_in(self) -> None:
        request = self.pick(self.out)
        if request is not None:
            before = self.manager.snapshot()
            room = len(before.free_blocks) + len(before.cached)
            if self.call("swap_in", request, -(-request.seq_len // self.size), room):
                self.live[request.request_id] = self.out.pop(request.request_id)
                self.computed(request)

    def group(self) -> None:
        before = self.manager.snapshot()
        if before.withheld is None:
            self.manager.free_group_begin()
            assert self.manager.snapshot().withheld == frozenset()
        else:
            self.manager.free_group_end()
            after = self.manager.snapshot()
            assert {*after.free_blocks} | after.cached == (
                {*before.free_blocks} | before.cached | before.withheld
            )
            self.stamp(before.cached, after.cached, self.given)
            self.given = []

    def misuse(self) -> None:
        """A call that is wrong changes nothing."""
        stranger = Request(77, 1)
        before = everything(self.manager)
        for request in (self.pick(self.out), stranger):
            if request is not None:
                for name in ("allocate_for_decode", "swap_out"):
                    try:
                        getattr(self.manager, name)(request)
                    except MisuseError:
                        continue
                    raise AssertionError(f"{name} of {request} is granted")
        for request in self.live.values():
            try:
                self.manager.allocate_for_prefill(request)
            except MisuseError:
                continue
            raise AssertionError(f"prefill of {request} is granted")
        assert everything(self.manager) == before

    # ---------------------------------------------------------------- calling and following

    def call(self, name: str, request: Request, needed: int, room: int, *arguments: Any,
             hits: list[int] | None = None) -> bool:  # fmt: skip
        """Make the call; whether it was granted, which it must be if `needed` <= `room`."""
        manager, before = self.manager, self.manager.snapshot()
        was, table = everything(manager), list(request.block_table)
        if "ask" in self.on and hasattr(manager, f"can_{name}"):
            rest = () if name == "fork" else arguments
            assert getattr(manager, f"can_{name}")(request, *rest) == (needed <= room)
        try:
            getattr(manager, NAMES.get(name, name))(request, *arguments)
        except OutOfBlocks as error:
            self.refused(error, needed, room)
            assert (everything(manager), request.block_table) == (was, table)
            self.seen[f"{name} refused"] = self.seen.get(f"{name} refused", 0) + 1
            return False
        assert needed <= room
        self.seen[name] = self.seen.get(name, 0) + 1
        after = manager.snapshot()
        if hits:
            self.seen["hit"] = self.seen.get("hit", 0) + 1
        evicted = before.cached - after.cached - {*(hits or ())}
        if evicted:  # only when nothing is free, the longest cached first
            self.seen["evicted"] = self.seen.get("evicted", 0) + 1
            assert not after.free_blocks or name in ("release", "truncate", "swap_out")
            order = sorted(before.cached - {*(hits or ())}, key=self.since.__getitem__)
            assert {*order[: len(evicted)]} == evicted
        self.stamp(before.cached, after.cached, table[::-1])
        withheld = (after.withheld or frozenset()) - (before.withheld or frozenset())
        self.given += [block for block in table[::-1] if block in withheld]
        return True

    def refused(self, error: OutOfBlocks, needed: int, room: int) -> None:
        assert (error.needed, error.available) == (needed, room)
        assert needed > room

    def stamp(self, before: frozenset[int], after: frozenset[int], order: list[int]) -> None:
        """Note when blocks became cached; they came back in this order."""
        for place, block in enumerate(order):
            if block in after - before:
                self.since[block] = (self.calls, place)
        assert all(self.since.get(block, (0, 0))[0] == self.calls for block in after - before)

    def wrote(self, request: Request, start: int) -> None:
        """The tokens from `start` on are computed."""
        if not self.manager.publishes_at_once:
            index = self.manager.snapshot().index or {}
            tail = request.block_table[start // self.size :]
            assert not {*tail} & {*index.values()}, "what is not computed can be found"
        for position in range(start, request.seq_len):
            block = request.block_table[position // self.size]
            if block != -1:
                value = self.number(request.extra_key, request.tokens[: position + 1])
                self.manager.physical_kv_cache[block, position % self.size] = value
        self.computed(request)

    def computed(self, request: Request) -> None:
        """Whatever it has computed can be found then, there or elsewhere."""
        self.manager.computed(request)
        if "prefix" in self.on:
            names = [self.named(block) for block in self.manager.snapshot().index.values()]
            for logical in range(request.seq_len // self.size):
                assert self.manager.publishes_at_once or self.chain(request, logical) in names
            again = everything(self.manager)
            self.manager.computed(request)
            assert everything(self.manager) == again

    def number(self, extra_key: Any, tokens: list[int]) -> float:
        return self.numbers.setdefault((extra_key, tuple(tokens)), float(len(self.numbers) + 1))

    def chain(self, request: Request, logical: int) -> tuple[float, ...]:
        """What the full block `logical` of a request contains."""
        start = logical * self.size
        ends = range(start + 1, start + self.size + 1)
        return tuple(self.number(request.extra_key, request.tokens[:end]) for end in ends)

    def named(self, block: int) -> tuple[float, ...]:
        """What a block contains."""
        return tuple(self.manager.physical_kv_cache[block, :, 0].tolist())

    # ---------------------------------------------------------------- what must hold

    def check(self) -> None:
        seen, manager = self.manager.snapshot(), self.manager
        tables = {name: tuple(request.block_table) for name, request in self.live.items()}
        assert seen.block_tables == tables
        assert seen.seq_lens == {name: request.seq_len for name, request in self.live.items()}
        entries = [b for table in tables.values() for b in table if b != -1]
        whole = [*seen.free_blocks, *seen.cached, *(seen.withheld or ()), *{*entries}]
        assert sorted(whole) == list(range(manager.num_blocks))
        if seen.ref_counts is not None:
            counts = {b: n for b, n in seen.ref_counts.items() if n}
            assert counts == {b: entries.count(b) for b in {*entries}}
        else:
            assert len(entries) == len({*entries})
        if seen.swapped is not None:
            assert {*seen.swapped} == {*self.out}
            host = [*seen.host_free, *(b for held in seen.swapped.values() for b in held)]
            assert sorted(host) == list(range(manager.num_host_blocks))
        manager.physical_kv_cache[list(seen.free_blocks)] = POISON
        for request in self.live.values():
            self.check_contents(request)
        self.check_index(seen)

    def check_contents(self, request: Request) -> None:
        start = 0
        if self.manager.window is not None:
            start = max(0, request.seq_len - self.manager.window)
        ends = range(start + 1, request.seq_len + 1)
        due = [self.number(request.extra_key, request.tokens[:end]) for end in ends]
        assert self.manager.get_physical_cache(request)[:, 0].tolist() == due

    def check_index(self, seen: Any) -> None:
        """Exactly the contents that were computed, unless let go of; and each once."""
        if "prefix" not in self.on:
            assert (seen.index, seen.cached) == (None, frozenset())
            return
        found = list(seen.index.values())
        assert len(found) == len({*found})
        held = {b for table in seen.block_tables.values() for b in table}
        assert {*found} <= held | seen.cached
        assert seen.cached <= {*found}
        names = [self.named(block) for block in found]
        assert len(names) == len({*names})
        assert POISON not in {number for name in names for number in name}
        for request in self.live.values():
            assert self.manager.cached_tokens(request) == self.found[request.request_id]
        for request in self.out.values():
            try:
                self.manager.cached_tokens(request)
            except HoldsNothing:
                continue
            raise AssertionError("a swapped request is live")


def everything(manager: Any) -> tuple[Any, ...]:
    """All that a call may have changed."""
    seen = manager.snapshot()
    names = {name: name for name in [*seen.block_tables, *(seen.swapped or ())]}
    pools = (manager.physical_kv_cache.tolist(), manager.host_kv_cache.tolist())
    return seen, manager.state_key(names), pools
