"""Calls for many requests at once: the same as single calls in a row, and all of them or none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batching import Batching
from managing import Nth, admit, everything
from pagedkv import (
    ArrayKVCacheManager,
    Declarations,
    HoldsNothing,
    InvalidBlockTable,
    MisuseError,
    OutOfBlocks,
    Request,
)
from pagedkv.rows import RowHandle
from pagedkv.rows import ints as as_int64
from pagedkv.running import RunningBatch
from pagedkv.stateful.profiles import FIXED, PROFILES
from test_arrays import invariants
from test_scope_counts import MAIN, counted


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def rows_of(manager, *lengths):
    return manager.prefill_rows(ints(*lengths))


# ------------------------------------------------------------------ the same as single calls

BLOCKS, SIZE = 12, 3


class Both:
    """One manager that is called in batches, and one that gets the same calls one by one."""

    def __init__(self):
        self.batched = ArrayKVCacheManager(BLOCKS, SIZE, 1)
        self.single = ArrayKVCacheManager(BLOCKS, SIZE, 1)
        self.live: list[tuple[int, Request]] = []
        self.made = 0
        self.running = None

    def refused(self, call, needed):
        """Whether there are too few blocks; the batch has then said so and changed nothing."""
        available = len(self.single.free_blocks)
        if needed <= available:
            return False
        before = everything(self.batched)
        with pytest.raises(OutOfBlocks) as caught:
            call()
        assert (needed, available) == (caught.value.needed, caught.value.available)
        assert before == everything(self.batched)
        return True

    def prefill(self, lengths):
        needed = sum(-(-n // SIZE) for n in lengths)
        if self.refused(lambda: rows_of(self.batched, *lengths), needed):
            return
        rows = rows_of(self.batched, *lengths).tolist()
        for row, length in zip(rows, lengths, strict=True):
            request = Request(self.made, length)
            self.made += 1
            self.single.allocate_for_prefill(request)
            assert row == self.single.row_of(request)
            self.live.append((row, request))

    def decode(self, chosen, how):
        rows = ints(*(row for row, _ in chosen))
        calls = {"rows": lambda: self.batched.decode_rows(rows), "batch": self.again(rows)}
        call = calls[how]
        needed = sum(r.seq_len % SIZE == 0 for _, r in chosen)
        if self.refused(call, needed):
            return
        slots = call().tolist()
        for (_, request), slot in zip(chosen, slots, strict=True):
            self.single.allocate_for_decode(request)
            assert request.block_table[-1] * SIZE + (request.seq_len - 1) % SIZE == slot

    def again(self, rows):
        """A decode of these rows by a prepared batch, the last one if it is of the same rows."""
        if self.running is None or self.running.rows.tolist() != rows.tolist():
            self.running = self.batched.batch(rows)
        return self.running.decode

    def release(self, chosen):
        self.batched.release_rows(ints(*(row for row, _ in chosen)))
        for row, request in chosen:
            self.single.release_request(request)
            self.live.remove((row, request))

    def compare(self):
        invariants(self.batched)
        names = {~row: r.request_id for row, r in self.live}
        own = {r.request_id: r.request_id for _, r in self.live}
        assert self.single.state_key(own) == self.batched.state_key(names)


def choices(data, both):
    return data.draw(
        st.lists(st.sampled_from(both.live), unique=True) if both.live else st.just([])
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_batch_does_what_single_calls_do_one_after_another(data):
    both = Both()
    actions = st.sampled_from(["prefill", "rows", "batch", "batch", "release"])
    for action in data.draw(st.lists(actions, min_size=1, max_size=25)):
        if action == "prefill":
            both.prefill(data.draw(st.lists(st.integers(1, 2 * SIZE + 1), max_size=4)))
        elif action == "release":
            both.release(choices(data, both))
        elif action == "batch" and data.draw(st.booleans()):
            both.decode(both.live, action)
        else:
            both.decode(choices(data, both), action)
        both.compare()


@pytest.mark.parametrize(
    ("blocks", "block_size", "expected"), [(1, 3, (4, 39)), (2, 2, (14, 190)), (3, 1, (34, 465))]
)
def test_batched_calls_pass_in_just_the_states_of_the_single_ones(blocks, block_size, expected):
    (geometry,) = [g for g in FIXED if (g.num_blocks, g.block_size) == (blocks, block_size)]
    done = counted(MAIN, Batching, geometries=(geometry,))
    assert (done.states, done.transitions) == expected


def test_batched_and_single_calls_agree_in_lockstep():
    pair, _ = PROFILES["quick"].scopes(Declarations(), pair=True)
    small = tuple(g for g in FIXED if g.num_blocks <= 2)
    done = counted(pair, ArrayKVCacheManager, Batching, geometries=small)
    assert done.states > 40


# ------------------------------------------------------------------ all or nothing


@pytest.mark.parametrize("how", ["rows", "batch"])
def test_a_decode_without_room_for_all_changes_nothing(how):
    manager = ArrayKVCacheManager(5, 2, 1)
    rows = rows_of(manager, 2, 3, 4)
    batch = manager.batch(rows)
    before = everything(manager)
    with pytest.raises(OutOfBlocks, match=r"OOM: the batch needs 2 more block\(s\), 0 available"):
        batch.decode() if how == "batch" else manager.decode_rows(rows)
    assert before == everything(manager)
    assert batch.seq_lens.tolist() == [2, 3, 4]
    assert batch.slot_mapping.tolist() == manager.batch(rows).slot_mapping.tolist()


def test_lengths_beyond_any_pool_are_out_of_blocks():
    manager = ArrayKVCacheManager(4, 1, 1)
    with pytest.raises(OutOfBlocks) as caught:
        manager.prefill_rows(ints(2**62, 2**62, 2**62))
    assert (caught.value.needed, caught.value.available) == (3 * 2**62, 4)
    assert caught.value.request_id is None


WRONG = [
    ([0, 1, 0], MisuseError, "a batch in which row 0 stands twice"),
    ([1, 0, 1], MisuseError, "a batch in which row 1 stands twice"),
    ([0, 0], MisuseError, "a batch in which row 0 stands twice"),
    ([0, 1, 1], MisuseError, "a batch in which row 1 stands twice"),
    ([0, 2], HoldsNothing, "of row 2, which is not live"),
    ([0, 3], HoldsNothing, "of row 3, which is not live"),
    ([0, 4], HoldsNothing, "of row 4, which is not live"),
    ([-1, 0], HoldsNothing, "of row -1, which is not live"),
    ([0.0], TypeError, "rows must be integers, got float64"),
    ([True], TypeError, "rows must be integers, got bool"),
    ([[0, 1]], ValueError, r"rows must have one dimension, got the shape \[1, 2\]"),
]


@pytest.mark.parametrize("call", ["decode_rows", "release_rows", "batch", "slot_mapping"])
@pytest.mark.parametrize(("rows", "error", "message"), WRONG)
def test_wrong_rows_are_refused_before_anything_changes(call, rows, error, message):
    manager = ArrayKVCacheManager(8, 1, 1)
    live = rows_of(manager, 2, 1, 1)
    manager.release_rows(live[2:])
    assert len(manager._counts) == 4
    before = everything(manager)
    with pytest.raises(error, match=message):
        getattr(manager, call)(np.array(rows))
    assert before == everything(manager)
    invariants(manager)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([1, 0], ValueError, r"each of lengths must be >= 1, got 0"),
        ([-3, 1], ValueError, r"each of lengths must be >= 1, got -3"),
        ([1.0], TypeError, "lengths must be integers, got float64"),
        ([[1]], ValueError, "lengths must have one dimension"),
    ],
)
def test_wrong_lengths_are_refused_before_anything_changes(lengths, error, message):
    manager = ArrayKVCacheManager(8, 1, 1)
    before = everything(manager)
    with pytest.raises(error, match=message):
        manager.prefill_rows(np.array(lengths))
    assert before == everything(manager)


def test_empty_batches_do_nothing():
    manager = ArrayKVCacheManager(2, 1, 1)
    before = everything(manager)
    none = np.array([])
    assert [len(manager.prefill_rows(none)), len(manager.decode_rows(none))] == [0, 0]
    assert [len(manager.slot_mapping(none)), len(manager.batch(none))] == [0, 0]
    assert manager.batch(none).block_tables.shape == (0, 1)
    manager.release_rows(none)
    assert before == everything(manager)


def scene(name):
    """A manager with a plain request, a handle and a row without one, and a call over all."""
    manager = ArrayKVCacheManager(16, 2, 1)
    (plain,) = admit(manager, 4)
    rows = np.concatenate((ints(manager.row_of(plain)), rows_of(manager, 2, 3)))
    view = manager.handle(rows[1])
    running = manager.batch(rows)
    calls = {
        "prefill": lambda: rows_of(manager, 1, 9, 2),
        "decode": lambda: manager.decode_rows(rows),
        "prepared": running.decode,
        "release": lambda: manager.release_rows(rows[::-1]),
        "mapping": lambda: manager.slot_mapping(rows),
    }
    return manager, (plain, view), calls[name]


@pytest.mark.parametrize("name", ["prefill", "decode", "prepared", "release", "mapping"])
def test_a_batch_that_fails_at_any_inner_call_changes_nothing(name):
    failures = 0
    while True:
        manager, handles, call = scene(name)
        before = everything(manager, *handles)
        if not Nth(failures + 1).run(call):
            break
        failures += 1
        assert before == everything(manager, *handles)
        invariants(manager)
    assert failures > 5


# ------------------------------------------------------------------ slots and tensors


def test_slots_are_where_reading_finds_the_tokens():
    manager = ArrayKVCacheManager(16, 3, 1)
    first = rows_of(manager, 4, 1, 6)
    manager.release_rows(first[:1])
    rows = np.concatenate((first[1:], rows_of(manager, 7, 2)))
    cells = manager.physical_kv_cache.view(-1)
    slots = manager.slot_mapping(rows)
    cells[slots] = torch.arange(16.0)
    cells[manager.decode_rows(rows)] = torch.tensor([-1.0, -2, -3, -4])
    read = [manager.get_physical_cache(manager.handle(row)).flatten().tolist() for row in rows]
    assert [[0, -1], [*range(1, 7), -2], [*range(7, 14), -3], [14, 15, -4]] == read


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_tensors_in_give_tensors_out(dtype):
    manager = ArrayKVCacheManager(16, 2, 1)
    rows = manager.prefill_rows(torch.tensor([2, 3], dtype=dtype))
    assert (torch.int64, [0, 1]) == (rows.dtype, rows.tolist())
    slots = manager.decode_rows(rows.to(dtype))
    assert (torch.int64, [6, 5]) == (slots.dtype, slots.tolist())
    assert manager.slot_mapping(rows).tolist() == [0, 1, 6, 2, 3, 4, 5]
    manager.release_rows(rows)
    assert manager.snapshot().num_free == 16


def test_all_lengths_are_one_tensor_that_follows_without_a_copy():
    manager = ArrayKVCacheManager(8, 2, 1)
    rows = rows_of(manager, 3, 1)
    lengths = manager.seq_lens_tensor
    manager.decode_rows(rows[:1])
    assert (torch.int32, [4, 1]) == (lengths.dtype, lengths.tolist())
    manager.release_rows(rows[:1])
    assert lengths.tolist() == [0, 1]


def test_a_batch_keeps_its_tensors_where_they_are():
    manager = ArrayKVCacheManager(8, 2, 1)
    batch = manager.batch(rows_of(manager, 1, 2))
    rows, seq_lens, slot_mapping = batch.tensors
    assert [torch.int64, torch.int32, torch.int64] == [t.dtype for t in batch.tensors]
    returned = batch.decode()
    assert np.shares_memory(returned, slot_mapping.numpy())
    assert (rows.tolist(), seq_lens.tolist(), slot_mapping.tolist()) == ([0, 1], [2, 3], [1, 4])
    manager.allocate_for_decode(manager.handle(0))
    batch.decode()
    assert (seq_lens.tolist(), slot_mapping.tolist()) == ([4, 4], [7, 5])


@pytest.mark.parametrize("row", [0, 1])
def test_a_prepared_batch_sees_what_single_calls_did_between(row):
    """Row 0 is at the end of its block, row 1 has room."""
    manager = ArrayKVCacheManager(8, 4, 1)
    batch = manager.batch(rows_of(manager, 3, 1))
    batch.decode()
    manager.allocate_for_decode(manager.handle(row))
    for _ in range(4):
        batch.decode()
        anew = ArrayKVCacheManager.batch(manager.clone({})[0], batch.rows)
        assert batch.seq_lens.tolist() == anew.seq_lens.tolist()
        assert batch.slot_mapping.tolist() == anew.slot_mapping.tolist()
    assert batch.seq_lens.tolist() == [8 + (row == 0), 6 + (row == 1)]
    invariants(manager)


def test_tables_of_consecutive_rows_are_a_view_and_others_a_copy():
    manager = ArrayKVCacheManager(16, 1, 1)
    rows = rows_of(manager, 1, 2, 1, 1)
    inside = manager.batch(rows[1:3]).block_tables
    apart = manager.batch(rows[[2, 0]]).block_tables
    whole = manager.block_tables_tensor.numpy()
    assert np.shares_memory(whole, inside.numpy())
    assert not np.shares_memory(whole, apart.numpy())
    assert (inside[0].tolist(), inside[1, 0].item()) == ([1, 2], 3)
    assert apart[:, 0].tolist() == [3, 0]


# ------------------------------------------------------------------ handles


def test_a_handle_of_a_row_reads_the_arrays():
    manager = ArrayKVCacheManager(8, 2, 1)
    rows = rows_of(manager, 2, 1)
    handle = manager.handle(rows[0])
    assert manager.handle(np.int32(0)) is handle
    assert (
        handle.request_id,
        handle.prompt_len,
        handle.seq_len,
        handle.block_table,
    ) == (~0, 2, 2, [0])
    manager.decode_rows(rows)
    assert (handle.seq_len, handle.block_table, handle.prompt_len) == (3, [0, 2], 2)
    assert manager.row_of(handle) == 0
    assert manager.allocation_report(handle)["allocated_tokens"] == 4


@pytest.mark.parametrize("release", ["single", "batched"])
def test_a_released_handle_keeps_its_length_and_is_done(release):
    manager = ArrayKVCacheManager(8, 2, 1)
    rows = rows_of(manager, 3)
    handle = manager.handle(rows[0])
    if release == "single":
        manager.release_request(handle)
    else:
        manager.release_rows(rows)
    assert rows_of(manager, 5).tolist() == rows.tolist()
    assert (handle.seq_len, handle.block_table) == (3, [])
    for call in (manager.release_request, manager.allocate_for_decode):
        with pytest.raises(HoldsNothing):
            call(handle)
    with pytest.raises(MisuseError, match="prefill of the handle of row 0, which was released"):
        manager.allocate_for_prefill(handle)
    assert manager.handle(rows[0]) is not handle
    invariants(manager)


def test_a_handle_of_a_row_can_not_be_set():
    manager = ArrayKVCacheManager(8, 2, 1)
    handle = manager.handle(rows_of(manager, 3)[0])
    with pytest.raises(AttributeError, match="seq_len of row 0 is read from the arrays"):
        handle.seq_len = 4
    with pytest.raises(AttributeError, match="block_table of row 0 is read from the arrays"):
        handle.block_table = []


@pytest.mark.parametrize("row", [1, 7])
def test_a_row_that_is_not_live_has_no_handle(row):
    manager = ArrayKVCacheManager(8, 2, 1)
    manager.release_rows(rows_of(manager, 1, 1)[1:])
    with pytest.raises(HoldsNothing, match=f"handle of row {row}, which is not live"):
        manager.handle(row)


def test_single_calls_take_handles_of_rows():
    manager = ArrayKVCacheManager(4, 1, 1)
    handle = manager.handle(rows_of(manager, 1)[0])
    for _ in range(3):
        manager.allocate_for_decode(handle)
    assert (handle.seq_len, handle.block_table) == (4, [0, 1, 2, 3])
    with pytest.raises(OutOfBlocks, match="request -1 needs 1 more"):
        manager.allocate_for_decode(handle)
    with pytest.raises(MisuseError, match="which holds the blocks"):
        manager.allocate_for_prefill(handle)
    invariants(manager)


def test_plain_requests_in_a_batch_are_filled_in():
    manager = ArrayKVCacheManager(8, 2, 1)
    requests = admit(manager, 2, 1)
    rows = np.concatenate((ints(*map(manager.row_of, requests)), rows_of(manager, 2)))
    assert [manager.handle(row) for row in rows[:2]] == requests
    batch = manager.batch(rows)
    batch.decode()
    batch.decode()
    assert tuple(r.block_table for r in requests) == ([0, 3], [1, 5])
    assert [r.seq_len for r in requests] == [4, 3]
    manager.release_rows(rows)
    assert (requests[0].block_table, requests[0].seq_len) == ([], 4)
    manager.allocate_for_prefill(requests[0])
    invariants(manager)


@pytest.mark.parametrize("call", ["decode_rows", "release_rows"])
@pytest.mark.parametrize("table", [[0], [1, 1], []])
def test_an_edited_table_in_a_batch_is_refused_before_anything_changes(call, table):
    manager = ArrayKVCacheManager(8, 2, 1)
    beside = rows_of(manager, 2)
    (request,) = admit(manager, 2)
    kept, request.block_table = request.block_table, table
    before = everything(manager, request)
    with pytest.raises(MisuseError, match=f"{call.split('_', maxsplit=1)[0]} of request 0"):
        getattr(manager, call)(np.append(beside, manager.row_of(request)))
    assert before == everything(manager, request)
    request.block_table = kept
    request.seq_len = 5
    if call == "decode_rows":
        with pytest.raises(
            InvalidBlockTable, match=r"^decode of request \d+: seq_len = 5 was edited"
        ):
            manager.decode_rows(ints(manager.row_of(request)))


def test_a_prepared_batch_whose_row_was_released_is_refused():
    manager = ArrayKVCacheManager(8, 2, 1)
    rows = rows_of(manager, 1, 1)
    batch = manager.batch(rows)
    batch.decode()
    manager.release_rows(rows[:1])
    with pytest.raises(HoldsNothing, match="decode of row 0, which is not live"):
        batch.decode()


def test_a_copy_has_rows_and_handles_of_its_own():
    manager = ArrayKVCacheManager(8, 2, 1)
    rows = rows_of(manager, 2, 2)
    handle, batch = manager.handle(rows[0]), manager.batch(rows)
    batch.decode()
    twin, twins = manager.clone({5: handle})
    batch.decode()
    assert isinstance(twins[5], RowHandle)
    assert (twins[5].seq_len, handle.seq_len) == (3, 4)
    twin.release_request(twins[5])
    assert (twins[5].block_table, handle.block_table) == ([], [0, 2])
    assert twin.snapshot().block_tables == {~1: (1, 3)}
    invariants(twin)
    invariants(manager)


# ------------------------------------------------------------------ growth


def test_many_rows_come_at_once_the_free_ones_first():
    manager = ArrayKVCacheManager(64, 1, 1)
    rows = rows_of(manager, 1, 1, 1)
    manager.release_rows(rows[[0]])
    assert rows_of(manager, *[1] * 9).tolist() == [0, 3, 4, 5, 6, 7, 8, 9, 10]
    assert manager._tables.shape == (16, 1)
    invariants(manager)
    assert rows_of(manager, 3, 2, 5).tolist() == [11, 12, 13]
    assert manager._tables.shape == (16, 5)
    invariants(manager)


def test_a_batch_takes_the_last_block():
    manager = ArrayKVCacheManager(3, 1, 1)
    batch = manager.batch(rows_of(manager, 1, 1))
    with pytest.raises(OutOfBlocks):
        batch.decode()
    manager.release_rows(ints(1))
    one = manager.batch(ints(0))
    assert one.decode().tolist() == [1]
    assert one.decode().tolist() == [2]
    assert manager.free_blocks == []


def test_a_batch_that_nothing_comes_between_is_read_once(monkeypatch):
    manager = ArrayKVCacheManager(6, 2, 1)
    batch = manager.batch(rows_of(manager, 1, 2))
    monkeypatch.delattr(RunningBatch, "_read")
    assert batch.decode().tolist() == [1, 4]
    assert batch.decode().tolist() == [6, 5]


@pytest.mark.parametrize("given", [ints(3, 1), torch.tensor([3, 1])], ids=["array", "tensor"])
def test_int64_is_used_as_it_is(given):
    assert np.shares_memory(as_int64("rows", given), np.asarray(given))


def test_a_prepared_batch_lives_through_growth():
    manager = ArrayKVCacheManager(64, 1, 1)
    batch = manager.batch(rows_of(manager, 1, 2))
    for step in range(9):
        rows_of(manager, 1)
        assert batch.decode().tolist() == [3 * step + 4, 3 * step + 5]
    assert manager.handle(0).seq_len == 10
    invariants(manager)


# ------------------------------------------------------------------ reading


@pytest.mark.parametrize("length", [1, 4, 10, 12])
def test_reading_into_out_fills_its_start_and_no_more(length):
    manager = ArrayKVCacheManager(8, 4, 3)
    manager.physical_kv_cache.copy_(torch.rand(8, 4, 3))
    request = Request(0, length)
    request.block_table = [5, 0, 6]
    out = torch.full((14, 3), -1.0)
    read = manager.get_physical_cache(request, out=out)
    assert torch.equal(manager.get_physical_cache(request), read)
    assert read.data_ptr() == out.data_ptr()
    assert (out[length:] == -1).all()


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros(3, 2),
        torch.zeros(4, 3),
        torch.zeros(8),
        torch.zeros(4, 2, dtype=torch.float64),
        torch.zeros(2, 4).t(),
    ],
)
def test_reading_into_a_wrong_out_is_refused(out):
    manager = ArrayKVCacheManager(8, 4, 2)
    (request,) = admit(manager, 4)
    message = r"give a contiguous torch.float32 tensor of at least \[4, 2\]"
    with pytest.raises(ValueError, match=message):
        manager.get_physical_cache(request, out=out)


@pytest.mark.parametrize("table", [[0, 4], [4, 0], [0, -1], [-1, 0], [0]], ids=str)
def test_reading_a_wrong_table_into_out_is_refused(table):
    manager = ArrayKVCacheManager(4, 2, 1)
    request = Request(0, 3)
    request.block_table = table
    with pytest.raises(ValueError) as alone:  # noqa: PT011 - the words are compared below
        manager.get_physical_cache(request)
    with pytest.raises(ValueError) as into:  # noqa: PT011
        manager.get_physical_cache(request, torch.empty(3, 1))
    assert str(into.value) == str(alone.value)


def test_reading_much_is_reading():
    manager = ArrayKVCacheManager(600, 16, 128)
    manager.physical_kv_cache.copy_(torch.rand(600, 16, 128))
    request = Request(0, 520 * 16 + 3)
    request.block_table = np.random.default_rng(0).permutation(600)[:521].tolist()
    expected = manager.physical_kv_cache[request.block_table].reshape(-1, 128)[: request.seq_len]
    assert torch.equal(expected, manager.get_physical_cache(request))


def test_a_row_beyond_all_rows_has_no_handle():
    manager = ArrayKVCacheManager(8, 2, 1)
    with pytest.raises(HoldsNothing, match="handle of row 1, which is not live"):
        manager.handle(len(manager._lengths))
    with pytest.raises(ValueError, match=r"^row must be >= 0, got -1$"):
        manager.handle(-1)


@pytest.mark.parametrize("call", ["decode_rows", "batch"])
def test_a_decode_of_a_row_that_is_not_live_says_so(call):
    manager = ArrayKVCacheManager(4, 2, 1)
    with pytest.raises(HoldsNothing, match=r"^decode of row 0, which is not live"):
        getattr(manager, call)(ints(0))


def test_a_mapping_of_a_row_that_is_not_live_says_so():
    manager = ArrayKVCacheManager(8, 2, 1)
    with pytest.raises(HoldsNothing, match=r"^slot mapping of row 0, which is not live"):
        manager.slot_mapping(ints(0))


@pytest.mark.parametrize(
    ("out", "given"),
    [
        (torch.zeros(3, 2), r"out is torch.float32 \[3, 2\]; give"),
        (torch.zeros(2, 4).t(), r"out is torch.float32 \[4, 2\], strided; give"),
    ],
)
def test_a_wrong_out_is_told_as_it_is(out, given):
    manager = ArrayKVCacheManager(8, 4, 2)
    (request,) = admit(manager, 4)
    with pytest.raises(ValueError, match=given):
        manager.get_physical_cache(request, out=out)


def test_the_slots_of_a_mapping_are_int64_of_the_kind_that_was_given():
    manager = ArrayKVCacheManager(16, 2, 1)
    rows = rows_of(manager, 2, 3)
    mapping = manager.slot_mapping(rows)
    assert isinstance(mapping, np.ndarray)
    assert mapping.dtype == np.int64
    as_tensor = manager.slot_mapping(torch.from_numpy(rows))
    assert isinstance(as_tensor, torch.Tensor)
    assert as_tensor.dtype == torch.int64


def test_a_release_of_a_row_that_is_not_live_says_so():
    manager = ArrayKVCacheManager(8, 2, 1)
    with pytest.raises(HoldsNothing, match=r"^release of row 0, which is not live"):
        manager.release_rows(ints(0))


def test_rows_that_fill_up_together_take_their_blocks_in_their_order():
    manager = ArrayKVCacheManager(256, 2, 1)
    batch = manager.batch(rows_of(manager, *([1, 2] * 32)))
    for _ in range(3):  # From the second step on, the rows that are full are looked up.
        batch.decode()
    # Half of them took their second block at the first step, the others their second at the next.
    taken = [manager.handle(row).block_table[1] for row in batch.rows]
    assert sorted(taken[1::2]) + sorted(taken[0::2]) == taken[1::2] + taken[0::2]


def test_plain_requests_in_a_batch_are_filled_in_while_no_row_needs_a_block():
    manager = ArrayKVCacheManager(4, 4, 1)
    (request,) = admit(manager, 1)
    manager.decode_rows(ints(manager.row_of(request)))
    assert (request.seq_len, request.block_table) == (2, [0])


def test_the_tables_of_one_row_are_a_view():
    manager = ArrayKVCacheManager(4, 4, 1)
    tables = manager.batch(rows_of(manager, 1)).block_tables
    assert np.shares_memory(tables.numpy(), manager._tables)
