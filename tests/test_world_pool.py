"""The world's pool: tags in the manager's tensor or in a shadow of it, and what they catch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allocators import Plain, broken, moved, violations, world
from pagedkv import KVCacheManager
from pagedkv.specs.abilities.core import Decode, Prefill, Release, Resume
from pagedkv.specs.model import POISON
from pagedkv.stateful.pool import ShadowPool, TensorPool, renaming
from pagedkv.stateful.target import CannotDrive
from pagedkv.stateful.trust import Trust

OF_FOUR = [(block, offset) for block in range(4) for offset in range(2)]


def contents(here):
    return {r: tuple(read) for r, read in here.state.seen.read().items()}


def pooled(**fields):
    """The reference with another tensor."""

    class Pooled(KVCacheManager):
        def __init__(self, *geometry):
            super().__init__(*geometry)
            for name, make in fields.items():
                setattr(self, name, make(self))

    return Pooled


@pytest.mark.parametrize("factory", [KVCacheManager, Plain], ids=["tensor", "shadow"])
def test_tokens_are_tagged_where_the_table_says_and_freed_blocks_poisoned(factory):
    here = world(factory)
    assert here.pool.read(OF_FOUR) == (POISON,) * 8
    tag = here.setting.tag
    moved(here, Prefill(0, 3), Prefill(1, 1))
    expected = (tag(0, 0), tag(0, 1), tag(0, 2), POISON, tag(1, 0), POISON, POISON, POISON)
    assert expected == here.pool.read(OF_FOUR)
    moved(here, Release(0), Decode(1))
    assert (POISON,) * 4 + (tag(1, 0), tag(1, 1), POISON, POISON) == here.pool.read(OF_FOUR)


@pytest.mark.parametrize("factory", [KVCacheManager, Plain], ids=["tensor", "shadow"])
def test_a_resumed_request_is_tagged_again(factory):
    here = moved(world(factory), Prefill(0, 3), Release(0), Resume(0))
    assert contents(here) == {0: tuple(here.setting.tag(0, p) for p in range(3))}


def test_every_row_of_a_wide_pool_carries_the_tag():
    here = moved(world(KVCacheManager, head_dim=2), Prefill(0, 3))
    assert (here.manager.physical_kv_cache[:2].reshape(4, 2).tolist()) == [
        [1.0, 1.0],
        [2.0, 2.0],
        [3.0, 3.0],
        [-1.0, -1.0],
    ]


def test_a_row_from_more_than_one_token_cannot_be_read():
    class Torn(KVCacheManager):
        def get_physical_cache(self, req):
            cache = super().get_physical_cache(req)
            cache[1:, 1] = cache[:-1, 1].clone()
            return cache

    found = broken(world(Torn, head_dim=2), Prefill(0, 2))
    expected = (
        "cache of request 0 can't be read: position 1 reads [2.0, 1.0], from more than one token"
    )
    assert expected == found["contents"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_a_pool_of_any_wide_enough_type_will_do(dtype):
    here = world(pooled(physical_kv_cache=lambda self: self.physical_kv_cache.to(dtype)))
    moved(here, Prefill(0, 3), Prefill(1, 2), Release(0), Decode(1))
    assert contents(here) == {1: tuple(here.setting.tag(1, p) for p in range(3))}
    twin = here.clone(Trust("whole", "deep"))
    assert twin.key(Trust("whole")) == here.key(Trust("whole")) is not None


def test_a_tensor_for_each_layer_cannot_be_driven():
    with pytest.raises(CannotDrive) as caught:
        world(pooled(physical_kv_cache=lambda self: [torch.zeros(4, 2, 1)]))
    assert str(caught.value) == (
        "physical_kv_cache is a list, not one tensor [num_blocks, 2, 1]; give one layer's, or "
        "leave it out"
    )


@pytest.mark.parametrize("shape", [(4, 2), (4, 2, 1, 1), (4, 1, 1), (4, 2, 2), ()], ids=str)
def test_a_tensor_of_another_shape_cannot_be_driven(shape):
    with pytest.raises(CannotDrive) as caught:
        world(pooled(physical_kv_cache=lambda self: torch.zeros(shape)))
    assert str(caught.value) == (
        f"physical_kv_cache has shape {list(shape)}, not [num_blocks, 2, 1]"
    )


def test_a_pool_that_is_an_array_of_numpy_will_do():
    class OfArrays(Plain):
        def __init__(self, num_blocks, block_size, head_dim):
            super().__init__(num_blocks, block_size, head_dim)
            self.physical_kv_cache = np.zeros((num_blocks, block_size, head_dim))

    here = moved(world(OfArrays), Prefill(0, 3), Prefill(1, 2), Release(0))
    assert contents(here) == {1: tuple(here.setting.tag(1, p) for p in range(2))}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.complex64], ids=str)
def test_a_pool_that_cannot_hold_the_poison_cannot_be_driven(dtype):
    narrow = pooled(physical_kv_cache=lambda self: torch.zeros((4, 2, 1), dtype=dtype))
    with pytest.raises(CannotDrive, match=f"physical_kv_cache is {dtype}, which can't hold -1"):
        world(narrow)


def test_a_pool_too_large_for_its_type_cannot_be_driven_and_says_what_to_do():
    def bfloat16(blocks):
        make = pooled(physical_kv_cache=lambda self: self.physical_kv_cache.bfloat16())
        return world(make, blocks, 1, requests=1)

    bfloat16(254)
    with pytest.raises(CannotDrive) as caught:
        bfloat16(255)
    assert str(caught.value) == (
        "physical_kv_cache is torch.bfloat16, which can't hold -1 and the tags 1 .. 257 exactly; "
        "make it float32 for the check, or the pool smaller"
    )


class Replacing(KVCacheManager):
    """Puts another tensor in the place of the old one, with what was in it, at every prefill."""

    kept = True

    def allocate_for_prefill(self, req):
        super().allocate_for_prefill(req)
        fresh = self.physical_kv_cache.clone()
        self.physical_kv_cache = fresh if self.kept else fresh.zero_()


def test_the_pool_is_the_tensor_that_the_manager_has_now():
    here = moved(world(Replacing), Prefill(0, 3), Prefill(1, 1), Decode(0))
    tag = here.setting.tag
    assert contents(here) == {0: tuple(tag(0, p) for p in range(4)), 1: (tag(1, 0),)}
    moved(here, Release(1))
    assert here.manager.physical_kv_cache[2].flatten().tolist() == [POISON, POISON]


def test_a_replaced_tensor_that_lost_the_tokens_is_caught():
    class Losing(Replacing):
        kept = False

    found = broken(world(Losing), Prefill(0, 2), Prefill(1, 1))
    assert found == {
        "contents": "cache of request 0, position 0: reads 0.0 (no token's tag) "
        "!= token 0 of request 0"
    }


def test_a_manager_that_reads_a_tensor_but_shows_none_is_read_by_its_tables():
    class Hiding(Plain):
        def get_physical_cache(self, req):
            return torch.zeros(req.seq_len, 1)

    here = moved(world(Hiding), Prefill(0, 3))
    assert contents(here) == {0: (1, 2, 3)}


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (lambda req: torch.zeros(req.seq_len + 1, 1), "shape [4, 1] != [3, 1]"),
        (lambda req: torch.zeros(req.seq_len), "shape [3] != [3, 1]"),
        (lambda req: None, "AttributeError: 'NoneType' object has no attribute 'shape'"),
        (lambda req: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
    ids=["length", "dimensions", "nothing", "raises"],
)
def test_a_cache_that_cannot_be_read_says_why(cache, words):
    class Bad(KVCacheManager):
        def get_physical_cache(self, req):
            return cache(req)

    found = broken(world(Bad), Prefill(0, 3))
    assert {"contents": f"cache of request 0 can't be read: {words}"} == found


def test_without_a_way_to_read_the_tensor_the_table_is_read():
    class Silent(Plain):
        def __init__(self, num_blocks, block_size, head_dim):
            super().__init__(num_blocks, block_size, head_dim)
            self.physical_kv_cache = torch.zeros(num_blocks, block_size, head_dim)

    assert contents(moved(world(Silent), Prefill(0, 3))) == {0: (1.0, 2.0, 3.0)}
    here = world(Silent)
    here.apply(Prefill(0, 3))
    here.manager.physical_kv_cache[1, 0] = 7
    assert (
        "cache of request 0, position 2: reads token 6 of request 0" in (broken(here)["contents"])
    )


class Aliasing(KVCacheManager):
    """Gives the second request the first one's last block, and shows sums that balance."""

    def allocate_for_prefill(self, req):
        super().allocate_for_prefill(req)
        others = [lease for name, lease in self._live.items() if name != req.request_id]
        if others:
            shared = others[0].blocks[-1]
            lease = self._live[req.request_id]
            req.block_table = [*lease.blocks[:-1], shared]
            self._live[req.request_id] = lease._replace(blocks=tuple(req.block_table))


