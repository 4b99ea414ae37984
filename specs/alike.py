"""When two snapshots say the same: a count of zero is no entry, and what is never held no count."""

from __future__ import annotations

from dataclasses import fields, replace

from pagedkv.protocol import Snapshot
from pagedkv.specs.model import Setting
from pagedkv.specs.show import show


def difference(was: Snapshot, now: Snapshot, setting: Setting) -> str | None:
    """The first field in which they differ, with both values; None if they say the same."""
    if was == now:
        return None
    first, second = _plain(was, setting), _plain(now, setting)
    for f in fields(Snapshot):
        old, new = getattr(first, f.name), getattr(second, f.name)
        if old != new:
            return f"{f.name} before {show(old)} != {show(new)} after"
    return None


def _plain(snapshot: Snapshot, setting: Setting) -> Snapshot:
    """The snapshot without zeros, and without counts of null and reserved blocks."""
    counts, rooms = snapshot.ref_counts, snapshot.capacities
    never = snapshot.reserved | {setting.declared.null_block}
    return replace(
        snapshot,
        ref_counts=counts and {b: n for b, n in counts.items() if n and b not in never},
        capacities=rooms and {owner: room for owner, room in rooms.items() if room},
    )
