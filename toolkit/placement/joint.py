"""Ours: every (layer, expert) on its own, load and traffic together, replicas and nodes included.

Minimise the cost of the token-hops between consecutive layers, sum over l, j, k of
`affinity[l, j, k] * E[cost(GPU of j, GPU of k)]`, with cost 0 on one GPU, `gpu` between GPUs of a
node, `node` between nodes; a replicated expert's hops split evenly over its replicas (SGLang's
dynamic dispatch). Subject to: equally many slots a GPU, no two replicas of an expert on one GPU,
and in every layer no GPU above (1 + slack) times the busiest GPU of the load-only start.

1. Replica counts and the start by load alone, as EPLB does (`replicas.py`).
2. Sweeps over the layers: with both neighbours held still the cost is linear in the layer's
   assignment, so a linear assignment solves it exactly, load aside.
3. Sweeps of exchanges (`swaps.py`) under a price for load above the limit that rises from sweep
   to sweep, so that neighbouring layers give way together instead of each being repaired alone.
4. A layer that still does not fit goes back to its start and takes only exchanges that keep it in
   its limit. The start itself is the answer where nothing was gained.

Experts that follow each other also become busy together: when a topic becomes popular, a GPU that
holds its experts gets all of it, and the balance of unseen traffic suffers although that of the
fitted traffic is perfect. Where the traffic has windows, `drift` bounds that too: every GPU keeps
u = load + b / 2 * variance below (1 + drift) times the start's soft maximum log(mean exp(b u)) / b,
b = sqrt(2 ln G) / the start's deviation (at least STILL). By the Chernoff bound for normal loads
the bound on the expected busiest GPU is then at most 1 + drift times the start's.

Source: the problem is Gimbal's (section III-C, eq. 1 to 12), untied over layers as in ExFlow and
MoETuner; the algorithm is ours. Deterministic for a seed; no clock. The same on every CPU: what
matrix products decide here is rounded first so that they are exact (`toolkit.exact`).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toolkit import exact
from toolkit.placement.base import Placement, from_gpus
from toolkit.placement.replicas import Items, items, pack, replicate
from toolkit.placement.swaps import Layer, improve
from toolkit.placement.topology import Topology
from toolkit.placement.traffic import Traffic

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

PRICES = (0.2, 0.7, 2.3, 8.0, 25.0, 90.0, 300.0, 1000.0)
"""Price of load above the limit, sweep by sweep, in gains of one replica for one GPU's load."""
ASSIGNMENTS, ROUNDS, WORK = 3, 20, 6_000_000
"""Sweeps of assignments; rounds of exchanges in each; layers * physical^2 for one more start."""
STILL = 1e-3
"""Deviation of a GPU's load, in mean loads, below which a start counts as not swaying. It bounds b:
a start that does not sway at all, or by rounding only, asks for the strictest guard, not for none,
and not for one so steep that float32 noise decides. At drift 0.01 and two GPUs no GPU may then
sway by more than 0.4 % of its mean load."""
PAIR_BITS, SHARE_BITS = 24, 20
"""Of affinities and of shares of an expert's tokens: products of up to 512 experts stay exact."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a hop costs and what balance allows.

    gpu, node: cost of a hop inside and across nodes; only their ratio matters. The default 4 lies
    between the latency ratio (about 2) and the bandwidth ratio (about 9) of NVLink to 400 Gb/s
    InfiniBand. slack: how much busier than the start's busiest GPU a layer's may be on the fitted
    traffic. drift: the same for unseen traffic, as its windows let it be foreseen; infinite trusts
    the fitted traffic's mix to stay.
    """

    gpu: float = 1.0
    node: float = 4.0
    slack: float = 0.01
    drift: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.gpu <= self.node or self.node == 0:
            raise ValueError(
                f"a hop inside a node costs {self.gpu}, across nodes {self.node}; give "
                "0 <= gpu <= node and node > 0"
            )
        if not (self.slack >= 0 and self.drift >= 0):
            raise ValueError(f"slack {self.slack} and drift {self.drift} cannot be negative")


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """The traffic, the replicas, their load-only start, the layers' limits.

    affinity [L-1, E, E]: whole numbers, `unit` of the traffic's pairs each.
    """

    affinity: Doubles
    unit: float
    items: Items
    start: Ints
    layers: tuple[Layer, ...]
    experts: int
    topology: Topology
    weights: Weights

    def share(self, layer: int, gpu: Ints) -> Floats:
        """[E, G]: the part of each expert's tokens that each GPU gets."""
        share = np.zeros((self.experts, self.topology.gpus), np.float32)
        np.add.at(share, (self.items.expert[layer], gpu), 1 / self.items.copies[layer])
        return share

    def worth(self, share: Floats) -> Doubles:
        """[E, G]: what a hop between that expert and a GPU saves against crossing nodes, in whole
        numbers: 2^SHARE_BITS for all of it."""
        return exact.grid(self._worth(share), SHARE_BITS, self._most)

    @property
    def _most(self) -> float:
        """What a hop that stays on its GPU saves."""
        return 1.0 if self.topology.nodes == 1 else self.weights.node

    def _worth(self, share: Floats) -> Floats:
        inside = self.weights.node - self.weights.gpu
        if self.topology.nodes == 1:
            # Every GPU is in the node: a constant that would only blur the differences.
            return share
        per = self.topology.gpus_per_node
        node = share.reshape(self.experts, self.topology.nodes, per).sum(axis=2)
        worth: Floats = np.float32(self.weights.gpu) * share
        worth += np.float32(inside) * np.repeat(node, per, axis=1)
        return worth

    def gain(self, layer: int, shares: Floats, ahead: bool = True) -> Floats:
        """[P, G]: what each replica saves on each GPU, about 1 at its best; `ahead`: both sides."""
        total = np.zeros(shares.shape[1:])
        if layer > 0:
            total += self.affinity[layer - 1].T @ self.worth(shares[layer - 1])
        if ahead and layer + 1 < len(shares):
            total += self.affinity[layer] @ self.worth(shares[layer + 1])
        each = total[self.items.expert[layer]] / self.items.copies[layer][:, None]
        best = float(each.max(axis=1).mean())
        gain: Floats = (each / best if best > 0 else each).astype(np.float32)
        return gain

    def saved(self, gpu: Ints) -> float:
        """Share of the traffic's highest cost that a placement saves; more is better."""
        saved = 0.0
        before = self.share(0, gpu[0])
        for layer, affinity in enumerate(self.affinity):
            after = self.share(layer + 1, gpu[layer + 1])
            saved += float((before * (affinity @ self.worth(after))).sum())
            before = after
        return float(saved * self.unit * self._most / 2**SHARE_BITS)