def test_a_block_handed_to_two_is_caught_by_its_contents_when_it_happens():
    found = violations(world(Aliasing, 4, 1), Prefill(0, 1), Prefill(1, 1))
    messages = {violation.property.id: violation.broken.message for violation in found}
    assert {2} == {violation.step for violation in found}
    assert messages["contents"] == (
        "cache of request 0, position 0: reads token 0 of request 1 != token 0 of request 0"
    )
    assert messages["conservation"] == (
        "free(2) + held(2) + cached(0) = usable(4): leak, block 1 belongs to nobody"
    )


def test_aliasing_that_no_table_shows_is_caught_by_the_contents_alone():
    class Secret(Plain):
        """Tables are right; what is read for the second request is the first one's."""

        def slots(self, req):
            table = [0] if req.request_id else req.block_table
            return [(0, table[p // 2], p % 2) for p in range(req.seq_len)]

    here = moved(world(Secret), Prefill(0, 1))
    assert {"contents"} == broken(here, Prefill(1, 1)).keys()


def test_a_freed_block_that_is_still_read_shows_poison():
    class Early(KVCacheManager):
        """Takes a live request's block away when another is released."""

        def release_request(self, req):
            super().release_request(req)
            for lease in self._live.values():
                lease.handle.block_table[0] = self._free[0]

    here = moved(world(Early), Prefill(0, 1), Prefill(1, 1))
    assert (
        "reads nothing (a free or unwritten slot) != token 0 of request 1"
        in (broken(here, Release(0))["contents"])
    )


def test_pools_agree_and_leave_out_what_lies_outside():
    tensor, shadow = TensorPool(torch.zeros(2, 2, 1)), ShadowPool(2)
    for pool in (tensor, shadow):
        pool.poison([0, 1, 5])
        pool.write([(0, 1), (1, 0)], [3, 4])
        assert pool.read([(0, 0), (0, 1), (1, 0)]) == (POISON, 3, 4)
        pool.poison([1])
        assert pool.read([(1, 0)]) == (POISON,)
    tensor.write([(5, 0), (-1, 0)], [8, 9])
    assert tensor.read([(5, 0), (-1, 0), (1, 0)]) == (POISON, POISON, POISON)


@pytest.mark.parametrize("shadow", [True, False], ids=["shadow", "tensor"])
def test_keys_of_pools_are_equal_up_to_the_names_of_requests(shadow):
    stride = 4

    def filled(*tags):
        pool = ShadowPool(2) if shadow else TensorPool(torch.full((1, 2, 1), float(POISON)))
        pool.write([(0, i) for i in range(len(tags))], tags)
        return pool

    def tag(r, p):
        return 1 + r * stride + p

    plain = filled(tag(0, 0), tag(1, 2)).key(renaming((0, 1), stride))
    assert plain == filled(tag(1, 0), tag(0, 2)).key(renaming((1, 0), stride))
    assert plain != filled(tag(1, 0), tag(0, 2)).key(renaming((0, 1), stride))
    assert plain != filled(tag(1, 0), tag(0, 1)).key(renaming((1, 0), stride))
    assert plain != filled(tag(0, 0)).key(renaming((0, 1), stride))
    assert filled(tag(0, 0)).key(None) == filled(tag(2, 0)).key(renaming((2,), stride))
