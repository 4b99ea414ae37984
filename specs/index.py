"""Index structures agree: whatever else the manager keeps says what the tables say.

request.block_table = snapshot.block_tables[r]
reverse_map = {(r, i, b) : table[r][i] = b}
capacity[r] = blocks in table[r] * block_size, and 0 where no live request is
ref_count[b] = entries of all tables that name b
the allocation report = the arithmetic of seq_len and table

Null entries, behind a window, are no blocks.
"""

from __future__ import annotations

from typing import SupportsFloat

from pagedkv.protocol import Owned
from pagedkv.specs.alike import difference
from pagedkv.specs.properties import HOLDS, VACUOUS, Broken, EveryState, Judgement, Need, Property
from pagedkv.specs.show import show
from pagedkv.specs.steps import State, Unreadable


def judge_handles(state: State) -> Judgement:
    """Every handle carries the table that the manager keeps for it, and none otherwise."""
    handles, tables = state.seen.handles, state.seen.tables
    if not handles:
        return VACUOUS
    for r, handle in handles.items():
        kept = tables.get(r, ())
        if handle.block_table != kept:
            return Broken(
                f"request {r}: block_table = {show(handle.block_table)} != {show(kept)} "
                f"in the manager's snapshot",
                (),
                (r,),
            )
    return HOLDS


def judge_reverse_map(state: State) -> Judgement:
    """The physical-to-logical map has exactly the entries that the tables imply."""
    found = state.seen.snapshot.reverse_map
    assert found is not None, "Need.REVERSE_MAP is checked before"
    null = state.setting.declared.null_block
    due = {
        Owned(r, i, block)
        for r, table in state.seen.tables.items()
        for i, block in enumerate(table)
        if block != null
    }
    if found == due:
        return HOLDS
    for entry in sorted(due - found, key=str):
        return Broken(
            f"block_table[{entry.owner}][{entry.logical}] = {entry.block} is not in reverse_map",
            (entry.block,),
            _requests(entry.owner),
        )
    entry = min(found - due, key=str)
    table = state.seen.tables.get(entry.owner) if isinstance(entry.owner, int) else None
    says = f"{_owner(entry.owner)} is not live" if table is None else f"block_table = {show(table)}"
    return Broken(
        f"reverse_map[{_owner(entry.owner)}, block {entry.block}] = logical {entry.logical}, "
        f"but {says}",
        (entry.block,),
        _requests(entry.owner),
    )


def judge_capacities(state: State) -> Judgement:
    """Each owner's capacity is what its table holds, in tokens; owners without a table have 0."""
    found, tables = state.seen.snapshot.capacities, state.seen.tables
    assert found is not None, "Need.CAPACITIES is checked before"
    block_size = state.setting.geometry.block_size
    for owner in sorted({*found, *tables}, key=str):
        held = _held(state, tables.get(owner, ()) if isinstance(owner, int) else ())
        has, due = found.get(owner, 0), len(held) * block_size
        if has != due:
            return Broken(
                f"capacity of {_owner(owner)} = {has} != {due} = {len(held)} block(s) x "
                f"block_size {block_size}",
                held,
                _requests(owner),
            )
    return HOLDS if found or tables else VACUOUS


def _held(state: State, table: tuple[int, ...]) -> tuple[int, ...]:
    """The table without its null entries."""
    null = state.setting.declared.null_block
    return tuple(block for block in table if block != null)


def _requests(owner: int | str) -> tuple[int, ...]:
    return (owner,) if isinstance(owner, int) else ()


def _owner(owner: int | str) -> str:
    return f"request {owner}" if isinstance(owner, int) else owner


def judge_ref_counts(state: State) -> Judgement:
    """Each block's reference count is the number of table entries that name it."""
    counts = state.seen.snapshot.ref_counts
    assert counts is not None, "Need.REF_COUNTS is checked before"
    entries = [block for table in state.seen.tables.values() for block in table]
    meant = state.seen.snapshot.reserved | {state.setting.declared.null_block}
    for block in sorted({*counts, *entries} - meant):
        if counts.get(block, 0) != entries.count(block):
            return Broken(
                f"ref_count[{block}] = {counts.get(block, 0)} != {entries.count(block)} = "
                f"table entries that name it",
                (block,),
            )
    return HOLDS


