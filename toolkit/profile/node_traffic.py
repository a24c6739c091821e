"""What crosses nodes in decode, by a profile: before and after experts and requests are laid.

One server with DP attention, a rank a GPU. Before: SGLang's EPLB, requests dealt round robin.
After: clusters of requests and experts laid together (`toolkit.placement.clusters`), each request
sent where its experts lie (`eldr` with the placement's map). Both are fitted to the decode counts
of the profile's fitted requests, and judged by those that it held out, which neither has seen:
(token, expert) pairs from the request's rank to the GPU that serves them, replicas picked nearest
first (`--ep-dispatch-algorithm static`).

Where all GPUs are in one node, each is taken for a node of its own: picking nearest first is the
same then.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toolkit import placement
from toolkit.placement import Laid, Placement, Topology
from toolkit.placement.rank_map import rank_map
from toolkit.policies import Policy
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.round_robin import RoundRobinPolicy
from toolkit.profile.placing import EpConfig, save
from toolkit.profile.request_homes import SERVER, request_homes
from toolkit.profile_folder.errors import ProfileError
from toolkit.profile_folder.schema import Profile
from toolkit.signatures.clusters import balanced_kmeans
from toolkit.signatures.space import SignatureSpace

Arrays = dict[str, np.ndarray]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TAU = 0.1
"""The router's own."""
PER_RANK = 32
"""Requests of a rank in flight. Held-out requests come again until there are that many: dealt out
once, a few more on some ranks would look like a difference."""


@dataclass(frozen=True, eq=False)
class PlacementSide:
    """`came` [G, H]: how often each held-out request decoded on each rank; `load` [G, L, E] the
    pairs of these, and `pairs` [L, G, G] from home ranks (second axis) to GPUs, under a
    placement."""

    placement: Placement
    topology: Topology
    came: Ints
    load: Floats
    pairs: Floats

    @property
    def matrix(self) -> Floats:
        """[N, N]: share of all pairs from home node to serving node."""
        nodes, each = self.topology.nodes, self.topology.gpus_per_node
        found = self.pairs.sum(axis=0).reshape(nodes, each, nodes, each).sum(axis=(1, 3))
        share: Floats = found / found.sum()
        return share

    @property
    def across(self) -> float:
        """Share of pairs that cross nodes."""
        return 1.0 - float(np.trace(self.matrix))

    @property
    def own(self) -> float:
        """Share of pairs that stay on their GPU."""
        return float(np.trace(self.pairs.sum(axis=0)) / self.pairs.sum())

    @property
    def served(self) -> Floats:
        """[L, G]: pairs that each GPU serves."""
        served: Floats = self.pairs.sum(axis=1)
        return served

    @property
    def balance(self) -> Floats:
        """[L]: the busiest GPU's pairs / mean."""
        balance: Floats = self.served.max(axis=1) / self.served.mean(axis=1)
        return balance

    @property
    def fullest(self) -> float:
        """The fullest rank's requests / mean."""
        each = self.came.sum(axis=1)
        return float(each.max() / each.mean())


@dataclass(frozen=True, eq=False)
class NodeTraffic:
    """`label` [F]: cluster of each of the fitted requests, which are `fitted` [F] of the profile's;
    `load` [C, L, E] their decode pairs. `eplb` and `laid` with round robin, `eplb_local` and
    `laid_local` with requests sent to their experts. `unit`: what the topology's nodes are."""

    unit: str
    redundant: int
    fitted: Ints
    label: Ints
    load: Floats
    layout: Laid
    eplb: PlacementSide
    laid: PlacementSide
    eplb_local: PlacementSide
    laid_local: PlacementSide

    @property
    def topology(self) -> Topology:
        return self.layout.topology

    @property
    def summary(self) -> str:
        """The figures that count, in a sentence."""
        before, after = (
            f"{side.across:.1%} of (token, expert) pairs cross {self.unit}s, GPU load max/mean "
            f"{side.balance.mean():.3f}"
            for side in (self.before, self.after)
        )
        return (
            f"on {self.judged} requests that were not fitted: {after}; with SGLang's "
            f"EPLB and round robin {before}"
        )

    @property
    def judged(self) -> int:
        """How many requests were held out."""
        return int(self.eplb.came.shape[1])

    @property
    def before(self) -> PlacementSide:
        return self.eplb

    @property
    def after(self) -> PlacementSide:
        return self.laid_local

    @property
    def kept(self) -> Floats:
        """[C, N]: share of each cluster's fitted pairs whose expert lies on a node."""
        held = self.layout.placement.held()
        on = held.reshape(*held.shape[:2], self.topology.nodes, -1).sum(axis=3) > 0
        flat = self.load.reshape(len(self.load), -1)
        share: Floats = flat @ on.reshape(-1, self.topology.nodes) / flat.sum(axis=1)[:, None]
        return share


