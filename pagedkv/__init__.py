"""pagedkv: a property-based verification kit for paged KV-cache allocators.

Names are imported on first use (PEP 562), so that `pagedkv --help` needs neither torch nor
Hypothesis.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedkv.adapter import Adapter
    from pagedkv.api import assert_holds, check
    from pagedkv.arrays import ArrayKVCacheManager
    from pagedkv.declarations import NOT_TRIED, Declarations, Raises, Returns
    from pagedkv.ledger import allocation_report, contiguous_waste, estimate_kv_cache_bytes
    from pagedkv.protocol import (
        AlreadyHolding,
        HoldsNothing,
        InvalidBlockTable,
        MisuseError,
        OutOfBlocks,
        Owned,
        PagedKVManager,
        Request,
        Snapshot,
    )
    from pagedkv.reference import KVCacheManager
    from pagedkv.shared_arrays import SharedArrayKVCacheManager
    from pagedkv.shared_reference import SharedKVCacheManager
    from pagedkv.stateful.report import Report
    from pagedkv.suite import parametrize_with_checks

_HOME = {
    "Adapter": "pagedkv.adapter",
    "AlreadyHolding": "pagedkv.protocol",
    "ArrayKVCacheManager": "pagedkv.arrays",
    "Declarations": "pagedkv.declarations",
    "HoldsNothing": "pagedkv.protocol",
    "InvalidBlockTable": "pagedkv.protocol",
    "KVCacheManager": "pagedkv.reference",
    "MisuseError": "pagedkv.protocol",
    "NOT_TRIED": "pagedkv.declarations",
    "OutOfBlocks": "pagedkv.protocol",
    "Owned": "pagedkv.protocol",
    "PagedKVManager": "pagedkv.protocol",
    "Raises": "pagedkv.declarations",
    "Report": "pagedkv.stateful.report",
    "Request": "pagedkv.protocol",
    "Returns": "pagedkv.declarations",
    "SharedArrayKVCacheManager": "pagedkv.shared_arrays",
    "SharedKVCacheManager": "pagedkv.shared_reference",
    "Snapshot": "pagedkv.protocol",
    "allocation_report": "pagedkv.ledger",
    "assert_holds": "pagedkv.api",
    "check": "pagedkv.api",
    "contiguous_waste": "pagedkv.ledger",
    "estimate_kv_cache_bytes": "pagedkv.ledger",
    "parametrize_with_checks": "pagedkv.suite",
}

__version__ = "0.1.0"
__all__ = [
    "NOT_TRIED",
    "Adapter",
    "AlreadyHolding",
    "ArrayKVCacheManager",
    "Declarations",
    "HoldsNothing",
    "InvalidBlockTable",
    "KVCacheManager",
    "MisuseError",
    "OutOfBlocks",
    "Owned",
    "PagedKVManager",
    "Raises",
    "Report",
    "Request",
    "Returns",
    "SharedArrayKVCacheManager",
    "SharedKVCacheManager",
    "Snapshot",
    "__version__",
    "allocation_report",
    "assert_holds",
    "check",
    "contiguous_waste",
    "estimate_kv_cache_bytes",
    "parametrize_with_checks",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'pagedkv' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
