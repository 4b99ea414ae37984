"""A correct allocator whose behaviours are switches, so that a combination is a few lines.

What is declared follows from the switches: a subclass says what it does, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from itertools import takewhile
from typing import Any, ClassVar, Literal

from pagedkv import Declarations, Owned, Request, Snapshot
from pagedkv.abilities import AbilityName
from pagedkv.declarations import NOT_TRIED

Key = tuple[Hashable, tuple[int, ...]]
"""What a full block is found by: the extra key of its request, and all tokens up to its end."""

PUT_BACK = ("free", "refs", "cached", "index", "withheld", "pending", "tables", "lengths", "copies")
"""What a refused call leaves as it was; what these hold is replaced, and never changed."""

Refusal = tuple[Literal["drop", "evict", "wait"], ...]


class Combined:
    """A free list, first in, first out; references are counted; what is cached is taken last.

    Each attribute that `Declarations` has too, a subclass's own included, is declared as it stands.

    judged: wrong use, which is always refused, is tried.
    late_published: a block that can be found waits too, and is not cached at once.
    late_withheld: what a group withheld waits once the group has ended.
    null: what stands for a block behind the window; one that is in the pool is never handed out.
    refusal: what a refused call does, in this order: drop what the request's window has left
        behind, evict all that is cached, let time pass.
    shows: the fields of the snapshot beside those that are always there.
    undeclared: what is done, but not declared.
    """

    declares: ClassVar[Declarations]
    abilities: frozenset[AbilityName] = frozenset()
    late_blocks = late_calls = lookahead = 0
    late_published = late_withheld = True
    forks_eagerly = judged = ring = window_of_first = False
    null = -1
    refusal: Refusal = ()
    shows = frozenset({"free_blocks", "index"})
    undeclared = frozenset[str]()
    window: int | None = None

    def __init_subclass__(cls) -> None:
        said: dict[str, Any] = {
            **{f.name: getattr(cls, f.name) for f in fields(Declarations) if hasattr(cls, f.name)},
            "drops_behind_window": "drop" in cls.refusal,
            "evicts_cached": "evict" in cls.refusal,
            "min_blocks": 1 if cls.null < 0 else 2,
            "null_block": None if cls.ring or cls.window is None else cls.null,
            "wrong_use": {} if cls.judged else NOT_TRIED,
        }
        said = {name: value for name, value in said.items() if name not in cls.undeclared}
        because = dict.fromkeys(said.keys() - {"abilities"}, "tests/combined.py")
        cls.declares = Declarations(because=because, **said)

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = [block for block in range(num_blocks) if block != self.null]
        self.cached: list[int] = []  # next to be evicted first
        self.index: dict[Key, int] = {}
        self.withheld: list[tuple[int, Key | None]] | None = None
        self.pending: dict[int, tuple[int, Key | None]] = {}
        self.tables: dict[int, list[int]] = {}
        self.refs, self.lengths, self.found = dict[int, int](), dict[int, int](), dict[int, int]()
        self.copies: list[tuple[int, int]] = []
        self.live: dict[int, Request] = {}
        self.returned: list[tuple[int, Key | None]] = []  # by this call; waits from its end on

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        if count > len(self.free) + len(self.cached):
            raise RuntimeError(f"OOM: {count} needed")
        while count > len(self.free):
            self.evict(self.cached[0])
        taken, self.free = self.free[:count], self.free[count:]
        self.refs |= dict.fromkeys(taken, 1)
        return taken

    def evict(self, block: int) -> None:
        self.cached.remove(block)
        self.withdraw(block)
        self.free.append(block)

    def withdraw(self, block: int) -> Key | None:
        """Let the block not be found any more; returns what it was found by."""
        key = next((key for key, found in self.index.items() if found == block), None)
        if key is not None:
            del self.index[key]
        return key

    def give_back(self, blocks: list[int]) -> None:
        """Hold each of these blocks once less; the null entries among them are none."""
        for block in [block for block in blocks if block != self.null]:
            self.refs[block] -= 1
            if not self.refs[block]:
                del self.refs[block]
                self.come_back(block, self.withdraw(block))

    def come_back(self, block: int, key: Key | None) -> None:
        if self.withheld is not None:
            self.withheld.append((block, key))
        elif (self.late_calls or self.late_blocks) and (key is None or self.late_published):
            self.returned.append((block, key))
        else:
            self.settle(block, key)

    def settle(self, block: int, key: Key | None) -> None:
        """Cache the block, or free it where nothing or another is found by its key."""
        if key is None or key in self.index:
            self.free.append(block)
        else:
            self.index[key] = block
            self.cached.append(block)

    def pass_time(self) -> None:
        for block, (left, key) in list(self.pending.items()):
            self.pending[block] = left - 1, key
            if left == 1:
                del self.pending[block]
                self.settle(block, key)

    @contextmanager
    def call(self, req: Request | None = None) -> Iterator[None]:
        """Do it whole or, where blocks run out, not at all; then what a refusal does."""
        before = {name: copy(vars(self)[name]) for name in PUT_BACK}
        try:
            yield
            if self.late_calls:
                self.pass_time()
        except RuntimeError:
            vars(self).update(before, returned=[])
            self.refuse(req)
            raise
        finally:
            while self.returned:
                block, key = self.returned.pop(0)
                if self.late_blocks:
                    self.pass_time()
                self.pending[block] = self.late_blocks or self.late_calls, key
            self.fill_in()

    def refuse(self, req: Request | None) -> None:
        for what in self.refusal:
            if what == "wait":
                self.pass_time()
            elif what == "evict":
                for block in list(self.cached):
                    self.evict(block)
            elif req is not None and self.live.get(req.request_id) is req:
                self.slide(req.request_id, self.lengths[req.request_id] + 1)

    def fill_in(self) -> None:
        for request, req in self.live.items():
            req.seq_len = self.lengths[request]
            req.block_table = list(self.tables[request])

    def slide(self, request: int, tokens: int) -> None:
        """Give back what the last of so many tokens does not read."""
        if self.window is None or self.ring:
            return
        table = self.tables[request]
        behind = min(len(table), max(0, tokens - self.window) // self.block_size)
        self.tables[request] = [self.null] * behind + table[behind:]
        self.give_back(table[:behind])

    def own(self, req: Request) -> int:
        """The id of a live request whose handle is as it was given; raises for any other."""
        request = req.request_id
        if self.live.get(request) is not req or req.block_table != self.tables[request]:
            raise ValueError(f"request {request} does not hold {req.block_table}")
        return request

    def allocate_for_prefill(self, req: Request) -> None:
        if req.request_id in self.live:
            raise ValueError(f"request {req.request_id} is live")
        with self.call(req):
            found = self.leading(req)
            for block in found:
                self.refs[block] = self.refs.get(block, 0) + 1
            self.cached = [block for block in self.cached if block not in found]
            fresh = self.take(self.blocks_for(req.seq_len) + self.lookahead - len(found))
            self.start(req, found + fresh, len(found) * self.block_size)

    def start(self, req: Request, table: list[int], found: int = 0) -> None:
        request = req.request_id
        self.tables[request], self.lengths[request] = table, req.seq_len
        self.live[request], self.found[request] = req, found

    def leading(self, req: Request) -> list[int]:
        """The blocks that a prompt finds, up to its first that is missing."""
        keys = (self.key(req, i) for i in range((req.seq_len - 1) // self.block_size))
        return [self.index[key] for key in takewhile(self.index.__contains__, keys)]

    def key(self, req: Request, logical: int) -> Key:
        return req.extra_key, tuple(req.tokens[: (logical + 1) * self.block_size])

    def cached_tokens(self, req: Request) -> int:
        return self.found[req.request_id]

    def computed(self, req: Request) -> None:
        """Let the full blocks be found, those that nothing else is found by."""
        full = req.seq_len // self.block_size if "prefix" in self.abilities else 0
        for logical, block in enumerate(self.tables[req.request_id][:full]):
            if block != self.null and block not in self.index.values():
                self.index.setdefault(self.key(req, logical), block)

    def allocate_for_decode(self, req: Request) -> None:
        self.allocate_for_append(req, 1)

    def allocate_for_append(self, req: Request, count: int) -> None:
        request = self.own(req)
        with self.call(req):
            before = self.lengths[request]
            after = self.lengths[request] = before + count
            self.slide(request, before + 1 if self.window_of_first else after)
            table = list(self.tables[request])
            first, end = before // self.block_size, self.blocks_for(after)
            written = [i for i in range(first, min(len(table), end)) if table[i] != self.null]
            shared = [i for i in written if self.refs[table[i]] > 1]
            fresh = self.take(max(0, end + self.lookahead - len(table)) + len(shared))
            for i in {*written}.difference(shared):
                self.withdraw(table[i])
            for i in shared:
                source, table[i] = table[i], fresh.pop(0)
                if i == first and before % self.block_size:
                    self.copies.append((source, table[i]))
                self.give_back([source])
            self.tables[request] = table + fresh

    def release_request(self, req: Request) -> None:
        request = self.own(req)
        with self.call(req):
            self.give_back(self.tables.pop(request)[::-1])
            del self.live[request], self.lengths[request]
        req.block_table = []

    def fork_request(self, req: Request, child: Request) -> None:
        """Share the blocks of the tokens; what lies beyond them is each one's own."""
        table = self.tables[self.own(req)]
        with self.call(child):
            filled = req.seq_len // self.block_size
            shared = table[: filled if self.forks_eagerly else self.blocks_for(req.seq_len)]
            for block in {*shared} - {self.null}:
                self.refs[block] += 1
            own = self.take(len(table) - len(shared)) if self.forks_eagerly else []
            if own and req.seq_len % self.block_size:
                self.copies.append((table[len(shared)], own[0]))
            self.start(child, shared + own)

    def take_copies(self) -> list[tuple[int, int]]:
        copies, self.copies = self.copies, []
        return copies

    def free_group_begin(self) -> None:
        with self.call():
            self.withheld = []

    def free_group_end(self) -> None:
        with self.call():
            withheld, self.withheld = self.withheld or [], None
            for block, key in withheld:
                (self.come_back if self.late_withheld else self.settle)(block, key)

    def snapshot(self) -> Snapshot:
        entries = [(r, i, b) for r, table in self.tables.items() for i, b in enumerate(table)]
        held = [Owned(*entry) for entry in entries if entry[2] != self.null]
        shown: dict[str, Any] = {
            "free_blocks": self.free,
            "num_free": len(self.free),
            "index": self.index if "prefix" in self.abilities else None,
            "eviction_order": self.cached,
            "ref_counts": self.refs,
            "capacities": Counter([one.owner for one in held] * self.block_size),
            "reverse_map": held,
        }
        late = self.late_calls or self.late_blocks
        return Snapshot(
            block_tables=self.tables,
            seq_lens=self.lengths,
            cached=self.cached,
            pending={block: left for block, (left, _) in self.pending.items()} if late else None,
            withheld=None if self.withheld is None else [block for block, _ in self.withheld],
            reserved={self.null}.intersection(range(self.num_blocks)),
            **{"free_blocks": None} | {name: shown[name] for name in self.shows},
        )
