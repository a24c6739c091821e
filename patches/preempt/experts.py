"""On CPU, look between experts of a layer, too: a layer of a long prompt takes a tenth of a second.

SGLang's CPU path runs the experts of a layer one after the other, and calls the activation once for
each. There the best-effort batch is looked at after every `experts` of them, and may stand still in
the middle of a layer: what has been computed lies in the frames of that call, and each expert's
rows are the same as without a look, so outputs are the same to the bit. A GPU runs all experts in
one kernel, so that there is nothing between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patches.base import EITHER, Hook, Patch
from patches.layers import Original, Returned
from patches.preempt import boundary
from patches.preempt.boundary_state import BoundaryState
from patches.scheduler_state import current
from toolkit.contract.variables import PREEMPT_VARIABLE

if TYPE_CHECKING:
    from torch import Tensor


def _layer(
    original: Original[Returned], layer: object, *args: object, **kwargs: object
) -> Returned:
    state = current().get(BoundaryState)
    state.experts_left.append(state.experts)
    try:
        return original(layer, *args, **kwargs)
    finally:
        state.experts_left.pop()


def _expert(original: Original[Returned], activation: object, x: Tensor) -> Returned:
    state = current().get(BoundaryState)
    left = state.experts_left
    if left and left[-1]:
        left[-1] -= 1
        if not left[-1]:
            left[-1] = state.experts
            boundary.look(current().scheduler)
    return original(activation, x)


PATCH = Patch(
    name="preempt_experts",
    why="a layer of a long prompt is longer than some latency-sensitive requests can wait",
    independent_of={
        "cpu_expert_parallel": "with experts of several ranks nothing is looked at between experts",
    },
    processes=EITHER,
    variable=PREEMPT_VARIABLE,
    hooks=(
        Hook(
            "sglang.srt.layers.moe.fused_moe_native.moe_forward_native",
            _layer,
            ("layer", "x", "topk_output", "moe_runner_config"),
        ),
        Hook("sglang.srt.layers.activation.SiluAndMul.forward_cpu", _expert, ("self", "x")),
    ),
    cpu_only=True,
)
