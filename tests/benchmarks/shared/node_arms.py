"""One wide-EP server in `locality_nodes`: its requests, which rank gets each, what crosses."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tests.benchmarks.shared.node_step import REST_S, step_s
from toolkit.placement import Placement, Topology, Traffic, eplb, lay, sent
from toolkit.placement.alltoall import ACROSS
from toolkit.placement.clusters import Laid
from toolkit.placement.dispatch import Dispatch
from toolkit.placement.rank_map import rank_map
from toolkit.policies import Policy
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.round_robin import RoundRobinPolicy
from toolkit.profile.request_homes import SERVER, request_homes
from toolkit.signatures.clusters import balanced_kmeans
from toolkit.signatures.idf import idf_weights
from toolkit.signatures.space import SignatureSpace

SOME = 4096
"""Tokens whose nodes are counted one by one."""


@dataclass(frozen=True, eq=False)
class Requests:
    """Counts of each prompt [N, L, E]; ids [T, L, k] of decode tokens, `owner` [T] their requests.
    Tokens of one request lie in the order in which they are decoded."""

    prefill: np.ndarray
    ids: np.ndarray
    owner: np.ndarray

    def __len__(self) -> int:
        return len(self.prefill)

    def load(self, labels: np.ndarray, count: int) -> np.ndarray:
        """[C, L, E]: decode pairs of each cluster, `labels` [N]."""
        layers, experts = self.prefill.shape[1:]
        found = np.zeros((count, layers, experts))
        for layer in range(layers):
            keys = labels[self.owner][:, None] * experts + self.ids[:, layer]
            cells = np.bincount(keys.ravel(), minlength=count * experts)
            found[:, layer] = cells.reshape(count, experts)
        return found

    @cached_property
    def turn(self) -> np.ndarray:
        """[T]: which of its request's decode tokens each is."""
        first = np.searchsorted(self.owner, self.owner)
        return np.arange(len(self.owner)) - first


def counted(ids: np.ndarray, owner: np.ndarray, requests: int, experts: int) -> np.ndarray:
    """[N, L, E] float32: tokens [T, L, k] of each request that used each expert."""
    found = np.zeros((requests, ids.shape[1], experts), np.float32)
    for layer in range(ids.shape[1]):
        keys = owner[:, None] * experts + ids[:, layer]
        cells = np.bincount(keys.ravel(), minlength=requests * experts)
        found[:, layer] = cells.reshape(requests, experts)
    return found


@dataclass(frozen=True, eq=False)
class Fitted:
    """What both sides made of the same calibration requests: clusters by their prompts, placements
    by their decode tokens. `bound`: laid without looking at load."""

    space: SignatureSpace
    base: Placement
    laid: Laid
    bound: Laid
    topology: Topology


def fit(
    requests: Requests, topology: Topology, redundant: int, clusters: int, groups: int, seed: int
) -> tuple[Fitted, np.ndarray]:
    """With the clusters' loads [C, L, E] that `laid` is of."""
    layers, experts = requests.prefill.shape[1:]
    space = SignatureSpace(idf_weights(requests.prefill), tuple(range(layers)))
    # A third of the layers tells clusters apart as well, in a third of the time.
    some = SignatureSpace(space.weights, tuple(range(0, layers, 3)))
    signatures = some.signatures(requests.prefill)
    labels = balanced_kmeans(signatures, clusters, seed, restarts=1).labels
    load = requests.load(labels, clusters)
    none = np.zeros((layers - 1, experts, experts))
    traffic = Traffic(load.sum(axis=0), none, groups=groups or None)
    made = Fitted(
        space,
        eplb(traffic, topology, redundant),
        lay(load, topology, redundant, seed),
        lay(load, topology, redundant, seed, slack=1e3),
        topology,
    )
    return made, load


def by_map(fitted: Fitted, placement: Placement, tau: float) -> EldrPolicy:
    """`eldr` with the placement's map."""
    policy = EldrPolicy(0, tau)
    policy.maps = {SERVER: rank_map(placement, fitted.topology, fitted.space)}
    return policy


def homes(
    policy: Policy, fitted: Fitted, requests: Requests, per_rank: int
) -> tuple[np.ndarray, float]:
    """DP rank of each request [N], and the fullest rank's requests / mean, on average over time.

    They come one after the other; with `per_rank` a rank in flight the oldest ends for each.
    """
    signatures = fitted.space.signatures(requests.prefill)
    chosen, uneven = request_homes(policy, signatures, fitted.topology.gpus, per_rank)
    return chosen, float(np.mean(uneven))


