"""What a placement would do to traffic: balance, hops across GPUs and nodes, fan-out, step time.

Meant for tokens that the placement was not fitted to. A token-hop is a pair of experts that a
token used in consecutive layers, so a token has k * k hops a layer pair; it crosses when the two
replicas that serve it lie on different GPUs (nodes). Hops are what Gimbal minimises. What
SGLang's all-to-all sends in a layer is one copy of a token to each GPU (across nodes: to each
node) that holds some of its experts: the fan-out. Under DP attention the token goes home in
between, so hops themselves are not sent; placements that keep hops local lower the fan-out too.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.placement.base import Placement
from toolkit.placement.dispatch import Dispatch, Shares, picks
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import Traffic, count

Floats = NDArray[np.float64]

MOST_TOKENS = 8192
"""Tokens whose fan-out is counted, evenly spaced over those given."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Relative time of a layer: load * (busiest GPU / mean) + gpu * G + node * N.

    G, N: the share of hops into the layer that cross GPUs inside a node, and nodes. The defaults
    are an assumption (experts bound by compute, traffic a third where every hop crosses nodes),
    not a measurement: fit them to a profile's step times before trusting absolute gains.
    """

    load: float = 1.0
    gpu: float = 0.05
    node: float = 0.5


@dataclass(frozen=True, eq=False)
class Judgement:
    """Per layer; means over layers as properties. Fan-out is None where no token ids were given.

    balance [L]: busiest GPU's load / mean load; cross_gpu, cross_node [L-1]: share of hops into
    the next layer that change GPU, node; fan_gpus, fan_nodes [L]: distinct GPUs, nodes a token's
    experts lie on; step [L]: relative time (`StepCost`).
    """

    balance: Floats
    cross_gpu: Floats
    cross_node: Floats
    step: Floats
    fan_gpus: Floats | None = None
    fan_nodes: Floats | None = None

    def summary(self) -> dict[str, float | None]:
        """Means over layers; None for fan-out that was not counted and hops of a single layer."""
        fields = ("balance", "cross_gpu", "cross_node", "fan_gpus", "fan_nodes", "step")
        values = {name: getattr(self, name) for name in fields}
        return {
            name: None if value is None or not len(value) else float(value.mean())
            for name, value in values.items()
        }


def judge(
    placement: Placement,
    topology: Topology,
    tokens: Traffic | ArrayLike,
    *,
    ids: ArrayLike | None = None,
    dispatch: Dispatch = "random",
    step: StepCost | None = None,
) -> Judgement:
    """Judge on token ids [T, L, k], or on `Traffic` (with its `ids` where fan-out is wanted too).

    Expectation over which replica is picked.

    Raises ValueError where the placement has another size than the traffic or topology.
    """
    if isinstance(tokens, Traffic):
        traffic = tokens
    else:
        ids = tokens
        traffic = count(tokens, placement.experts, windows=1)
    size, given = (placement.layers, placement.experts), traffic.load.shape
    if size != given:
        raise ValueError(
            f"the placement is for {size[0]} layers of {size[1]} experts, the tokens have "
            f"{given[0]} of {given[1]}"
        )
    cases = list(picks(placement, topology, dispatch))
    load = np.mean([np.einsum("le,leg->lg", traffic.load, share) for share in cases], axis=0)
    balance = load.max(axis=1) / load.mean(axis=1)
    nodes = [_by_node(share, topology) for share in cases]
    cross_gpu, cross_node = _crossing(traffic, cases), _crossing(traffic, nodes)
    cost = step or StepCost()
    time = cost.load * balance
    time[1:] += cost.gpu * (cross_gpu - cross_node) + cost.node * cross_node
    fan_gpus = fan_nodes = None
    if ids is not None:
        routed = np.asarray(ids)
        fan_gpus, fan_nodes = _fan_out(routed, cases), _fan_out(routed, nodes)
    return Judgement(balance, cross_gpu, cross_node, time, fan_gpus, fan_nodes)


def least_crossing(traffic: Traffic, slots: int) -> float:
    """A floor: no placement with `slots` experts a GPU has a lower mean share of crossing hops.

    At best an expert's `slots` strongest successors lie on its GPU, and the other way round. With
    replicas it holds too: they average over GPUs of which none does better.
    """
    best = []
    for pairs in traffic.affinity:
        total = pairs.sum()
        if total > 0:
            ahead = np.partition(pairs, -slots, axis=1)[:, -slots:].sum()
            back = np.partition(pairs, -slots, axis=0)[-slots:].sum()
            best.append(min(ahead, back) / total)
    return 1 - float(np.mean(best)) if best else 0.0


def _by_node(share: Shares, topology: Topology) -> Shares:
    layers, experts, _ = share.shape
    split: Shares = share.reshape(layers, experts, topology.nodes, topology.gpus_per_node)
    result: Shares = split.sum(axis=3)
    return result


def _crossing(traffic: Traffic, cases: list[Shares]) -> Floats:
    """[L-1]: share of hops whose two ends are served in different places."""
    crossing = np.zeros(traffic.layers - 1)
    for layer, pairs in enumerate(traffic.affinity.astype(np.float32)):
        total = traffic.affinity[layer].sum()
        if total > 0:
            same = [np.vdot(share[layer], pairs @ share[layer + 1]) for share in cases]
            crossing[layer] = max(0.0, 1 - float(np.mean(same)) / total)
    return crossing


def _fan_out(ids: NDArray[np.integer], cases: list[Shares]) -> Floats:
    """[L]: expected number of distinct places that serve a token's experts."""
    some = ids[np.linspace(0, len(ids) - 1, min(len(ids), MOST_TOKENS)).astype(int)]
    fan = np.zeros(some.shape[1])
    for start in range(len(cases)):
        # Tokens take turns with the picks, as they do with rows and home ranks.
        mine = some[start :: len(cases)]
        for layer in range(some.shape[1]):
            missed = np.ones((len(mine), cases[start].shape[2]), np.float32)
            for expert in mine[:, layer].T:
                missed *= 1 - cases[start][layer][expert]
            fan[layer] += len(mine) * missed.shape[1] - float(missed.sum(dtype=np.float64))
    return fan / len(some)
