"""The core ability: prefill, decode, release, resume, and every wrong use of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pagedkv.protocol import PagedKVManager, Request
from pagedkv.specs import contents, free_list, goals, index, pending, rollback, tables
from pagedkv.specs import lengths as seq_lens
from pagedkv.specs.ability import Ability
from pagedkv.specs.commands import Command, Handles, Undo, nothing_to_undo
from pagedkv.specs.growth import (
    admission,
    blocks_at_most,
    blocks_due,
    demand,
    free_name,
    grown,
    let_go,
    resumed,
)
from pagedkv.specs.model import Model, Setting
from pagedkv.specs.steps import Expected, Grant, Refuse, State


@dataclass(frozen=True, slots=True)
class Decode(Command):
    """Room for one more token of a live request."""

    op: ClassVar[str] = "decode"

    def enabled(self, model: Model, setting: Setting) -> bool:
        tags = model.live.get(self.request)
        return tags is not None and setting.may_grow(len(tags) + 1)

    def expect(self, model: Model, setting: Setting) -> Expected:
        return demand(model, setting, self.request, len(model.live[self.request]) + 1)

    def prepare(self, handles: Handles, state: State) -> Undo:
        request = handles[self.request]
        tokens = request.tokens
        tokens.append(0)

        def undo() -> None:
            # Whatever the call did to the tokens was seen before this.
            del tokens[-1:]
            request.tokens = tokens

        return undo

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_decode", ()

    def perform(self, manager: PagedKVManager, handles: Handles) -> object:
        return manager.allocate_for_decode(handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        return grown(model, setting, self.request, 1)


@dataclass(frozen=True, slots=True)
class Prefill(Command):
    """A new request with a prompt of `tokens` tokens."""

    op: ClassVar[str] = "prefill"
    sizes: ClassVar[tuple[str, ...]] = ("tokens",)
    takes: ClassVar[bool] = True
    begins: ClassVar[bool] = True
    tokens: int

    def enabled(self, model: Model, setting: Setting) -> bool:
        taken = self.request in model.live or self.request in model.swapped
        return not taken and self.tokens > 0

    def expect(self, model: Model, setting: Setting) -> Expected:
        return admission(setting, self.tokens)

    def prepare(self, handles: Handles, state: State) -> Undo:
        return put(handles, self.request, Request(self.request, self.tokens))

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_prefill", ()

    def written(self, manager: Any, before: State, request: Request) -> int:
        return found(manager, before.setting, request)

    def perform(self, manager: PagedKVManager, handles: Handles) -> object:
        return manager.allocate_for_prefill(handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        return grown(model, setting, self.request, self.tokens)


@dataclass(frozen=True, slots=True)
class Release(Command):
    """All blocks of a live request go back."""

    op: ClassVar[str] = "release"
    ends: ClassVar[bool] = True
    takes_blocks: ClassVar[bool] = False

    def enabled(self, model: Model, setting: Setting) -> bool:
        return self.request in model.live or self.request in model.swapped

    def expect(self, model: Model, setting: Setting) -> Expected:
        return Grant(0, 0)

    def prepare(self, handles: Handles, state: State) -> Undo:
        return nothing_to_undo

    def perform(self, manager: PagedKVManager, handles: Handles) -> object:
        return manager.release_request(handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        return let_go(model, setting, self.request)


@dataclass(frozen=True, slots=True)
class Resume(Command):
    """Prefill of a released request through its own handle, at its kept length."""

    op: ClassVar[str] = "resume"
    takes: ClassVar[bool] = True

    def enabled(self, model: Model, setting: Setting) -> bool:
        return self.request in model.released and setting.declared.resumes

    def expect(self, model: Model, setting: Setting) -> Expected:
        return admission(setting, model.released[self.request])

    def prepare(self, handles: Handles, state: State) -> Undo:
        return nothing_to_undo

    def question(self) -> tuple[str, tuple[int, ...]]:
        return "can_prefill", ()

    def written(self, manager: Any, before: State, request: Request) -> int:
        return found(manager, before.setting, request)

    def perform(self, manager: PagedKVManager, handles: Handles) -> object:
        return manager.allocate_for_prefill(handles[self.request])

    def advance(self, model: Model, setting: Setting) -> Model:
        return resumed(model, setting, self.request)


Kind = Literal[
    "prefill-live",
    "decode-fresh",
    "decode-released",
    "release-fresh",
    "release-released",
    "release-duplicate",
    "release-out-of-range",
    "release-negative",
    "release-free",
    "release-foreign",
    "release-stolen",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_WHY: dict[Kind, str] = {
    "prefill-live": "the request holds blocks already",
    "decode-fresh": "the request was never prefilled",
    "decode-released": "the request was released",
    "release-fresh": "the request was never prefilled",
    "release-released": "the request was released before",
    "release-duplicate": "its table names a block twice",
    "release-out-of-range": "its table names a block beyond the pool",
    "release-negative": "its table names block -1",
    "release-free": "its table names a free block",
    "release-foreign": "its table names a block of another request",
    "release-stolen": "the request was never prefilled and carries another's table",
}
_FRESH = frozenset(("decode-fresh", "release-fresh", "release-stolen"))
_OPERATION: dict[Kind, str] = {kind: kind.partition("-")[0] for kind in KINDS}


def _other(state: State, own: int) -> tuple[int, ...]:
    """Another request's table: the lowest table, not the lowest name; names must play no part."""
    return min((table for r, table in state.seen.tables.items() if r != own), default=())


