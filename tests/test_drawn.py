"""What random histories are drawn from beyond what is exhausted: larger pools, more prompts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
import torch
from hypothesis import settings

from able import able, named
from builders import setting
from pagedkv import Declarations, KVCacheManager, Request
from pagedkv.shared_reference import SharedKVCacheManager
from pagedkv.specs.abilities.core import Prefill, lengths
from pagedkv.specs.abilities.prefix import Admit, candidates
from pagedkv.specs.catalogue import PROPERTIES, offered
from pagedkv.specs.catalogue import candidates as every_candidate
from pagedkv.specs.judge import Judge
from pagedkv.specs.model import EMPTY, Geometry
from pagedkv.stateful.draws import drawable, drivable
from pagedkv.stateful.machine import Falsified, search, settings_for
from pagedkv.stateful.profiles import EVERY
from pagedkv.stateful.target import CannotDrive, Factory
from pagedkv.stateful.world import World


def make_of(factory: Factory, **more: Any) -> Any:
    def make(geometry: Geometry) -> World:
        return World(factory, geometry, requests=4, abilities=EVERY, varied=True, **more)

    return make


def found(factory: Factory, seed: int) -> Falsified | None:
    make = make_of(factory)
    judge = Judge(PROPERTIES.values(), offered(make(Geometry(2, 2)).state))
    many = settings(settings_for("quick"), max_examples=100)
    return search(make, judge=judge, settings=many, seed=seed).falsified


# ---------------------------------------------------------------- larger pools


class LosesBeyond(KVCacheManager):
    """Loses the blocks that come back from beyond the first byte, or word, of a bitmap."""

    bits = 8

    def release_request(self, req: Request) -> None:
        lost = {block for block in req.block_table if block >= self.bits}
        super().release_request(req)
        self._free = [block for block in self._free if block not in lost]


class LosesBeyondWord(LosesBeyond):
    bits = 64


class CountsTokensInByte(KVCacheManager):
    """Has eight bits for the length, whose last is never needed in a small pool."""

    def allocate_for_decode(self, req: Request) -> None:
        super().allocate_for_decode(req)
        req.seq_len &= 127


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("factory", "broken"),
    [
        (LosesBeyond, "conservation"),
        (LosesBeyondWord, "conservation"),
        (CountsTokensInByte, "seq-len"),
    ],
)
def test_a_fault_that_needs_a_larger_pool_is_found(factory, broken, seed):
    falsified = found(factory, seed)
    assert falsified is not None
    assert broken in {violation.property.id for violation in falsified.violations}


def test_pools_with_more_blocks_are_drawn_as_far_as_their_tags_are_exact():
    class Half(SharedKVCacheManager.configured("prefix")):  # type: ignore[misc]
        """Its tensor holds no number above 2048 exactly."""

        def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
            super().__init__(num_blocks, block_size, head_dim)
            self.physical_kv_cache = torch.zeros((num_blocks, block_size, 1), dtype=torch.float16)

    make = make_of(Half)
    with pytest.raises(CannotDrive, match=r"torch\.float16"):
        make(Geometry(12, 1))
    assert {g.num_blocks for g in drivable(make)} == {*range(1, 9)}
    assert {g.num_blocks for g in drivable(make_of(KVCacheManager))} == {*range(1, 9), 12, 34, 70}


def test_a_target_with_small_pools_only_is_drawn_with_these():
    few = Declarations(max_blocks=3, because={"max_blocks": "its docs"})
    assert {g.num_blocks for g in drawable(few)} == {1, 2, 3}


def test_in_a_large_pool_the_first_and_the_last_edges_are_tried():
    large = setting(num_blocks=70, block_size=4)
    assert len(lengths(EMPTY, large)) == 3 * 70 + 1
    few = able(blocks=12, size=4, varied=True)
    assert len(lengths(EMPTY, few)) == 3 * 12 + 1
    tried = lengths(EMPTY, able(blocks=70, size=4, varied=True))
    edges = (1, 2, *range(8, 70, 8), 35, 68, 69, 70)
    assert tried == sorted({1, *(n for k in edges for n in (4 * k - 1, 4 * k, 4 * k + 1))})
    assert {*map(type, tried)} == {int}
    ahead = lengths(EMPTY, able("truncate", blocks=70, size=4, varied=True, lookahead_tokens=3))
    assert {*tried} - {*ahead} == set()
    assert {n for k in edges for n in (4 * k - 4, 4 * k - 3, 4 * k - 2)} - {*ahead, 0} == set()
    varied = World(KVCacheManager, Geometry(70, 4), varied=True)
    assert tried == [c.tokens for c in varied.candidates() if isinstance(c, Prefill)]


# ---------------------------------------------------------------- more prompts


class HashesFirstTokens(SharedKVCacheManager.configured("prefix")):  # type: ignore[misc]
    """Knows a block by the first of its tokens, and by those of the blocks before it."""

    def _key(self, req: Request, logical: int) -> tuple[Hashable, Any]:
        extra, tokens = super()._key(req, logical)
        return extra, tuple(tokens[:: self.block_size])


class KnowsThatThereIsAnExtra(SharedKVCacheManager.configured("prefix")):  # type: ignore[misc]
    """Tells an extra key from none, and no two of them apart."""

    def _key(self, req: Request, logical: int) -> tuple[Hashable, Any]:
        extra, tokens = super()._key(req, logical)
        return extra is not None, tokens


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factory", [HashesFirstTokens, KnowsThatThereIsAnExtra])
def test_a_key_that_leaves_out_what_is_varied_is_found(factory, seed):
    falsified = found(factory, seed)
    assert falsified is not None
    assert {violation.property.id for violation in falsified.violations} & {
        "contents",
        "index-exact",
        "prefix-published",
    }


def test_what_is_varied_comes_behind_what_is_exhausted():
    plain, varied = able("prefix", blocks=2), able("prefix", blocks=2, varied=True)
    tried, more = named(candidates(EMPTY, plain)), named(candidates(EMPTY, varied))
    assert set(tried) < set(more)
    assert {*more} - {*tried} == {
        *(f"admit(0, {tokens}, 2)" for tokens in ("(0,)", "(0, 0)", "(0, 0, 0)", "(0, 0, 0, 0)")),
        *("admit(0, (0, 1), 0)", "admit(0, (0, 1, 0), 0)", "admit(0, (0, 1, 0, 0), 0)"),
        *("admit(0, (0, 0, 0, 1), 0)", "admit(0, (0, 0, 0, 1, 0), 0)"),
        *("admit(0, (0, 1, 0, 0, 0), 0)", "admit(0, (0, 0, 0, 0, 0), 2)"),
    }
    assert all(command.enabled(EMPTY, plain) for command in candidates(EMPTY, varied))
    ones = named(candidates(EMPTY, able("prefix", blocks=2, size=1, varied=True)))
    assert len(set(ones)) == len(ones)
    assert not any(isinstance(c, Admit) for c in every_candidate(EMPTY, setting(4, 2)))
