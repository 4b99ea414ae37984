"""What holds for both managers alike: keys of states, and copies."""

from __future__ import annotations

import copy
import marshal

import pytest

from managing import admit, everything, key_of, number
from pagedkv import (
    InvalidBlockTable,
    Request,
)

# ------------------------------------------------------------------ state key and clone


def test_a_state_key_is_made_of_ints_and_survives_marshalling(make):
    manager = make(4, 2, 1)
    first, _ = admit(manager, 3, 1)
    manager.allocate_for_decode(first)
    key = key_of(manager)
    assert key == marshal.loads(marshal.dumps(key))
    assert hash(key) == hash(key_of(manager))

    def leaves(part):
        return [leaf for p in part for leaf in leaves(p)] if isinstance(part, tuple) else [part]

    assert {int} == {type(leaf) for leaf in leaves(key)}


def test_state_keys_tell_apart_what_behaves_differently(make):
    keys = set()
    for arguments in ((4, 2, 1), (4, 1, 1), (4, 2, 2), (3, 2, 1)):
        manager = make(*arguments)
        keys.add(key_of(manager))
        first, second = admit(manager, 1, 2)
        keys.add(key_of(manager))
        manager.allocate_for_decode(first)
        keys.add(key_of(manager))
        manager.release_request(second)
        keys.add(key_of(manager))
    assert len(keys) == 16


def test_a_state_key_does_not_depend_on_the_order_of_admission(make):
    one, other = make(2, 1, 1), make(2, 1, 1)
    a, b = Request(0, 1), Request(1, 1)
    one.allocate_for_prefill(a)
    one.allocate_for_prefill(b)
    admit(other, 1, 1)
    # The same tables, admitted the other way round.
    third = make(2, 1, 1)
    c, d = Request(1, 1), Request(0, 1)
    filler = Request(9, 1)
    third.allocate_for_prefill(filler)
    third.allocate_for_prefill(c)
    third.release_request(filler)
    third.allocate_for_prefill(d)
    assert key_of(one) == key_of(other) == key_of(third)


def test_states_that_differ_in_names_only_have_one_key(make):
    one, other = make(4, 2, 1), make(4, 2, 1)
    admit(one, 3, 1)
    for request in (Request(7, 3), Request(5, 1)):
        other.allocate_for_prefill(request)
    key = one.state_key({0: 0, 1: 1})
    assert key == other.state_key({7: 0, 5: 1})
    assert key != other.state_key({7: 1, 5: 0})


def test_a_state_key_does_not_depend_on_the_contents(make):
    manager = make(2, 1, 1)
    before = key_of(manager)
    number(manager)
    assert before == key_of(manager)


def test_a_clone_equals_its_original_and_shares_nothing_with_it(make):
    manager = make(6, 2, 1)
    number(manager)
    requests = dict(enumerate(admit(manager, 3, 1)))
    twin, handles = manager.clone(requests)
    assert type(twin) is make
    assert everything(manager, *requests.values()) == everything(twin, *handles.values())
    before = everything(manager, *requests.values())
    for name, handle in handles.items():
        assert handle.block_table is not requests[name].block_table
    handles[0].tokens.append(1)
    for _ in range(4):
        twin.allocate_for_decode(handles[0])
    twin.release_request(handles[1])
    twin.allocate_for_prefill(Request(7, 2))
    twin.physical_kv_cache.fill_(7)
    assert before == everything(manager, *requests.values())


def test_an_original_goes_on_without_its_clone(make):
    manager = make(6, 2, 1)
    requests = dict(enumerate(admit(manager, 3, 1)))
    twin, handles = manager.clone(requests)
    before = everything(twin, *handles.values())
    manager.allocate_for_decode(requests[0])
    manager.release_request(requests[1])
    manager.physical_kv_cache.fill_(7)
    assert before == everything(twin, *handles.values())


def test_a_clone_knows_the_copied_handles_and_not_the_old_ones(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    twin, handles = manager.clone({5: request})
    with pytest.raises(InvalidBlockTable, match="belongs to another request"):
        twin.release_request(request)
    twin.release_request(handles[5])
    manager.release_request(request)


def test_a_clone_copies_live_handles_that_it_was_not_given(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    twin, handles = manager.clone({})
    manager.allocate_for_decode(request)
    assert handles == {}
    assert twin.snapshot().seq_lens == {0: 1}
    with pytest.raises(InvalidBlockTable):
        twin.allocate_for_decode(request)


def test_a_clone_keeps_one_handle_with_two_names_one(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    _, handles = manager.clone({0: request, 1: request})
    assert handles[0] is handles[1] is not request


def test_a_clone_copies_handles_that_hold_nothing(make):
    request = Request(3, 2, [4, 5], extra_key="lora")
    _, handles = make(1, 1, 1).clone({3: request})
    assert (
        handles[3].request_id,
        handles[3].prompt_len,
        handles[3].seq_len,
        handles[3].block_table,
        handles[3].tokens,
        handles[3].extra_key,
    ) == (3, 2, 2, [], [4, 5], "lora")
    assert handles[3].tokens is not request.tokens


def test_a_clone_of_a_subclass_copies_what_the_subclass_adds(make):
    class Tagged(Request):
        tag: list[str]

    class Logging(make):  # type: ignore[misc, valid-type]  # whichever manager is tested
        def __init__(self, *geometry):
            super().__init__(*geometry)
            self.log = []

        def allocate_for_prefill(self, req):
            super().allocate_for_prefill(req)
            self.log.append(req)

    manager = Logging(2, 2, 1)
    request = Tagged(0, 1)
    request.tag = ["x"]
    manager.allocate_for_prefill(request)
    twin, handles = manager.clone({0: request})
    assert type(twin) is Logging
    assert type(handles[0]) is Tagged
    assert twin.log == [handles[0]]
    assert (handles[0].tag, handles[0].tag is request.tag) == (["x"], False)


def test_a_deep_copy_of_manager_and_handles_works_too(make):
    manager = make(2, 2, 1)
    (request,) = admit(manager, 1)
    twin, handle = copy.deepcopy((manager, request))
    twin.allocate_for_decode(handle)
    twin.release_request(handle)
    assert (request.block_table, manager.free_blocks) == ([0], [1])
