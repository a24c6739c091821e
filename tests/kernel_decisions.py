"""What numeric code decides on fixed inputs, as one digest a place: run under several kernels.

`python -m tests.kernel_decisions` prints a JSON object, place -> digest of the exact bytes. The
inputs are drawn as whole numbers, so that they are the same everywhere; many are ties on purpose.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.gimbal_objective import joint_for
from tests.synthetic_routing import Recipe, token_ids
from toolkit.placement import Topology, Traffic, count, place
from toolkit.placement.gimbal import gimbal
from toolkit.placement.joint import Weights, joint
from toolkit.policies.brh import BrHPolicy, MarginAhead
from toolkit.policies.eldr import EldrPolicy
from toolkit.policies.support.expert_locality import Centroids
from toolkit.policies.support.inflight_signatures import InflightSignatures
from toolkit.signatures import (
    Calibration,
    Recent,
    balanced_kmeans,
    fit,
    greedy_mask,
    match_centroids,
    nearest,
    refit_recent,
    vanilla_kmeans,
)
from toolkit.signatures.nearness import nearness
from toolkit.signatures.variants import variant_space
from toolkit.simulate.experts import Mixture, SimulatedExperts

Places = dict[str, Callable[[], list[Any]]]


def calibration(requests: int = 160, layers: int = 5, experts: int = 48, seed: int = 0) -> Any:
    """Four kinds of requests, some twice; layer 1 repeats layer 0."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 9, (4, layers, experts)) * (
        rng.integers(0, 3, (4, layers, experts)) > 1
    )
    prefill = kinds[np.arange(requests) % 4] + rng.integers(0, 2, (requests, layers, experts))
    prefill[:, 1] = prefill[:, 0]
    prefill[8:16] = prefill[:8]
    decode = np.minimum(prefill, 6)
    return Calibration(prefill, decode, np.full(requests, 8))


