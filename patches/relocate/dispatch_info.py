"""Tokens follow their expert to its physical slot in models that do not see to it themselves.

With placed experts a model hands `ExpertLocationDispatchInfo` to its `TopK`. Qwen3-MoE does so
with an all-to-all backend only: without one (`models/qwen3_moe.py`, `forward_normal`) the weights
are permuted and the ids are not, and the answers are silently wrong (sgl-project/sglang#39580).
Here it is filled in where a placed server's model leaves it out. CPU workers have
`cpu_expert_remap` for it.
"""

from patches.base import EITHER, Hook, Patch
from patches.environment import on_cpu
from patches.layers import Original


def fill_in(original: Original[object], *args: object, **kwargs: object) -> object:
    """Around `select_experts`. Not with speculative decoding: a draft's layers have numbers, too,
    and the map is not theirs."""
    layer = kwargs.get("layer_id")
    if kwargs.get("expert_location_dispatch_info") is None and layer is not None and not on_cpu():
        from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
        from sglang.srt.eplb.expert_location_dispatch import ExpertLocationDispatchInfo
        from sglang.srt.runtime_context import get_exec, get_spec

        placed = get_exec().moe.ep_dispatch_algorithm is not None
        if placed and get_spec().speculative_algorithm is None:
            metadata = get_global_expert_location_metadata()
            if metadata is not None and layer < metadata.num_layers:
                info = ExpertLocationDispatchInfo.init_new(layer_id=layer)
                kwargs["expert_location_dispatch_info"] = info
    return original(*args, **kwargs)


PATCH = Patch(
    name="expert_dispatch",
    why="placed experts of some models would answer for one another, silently",
    independent_of={
        "cpu_expert_remap": "one acts on CPU, the other everywhere else",
    },
    processes=EITHER,
    hooks=(
        Hook(
            "sglang.srt.layers.moe.topk.select_experts",
            fill_in,
            ("hidden_states", "router_logits", "topk_config", "layer_id"),
        ),
    ),
    requires=(
        "sglang.srt.eplb.expert_location.get_global_expert_location_metadata",
        "sglang.srt.eplb.expert_location_dispatch.ExpertLocationDispatchInfo.init_new",
        "sglang.srt.runtime_context.get_exec",
        "sglang.srt.runtime_context.get_spec",
    ),
)