def joint(
    traffic: Traffic,
    topology: Topology,
    redundant: int = 0,
    seed: int = 0,
    weights: Weights | None = None,
) -> Placement:
    """Place `traffic` with `redundant` further replicas; see the module's text.

    Small problems are started several times over and the best is kept. Raises ValueError for
    sizes that do not divide.
    """
    topology.slots(traffic.experts, redundant)
    problem = state(traffic, topology, redundant, weights or Weights())
    gpu = solve(problem, seed)
    return from_gpus(gpu, problem.items.expert, traffic.experts, topology.gpus)


def state(
    traffic: Traffic, topology: Topology, redundant: int, weights: Weights
) -> PlacementProblem:
    """The problem with its load-only start."""
    counts = replicate(traffic.load, redundant, topology.gpus)
    batch = items(traffic.load, counts, topology.gpus)
    start = pack(batch, traffic.experts, topology.gpus)
    total, most = traffic.affinity.sum(), float(traffic.affinity.max(initial=0.0))
    affinity = exact.grid(traffic.affinity, PAIR_BITS)
    unit = most / 2**PAIR_BITS / float(total) if total > 0 else 0.0
    problem = PlacementProblem(affinity, unit, batch, start, (), traffic.experts, topology, weights)
    layers = tuple(_layer(problem, traffic, layer) for layer in range(traffic.layers))
    return replace(problem, layers=layers)


