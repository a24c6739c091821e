"""The baseline: SGLang's own EPLB, called, so that what is compared is what SGLang does.

Load only. SGLang chooses the variant itself (`compute_algorithm("auto")`): hierarchical where the
model's expert groups divide by the nodes, else the global one. Needs sglang and torch.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from toolkit.placement.base import Placement
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import Traffic


def eplb(traffic: Traffic, topology: Topology, redundant: int = 0) -> Placement:
    """What SGLang would load for this traffic's `load` (and `groups`).

    Raises ValueError for sizes that do not divide, ImportError without sglang.
    """
    import torch

    slots = topology.slots(traffic.experts, redundant)
    choose, rebalance = _sglang()
    table, _, _ = rebalance(
        tokens_per_expert=torch.from_numpy(traffic.load.copy())[None],
        num_physical_experts=traffic.experts + redundant,
        num_local_physical_experts=slots,
        num_groups=traffic.groups,
        num_nodes=topology.nodes,
        algorithm=choose("auto", traffic.groups, topology.nodes),
    )
    return Placement(table.numpy().astype(np.int64), traffic.experts, topology.gpus)


def _sglang() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """SGLang's `compute_algorithm` and `rebalance_experts`; importable without a GPU too."""
    from patches import stubs

    stubs.declare_torchvision_operators()
    from sglang.srt.eplb.eplb_algorithms import compute_algorithm, rebalance_experts

    return compute_algorithm, rebalance_experts