def judge_reports(state: State) -> Judgement:
    """allocation_report of each live request is the arithmetic of its length and its table.

    Of one table, that is, which has an entry for each of its tokens.
    """
    declared = state.setting.declared
    if not state.model.live or declared.ring or declared.windows:
        return VACUOUS
    reports = state.seen.reports()
    assert reports is not None, "Need.REPORT is checked before"
    for r, tags in state.model.live.items():
        table = state.seen.tables.get(r, ())
        allocated = len(_held(state, table)) * state.setting.geometry.block_size
        unused = len(table) * state.setting.geometry.block_size - len(tags)
        due: dict[str, float] = {
            "logical_tokens": len(tags),
            "allocated_tokens": allocated,
            "unused_tail_tokens": unused,
            "utilization": (allocated - unused) / allocated if allocated else 0.0,
        }
        report = reports[r]
        if report == due:
            continue
        if isinstance(report, Unreadable):
            return Broken(f"allocation_report of request {r}: {report.message}", (), (r,))
        for name, value in due.items():
            if not _close(report.get(name), value):
                return Broken(
                    f"allocation_report of request {r}: {name} = {report.get(name)} != {value}",
                    (),
                    (r,),
                )
    return HOLDS


def judge_listed(state: State) -> Judgement:
    """`free_blocks` is the free list of the snapshot, ascending."""
    listed, free = state.seen.listed(), state.seen.snapshot.free_blocks
    if listed is None or free is None:
        return VACUOUS
    if isinstance(listed, Unreadable):
        return Broken(f"free_blocks can't be read: {listed.message}")
    if listed == tuple(sorted(free)):
        return HOLDS
    return Broken(f"free_blocks = {show(listed)} != {show(sorted(free))} = sorted(snapshot)")


def judge_reads(state: State) -> Judgement:
    """Reading contents, reports and the free list leaves everything as it was."""
    state.seen.read()
    state.seen.reports()
    state.seen.listed()
    again = state.seen.again()
    if again is None:
        return VACUOUS
    if isinstance(again, Unreadable):
        return Broken(f"after reading, the snapshot can't be taken again: {again.message}")
    changed = difference(state.seen.snapshot, again, state.setting)
    return HOLDS if changed is None else Broken(f"{changed} reading")


def _close(found: object, due: float) -> bool:
    """Whether `found` is a number that differs by rounding at most; NaN is close to nothing."""
    if not isinstance(found, int | float | SupportsFloat):  # the first two are found out faster
        return False
    return found == due or abs(float(found) - due) <= 1e-9


PROPERTIES = (
    Property(
        "handles-agree",
        "Every handle carries the block table that the manager keeps for it.",
        "request.block_table = snapshot.block_tables[r]",
        EveryState(judge_handles),
        frozenset({Need.HANDLE_TABLES}),
    ),
    Property(
        "reverse-map",
        "The physical-to-logical map has exactly the entries that the tables imply.",
        "reverse_map = {(r, i, b) : block_table[r][i] = b}",
        EveryState(judge_reverse_map),
        frozenset({Need.REVERSE_MAP}),
        redundant=True,
    ),
    Property(
        "capacities",
        "Each owner's recorded capacity is what its table holds.",
        "capacity[r] = blocks in block_table[r] * block_size",
        EveryState(judge_capacities),
        frozenset({Need.CAPACITIES}),
        redundant=True,
    ),
    Property(
        "free-listed",
        "free_blocks names the free blocks of the snapshot, ascending.",
        "free_blocks = sorted(snapshot.free_blocks)",
        EveryState(judge_listed),
        frozenset({Need.FREE_LIST, Need.LISTED}),
        redundant=True,
    ),
    Property(
        "reads-pure",
        "Reading the cache, the reports and the free list changes nothing.",
        "snapshot before = snapshot after reading",
        EveryState(judge_reads),
    ),
    Property(
        "ref-counts",
        "Each block's reference count is the number of table entries that name it.",
        "ref_count[b] = |{(r, i) : block_table[r][i] = b}|",
        EveryState(judge_ref_counts),
        frozenset({Need.REF_COUNTS}),
        redundant=True,
    ),
    Property(
        "report-agrees",
        "The allocation report is the arithmetic of seq_len and table.",
        "unused_tail_tokens = len(block_table[r]) * block_size - seq_len[r]",
        EveryState(judge_reports),
        frozenset({Need.REPORT}),
        redundant=True,
    ),
)
