"""The drift watch: what a request costs, and a refit on 512 recent requests of 24 x 128 counts.

Nothing to compare with: the numbers are absolute. Synthetic counts
(`tests/unit/signatures/synthetic.py`, eight domains) of 24 kept layers x 128 experts. The refit
follows a switch of the traffic from two domains to four others and runs in a process of its own
with one BLAS thread, as in the router, which loads counts and centroids from files. `peak_mib` is
the highest resident memory of that process, interpreter, numpy, scipy and all.

Refits by the clock (`eldr@artifact`) are measured as the router makes them, with a process for
each: 500 signatures, five seconds at 100 requests a second. Meanwhile a loop as the router's looks
every millisecond how late it is called: `stall_ms` is the longest stall with refits,
`idle_stall_ms` in as much time without, in turns.

keys: observe_p50_us, observe_p99_us; for K = 8 and 24: refit_K_s (median wall), refit_K_first_s
(with imports of scipy), refit_K_cpu_s, peak_K_mib, and cosine_K_old, cosine_K_new of the refit on
its held-out requests; watch_mib: counts in the reservoir; for K = 8 and 24: clock_K_s (a refit by
the clock, median wall, its process started), clock_K_stall_ms and clock_K_stall_p99_ms (of all
calls), clock_K_idle_stall_ms, clock_K_idle_stall_p99_ms
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.shared.common import Result, arguments, in_child, peak_gib, percentile

LAYERS, EXPERTS, RECENT, FIVE_SECONDS = 24, 128, 512, 500
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
    for k in (8, 24):
        found = asyncio.run(by_clock(counts, domains, k, refits))
        result.keys |= {f"clock_{k}_{name}": value for name, value in found.items()}
    result.emit(samples=4 * refits)


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


async def by_clock(
    counts: np.ndarray, domains: np.ndarray, k: int, refits: int
) -> dict[str, float]:
    """Refits by the clock after the traffic has moved, and what the loop feels of them."""
    from toolkit.policies.base import Group, Refits
    from toolkit.policies.support.expert_locality import Centroids
    from toolkit.router.eldr.centroid_sets import Fit
    from toolkit.router.eldr.clock_refits import ClockRefits
    from toolkit.router.eldr.refit_history import RefitHistory
    from toolkit.signatures import SignatureSpace, balanced_kmeans, idf_weights
    from toolkit.signatures.nearness import Nearness
    from toolkit.signatures.reader import SignatureSample

    before = np.flatnonzero(domains < 2)
    after = np.flatnonzero((domains >= 2) & (domains < 6))
    space = SignatureSpace(idf_weights(counts[before]), tuple(range(LAYERS)))
    old = balanced_kmeans(space.signatures(counts[before]), k).centroids
    kept = space.signatures(counts[np.random.default_rng(0).choice(after, FIVE_SECONDS)])
    owner: dict[Group, int] = {(f"d{row}", 0): row for row in range(k)}
    fit = Fit(tuple(owner), Centroids(old, owner), Nearness(0.9, None))
    wall: list[float] = []
    late: dict[bool, list[float]] = {True: [], False: []}
    for number in range(refits):
        for refitting in (True, False) if number % 2 else (False, True):
            watched = asyncio.create_task(_lateness(late[refitting]))
            begin = time.perf_counter()
            if refitting:
                times = np.linspace(0.0, 5.0, FIVE_SECONDS).tolist()
                at = iter([*times, *times[-1:] * 9])
                clock = ClockRefits(lambda: fit, RefitHistory(), lambda moved: None, at.__next__)
                clock.follow(Refits(1.0, 5.0))
                for vector in kept:
                    clock.observe(SignatureSample(vector, vector, 900))
                job = clock.job()
                assert job is not None
                await job
                assert clock.moved is not None
                wall.append(time.perf_counter() - begin)
            else:
                await asyncio.sleep(statistics.median(wall) if wall else 0.5)
            watched.cancel()
            await asyncio.gather(watched, return_exceptions=True)
    figures = {"s": statistics.median(wall)}
    for prefix, refitting in (("", True), ("idle_", False)):
        figures[f"{prefix}stall_ms"] = max(late[refitting])
        figures[f"{prefix}stall_p99_ms"] = percentile(late[refitting], 99)
    return figures


async def _lateness(late: list[float]) -> None:
    """Milliseconds by which the loop comes back too late, until cancelled."""
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(1e3 * (time.perf_counter() - begin - 0.001))


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
