"""Decode batches that each policy forms: who runs together, out of simulated fleets."""

import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from tests.benchmarks.eldr_simulated import (
    BASELINES,
    EMBEDDED_USED,
    FEWER,
    SLOTS,
    TASKS,
    WARM_S,
)
from tests.benchmarks.shared.eldr_blend import BATCH, BATCHES, Blend
from tests.benchmarks.shared.eldr_rows import MOST, of_profile
from tests.benchmarks.shared.simulated import BASE, cost
from tests.gpu import routing
from tests.gpu.model import Size
from toolkit.simulate.experts import SimulatedExperts
from toolkit.simulate.fleet import DecodeFleet, Fleet, PrefillFleet, RouterFleet
from toolkit.simulate.simulation import Simulation
from toolkit.simulate.workloads.patterns import with_rows
from toolkit.simulate.workloads.traffic import TrafficModel, generate, mixed

ARMS = ("eldr", *(arm for arm in BASELINES if arm != "random"))
WORKERS = 12
"""Decode workers: as many as there are calibration prompts for."""
RATES = (40.0, 70.0)
"""Requests a second of all workers, with which some 16 and some 45 run on each."""
TOKENS = 16
"""That each row goes through, with experts of their own."""
LOOKED_S = 10.0
"""After the fleet has filled, batches are taken from so many seconds."""


@dataclass(frozen=True)
class Batch:
    """Of one decode worker: the row of each request, and its KV tokens."""

    rate: float
    arm: str
    seed: int
    rows: tuple[int, ...]
    kv_tokens: tuple[int, ...]


def specialised(size: Size) -> SimulatedExperts:
    """The embedded model's requests of four domains in all its languages, as specialised as a model
    of `size` may be: a batch of one domain and language, the finest kind there is, loads as many
    fewer experts than a mixed one as in ELDR's figure 4. Served are those that its profile was not
    fitted to."""
    used = size.num_experts_per_tok / size.num_experts
    blend = Blend(of_profile(), _kinds(), MOST, used / EMBEDDED_USED)
    low, high = 0.0, 1.0
    while high - low > 0.01:
        middle = (low + high) / 2
        experts = blend.chances(middle)
        low, high = (middle, high) if fewer(experts, size) > FEWER["task"] else (low, middle)
    return blend.experts(high)


def _kinds() -> dict[str, float]:
    """Domains and languages of which there are requests to fit to and requests to serve, in equal
    shares."""
    rows, domains = of_profile(), {kind.partition("/")[0] for kind in TASKS}
    sides = (
        {label for (domain, _, label), held in each if domain in domains and bool(held) is served}
        for each in [list(zip(rows.labels, rows.served, strict=True))]
        for served in (False, True)
    )
    both = sorted(set.intersection(*sides))
    return dict.fromkeys(both, 1 / len(both))


def fewer(experts: SimulatedExperts, size: Size) -> float:
    """By how much a batch of one kind loads fewer experts than a mixed one."""
    return 1 - _loaded(experts, size, alike=True) / _loaded(experts, size, alike=False)


def _loaded(experts: SimulatedExperts, size: Size, alike: bool) -> float:
    """Mean distinct experts a layer of batches of one kind, or of all mixed, by draws."""
    source = np.random.default_rng(0)
    labels = np.array([experts.labels[row][2] for row in experts.traffic])
    own = routing.drawn(
        chances(experts), experts.layers, size.num_experts, size.num_experts_per_tok, TOKENS
    )
    kinds, found = np.unique(labels), []
    for _ in range(BATCHES):
        of = np.repeat(source.choice(kinds), BATCH) if alike else source.choice(kinds, BATCH)
        rows = [source.choice(np.flatnonzero(labels == kind)) for kind in of]
        found.append(own.distinct(rows, source.integers(TOKENS, size=BATCH).tolist()))
    return float(np.mean(found))


def chances(experts: SimulatedExperts) -> np.ndarray:
    """[N, l, e]: with which chance a token of each row that is served uses an expert."""
    rows = list(experts.traffic)
    shape = (len(rows), experts.layers, experts.experts)
    found: np.ndarray = -np.expm1(experts.absent[rows].astype(float)).reshape(shape)
    return found


def formed(experts: SimulatedExperts, seeds: int, each: int) -> list[Batch]:
    """`each` batches of every rate, seed and arm; arms have the same requests. Rows are numbered
    as in `chances`."""
    runs = [
        (experts, rate, arm, seed, each) for rate in RATES for seed in range(seeds) for arm in ARMS
    ]
    # Nothing of this process is forked: it may have touched CUDA.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        return [batch for batches in pool.map(_played, runs) for batch in batches]


def _played(run: tuple[SimulatedExperts, float, str, int, int]) -> list[Batch]:
    experts, rate, arm, seed, each = run
    kinds = mixed(_kinds(), BASE)
    traffic = TrafficModel(
        rate=rate, seconds=WARM_S + LOOKED_S, kinds=kinds, longest=(2_000, 1_000)
    )
    fleet = Fleet(
        prefill=PrefillFleet(replicas=WORKERS),
        decode=DecodeFleet(replicas=WORKERS, slots=SLOTS, kv_tokens=1_000_000),
        router=RouterFleet(decode_policy=arm, parked_per_prefill=64),
    )
    requests = with_rows(generate(traffic, seed), experts, seed)
    step = cost(1, experts.layers * experts.experts)
    simulation = Simulation(fleet, step, requests, experts, seed)
    place = {row: number for number, row in enumerate(experts.traffic)}
    source = random.Random(f"batches-{seed}")
    found: list[Batch] = []

    def look(worker: int) -> None:
        group = simulation.groups[worker]
        running = group.ranks[0].running
        if running:
            rows = tuple(place[request.row] for request in running)
            found.append(Batch(rate, arm, seed, rows, tuple(map(group.length_of, running))))

    for _ in range(each):
        at = WARM_S + source.uniform(0, LOOKED_S)
        simulation.events.at(at, look, source.randrange(WORKERS))
    simulation.run(WARM_S + LOOKED_S)
    return found
