"""Features of SGLang, systems of the toolkit, and deployments that have one of each."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.e2e.deployments import _changed as changed

Contents = dict[str, Any]
RANKS: Contents = {"tp": 2, "dp": 2, "dp_attention": True}
WIDE: Contents = RANKS | {"ep": 2}
CUDA: Contents = {
    "name": "features",
    "device": "cuda",
    "model": "embedded",
    "prefill": {"args": {"chunked-prefill-size": 8192}},
    "decode": {"replicas": 2},
    "router": {"kind": "toolkit", "dispatch": "late"},
}


def args(**flags: object) -> Contents:
    """A role's `args`."""
    return {"args": {name.replace("_", "-"): value for name, value in flags.items()}}


def both(**flags: object) -> Contents:
    return {"prefill": args(**flags), "decode": args(**flags)}


@dataclass(frozen=True)
class Feature:
    """`cuda`: what a deployment on GPUs says to have it; `cpu`: one on CPUs, None where SGLang
    cannot do it there. `ranks`: it can do it there beside DP ranks, too."""

    name: str
    cuda: Contents
    cpu: Contents | None = None
    ranks: bool = True


def _everywhere(name: str, contents: Contents) -> Feature:
    return Feature(name, contents, contents)


_HOST = {"enable_hierarchical_cache": True, "hicache_write_policy": "write_through"}
_STORE = {"hicache_storage_backend": "file", "hicache_host_memory_mode": "buffer_only"}
_CPU_HOST = {
    "hicache_ratio": 2.0, "hicache_io_backend": "direct", "hicache_mem_layout": "layer_first",
}  # fmt: skip
_DEEPEP = {"moe_a2a_backend": "deepep"}
_ADAPTERS = {"enable_lora": True, "lora_paths": ["a={adapter}"]}

FEATURES = (
    _everywhere("nothing else", {}),
    _everywhere("overlap scheduler off", both(disable_overlap_schedule=True)),
    _everywhere("prefix cache off on prefill", {"prefill": args(disable_radix_cache=True)}),
    _everywhere(
        "prefix cache on decode", {"decode": args(disaggregation_decode_enable_radix_cache=True)}
    ),
    Feature(
        "hierarchical cache on prefill",
        {"prefill": args(**_HOST)},
        {"prefill": args(**_HOST, **_CPU_HOST)},
    ),
    Feature(
        "... with a store",
        {"prefill": args(**_HOST, **_STORE)},
        {"prefill": args(**_HOST, **_CPU_HOST, **_STORE)},
    ),
    Feature(
        "... with a store, not staged",
        {"prefill": args(**_HOST, hicache_storage_backend="file")},
    ),
    Feature(
        "hierarchical cache on decode",
        {
            "decode": args(
                enable_hierarchical_cache=True, disaggregation_decode_enable_radix_cache=True
            )
        },
    ),
    Feature(
        "decode KV kept in a store",
        {
            "decode": args(
                disaggregation_decode_enable_offload_kvcache=True, hicache_storage_backend="file"
            )
        },
    ),
    Feature("LMCache on prefill", {"prefill": args(enable_lmcache=True)}),
    _everywhere("DP attention on prefill", {"prefill": RANKS}),
    _everywhere("PrefillDelayer", {"prefill": RANKS | args(enable_prefill_delayer=True)}),
    Feature("pipeline stages on prefill", {"prefill": args(pp_size=2)}),
    Feature(
        "... with `dispatch: concurrent`",
        {"prefill": args(pp_size=2), "router": {"dispatch": "concurrent"}},
    ),
    Feature(
        "context parallel prefill",
        {"prefill": {"tp": 2} | args(enable_prefill_cp=True, attn_cp_size=2, cp_strategy="zigzag")},
    ),
    _everywhere("priority scheduling", {"prefill": args(enable_priority_scheduling=True)}),
    _everywhere("chunks mixed with decode", {"prefill": args(enable_mixed_chunk=True)}),
    Feature("several tokenizer processes", both(tokenizer_worker_num=2)),
    Feature(
        "LoRA",
        both(**_ADAPTERS),
        both(**_ADAPTERS, lora_backend="torch_native"),
        ranks=False,  # lora/lora_manager.py: torch_native does not support DP attention
    ),
    _everywhere("speculative decoding (EAGLE, MTP)", {"speculative": "embedded"}),
    _everywhere("deterministic inference", both(enable_deterministic_inference=True)),
    Feature("multimodal models", both(enable_multimodal=True)),
    Feature("KV in FP8", both(kv_cache_dtype="fp8_e4m3")),
    Feature("NIXL", {"transfer": {"backend": "nixl"}}),
    Feature(
        "expert parallelism with DeepEP",
        {"prefill": WIDE | args(**_DEEPEP), "decode": WIDE | args(**_DEEPEP)},
    ),
    Feature(
        "... with two-batch overlap",
        {
            role: WIDE | args(**_DEEPEP, enable_two_batch_overlap=True)
            for role in ("prefill", "decode")
        },
    ),
    Feature(
        "... with single-batch overlap",
        {"decode": WIDE | args(**_DEEPEP, enable_single_batch_overlap=True)},
    ),
    Feature(
        "SGLang's EPLB",
        {"decode": WIDE | args(**_DEEPEP, enable_eplb=True)},
    ),
    Feature(
        "elastic EP",
        {"decode": RANKS | args(elastic_ep_backend="mooncake", moe_a2a_backend="mooncake")},
    ),
    Feature(
        "roles that change (`enable-pd-role-switch`)",
        {
            "prefill": args(enable_pd_role_switch=True, disable_radix_cache=True),
            "decode": args(enable_pd_role_switch=True),
        },
    ),
)

