"""The targets that pagedkv knows by name, and what each can't do without."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class Builtin:
    """A target that pagedkv knows by name: where it is, and the module that it can't do without.

    install: one line for a shell, with the versions that were tested.
    """

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

    @property
    def version(self) -> str | None:
        """An engine's package and its version, such as "torch 2.13.0"; imports nothing of it.

        None for pagedkv's own managers, and for an engine that is in no installed package.
        """
        if not self.where.startswith(ENGINES):
            return None
        module = self.needs.partition(".")[0]
        packages = metadata.packages_distributions().get(module, ())
        # Parts of an engine may come in packages beside the one that has its name.
        for package in sorted(packages, key=lambda name: name.replace("-", "_") != module):
            return f"{package} {metadata.version(package)}"
        return None


ENGINES = "pagedkv.engines."
"""Where the adapters to engines are."""


DEEPSPEED = (
    "pip install setuptools wheel packaging ninja hjson msgpack einops psutil py-cpuinfo tqdm "
    "pydantic && DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation deepspeed==0.19.8"
)
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
        "deepspeed",
        "pagedkv.engines.deepspeed:DeepSpeed",
        "DeepSpeed-FastGen's state manager with its BlockedAllocator.",
        "deepspeed.inference.v2.ragged.blocked_allocator",
        DEEPSPEED,
    ),
    Builtin(
        "nano-vllm",
        "pagedkv.engines.nano_vllm:NanoVllm",
        "nano-vllm's BlockManager.",
        "nanovllm",
        "pip install xxhash numpy && pip install --no-deps nano-vllm-fork==20260210",
    ),
    Builtin(
        "smol-vllm",
        "pagedkv.engines.smol_vllm:SmolVllm",
        "smol-vllm's BlockSpaceManager, asked first as its scheduler does.",
        "smol_vllm",
        "pip install smol-vllm==0.1.2",
    ),
    Builtin(
        "smol-vllm-alone",
        "pagedkv.engines.smol_vllm:alone",
        "smol-vllm's BlockSpaceManager by itself.",
        "smol_vllm",
        "pip install smol-vllm==0.1.2",
    ),
    Builtin(
        "mini-infer",
        "pagedkv.engines.mini_infer:MiniInfer",
        "mini-infer's BlockPool and BlockTable.",
        "mini_infer",
        "pip install --no-deps mini-infer==0.2.5",
    ),
    Builtin(
        "mini-infer-engine",
        "pagedkv.engines.mini_infer:engine",
        "mini-infer's BlockPool with the tables of its engine's sequences.",
        "mini_infer",
        "pip install --no-deps mini-infer==0.2.5",
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