def traffic(windows: bool, seed: int = 1, experts: int = 24, layers: int = 4) -> Traffic:
    """Experts in pairs of equals, as ties; counts in thirds where there are windows."""
    rng = np.random.default_rng(seed)
    load = np.repeat(rng.integers(1, 60, (layers, experts // 2)), 2, axis=1).astype(float)
    pairs = rng.integers(0, 40, (layers - 1, experts, experts)).astype(float)
    parts = rng.poisson(load, (12, *load.shape)) / 3 if windows else None
    return Traffic(load, pairs, parts)


def level_start() -> Traffic:
    """The start does not sway: one half of the experts is busy, then the other."""
    half = np.repeat([0, 1], 8)
    windows = np.stack([np.where(half == turn % 2, 40.0, 4.0) for turn in range(16)])
    windows = np.repeat(windows[:, None], 3, axis=1)
    pairs = np.where(half[:, None] == half, 10.0, 1.0)
    return Traffic(windows.sum(axis=0), np.stack([pairs, pairs]), windows)


def placements() -> Places:
    def table(placement: Any) -> list[Any]:
        return [placement.physical_to_logical]

    nodes = Topology(8, 4)
    return {
        "joint": lambda: table(joint(traffic(False), nodes, 0, 0)),
        "joint, replicas": lambda: table(joint(traffic(False, 2), nodes, 8, 0)),
        "joint, drift": lambda: table(joint(traffic(True, 3), nodes, 8, 0)),
        "joint, level start": lambda: table(joint(level_start(), Topology(2), 0, 0)),
        "joint, level start, no drift": lambda: table(
            joint(level_start(), Topology(2), 0, 0, Weights(drift=0.0))
        ),
        "joint for eq. 12": lambda: table(joint_for(traffic(False, 4), Topology(4), 1, 0.1)[0]),
        "gimbal": lambda: table(gimbal(traffic(False, 5), Topology(4))),
        "eplb": lambda: table(place("eplb", traffic(False, 6), nodes, 8)),
        "synthetic ids": lambda: [token_ids(600, Recipe(4, 32, 4, families=3, document=16), 3)],
        "joint of synthetic ids": lambda: table(
            joint(count(token_ids(900, Recipe(4, 32, 4), 5), 32, windows=16), nodes, 8, 0)
        ),
    }


def signatures() -> Places:
    data = calibration()
    found = fit(data.prefill, data.decode, data.tokens, 6)
    points = found.space.signatures(data.prefill)
    kept = data.prefill[:, found.space.kept].reshape(data.requests, -1)
    recent = Recent(kept.astype(np.uint8), np.full(data.requests, 64))
    old = np.roll(found.centroids, 1, axis=0)

    def mask() -> list[Any]:
        each = greedy_mask(data, variant_space("count", data))
        return [each.order, each.layers, each.singles, each.curve]

    def clusters(found: Any) -> list[Any]:
        return [found.labels, found.centroids, found.inertia]

    def refitted() -> list[Any]:
        again = refit_recent(found.space, recent, old)
        return [again.centroids, again.worthwhile, again.moved, again.cosine_new]

    return {
        "fit": lambda: [found.space.layers, *clusters(found.clusters)],
        "mask": mask,
        "balanced k-means": lambda: clusters(balanced_kmeans(points, 5, 1)),
        "plain k-means": lambda: clusters(vanilla_kmeans(points, 5, 1)),
        "nearest, of equals": lambda: [nearest(points, np.repeat(found.centroids, 3, axis=0))],
        "nearness": lambda: [nearness(points, np.repeat(found.centroids, 3, axis=0))],
        "matching": lambda: [match_centroids(found.centroids, np.repeat(old, 2, axis=0))],
        "router's signature": lambda: [found.space.of_kept(row.astype(np.float32)) for row in kept],
        "refit": refitted,
    }


def policies() -> Places:
    data = calibration(seed=7)
    found = fit(data.prefill, data.decode, data.tokens, 7)
    points = found.space.signatures(data.prefill)
    rows = np.repeat(found.centroids, 3, axis=0)
    groups = {(f"d{k}", None): k for k in range(len(rows))}
    eldr = EldrPolicy(centroids=Centroids(rows, groups))  # type: ignore[arg-type]
    inflight_signatures = InflightSignatures(points.shape[1])
    for at, point in enumerate(points[:60]):
        inflight_signatures.add((f"d{at % 9}", None), point)

    def near() -> list[Any]:
        by_index = dict(enumerate(groups))
        return [list(eldr._similarities(by_index, point).values()) for point in points]

    def ahead() -> list[Any]:
        policy = BrHPolicy(horizon=80, gamma=0.9)
        loads = np.repeat(np.random.default_rng(2).integers(0, 9000, (5, 81)), 3, axis=0)
        ranks: Any = None
        margins = MarginAhead(loads.astype(float), policy._discounts(ranks), 1.0, 48.0)
        sizes = [100.0, 700.0, 5000.0, 8000.0]
        burdens = [margins.burden(g) for g in range(15)]
        peaks = [margins.peak(g) for g in range(15)]
        return [burdens, peaks, [margins.across(s) for s in sizes], margins.values(4, sizes)]

    return {
        "eldr": near,
        "residents": lambda: [
            list(inflight_signatures.cosines(point).values()) for point in points
        ],
        "br-h": ahead,
    }


def simulated() -> Places:
    data = calibration()
    mixture = Mixture(SimulatedExperts(data.decode, data.tokens))

    def distinct() -> list[Any]:
        found = []
        for row in range(60):
            mixture.add(row)
            found.append((mixture.distinct(), mixture.busiest()))
        return found

    return {"distinct experts": distinct}


def digest(values: list[Any]) -> str:
    """Of the exact bytes of arrays, and of everything else as it is shown."""
    whole = hashlib.sha256()
    for value in values:
        array = isinstance(value, np.ndarray)
        whole.update(np.ascontiguousarray(value).tobytes() if array else repr(value).encode())
    return whole.hexdigest()[:16]


def main() -> None:
    sys.modules["toolkit.placement.joint"].WORK = 60_000  # type: ignore[attr-defined]  # some starts a problem, not all
    places = placements() | signatures() | policies() | simulated()
    print(json.dumps({name: digest(decide()) for name, decide in places.items()}))


if __name__ == "__main__":
    main()
