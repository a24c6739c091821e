"""CPU shim: experts whose input is weighted, not their output (Llama 4).

`srt/layers/moe/fused_moe_native.py:68` (SGLang 0.5.21) raises NotImplementedError for them. They
have one expert a token, so the token is multiplied by its weight first, as SGLang's kernels do
(`apply_topk_weights_cpu` in `srt/layers/moe/topk.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from patches.base import EITHER, Hook, Patch


def _weigh_the_input(
    original: Any, layer: Any, x: Any, topk_output: Any, moe_runner_config: Any
) -> Any:
    """`x` [tokens, hidden]; `topk_weights` [tokens, 1]."""
    if not moe_runner_config.apply_router_weight_on_input:
        return original(layer, x, topk_output, moe_runner_config)
    weights = topk_output.topk_weights
    if weights.shape[1] != 1:
        raise NotImplementedError(
            f"weights on the input of {weights.shape[1]} experts a token: SGLang's CPU engine has "
            "no way to run them, use device: cuda"
        )
    plain = dataclasses.replace(moe_runner_config, apply_router_weight_on_input=False)
    ones = topk_output._replace(topk_weights=weights.new_ones(weights.shape))
    return original(layer, x * weights.to(x.dtype), ones, plain)


PATCH = Patch(
    name="cpu_input_weights",
    why="the torch path of experts does not run Llama 4, which weighs their input",
    processes=EITHER,
    cpu_only=True,
    hooks=(
        Hook(
            "sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
            _weigh_the_input,
            ("layer", "x", "topk_output", "moe_runner_config"),
        ),
    ),
)
