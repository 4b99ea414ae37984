"""The two managers with all abilities side by side; only block names may differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pagedkv.configurable import NULL_BLOCK
from pagedkv.protocol import MisuseError, OutOfBlocks, Request
from pagedkv.shared_arrays import SharedArrayKVCacheManager
from pagedkv.shared_reference import SharedKVCacheManager


class Tags:
    """One number for each (extra key, tokens up to a position): what must be read back there."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def of(self, request: Request) -> list[int]:
        tokens = tuple(request.tokens[: request.seq_len])
        keys = [(request.extra_key, tokens[: i + 1]) for i in range(len(tokens))]
        return [self.numbers.setdefault(key, len(self.numbers) + 1) for key in keys]


class Both:
    """Both managers side by side, under the same calls; only block names may differ.

    After each call the new tokens' tags are written where the tables say, free blocks are
    overwritten, and what each request reads must be its tags.
    """

    def __init__(self, geometry, abilities=None, **how) -> None:
        kinds: list[Any] = [SharedKVCacheManager, SharedArrayKVCacheManager]
        if abilities is not None:
            kinds = [kind.configured(*abilities, **how) for kind in kinds]
        self.managers: list[Any] = [kind(*geometry, 1) for kind in kinds]
        self.on = self.managers[0].abilities
        self.window = self.managers[0].window
        self.handles: dict[int, list[Request]] = {}
        self.tags = Tags()
        self.seen: Counter[str] = Counter()

    def call(self, name, request, *arguments, **other):
        """Make the call on both; return the error, the same on both sides, or None."""
        outcomes: list[Any] = []
        handles = self.handles[request] if request is not None else [None, None]
        asked = name.replace("allocate_for_", "can_").replace("_request", "")
        asked = asked if asked.startswith("can_") else f"can_{asked}"
        asks = "ask" in self.on and request is not None and hasattr(self.managers[0], asked)
        for i, (manager, handle) in enumerate(zip(self.managers, handles, strict=True)):
            before = everything(manager, self.handles, i)
            given = () if handle is None else (handle,)
            child = [self.handles[n][i] for n in other.values()]
            granted = getattr(manager, asked)(handle, *arguments) if asks else None
            try:
                getattr(manager, name)(*given, *child, *arguments)
                outcomes.append(None)
            except (OutOfBlocks, MisuseError) as error:
                assert before == everything(manager, self.handles, i)
                told = error.args if isinstance(error, OutOfBlocks) else ()
                outcomes.append((type(error), *told))
            if asks and not child:
                assert granted is (outcomes[-1] is None)
            if asks and outcomes[-1] is None:
                assert granted
        assert outcomes[0] == outcomes[1]
        self.seen[name if outcomes[0] is None else f"{name}: {outcomes[0][0].__name__}"] += 1
        return outcomes[0]

    def write(self, request, start=0):
        """Write a request's tags from position `start` on, where there is a block."""
        for manager, handle in zip(self.managers, self.handles[request], strict=True):
            size = manager.block_size
            for position, tag in enumerate(self.tags.of(handle)):
                block = handle.block_table[position // size]
                if position >= start and block != NULL_BLOCK:
                    manager.physical_kv_cache[block, position % size] = tag
            manager.computed(handle)

    def check(self):
        first, second = self.managers
        for i, manager in enumerate(self.managers):
            manager.physical_kv_cache[manager.free_blocks] = -1.0
            for name in manager._live:
                handle = self.handles[name][i]
                read = manager.get_physical_cache(handle)[:, 0].tolist()
                due = self.tags.of(handle)
                assert read == (due if self.window is None else due[-self.window :])
        assert alike(first, second, self.handles)
        for name in first._live:
            one, two = self.handles[name]
            assert first.allocation_report(one) == second.allocation_report(two)
            if "prefix" in self.on:
                assert first.cached_tokens(one) == second.cached_tokens(two)


def everything(manager, handles, i):
    """All that a refusal must leave alone, to compare."""
    names = {name: name for name in handles}
    seen = {
        name: (h[i].seq_len, [*h[i].block_table], [*h[i].tokens]) for name, h in handles.items()
    }
    return manager.state_key(names), seen, manager.physical_kv_cache.tolist()


def alike(first, second, handles) -> bool:
    """Whether both are in one state up to block names; AssertionError says where not."""
    one, two = first.snapshot(), second.snapshot()
    assert one.seq_lens == two.seq_lens
    assert one.block_tables.keys() == two.block_tables.keys()
    pairs = [
        pair
        for name, table in one.block_tables.items()
        for pair in zip(table, two.block_tables[name], strict=True)
    ]
    pairs += zip(first._blocks.cached, second._cached().tolist(), strict=True)
    if first._blocks.withheld is not None or second._withheld is not None:
        gone = [given.block for given in first._blocks.withheld]
        pairs += zip(gone, second._withheld.tolist(), strict=True)
    if one.index is not None:
        keys = {digested(second, key): block for key, block in one.index.items()}
        assert keys.keys() == two.index.keys()
        pairs += [(block, two.index[key]) for key, block in keys.items()]
    there = dict(pairs)
    back = {b: a for a, b in pairs}
    assert {(a, b) for a, b in pairs} == {*there.items()} == {(a, b) for b, a in back.items()}
    if one.ref_counts is not None:
        assert {there[b]: n for b, n in one.ref_counts.items()} == two.ref_counts
    assert len(one.free_blocks) == len(two.free_blocks) == two.num_free
    assert (one.withheld is None) == (two.withheld is None)
    if one.swapped is not None:
        assert {n: len(t) for n, t in one.swapped.items()} == {
            n: len(t) for n, t in two.swapped.items()
        }
        assert len(one.host_free) == len(two.host_free)
    return True


def digested(second, key):
    """The array-backed manager's key for a key of the reference: (extra key, all tokens)."""
    extra, tokens = key
    request = Request(0, len(tokens), tokens, extra_key=extra)
    return [*second._prefix_keys(request, len(tokens) // second.block_size)][-1]


class Player:
    """Interprets numbers as calls on both; every quadruple is one."""

    def __init__(self, both: Both) -> None:
        self.both, self.fresh = both, 0
        on = both.on
        self.menu = [self.prefill_new, self.prefill, self.release, self.release, self.decode]
        self.menu += [self.append, self.append] if "append" in on else [self.decode]
        self.menu += [self.truncate] if "truncate" in on else []
        self.menu += [self.fork] if "fork" in on else []
        self.menu += [self.swap] * 2 if "swap" in on else []
        self.menu += [self.group] if "group" in on else []

    def play(self, choices: Sequence[tuple[int, int, int, int]]) -> None:
        for which, who, size, bits in choices:
            first = self.both.managers[0]
            live, out = sorted(first._live), sorted(first._swapped)
            dead = [name for name in sorted(self.both.handles) if name not in {*live, *out}]
            known = [*live, *out, *dead[-1:]]
            if known:
                self.menu[which % len(self.menu)](known[who % len(known)], size, bits)
            else:
                self.prefill_new(who, size, bits)
            self.both.check()

    def new(self, tokens, extra_key) -> int:
        name, self.fresh = self.fresh, self.fresh + 1
        length = len(tokens)
        self.both.handles[name] = [
            Request(name, length, tokens, extra_key=extra_key) for _ in self.both.managers
        ]
        return name

    def prefill_new(self, who, size, bits) -> None:
        tokens = [(bits >> i) & 1 for i in range(1 + size % 6)]
        self.prefill(self.new(tokens, "salt" if who % 5 == 4 else None), size, bits)

    def prefill(self, name, size, bits) -> None:
        both = self.both
        if both.call("allocate_for_prefill", name) is None:
            manager, handle = both.managers[1], both.handles[name][1]
            both.write(name, manager.cached_tokens(handle) if "prefix" in both.on else 0)

    def release(self, name, size, bits) -> None:
        self.both.call("release_request", name)

    def decode(self, name, size, bits) -> None:
        self.grow(name, [bits & 1], "allocate_for_decode")

    def append(self, name, size, bits) -> None:
        count = 1 + size % 5
        self.grow(name, [(bits >> i) & 1 for i in range(count)], "allocate_for_append", count)

    def grow(self, name, tokens, call, *count) -> None:
        handles = self.both.handles[name]
        start = handles[0].seq_len
        for handle in handles:
            handle.tokens += tokens
        if self.both.call(call, name, *count) is None:
            self.both.write(name, start)
        else:
            for handle in handles:
                del handle.tokens[-len(tokens) :]

    def truncate(self, name, size, bits) -> None:
        handles = self.both.handles[name]
        kept = [[*handle.tokens] for handle in handles]
        length = 1 + size % 9
        for handle in handles:
            del handle.tokens[length:]
        if self.both.call("truncate_request", name, length) is None:
            self.both.write(name, length)
        else:
            for handle, tokens in zip(handles, kept, strict=True):
                handle.tokens = tokens

    def fork(self, name, size, bits) -> None:
        parent = self.both.handles[name][0]
        child = self.new([*parent.tokens][: parent.seq_len], parent.extra_key)
        if self.both.call("fork_request", name, child=child) is None:
            self.both.write(child, parent.seq_len)
        else:
            del self.both.handles[child]

    def swap(self, name, size, bits) -> None:
        if name not in self.both.managers[0]._swapped:
            self.both.call("swap_out", name)
        elif self.both.call("swap_in", name) is None:
            self.both.write(name, self.both.handles[name][0].seq_len)

    def group(self, name, size, bits) -> None:
        inside = self.both.managers[1].snapshot().withheld is not None
        wrong = size % 5 == 0
        self.both.call("free_group_end" if inside is not wrong else "free_group_begin", None)
