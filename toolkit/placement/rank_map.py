"""A placement as a policy looks at it: which of a request's experts each DP rank has near."""

import numpy as np

from toolkit.placement.base import Placement
from toolkit.placement.dispatch import Dispatch
from toolkit.placement.topology import Topology
from toolkit.policies.support.expert_map import ExpertMap
from toolkit.signatures.space import SignatureSpace


def rank_map(
    placement: Placement,
    topology: Topology,
    space: SignatureSpace,
    *,
    ranks: int = 0,
    dispatch: Dispatch = "nearest",
) -> ExpertMap:
    """The map for signatures of `space`; `ranks` DP ranks (0: one a GPU) of equally many GPUs.

    With `nearest` (SGLang's `--ep-dispatch-algorithm static`) all pairs of an expert that lies on a
    rank, in its node, are served there; with `random` (`dynamic`) as large a part of them as of its
    replicas. A signature's entry is a count times a weight, so a unit of it is 1 / weight pairs.

    Raises ValueError: another number of layers, experts or GPUs; ranks that would span nodes.
    """
    if space.weights.shape != (placement.layers, placement.experts):
        raise ValueError(
            f"the placement has {placement.layers} layers of {placement.experts} experts, the "
            f"signatures {space.weights.shape[0]} of {space.weights.shape[1]}: another model's"
        )
    if placement.gpus != topology.gpus:
        raise ValueError(
            f"the placement is for {placement.gpus} GPUs, the topology has {topology.gpus}"
        )
    count = ranks or topology.gpus
    if count < 1 or topology.gpus % count or topology.gpus_per_node % (topology.gpus // count):
        raise ValueError(
            f"{count} DP ranks do not divide {topology.gpus} GPUs, {topology.gpus_per_node} a node"
        )
    if dispatch not in ("nearest", "random"):
        raise ValueError(f"dispatch {dispatch!r} has no home ranks: give 'nearest' or 'random'")
    held = placement.held()[space.kept].reshape(len(space.kept), placement.experts, count, -1)
    held = held.sum(axis=3)
    by_node = held.reshape(*held.shape[:2], topology.nodes, -1).sum(axis=3)
    # [L, E, R]: what one replica on a rank serves of its rank's, of its node's pairs.
    per_node = count // topology.nodes
    if dispatch == "nearest":
        own = 1 / np.maximum(held, 1)
        near = np.repeat(1 / np.maximum(by_node, 1), per_node, axis=2)
    else:
        own = near = np.repeat(1 / held.sum(axis=2, keepdims=True), count, axis=2)
    pairs = space.pairs
    table = placement.physical_to_logical[space.kept].reshape(len(space.kept), count, -1)
    layer, rank = np.arange(len(table))[:, None, None], np.arange(count)[:, None]
    worth = pairs[layer, table]

    def by_rank(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(count, -1)

    return ExpertMap(
        slots=by_rank(table + layer * placement.experts),
        own=by_rank(own[layer, table, rank] * worth),
        near=by_rank(near[layer, table, rank] * worth),
        pairs=pairs.ravel(),
        nodes=topology.nodes,
    )
