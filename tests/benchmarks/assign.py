"""One round of BalanceRoute: 64 decode ranks, 512 finished prefills waiting, H = 80.

keys: p50_ms, p99_ms (wall clock) of `BrHPolicy.assign`: reading the ranks, projecting some 4,000
requests in flight under the predictor *survival*, both stages. 32 slots are free in all, on ranks
drawn at random: what ends in one step of 64 x 64 requests of 128 tokens on average. `cpu_p99_ms` is
the CPU time of the same rounds: without what other processes took of the core. The same with the
prefixes

- `br0_`: BR-0 in the same rounds
- `many_`: 64 slots are free
- `all_`, `br0_all_`: eight slots a rank are free and all 512 are placed, as after a start

`fixed_p50_ms`, `fixed_p99_ms`: a job that is always the same (4,000 numbers are made
and sorted), timed between the rounds: how steady the machine itself was.
`project_p50_ms`: the projection alone; `sent_us`, `counted_us`, `ended_us`: what tracking a request
takes at each of its events (means). `placed_mean`: requests placed a round.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices this small only lose by threads

from tests.benchmarks.shared.common import Result, arguments, percentile

if TYPE_CHECKING:
    import numpy as np

    from toolkit.policies import RequestView, WorkerView
    from toolkit.policies.rounds.assign import Assigner
    from toolkit.policies.support.inflight_lengths import InflightLengths

RANKS, SLOTS, WAITING, HORIZON = 64, 64, 512, 80
FLEETS = 16


def main() -> None:
    """Run the benchmark and print its line."""
    import numpy as np

    from toolkit.policies.br0 import Br0Policy
    from toolkit.policies.brh import BrHPolicy
    from toolkit.policies.predictors import Survival
    from toolkit.policies.support.inflight_lengths import InflightLengths

    options = arguments(__doc__)
    result = Result()
    rounds = 800 if options.quick else 8_000
    rng = np.random.default_rng(0)
    predictor = Survival()
    for length in rng.lognormal(5.3, 0.9, 3_000):
        predictor.ended(predictor.place(_request(rng)), int(length) + 1, True)
    inflight = InflightLengths(predictor)
    busy = _fill(inflight, rng, result)
    pools = [[_request(rng) for _ in range(WAITING)] for _ in range(FLEETS)]
    brh, br0 = BrHPolicy(horizon=HORIZON, inflight=inflight), Br0Policy()
    usual, many = (
        [_fleet(busy, rng.multinomial(free, [1 / RANKS] * RANKS)) for _ in range(FLEETS)]
        for free in (32, 64)
    )
    eight = [_fleet(busy, np.full(RANKS, 8)) for _ in range(FLEETS)]
    cases: list[tuple[str, Assigner, list[list[WorkerView]], int]] = [
        ("", brh, usual, rounds),
        ("br0_", br0, usual, rounds),
        ("many_", brh, many, rounds),
        ("all_", brh, eight, rounds // 8),
        ("br0_all_", br0, eight, rounds // 8),
    ]
    spent: dict[str, tuple[list[float], list[float]]] = {key: ([], []) for key, *_ in cases}
    placed = 0
    fixed = []
    for number in range(rounds):
        begin = time.perf_counter()
        sorted(k * 7919 % 4001 for k in range(4000))
        fixed.append((time.perf_counter() - begin) * 1e3)
        pool = pools[number * 7 % FLEETS]
        for key, policy, fleets, count in cases:
            if number >= count:
                continue
            workers = fleets[number % FLEETS]
            begin, cpu = time.perf_counter(), time.thread_time()
            made = policy.assign(workers, pool)
            spent[key][1].append((time.thread_time() - cpu) * 1e3)
            spent[key][0].append((time.perf_counter() - begin) * 1e3)
            placed += len(made) if not key else 0
    for key, (wall, cpu_times) in spent.items():
        result.keys[f"{key}p50_ms"] = percentile(wall, 50)
        result.keys[f"{key}p99_ms"] = percentile(wall, 99)
        result.keys[f"{key}cpu_p99_ms"] = percentile(cpu_times, 99)
    result.keys["fixed_p50_ms"] = percentile(fixed, 50)
    result.keys["fixed_p99_ms"] = percentile(fixed, 99)
    keys, wall = [worker.key for worker in usual[0]], []
    for _ in range(rounds):
        begin = time.perf_counter()
        inflight.projections(keys, HORIZON)
        wall.append((time.perf_counter() - begin) * 1e3)
    result.keys["project_p50_ms"] = percentile(wall, 50)
    result.keys["placed_mean"] = placed / rounds
    result.emit(rounds)


def _request(rng: np.random.Generator) -> RequestView:
    from toolkit.policies import RequestView

    return RequestView(prompt_tokens=int(rng.lognormal(6.5, 1.0)) + 16, max_new_tokens=4096)


def _fill(inflight: InflightLengths, rng: np.random.Generator, result: Result) -> list[int]:
    """63 requests of all ages on each rank, and what that took; the KV tokens on each rank."""
    spent = {"sent": 0.0, "counted": 0.0, "ended": 0.0}
    tokens = [0] * RANKS
    number = 0
    for rank in range(RANKS):
        for place in range(SLOTS):
            request, age, rid = _request(rng), int(rng.integers(0, 400)), f"r{number}"
            number += 1
            begin = time.perf_counter()
            inflight.sent(rid, ("decode", rank), request)
            sent = time.perf_counter()
            inflight.counted(rid, age)
            counted = time.perf_counter()
            spent["sent"] += sent - begin
            spent["counted"] += counted - sent
            if place:
                tokens[rank] += request.prompt_tokens + age
                continue
            inflight.ended(rid)
            spent["ended"] += time.perf_counter() - counted
    result.keys["sent_us"] = spent["sent"] / number * 1e6
    result.keys["counted_us"] = spent["counted"] / number * 1e6
    result.keys["ended_us"] = spent["ended"] / RANKS * 1e6
    return tokens


def _fleet(tokens: list[int], free: np.ndarray) -> list[WorkerView]:
    from toolkit.policies import Load, WorkerView

    return [
        WorkerView(
            "decode",
            dp_rank=rank,
            load=Load(max(0, SLOTS - int(free[rank])), 0, tokens[rank], 600_000, 0),
            slots=SLOTS,
        )
        for rank in range(RANKS)
    ]


if __name__ == "__main__":
    main()
