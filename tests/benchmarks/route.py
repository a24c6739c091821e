"""One ELDR decision: 24 decode workers, signatures of 6,144 values (48 layers x 128 experts).

keys: p50_us, p99_us of `EldrPolicy.choose` alone (the views of the workers are made beforehand),
over random signatures and queues, twelve requests on each worker; the same for `shortest_queue`,
which looks at no signature: `other_p50_us`, `other_p99_us`; and what noting a request on a worker
takes: `settle_p50_us`, `settle_p99_us`.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a matrix this small only loses by threads

from tests.benchmarks.shared.common import Result, arguments, percentile

WORKERS, VALUES = 24, 48 * 128


def main() -> None:
    """Run the benchmark and print its line."""
    import numpy as np

    from toolkit.policies import RequestView, WorkerView
    from toolkit.policies.base import Group
    from toolkit.policies.eldr import EldrPolicy
    from toolkit.policies.shortest_queue import ShortestQueuePolicy
    from toolkit.policies.support.expert_locality import Centroids
    from toolkit.policies.support.inflight_signatures import InflightSignatures

    options = arguments(__doc__)
    result = Result()
    rounds = 3_000 if options.quick else 30_000
    rng = np.random.default_rng(0)
    rows = rng.random((WORKERS, VALUES), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    signatures = rng.random((64, VALUES), dtype=np.float32) ** 4
    signatures /= np.linalg.norm(signatures, axis=1, keepdims=True)
    names = [f"decode-{i}" for i in range(WORKERS)]
    fleets = [
        [WorkerView(name, inflight=int(n), slots=48) for name, n in zip(names, queue, strict=True)]
        for queue in rng.integers(0, 40, (64, WORKERS))
    ]
    owner: dict[Group, int] = {(name, 0): row for row, name in enumerate(names)}
    eldr = EldrPolicy(0, 0.1, Centroids(rows, owner))
    eldr.inflight_signatures = InflightSignatures(VALUES)
    for number, rank in enumerate(owner):
        for place in range(12):
            eldr.inflight_signatures.add(rank, signatures[(number * 5 + place) % 64])
    plain = ShortestQueuePolicy()
    spent: dict[str, list[float]] = {"": [], "other_": [], "settle_": []}
    for number in range(rounds):
        request = RequestView(signature=signatures[number % 64])
        workers = fleets[number * 7 % 64]
        for key, policy in (("", eldr), ("other_", plain)):
            begin = time.perf_counter()
            policy.choose(workers, request)
            spent[key].append((time.perf_counter() - begin) * 1e6)
            if policy is eldr:
                begin = time.perf_counter()
                eldr.inflight_signatures.add(("decode-0", 0), signatures[0])
                spent["settle_"].append((time.perf_counter() - begin) * 1e6)
                eldr.inflight_signatures.remove(("decode-0", 0), signatures[0])
    for key, times in spent.items():
        result.keys[f"{key}p50_us"] = percentile(times, 50)
        result.keys[f"{key}p99_us"] = percentile(times, 99)
    result.keys["band_mean"] = eldr.counters.band / eldr.counters.located
    result.emit(rounds)


if __name__ == "__main__":
    main()