def _layer(problem: PlacementProblem, traffic: Traffic, index: int) -> Layer:
    gpus, batch, weights = problem.topology.gpus, problem.items, problem.weights
    layer = Layer(batch.expert[index], batch.weight[index].astype(np.float32), gpus, np.inf)
    loads = layer.loads(problem.start[index])
    layer = replace(layer, limit=float(loads.max()) * (1 + weights.slack))
    if traffic.windows is None or np.isinf(weights.drift):
        return layer
    windows = traffic.windows[:, index]
    count = len(windows)
    mean = traffic.load[index] / traffic.load[index].sum()
    # A window's own total is not the placement's doing, so deviations are of shares. The variance
    # of the mean of `count` windows counts twice: the fitted mean errs, and the unseen one does.
    share = windows / np.maximum(windows.sum(axis=1, keepdims=True), 1)
    share = np.where(windows.sum(axis=1, keepdims=True) > 0, share, mean)
    scale = gpus * np.sqrt(2 / (count * (count - 1)))
    each = (share - mean) * scale
    if gpus == 1:
        return layer
    # On a grid on which the squares of the GPUs' sways, over all windows, add up exactly.
    bits = (52 - count.bit_length()) // 2
    step = 2 * scale / 2**bits
    spread = np.rint(each[:, batch.expert[index]] / batch.copies[index] / step)
    layer = replace(layer, spread=spread, step=step)
    variance = (layer.sways(problem.start[index]) ** 2).sum(axis=0) * step**2
    deviation = max(math.sqrt(variance.mean()), STILL)
    b = math.sqrt(2 * math.log(gpus)) / deviation
    risk = b * (loads + b / 2 * variance)
    soft = (risk.max() + np.log(np.mean(np.exp(risk - risk.max())))) / b
    # log and exp: their last bits are the CPU's, a limit's are not to be.
    limit = round(float(soft) * (1 + weights.drift), 9)
    return replace(layer, caution=round(b, 9), risk_limit=limit)


def solve(problem: PlacementProblem, seed: int) -> Ints:
    """GPU of each replica [L, P]: the best of as many starts as the problem is small."""
    layers, physical = problem.start.shape
    rng = np.random.default_rng(seed)
    best, most = problem.start, problem.saved(problem.start)
    for attempt in range(int(np.clip(WORK // (layers * physical**2), 1, 32))):
        first = problem.start
        if attempt:
            first = rng.permuted(first, axis=1)
        # The assignments lead many starts to one end; every other start goes without them.
        found = _fit(problem, _descend(problem, first, 0 if attempt % 2 else ASSIGNMENTS))
        saved = problem.saved(found)
        if saved > most:
            best, most = found, saved
    return best


def _descend(problem: PlacementProblem, first: Ints, assignments: int) -> Ints:
    """Sweeps of assignments without load, then of exchanges under a rising price for load."""
    gpu = first.copy()
    shares = np.stack([problem.share(layer, row) for layer, row in enumerate(gpu)])
    for sweep in range(assignments):
        for layer in _order(len(gpu), sweep):
            if sweep or layer:
                gpu[layer] = _assign(problem.gain(layer, shares, sweep > 0), problem.topology.gpus)
                shares[layer] = problem.share(layer, gpu[layer])
    for sweep, price in enumerate(PRICES):
        for layer in _order(len(gpu), sweep):
            gain = problem.gain(layer, shares)
            gpu[layer] = improve(problem.layers[layer], gain, gpu[layer], price, ROUNDS)
            shares[layer] = problem.share(layer, gpu[layer])
    return gpu


def _fit(problem: PlacementProblem, gpu: Ints) -> Ints:
    """The layers that are above their limit again, from their starts; then one sweep for all."""
    gpu = gpu.copy()
    misfits = [i for i, layer in enumerate(problem.layers) if not layer.fits(gpu[i])]
    for layer in misfits:
        gpu[layer] = problem.start[layer]
    shares = np.stack([problem.share(layer, row) for layer, row in enumerate(gpu)])
    for layer in [*misfits, *range(len(gpu))]:
        gain = problem.gain(layer, shares)
        # So dear that an excess too small for `fits` to see still outweighs any gain.
        found = improve(problem.layers[layer], gain, gpu[layer], 1e6, 3 * ROUNDS)
        if problem.layers[layer].fits(found):
            gpu[layer] = found
            shares[layer] = problem.share(layer, found)
    return gpu


def _order(layers: int, sweep: int) -> range:
    return range(layers) if sweep % 2 == 0 else range(layers - 1, -1, -1)


def _assign(gain: Floats, gpus: int) -> Ints:
    """GPU of each replica [P] with the highest total gain [P, G] for P / G slots a GPU."""
    from scipy.optimize import linear_sum_assignment

    slots = len(gain) // gpus
    _, column = linear_sum_assignment(np.repeat(gain, slots, axis=1), maximize=True)
    gpu: Ints = column.astype(np.int64) // slots
    return gpu