SYSTEMS: dict[str, Contents] = {
    "late dispatch": {},
    "signatures": {"router": {"decode_policy": "eldr", "profile": "embedded"}},
    "captured experts": {"capture_experts": True},
    "stopped prompts": {"prefill": {"preempt": "strict"}, "router": {"classes": {}}},
    "paused answers": {"decode": {"preempt": {}}, "router": {"classes": {}}},
    "shortest first": {"prefill": {"waiting": "sjf"}},
    "moves": {"router": {"rebalance": True, "moves": "auto"}},
    "level DP ranks": {"decode": RANKS, "router": {"decode_policy": "level"}},
    "relocated experts": {"decode": WIDE | {"relocate": True}},
}
"""Of which a deployment on GPUs turns one on. `late dispatch` is on in all."""


def on_gpus(feature: Feature, system: str) -> Contents:
    """A deployment with both."""
    return changed(changed(CUDA, SYSTEMS[system]), feature.cuda)


_ROLE: Contents = {"kv_tokens": 16384, "max_running": 16}
_CPU: Contents = {
    "name": "features",
    "device": "cpu",
    "model": "embedded",
    "prefill": _ROLE,
    "router": {"kind": "toolkit", "dispatch": "late"},
}
REQUESTS: Contents = _CPU | {
    "prefill": _ROLE | args(chunked_prefill_size=4096),
    "decode": {"replicas": 2, "kv_tokens": 8192, "max_running": 4},
}
"""Real workers on a CPU for what goes by requests."""
EXPERTS: Contents = _CPU | {
    "decode": RANKS | {"kv_tokens": 8192, "max_running": 8} | args(ep_num_redundant_experts=4)
}
"""Real workers on a CPU for DP ranks, and what they share."""


def on_cpus(feature: Feature, base: Contents, systems: Iterable[str]) -> Contents:
    """A deployment with these systems and the feature, on top of REQUESTS or EXPERTS."""
    assert feature.cpu is not None
    contents = copy.deepcopy(base)
    for system in systems:
        contents = changed(contents, SYSTEMS.get(system, {}))
    return changed(contents, feature.cpu)
