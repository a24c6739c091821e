"""CPU shim: an expert that lives on another rank has id -1.

Mends `srt/layers/moe/fused_moe_native.py:77` (SGLang 0.5.21), where `moe_forward_native`
scatters the ids and fails on -1 as soon as `--ep-size` is above 1. Only the picks that live here
are computed, each as a row of its own with a single expert; the all-reduce over the ranks adds
the others.
"""

from typing import Any

from patches.base import EITHER, Hook, Patch


def _ignore_remote_experts(
    original: Any, layer: Any, x: Any, topk_output: Any, moe_runner_config: Any
) -> Any:
    local = topk_output.topk_ids >= 0
    if local.all():
        return original(layer, x, topk_output, moe_runner_config)
    tokens, picks = local.nonzero(as_tuple=True)
    output = x.new_zeros(x.shape)
    if tokens.numel() == 0:
        return output
    local_picks = topk_output._replace(
        topk_ids=topk_output.topk_ids[tokens, picks].unsqueeze(1),
        topk_weights=topk_output.topk_weights[tokens, picks].unsqueeze(1),
    )
    rows = original(layer, x[tokens], local_picks, moe_runner_config)
    return output.index_add_(0, tokens, rows.to(output.dtype))


PATCH = Patch(
    name="cpu_expert_parallel",
    why="expert parallelism marks remote experts with -1, which the torch path cannot index",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(
            "sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
            _ignore_remote_experts,
            ("layer", "x", "topk_output", "moe_runner_config"),
        ),
    ),
)
