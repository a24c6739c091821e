"""The drift watch: what a request costs, and a refit on 512 recent requests of 24 x 128 counts.

Nothing to compare with: the numbers are absolute. Synthetic counts
(`tests/unit/signatures/synthetic.py`, eight domains) of 24 kept layers x 128 experts. The refit
follows a switch of the traffic from two domains to four others and runs in a process of its own
with one BLAS thread, as in the router, which loads counts and centroids from files. `peak_mib` is
the highest resident memory of that process, interpreter, numpy, scipy and all.

keys: observe_p50_us, observe_p99_us; for K = 8 and 24: refit_K_s (median wall), refit_K_first_s
(with imports of scipy), refit_K_cpu_s, peak_K_mib, and cosine_K_old, cosine_K_new of the refit on
its held-out requests; watch_mib: counts in the reservoir
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.shared.common import Result, arguments, peak_gib, percentile

LAYERS, EXPERTS, RECENT = 24, 128, 512
NAMES = ("counts", "tokens", "ages", "weights", "old")


def main() -> None:
    """Run the benchmark and print its line."""
    if len(sys.argv) == 4 and sys.argv[1] == "--child":
        print(json.dumps(child(Path(sys.argv[2]), int(sys.argv[3]))))
        return
    options = arguments(__doc__)
    result = Result()
    refits = 3 if options.quick else 15
    counts, domains = traffic()
    result.keys.update(observing(counts))
    for k in (8, 24):
        with tempfile.TemporaryDirectory(prefix="drift-") as folder:
            store(Path(folder), counts, domains, k)
            measured = in_child(Path(folder), refits)
        result.keys[f"refit_{k}_s"] = statistics.median(measured["wall_s"])
        result.keys[f"refit_{k}_first_s"] = measured["wall_s"][0]
        result.keys[f"refit_{k}_cpu_s"] = statistics.median(measured["cpu_s"])
        result.keys[f"peak_{k}_mib"] = measured["mib"]
        result.keys[f"cosine_{k}_old"], result.keys[f"cosine_{k}_new"] = measured["cosine"]
    result.emit(samples=2 * refits)


def traffic() -> tuple[np.ndarray, np.ndarray]:
    """Counts [N, L, E] and the domain of each request."""
    from tests.unit.signatures.synthetic import synthetic_counts

    prefill, _, _, domains = synthetic_counts(1600, LAYERS, EXPERTS)
    return prefill, domains


def observing(counts: np.ndarray) -> dict[str, float]:
    """Microseconds a request in the router, reservoir full."""
    from toolkit.signatures.drift import DriftWatch

    flat = counts.reshape(len(counts), -1).astype(np.float32)
    watch = DriftWatch(flat.shape[1], 0.9, workers=8.0)
    cosines = np.random.default_rng(0).uniform(0.8, 1.0, len(flat))
    spent = []
    for turn in range(4):
        for number, row in enumerate(flat):
            start = time.perf_counter()
            watch.observe(row, 900, cosines[number], number % 8)
            if turn:
                spent.append((time.perf_counter() - start) * 1e6)
    size = watch.recent().counts.nbytes / 2**20
    return {
        "observe_p50_us": percentile(spent, 50),
        "observe_p99_us": percentile(spent, 99),
        "watch_mib": size,
    }


def store(folder: Path, counts: np.ndarray, domains: np.ndarray, k: int) -> None:
    """The reservoir 128 requests after a switch of the traffic, and the centroids before it."""
    from toolkit.signatures import SignatureSpace, balanced_kmeans, idf_weights
    from toolkit.signatures.reservoir import Reservoir

    before = np.flatnonzero(domains < 2)
    after = np.flatnonzero((domains >= 2) & (domains < 6))
    space = SignatureSpace(idf_weights(counts[before]), tuple(range(LAYERS)))
    reservoir = Reservoir(space.dimensions, RECENT)
    drawn = np.random.default_rng(0).choice(before, 2 * RECENT)
    for number in [*drawn, *after[:128]]:
        reservoir.add(counts[number].ravel(), 900)
    recent = reservoir.recent()
    old = balanced_kmeans(space.signatures(counts[before]), k).centroids
    parts = (recent.counts, recent.tokens, recent.ages)
    arrays = (*parts, space.weights, old)
    for name, array in zip(NAMES, arrays, strict=True):
        assert array is not None
        np.save(folder / f"{name}.npy", array)


def in_child(folder: Path, refits: int) -> dict[str, Any]:
    """What the child measured; raises when it fails."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.drift", "--child", str(folder), str(refits)],
        env={**os.environ, **one},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def child(folder: Path, refits: int) -> dict[str, Any]:
    """Wall and CPU seconds of each refit, and this process's peak in MiB."""
    from toolkit.signatures import SignatureSpace
    from toolkit.signatures.drift import Recent, refit_recent

    *parts, weights, old = (np.load(folder / f"{name}.npy") for name in NAMES)
    space = SignatureSpace(weights, tuple(range(LAYERS)))
    wall, cpu = [], []
    for number in range(refits):
        start, start_cpu = time.perf_counter(), time.process_time()
        refit = refit_recent(space, Recent(*parts), old, seed=number)
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    cosine = [refit.cosine_old, refit.cosine_new]
    return {"wall_s": wall, "cpu_s": cpu, "mib": peak_gib() * 1024, "cosine": cosine}


if __name__ == "__main__":
    main()
