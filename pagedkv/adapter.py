"""What adapters to engines have in common: sizes, live requests, copies and keys.

An adapter can do without: three calls and `snapshot` are all that is asked of it. With `Adapter`
it says how its engine is made and called, and where its engine keeps a request's table:

    class Mine(Adapter[Sequence]):
        declares = Declarations(...)

        def start(self):
            self.engine = BlockManager(self.num_blocks, self.block_size)

        def table(self, req):
            return self.live[req].block_table

        def allocate_for_prefill(self, req):
            sequence = Sequence(req.tokens)
            return self.engine.allocate(sequence) and self.holds(req, sequence)

        def allocate_for_decode(self, req):
            return self.engine.append(self.live[req]) and self.granted(req, 1)

        def release_request(self, req):
            self.engine.free(self.lets_go(req))

        def snapshot(self):
            return Snapshot(**self.of_live(), free_blocks=self.engine.free)

Nothing is judged here, and nothing is kept that the engine keeps itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, Self, SupportsIndex, TypedDict, TypeVar

from pagedkv.declarations import Declarations
from pagedkv.protocol import Request, as_int
from pagedkv.twins import twin_of

Theirs = TypeVar("Theirs")
"""What stands for a live request in the engine: its sequence, its row, its name."""


class OfLive(TypedDict):
    """The two fields of a `Snapshot` that are about live requests."""

    block_tables: Mapping[int, Sequence[int]]
    seq_lens: Mapping[int, int]


class Adapter(Generic[Theirs]):
    """An engine's allocator behind the protocol; sizes > 0, else ValueError.

    live: what stands for each live request in the engine, by the identity of the handle.
    """

    declares: Declarations

    def __init__(
        self, num_blocks: SupportsIndex, block_size: SupportsIndex, head_dim: SupportsIndex
    ) -> None:
        self.num_blocks = as_int("num_blocks", num_blocks, minimum=1)
        self.block_size = as_int("block_size", block_size, minimum=1)
        self.head_dim = as_int("head_dim", head_dim, minimum=1)
        self.live: dict[Request, Theirs] = {}
        self.start()

    def start(self) -> None:
        """Make the engine; the sizes are there already."""
        raise NotImplementedError

    def table(self, req: Request) -> Iterable[int]:
        """The block table of a live request, as the engine has it now; changes nothing."""
        raise NotImplementedError

    def length(self, req: Request) -> int:
        """The tokens of a live request, as the engine has them; the handle's where it has none."""
        return req.seq_len

    def blocks_for(self, tokens: int) -> int:
        """ceil(tokens / block_size); 0 for 0 tokens."""
        return -(-tokens // self.block_size)

    def holds(self, req: Request, theirs: Theirs) -> Literal[True]:
        """From now on the request is live, and `theirs` stands for it."""
        self.live[req] = theirs
        return self.granted(req)

    def granted(self, req: Request, tokens: int = 0) -> Literal[True]:
        """So many tokens more are there; the handle shows the table as it is now."""
        req.seq_len += tokens
        req.block_table = list(self.table(req))
        return True

    def lets_go(self, req: Request) -> Theirs:
        """The request is live no more; what stood for it. Raises KeyError if it was not live."""
        req.block_table = []
        return self.live.pop(req)

    def of_live(self) -> OfLive:
        """Tables and lengths of all live requests, for a `Snapshot`; changes nothing."""
        return {
            "block_tables": {req.request_id: [*self.table(req)] for req in self.live},
            "seq_lens": {req.request_id: self.length(req) for req in self.live},
        }

    def live_key(
        self, names: Mapping[int, int], more: Callable[[Request], Hashable] = lambda _req: ()
    ) -> Hashable:
        """Tables, lengths and `more` of live requests called by `names`, for a `state_key`.

        The handles themselves are compared beside it.
        """
        return tuple(
            sorted(
                (names.get(r := req.request_id, ~r), self.length(req), more(req), *self.table(req))
                for req in self.live
            )
        )

    def twin(self, requests: Mapping[int, Request]) -> tuple[Self, dict[int, Request]]:
        """A copy of the adapter and of those handles, for a `clone`: `clone = Adapter.twin`.

        See `twin_of` for what the two share.
        """
        pair: tuple[Self, dict[int, Request]] = twin_of((self, dict(requests)))
        return pair


def unpadded(row: Sequence[int]) -> list[int]:
    """A row of a table up to its last block; -1 pads it, and shows where it is a hole."""
    used = len(row)
    while used and row[used - 1] == -1:
        used -= 1
    return [*row[:used]]


def told_apart(req: Request) -> list[int]:
    """The tokens of a request, another first one for each extra key (a number); changes nothing.

    For engines that have no extra keys: other tokens are what their users would tell apart by.
    """
    extra: Any = req.extra_key
    return [req.tokens[0] + 2 * int(extra or 0), *req.tokens[1:]]


_ATOMS = frozenset({int, bool, str, bytes, type(None)})


def plain(*values: Any) -> tuple[Any, ...]:
    """The values as nested tuples, for a `state_key`; changes nothing.

    Sequences, tensors and mappings keep their order, which is state too; sets are sorted.
    """
    # Asked here and not in the call, since a key is taken of every state of a search.
    return tuple([value if type(value) in _ATOMS else _plain(value) for value in values])


def _plain(value: Any) -> tuple[Any, ...]:
    if type(value) in (list, tuple):
        return plain(*value)
    if isinstance(value, Mapping):
        return tuple([plain(key, item) for key, item in value.items()])
    if isinstance(value, set | frozenset):
        return tuple(sorted(plain(*value)))
    return plain(*(value.tolist() if hasattr(value, "tolist") else value))
