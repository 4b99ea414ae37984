"""The targets that pagedkv knows by name, and what each can't do without."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class Builtin:
    """A target that pagedkv knows by name: where it is, and the module that it can't do without."""

    name: str
    where: str
    statement: str
    needs: str
    install: str

    @property
    def installed(self) -> bool:
        """Whether `needs` is there, looked for without importing any of it; changes nothing."""
        path = None
        for name in prefixes(self.needs):
            spec = find_spec(name) if path is None else PathFinder.find_spec(name, path)
            if spec is None:
                return False
            path = spec.submodule_search_locations or ()
        return True


_MAX = "pip install max==26.7.0 transformers==5.24.0 requests pillow av"
"""What its packages ask for only where it serves is named beside it."""

_EXLLAMAV3 = (
    "pip install torch==2.13.0 pydantic tokenizers triton && pip install --no-deps exllamav3==1.6.5"
)
"""Without what it compiles and loads models with."""

BUILTINS: tuple[Builtin, ...] = (
    Builtin(
        "reference",
        "pagedkv.reference:KVCacheManager",
        "The obviously right manager: lists and loops, the lowest free block first.",
        "torch",
        "pip install torch",
    ),
    Builtin(
        "array",
        "pagedkv.arrays:ArrayKVCacheManager",
        "The fast manager: numpy arrays for tables, lengths, owners and the free stack.",
        "torch",
        "pip install torch",
    ),
    Builtin(
        "torch",
        "pagedkv.engines.torch_paged:TorchPagedAttention",
        "torch's experimental PagedAttention, behind an adapter.",
        "torch.nn.attention.experimental._paged_attention",
        "pip install 'torch>=2.6'",
    ),
    Builtin(
        "exllamav3",
        "pagedkv.engines.exllamav3:ExLlamaV3PageTable",
        "exllamav3's PageTable under its own generator's queue, behind an adapter.",
        "exllamav3.generator.pagetable",
        _EXLLAMAV3,
    ),
    Builtin(
        "max",
        "pagedkv.engines.max:MaxBlockManager",
        "MAX's BlockManager without its prefix cache, behind an adapter.",
        "max.pipelines.kv_cache.paged_kv_cache.block_manager",
        _MAX,
    ),
    Builtin(
        "max-cached",
        "pagedkv.engines.max:CachedMaxBlockManager",
        "MAX's BlockManager with its prefix cache, behind an adapter.",
        "max.pipelines.kv_cache.paged_kv_cache.block_manager",
        _MAX,
    ),
    Builtin(
        "tokenspeed",
        "pagedkv.engines.tokenspeed:TokenSpeedScheduler",
        "TokenSpeed's scheduler, one request at a time by plans that hold the others.",
        "tokenspeed_scheduler",
        "pip install tokenspeed-scheduler==0.1.42",
    ),
)


def prefixes(name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