def node_traffic(profile: Profile, arrays: Arrays, layout: EpConfig, seed: int = 0) -> NodeTraffic:
    """As many clusters as GPUs, of the profile's own signatures.

    Raises:
        ProfileError: one GPU, sizes that do not divide, too few requests, or no SGLang to ask for
            its EPLB; says how to mend it.
    """
    held = arrays["held_out"].astype(bool)
    try:
        topology, unit = _units(Topology(layout.gpus, layout.gpus_per_node))
        topology.slots(profile.model.experts, layout.redundant)
        _enough(held, topology.gpus)
        space, signatures = _signatures(profile, arrays)
        counts = arrays["decode_counts"]
        judged = np.flatnonzero(held)
        fitted, label, load = clusters(profile, arrays, topology.gpus, seed)
        laid = placement.lay(load, topology, layout.redundant, seed)
        none = np.zeros((load.shape[1] - 1, load.shape[2], load.shape[2]))
        traffic = placement.Traffic(load.sum(axis=0), none)
        base = placement.eplb(traffic, topology, layout.redundant)
        order = _arrivals(len(judged), topology.gpus * PER_RANK, seed)

        def side(where: Placement, policy: Policy) -> PlacementSide:
            arriving = signatures[judged][order]
            home, _ = request_homes(policy, arriving, topology.gpus, PER_RANK)
            came = np.zeros((topology.gpus, len(judged)), np.int64)
            np.add.at(came, (home, order), 1)
            load = np.tensordot(came.astype(np.float64), counts[judged], axes=1)
            return PlacementSide(
                where, topology, came, load, placement.between(where, topology, load)
            )

        found = NodeTraffic(
            *(unit, layout.redundant, fitted, label, load, laid),
            eplb=side(base, RoundRobinPolicy()),
            laid=side(laid.placement, RoundRobinPolicy()),
            eplb_local=side(base, _by_map(base, topology, space)),
            laid_local=side(laid.placement, _by_map(laid.placement, topology, space)),
        )
    except ValueError as error:
        raise ProfileError(str(error)) from error
    except ImportError as error:
        raise ProfileError(
            f"SGLang's EPLB cannot be asked what it would do ({error}): run this where SGLang is "
            "installed"
        ) from error
    if not (found.before.served.sum(axis=1) > 0).all():
        raise ProfileError(
            "the held-out requests use no expert of some layer in decode: measure longer answers"
        )
    return found


def clusters(
    profile: Profile, arrays: Arrays, number: int, seed: int = 0
) -> tuple[Ints, Ints, Floats]:
    """The fitted requests [F], the cluster [F] of each by its signature, and the decode pairs of
    each cluster [C, L, E]. ValueError: fewer requests than clusters."""
    _, signatures = _signatures(profile, arrays)
    fitted = np.flatnonzero(arrays["held_out"] == 0)
    label = balanced_kmeans(signatures[fitted], number, seed).labels.astype(np.int64)
    return fitted, label, _by(label, arrays["decode_counts"][fitted], number)


def write_laid(
    profile: Profile, arrays: Arrays, layout: EpConfig, path: Path, seed: int = 0
) -> NodeTraffic:
    """Write the placement of what is laid together for --init-expert-location.

    Raises:
        ProfileError: as `node_traffic`, or a path that cannot be written.
    """
    found = node_traffic(profile, arrays, layout, seed)
    save(profile, found.layout.placement, path)
    return found


def of_profile(profile: Profile, arrays: Arrays, seed: int = 0) -> NodeTraffic | None:
    """For the layout that the profile has placements for; None where that is one node.

    Raises:
        ProfileError: as `node_traffic`.
    """
    wide = [p for p in profile.placements if p.gpus > p.gpus_per_node]
    if not wide:
        return None
    most = max(wide, key=lambda p: p.redundant)
    return node_traffic(
        profile, arrays, EpConfig(most.gpus, most.redundant, most.gpus_per_node), seed
    )


def _signatures(profile: Profile, arrays: Arrays) -> tuple[SignatureSpace, NDArray[np.float32]]:
    space = SignatureSpace(arrays["idf"], profile.rho.mask)
    return space, space.signatures(arrays["prefill_counts"])


def _units(topology: Topology) -> tuple[Topology, str]:
    """Nodes, or where there is one its GPUs. ValueError: one GPU."""
    if topology.gpus == 1:
        raise ValueError("one GPU has all experts and all requests: give 2 or more")
    return (topology, "node") if topology.nodes > 1 else (Topology(topology.gpus, 1), "GPU")


def _enough(held: NDArray[np.bool_], gpus: int) -> None:
    for count, what, why in (
        (int((~held).sum()), "fitted", "a cluster"),
        (int(held.sum()), "held-out", "a request"),
    ):
        if count < gpus:
            raise ValueError(
                f"the profile has {count} {what} requests, and {gpus} GPUs need {why} each: "
                "measure more requests, or lay experts on fewer GPUs"
            )


def _arrivals(requests: int, least: int, seed: int) -> Ints:
    """Each request once a round, in another order each time: profiles are made prompt by prompt of
    each domain, traffic is not."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(requests) for _ in range(-(-least // requests))])


def _by(label: Ints, counts: NDArray[np.int32], number: int) -> Floats:
    """[number, L, E]: counts [N, L, E] summed by label [N]."""
    found = np.zeros((number, *counts.shape[1:]))
    np.add.at(found, label, counts)
    return found


def _by_map(where: Placement, topology: Topology, space: SignatureSpace) -> EldrPolicy:
    policy = EldrPolicy(0, TAU)
    policy.maps = {SERVER: rank_map(where, topology, space)}
    return policy
