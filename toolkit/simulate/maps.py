"""What a router is told of where experts lie, of simulated servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolkit.simulate.costs.links import Links
from toolkit.simulate.experts import SimulatedExperts

if TYPE_CHECKING:
    from toolkit.policies.support.expert_map import ExpertMap


def maps_of(
    experts: SimulatedExperts, links: Links | None, servers: Iterable[str], ranks: int
) -> dict[str, ExpertMap]:
    """By server of so many DP ranks that share their experts; all have the same placement.

    Empty where nothing crosses (`crossing.crossing_of`): experts without a placement or without
    signatures, a cost model without links, one rank; and where a rank's GPUs are of several nodes.
    """
    if experts.placement is None or experts.space is None or links is None or ranks < 2:
        return {}
    from toolkit.placement import Topology
    from toolkit.placement.rank_map import rank_map

    node = min(links.gpus_per_node, experts.gpus)
    if experts.gpus % ranks or experts.gpus % node or node % (experts.gpus // ranks):
        return {}
    topology = Topology(experts.gpus, node)
    known = rank_map(
        experts.placement, topology, experts.space, ranks=ranks, dispatch=links.replicas
    )
    return dict.fromkeys(servers, known)