def _free(state: State, _own: int) -> list[int]:
    return sorted(state.setting.usable - state.seen.held)[:1]


_FORGE: dict[Kind, Callable[[State, int], Iterable[int]]] = {
    "release-duplicate": lambda state, own: state.seen.tables.get(own, ())[:1],
    "release-out-of-range": lambda state, _own: (max(state.setting.usable) + 1,),
    "release-negative": lambda _state, _own: (-1,),
    "release-free": _free,
    "release-foreign": lambda state, own: _other(state, own)[:1],
    "release-stolen": _other,
}
"""What is put behind the request's own table."""


@dataclass(frozen=True, slots=True)
class Misuse(Command):
    """A call that the protocol does not allow. `kind` says which."""

    op: ClassVar[str] = "misuse"
    kind: Kind

    @property
    def operation(self) -> str:
        """Which call: "prefill", "decode" or "release"."""
        return _OPERATION[self.kind]

    def enabled(self, model: Model, setting: Setting) -> bool:
        if setting.declared.on_wrong_use(self.operation) == "never":
            return False
        if setting.declared.tables_outside and self.kind in _FORGE:
            return False  # Nobody reads the table of a handle.
        if self.kind.endswith("-released"):
            return self.request in model.released
        others = len(model.live) - (self.request in model.live)
        if self.kind in _FRESH:
            return self.request not in model.live and (self.kind != "release-stolen" or others > 0)
        if self.kind == "release-free":
            most = blocks_at_most(model, setting)
            return self.request in model.live and most < len(setting.usable)
        return self.request in model.live and (self.kind != "release-foreign" or others > 0)

    def expect(self, model: Model, setting: Setting) -> Expected:
        noop = setting.declared.on_wrong_use(self.operation) == "noop"
        return Refuse(noop=noop, why=_WHY[self.kind])

    def prepare(self, handles: Handles, state: State) -> Undo:
        back = nothing_to_undo
        if self.kind in _FRESH:
            back = put(handles, self.request, Request(self.request, 1))
        forge = _FORGE.get(self.kind)
        if forge is None:
            return back
        request = handles[self.request]
        original = request.block_table
        own = state.seen.tables.get(self.request, ())
        request.block_table = [*own, *forge(state, self.request)]

        def undo() -> None:
            request.block_table = original
            back()

        return undo

    def perform(self, manager: PagedKVManager, handles: Handles) -> object:
        request = handles[self.request]
        match self.operation:
            case "prefill":
                return manager.allocate_for_prefill(request)
            case "decode":
                return manager.allocate_for_decode(request)
            case _:
                return manager.release_request(request)


