"""Decode servers whose experts are placed by the requests that ELDR sends to each.

Busiest GPU's load / mean on held-out decode tokens of each server's own requests, mean of layers
and servers: placed by the server's cluster (`by_load`, as `expert_placement: clusters` does), and
by all requests (SGLang's EPLB, one map for all servers: what `init-expert-location` gives). A
request goes to the nearest centroid, whatever the queues. SGLang's `--enable-eplb` on each server
would come to see its own requests, too, after its first rebalance; what it costs until then, and in
stalls, is not measured here.

Synthetic routing (`toolkit/placement/synthetic.py`, as specialised as ELDR reports, see
`locality_nodes`): 12 layers x 256 experts, 4 servers of 8 GPUs, 32 redundant. `embedded`: the
shipped profile, 48 experts, fitted and held-out requests as it splits them.

keys: balance_ratio (own / all; _low, _high over seeds), balance_own, balance_all; embedded: by
`SERVERS x GPUS + REDUNDANT`, the same
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")


from typing import Any

import numpy as np

from tests.benchmarks.locality_nodes import DECODE, PROMPT, SPECIALISED, cut
from tests.benchmarks.shared.common import Result, arguments
from toolkit import exact
from toolkit.bench.stats import paired_ratio
from toolkit.placement import Topology, Traffic, eplb
from toolkit.placement.by_load import busiest, by_load
from toolkit.placement.synthetic import Recipe, specialised, token_ids
from toolkit.profile_folder import store
from toolkit.resources import profiles_dir
from toolkit.signatures import SignatureSpace, balanced_kmeans, idf_weights
from toolkit.signatures.calibrated import calibrated
from toolkit.signatures.clusters import fresh_centroids

SERVERS, GPUS, REDUNDANT, LAYERS = 4, 8, 32, 12


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    seeds, requests = (1, 1152) if options.quick else (5, 4608)
    found = [synthetic(requests, seed) for seed in range(seeds)]
    own, everyone = zip(*found, strict=True)
    keys: dict[str, Any] = paired_ratio(own, everyone).keys("balance_ratio")
    keys |= {"balance_own": float(np.mean(own)), "balance_all": float(np.mean(everyone))}
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


def synthetic(requests: int, seed: int) -> tuple[float, float]:
    """Of requests drawn anew, half of them to fit."""
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
    return compared(loads[0], loads[1], GPUS, REDUNDANT)


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
