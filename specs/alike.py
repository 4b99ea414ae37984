"""When two snapshots say the same: a count of zero is no entry, and what is never held no count."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pagedkv.protocol import Snapshot
from pagedkv.specs.model import Setting
from pagedkv.specs.show import show


def difference(was: Snapshot, now: Snapshot, setting: Setting) -> str | None:
    """The first field in which they differ, with both values; None if they say the same."""
    if was == now:
        return None
    for f in fields(Snapshot):
        old, new = _said(was, f.name, setting), _said(now, f.name, setting)
        if old != new:
            return f"{f.name} before {show(old)} != {show(new)} after"
    return None


def _said(snapshot: Snapshot, name: str, setting: Setting) -> Any:
    """What a field says: without zeros, and without counts of null and reserved blocks."""
    value = getattr(snapshot, name)
    if name == "capacities" and value:
        return {owner: room for owner, room in value.items() if room}
    if name == "ref_counts" and value:
        never = snapshot.reserved | {setting.declared.null_block}
        return {block: count for block, count in value.items() if count and block not in never}
    return value