def found(manager: Any, setting: Setting, request: Request) -> int:
    """How many tokens of a prompt its prefill found in the cache; changes nothing."""
    return int(manager.cached_tokens(request)) if setting.by_content else 0


def put(handles: Handles, name: int, request: Request) -> Undo:
    """Give the name to this handle; mutates `handles`, and what is returned takes it back."""
    kept = handles.get(name)
    handles[name] = request

    def undo() -> None:
        if kept is None:
            del handles[name]
        else:
            handles[name] = kept

    return undo


COMMANDS: tuple[type[Command], ...] = (Decode, Prefill, Release, Resume, Misuse)


ALL_LENGTHS_UP_TO = 36
"""Free tokens up to which every prompt length is tried; beyond, those at block edges."""
ALL_EDGES_UP_TO = 12
"""Free blocks up to which every edge is, where what is drawn from is varied; beyond, the first few,
the last few, and those of every eighth block: a byte or a word of a bitmap."""


def lengths(model: Model, setting: Setting) -> list[int]:
    """Prompt lengths worth trying, ascending; changes nothing."""
    size = setting.geometry.block_size
    blocks = max(0, len(setting.usable) - blocks_due(model, setting))
    fits = blocks * size
    if fits <= ALL_LENGTHS_UP_TO:
        tried = set(range(1, fits + 2))
    else:
        which: Sequence[int] = range(blocks + 1)
        if setting.varied and blocks > ALL_EDGES_UP_TO:
            which = (*which[:3], *range(8, blocks, 8), blocks // 2, *which[-3:])
        ends = {k * size - ahead for k in which for ahead in (0, setting.declared.lookahead_tokens)}
        tried = {n for end in ends for n in (end - 1, end, end + 1) if n > 0}
    return sorted({*tried, setting.capacity + 1})


def candidates(model: Model, setting: Setting) -> Iterator[Command]:
    """Every command that makes sense after this history, in canonical order; changes nothing.

    Prompts are every length that the logically free blocks hold (in large pools: every one at a
    block's edge), one token more, and one token more than the whole pool holds: running out is
    tried by one block and by many. A released name is given out again where nothing can resume.
    """
    live, kept = sorted(model.live), sorted(model.released)
    fresh = free_name(model, setting)
    for r in live:
        if (decode := Decode(r)).enabled(model, setting):
            yield decode
    if fresh is not None:
        for tokens in lengths(model, setting):
            yield Prefill(fresh, tokens)
    for r in live:
        yield Release(r)
    if setting.declared.resumes:
        for r in kept:
            yield Resume(r)
    yield from _misuses(model, setting, [*live, *([] if fresh is None else [fresh])])


def _misuses(model: Model, setting: Setting, names: list[int]) -> Iterator[Command]:
    """Every wrong use that can be tried, by kind; of released names only what is about these."""
    kept = [*sorted(model.live), *sorted(model.released)]
    for kind in KINDS:
        for r in kept if kind.endswith("-released") else names:
            if (command := Misuse(r, kind)).enabled(model, setting):
                yield command


CORE = Ability(
    id="core",
    statement="Prefill, decode, release and resume over one pool of blocks that nobody shares.",
    commands=COMMANDS,
    candidates=candidates,
    properties=(
        *tables.PROPERTIES,
        *free_list.PROPERTIES,
        *pending.PROPERTIES,
        *seq_lens.PROPERTIES,
        *rollback.PROPERTIES,
        *contents.PROPERTIES,
        *index.PROPERTIES,
        *goals.GOALS,
    ),
)