@dataclass(frozen=True)
class Crossing:
    """Of one arm: shares of (token, expert) pairs that cross nodes and that stay on their GPU;
    expert load max / mean over all tokens (`balance`) and over those of one step (`step`), means of
    layers; requests of the fullest rank / mean (`rank`); a token's nodes and copies that cross
    where it is sent once a node (`nodes`, `copies`); seconds of decode steps by kind (`steps`)."""

    across: float
    own: float
    balance: float
    step: float
    rank: float
    nodes: float
    copies: float
    steps: dict[str, list[float]]


def crossing(
    placement: Placement,
    topology: Topology,
    requests: Requests,
    home: np.ndarray,
    rank: float,
    dispatch: Dispatch = "nearest",
    timed: bool = False,
) -> Crossing:
    """Of requests at home on ranks `home` [N]; a step is one token of each."""
    homes_of = home[requests.owner]
    whole = sent(placement, topology, requests.ids, homes_of, dispatch=dispatch)
    steps = []
    for turn in range(min(4, requests.turn.max() + 1)):
        now = requests.turn == turn
        each = sent(placement, topology, requests.ids[now], homes_of[now], dispatch=dispatch)
        steps.append(_uneven(each.load))
    some = np.linspace(0, len(homes_of) - 1, min(SOME, len(homes_of))).astype(int)
    once = sent(
        placement, topology, requests.ids[some], homes_of[some], unit="node", dispatch=dispatch
    )
    assert once.nodes is not None
    return Crossing(
        across=float(whole.shares[ACROSS]),
        own=float(whole.shares[0]),
        balance=_uneven(whole.load),
        step=float(np.mean(steps)),
        rank=rank,
        nodes=float(once.nodes.mean()),
        copies=float(once.copies[:, ACROSS].mean() / len(some)),
        steps={} if not timed else seconds(placement, topology, requests, homes_of),
    )


def seconds(
    placement: Placement, topology: Topology, requests: Requests, homes_of: np.ndarray
) -> dict[str, list[float]]:
    """Of steps of 32 and 128 tokens a rank on average, with two-batch overlap and without; without
    overlap also if the kernels were all (`_bare`), and if every rank sent and received as much as
    all do on average (`_level`). More tokens than requests are further tokens of the same ones."""
    order = np.argsort(requests.turn, kind="stable")
    found: dict[str, list[float]] = {}
    for size in (32, 128):
        count = size * topology.gpus
        for start in range(0, len(order) - count + 1, count):
            now = order[start : start + count]
            args = placement, topology, requests.ids[now], homes_of[now]
            for name, overlap, rest_s, level in (
                ("", False, REST_S, False), ("_overlap", True, REST_S, False),
                ("_bare", False, 0.0, False), ("_level", False, REST_S, True),
            ):  # fmt: skip
                each = step_s(*args, overlap=overlap, rest_s=rest_s, level=level)
                found.setdefault(f"{size}{name}", []).append(each)
    return found


def _uneven(load: np.ndarray) -> float:
    return float((load.max(axis=1) / load.mean(axis=1)).mean())


ARMS = ("base", "placement", "locality", "both", "bound")


def arms(
    fitted: Fitted,
    held: Requests,
    tau: float,
    per_rank: int,
    names: tuple[str, ...] = ARMS,
    dispatch: Dispatch = "nearest",
    timed: bool = False,
) -> dict[str, Crossing]:
    """base: EPLB with round robin; each part alone, both, and both without regard to balance."""
    laid, base, topology = fitted.laid.placement, fitted.base, fitted.topology
    free = fitted.bound.placement
    plans: dict[str, tuple[Placement, Policy]] = {
        "base": (base, RoundRobinPolicy()),
        "placement": (laid, RoundRobinPolicy()),
        "locality": (base, by_map(fitted, base, tau)),
        "both": (laid, by_map(fitted, laid, tau)),
        "bound": (free, by_map(fitted, free, 0.0)),
    }
    found = {}
    for name in names:
        placement, policy = plans[name]
        chosen, rank = homes(policy, fitted, held, per_rank)
        found[name] = crossing(placement, topology, held, chosen, rank, dispatch, timed)
    return found
