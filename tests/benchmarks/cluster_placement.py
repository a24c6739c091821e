"""Decode servers whose experts are placed by the requests that ELDR sends to each.

Busiest GPU's load / mean on held-out decode tokens of each server's own requests, mean of layers
and servers: placed by the server's cluster (`by_load`, as `expert_placement: clusters` does), and
by all requests (SGLang's EPLB, one map for all servers: what `init-expert-location` gives). A
request goes to the nearest centroid, whatever the queues. SGLang's `--enable-eplb` on each server
would come to see its own requests, too, after its first rebalance; what it costs until then, and in
stalls, is not measured here.

Synthetic routing (`tests/synthetic_routing.py`, as specialised as ELDR reports, see
`locality_nodes`): 12 layers x 256 experts, 4 servers of 8 GPUs, 32 redundant. `embedded`: the
shipped profile, 48 experts, fitted and held-out requests as it splits them.

`restart`: the experts stay as they were placed, and the router has other centroids in any order
(a restart with a fit of its own): handed out in that order, or exchanged by the servers' maps
(`toolkit.router.eldr.map_match`), and by cosine with the centroids that the placements were made
for, which such a router no longer has.

keys: balance_ratio (own / all; _low, _high over seeds), balance_own, balance_all; restart:
balance_in_order, balance_by_maps, balance_by_cosine, and ratio (by_maps / in_order); embedded: by
`SERVERS x GPUS + REDUNDANT`, the same without restart
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")


from typing import Any

import numpy as np

from tests.benchmarks.locality_nodes import DECODE, PROMPT, SPECIALISED, cut
from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.specialised import specialised
from tests.synthetic_routing import Recipe, token_ids
from toolkit import exact
from toolkit.bench.stats import paired_ratio
from toolkit.placement import Placement, Topology, Traffic, eplb
from toolkit.placement.by_load import busiest, by_load
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir
from toolkit.router.eldr.map_match import GAIN, imbalance
from toolkit.signatures import SignatureSpace, balanced_kmeans, idf_weights
from toolkit.signatures.calibrated import calibrated
from toolkit.signatures.clusters import fresh_centroids
from toolkit.signatures.matching import best_rows, exchanged

MEASURES = (
    "toolkit/placement",
    "toolkit/signatures",
    "toolkit/policies/eldr.py",
    "patches/experts",
    "patches/relocate",
)

SERVERS, GPUS, REDUNDANT, LAYERS = 4, 8, 32, 12


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    seeds, requests = (1, 1152) if options.quick else (5, 4608)
    found = [synthetic(requests, seed) for seed in range(seeds)]
    own, everyone, in_order, by_maps, by_cosine = zip(*found, strict=True)
    keys: dict[str, Any] = paired_ratio(own, everyone).keys("balance_ratio")
    keys |= {"balance_own": float(np.mean(own)), "balance_all": float(np.mean(everyone))}
    keys["restart"] = {
        "balance_in_order": float(np.mean(in_order)),
        "balance_by_maps": float(np.mean(by_maps)),
        "balance_by_cosine": float(np.mean(by_cosine)),
    } | paired_ratio(by_maps, in_order).keys("ratio")
    keys["embedded"] = {
        f"{servers}x{gpus}+{redundant}": embedded(servers, gpus, redundant)
        for servers, gpus, redundant in ((2, 2, 4), (2, 4, 16), (4, 4, 16))
    }
    result.keys = keys
    result.emit(seeds)


def compared(
    fitted: np.ndarray, judged: np.ndarray, gpus: int, redundant: int
) -> tuple[float, float]:
    """Own and all, of loads by server [K, L, E] to fit and to judge by."""
    topology = Topology(gpus)
    none = np.zeros((fitted.shape[1] - 1, *fitted.shape[2:] * 2))
    everyone = eplb(Traffic(fitted.sum(axis=0), none), topology, redundant)
    own = [
        busiest(by_load(load, topology, redundant), unseen[None])[0]
        for load, unseen in zip(fitted, judged, strict=True)
    ]
    return float(np.mean(own)), float(busiest(everyone, judged).mean())


def restarted(
    placements: list[Placement],
    old: np.ndarray,
    rows: np.ndarray,
    space: SignatureSpace,
    loads: np.ndarray,
) -> tuple[float, float, float]:
    """Mean balance with `rows` in their order, by the maps, and by cosine with `old`; `loads`
    [K, L, E] of the requests that are near to each row."""
    everywhere = np.stack([busiest(placement, loads) for placement in placements])
    order = np.arange(len(rows))
    by_maps = exchanged(imbalance(placements, rows, space), GAIN)
    ways = (order, order if by_maps is None else by_maps, best_rows(old, rows))
    in_order, mapped, near = (float(everywhere[order, way].mean()) for way in ways)
    return in_order, mapped, near


def synthetic(requests: int, seed: int) -> tuple[float, ...]:
    """Own, all, and after a restart; of requests drawn anew, half of them to fit."""
    recipe = specialised(Recipe(layers=LAYERS, document=PROMPT + DECODE), SPECIALISED)
    ids = token_ids(2 * requests * recipe.document, recipe, seed)
    halves = ids.reshape(2, requests, recipe.document, LAYERS, -1)
    seen, unseen = (cut(each, recipe.experts) for each in halves)
    space = SignatureSpace(idf_weights(seen.prefill), tuple(range(LAYERS)))
    signatures = [space.signatures(each.prefill) for each in (seen, unseen)]
    rows = balanced_kmeans(signatures[0], SERVERS, seed).centroids
    loads = [
        each.load(exact.cosines(own, rows).argmax(axis=1), SERVERS)
        for each, own in zip((seen, unseen), signatures, strict=True)
    ]
    fresh = balanced_kmeans(signatures[0][::2], SERVERS, seed + 100).centroids
    fresh = fresh[np.random.default_rng(seed).permutation(SERVERS)]
    placements = [by_load(load, Topology(GPUS), REDUNDANT) for load in loads[0]]
    again = unseen.load(exact.cosines(signatures[1], fresh).argmax(axis=1), SERVERS)
    restart = restarted(placements, rows, fresh, space, again)
    return (*compared(loads[0], loads[1], GPUS, REDUNDANT), *restart)


def embedded(servers: int, gpus: int, redundant: int) -> dict[str, float]:
    """Of the shipped profile."""
    folder = profiles_dir() / "embedded"
    known, (_, arrays) = calibrated(str(folder)), store.read(folder)
    rows = known.centroids
    if len(rows) != servers:
        rows = fresh_centroids(known.requests.fitted, servers, 0)
    held = arrays["held_out"] == 1
    fitting = (arrays["prefill_counts"] + arrays["decode_counts"])[~held]
    loads = []
    for signatures, counts in (
        (known.requests.fitted, fitting),
        (known.requests.judged, arrays["decode_counts"][held]),
    ):
        nearest = exact.cosines(signatures, rows).argmax(axis=1)
        loads.append(np.stack([counts[nearest == row].sum(axis=0) for row in range(servers)]))
    own, everyone = compared(loads[0], loads[1], gpus, redundant)
    return {"balance_ratio": own / everyone, "balance_own": own, "balance_all": everyone}


if __name__ == "__main__":
    main()
