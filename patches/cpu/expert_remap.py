"""CPU shim: send tokens to the expert's physical slot when experts are placed.

With `--init-expert-location` or `--enable-eplb`, SGLang 0.5.21 permutes the expert weights. On
CPU nothing permutes the ids: `srt/models/qwen3_moe.py:341` passes no dispatch information,
`srt/layers/moe/topk.py:2248` has no CPU branch, and `:2581` asserts that there is none. The
output is then silently wrong. The ids are remapped here, after the capturer took the logical
ones (`topk.py:2243`) and before the recorder takes the physical ones.
"""

from typing import Any

from patches.base import EITHER, Hook, Patch


def _select_without_dispatch_info(original: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs["expert_location_dispatch_info"] = None
    return original(*args, **kwargs)


def _remap_to_physical(original: Any, **kwargs: Any) -> Any:
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
    from sglang.srt.eplb.expert_location_dispatch import (
        ExpertLocationDispatchInfo,
        topk_ids_logical_to_physical,
    )

    topk_ids, topk_weights, recorded = original(**kwargs)
    layer_id = kwargs["layer_id"]
    if layer_id is None or get_global_expert_location_metadata() is None:
        return topk_ids, topk_weights, recorded
    info = ExpertLocationDispatchInfo.init_new(layer_id=layer_id)
    physical = topk_ids_logical_to_physical(topk_ids, info)
    return physical, topk_weights, physical if recorded is topk_ids else recorded


PATCH = Patch(
    name="cpu_expert_remap",
    why="placed experts would answer for one another, silently",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(
            "sglang.srt.layers.moe.topk._post_process_topk_ids",
            _remap_to_physical,
            ("topk_ids", "topk_weights", "topk_config", "router_logits", "layer_id"),
        ),
        Hook(
            "sglang.srt.layers.moe.topk.select_experts",
            _select_without_dispatch_info,
            ("hidden_states", "router_logits", "topk_config", "layer_id"),
        ),
    ),
    requires=(
        "sglang.srt.eplb.expert_location.get_global_expert_location_metadata",
        "sglang.srt.eplb.expert_location_dispatch.ExpertLocationDispatchInfo",
        "sglang.srt.eplb.expert_location_dispatch.topk_ids_logical_to_physical",
    ),
)
