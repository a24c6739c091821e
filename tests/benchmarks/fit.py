"""The whole centroid fit: IDF weights, greedy layer mask, balanced clusters for K = 16.

Nothing to compare with: the numbers are absolute. Synthetic counts of 48 layers x 128 experts,
top-8, int32 (eight domains with Zipf-like preferences; `tests/unit/signatures/synthetic.py`), for
1,000 and 10,000 requests. Each size runs in a process of its own with one BLAS thread, which loads
the counts from files, so that making them is in neither time nor memory. Times are wall times,
medians of the fits; the first one, with cold caches and lazy libraries, counts like the others.
`peak_gib` is the highest resident memory of the process for 1,000 requests: interpreter, numpy,
counts and all. `vanilla` is the same clustering without the balance bound.

keys: fit_1000_s, fit_10000_s, peak_gib; more: *_cpu_s, *_first_s, peak_10000_gib, rho and rho
without a mask on requests that were not fitted, distinct experts saved on these by batches of 16,
inertia against vanilla k-means
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.shared.common import Result, arguments, in_child, peak_gib

K = 16
NAMES = ("prefill", "decode", "tokens")


def main() -> None:
    """Run the benchmark and print its line."""
    if len(sys.argv) == 4 and sys.argv[1] == "--child":
        print(json.dumps(child(Path(sys.argv[2]), int(sys.argv[3]))))
        return
    options = arguments(__doc__)
    result = Result()
    sizes = {1000: 3, 10_000: 1} if options.quick else {1000: 15, 10_000: 5}
    for requests, fits in sizes.items():
        with tempfile.TemporaryDirectory(prefix="fit-") as folder:
            store(Path(folder), requests)
            measured = in_child(Path(folder), fits)
        key = f"fit_{requests}"
        result.keys[f"{key}_s"] = statistics.median(measured["wall_s"])
        result.keys[f"{key}_cpu_s"] = statistics.median(measured["cpu_s"])
        result.keys[f"{key}_first_s"] = measured["wall_s"][0]
        result.keys["peak_gib" if requests == 1000 else f"peak_{requests}_gib"] = measured["gib"]
    result.keys.update(quality())
    result.emit(samples=sum(sizes.values()))


def store(folder: Path, requests: int) -> None:
    """Write the counts for the child."""
    from tests.unit.signatures.synthetic import synthetic_counts

    for name, array in zip(NAMES, synthetic_counts(requests), strict=False):
        np.save(folder / f"{name}.npy", array)


def child(folder: Path, fits: int) -> dict[str, Any]:
    """Wall and CPU seconds of each fit, and this process's peak in GiB."""
    from toolkit.signatures import fit

    prefill, decode, tokens = (np.load(folder / f"{name}.npy") for name in NAMES)
    wall, cpu = [], []
    for number in range(fits):
        start, start_cpu = time.perf_counter(), time.process_time()
        fitted = fit(prefill, decode, tokens, K, seed=number)
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
        assert fitted.clusters.sizes.max() <= -(-len(prefill) // K)
    return {"wall_s": wall, "cpu_s": cpu, "gib": peak_gib()}


def quality() -> dict[str, float]:
    """What the fit is worth on requests that it has not seen (see the docstring's keys)."""
    from dataclasses import replace

    from tests.unit.signatures.synthetic import synthetic_counts
    from toolkit.signatures import (
        Calibration,
        distinct_reduction,
        fit,
        signature_rho,
        vanilla_kmeans,
    )

    prefill, decode, tokens, _ = synthetic_counts(1000)
    fitted = fit(prefill, decode, tokens, K)
    vanilla = vanilla_kmeans(fitted.space.signatures(prefill), K)
    more = synthetic_counts(1000, seed=1)
    unseen = Calibration(*more[:3])
    everything = replace(fitted.space, layers=tuple(range(unseen.layers)))
    clusters = distinct_reduction(unseen, fitted.assign(unseen.prefill), batch=16)
    labels = distinct_reduction(unseen, more[3], batch=16)
    return {
        "rho": signature_rho(fitted.space, unseen),
        "rho_all_layers": signature_rho(everything, unseen),
        "distinct_reduction": clusters.reduction,
        "distinct_reduction_labels": labels.reduction,
        "inertia_ratio_vanilla": fitted.clusters.inertia / vanilla.inertia,
    }


if __name__ == "__main__":
    main()
