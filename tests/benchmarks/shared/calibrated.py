"""Real workers held against the simulator: cases, how they are played, costs fitted to calibration
runs."""

import asyncio
import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import percentile
from tests.benchmarks.shared.cost_fit import Fitted, fitted, fitted_plain
from tests.dp_recipe import recipe
from toolkit.bench.arrivals import poisson
from toolkit.bench.runner import BenchLoad, RunOutcome, check, play
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import Target, flush_caches, set_policy
from toolkit.bench.workload import Item, Workload
from toolkit.profile.tap import Heard, Tap

SLOTS = 32
KV_TOKENS = 16_384
TRANSFER_S = 0.007
"""KV of one prompt between two workers of one machine (`tests.benchmarks.late_binding`)."""
CALIBRATION_SEED = 77
CALIBRATED_AT = "power_of_two"


@dataclass(frozen=True)
class Case:
    """One workload and how it is played."""

    name: str
    items: Workload
    in_flight: int | None
    hidden: bool = True
    """Nobody tells the workers how long answers get."""

    @property
    def load(self) -> BenchLoad:
        in_flight = self.in_flight
        return BenchLoad(open_loop=in_flight is None, concurrency=in_flight, hidden=self.hidden)


@dataclass(frozen=True)
class Workers:
    """What is held against the simulator. `fit`: a cost model from what was heard of them."""

    recipe: Callable[[Path], Path]
    policies: tuple[str, ...]
    hidden: bool
    fit: Callable[[Sequence[Heard]], Fitted]


def plain_recipe(folder: Path) -> Path:
    worker = {"replicas": 2, "kv_tokens": KV_TOKENS, "max_running": SLOTS}
    head = {"name": "plain", "device": "cpu", "model": "embedded", "mode": "plain"}
    document = head | {"worker": worker, "router": {"decode_policy": "shortest_queue"}}
    path = folder / "plain.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


SETS = {
    "split": Workers(
        partial(recipe, "attention", slots=SLOTS),
        ("level@0", "shortest_queue", "random"),
        hidden=True,
        fit=partial(fitted, transfer_s=TRANSFER_S),
    ),
    "plain": Workers(
        plain_recipe,
        ("shortest_queue", "least_tokens", "random"),
        hidden=False,
        fit=fitted_plain,
    ),
}


def timed(drawn: Workload, rate: float, seed: int) -> Workload:
    """Its requests at Poisson arrivals of that many a second."""
    arrivals = poisson(rate, len(drawn.items), seed)
    return Workload(
        drawn.name,
        tuple(
            Item(item.prompt, item.output_tokens, at, user=item.user)
            for item, at in zip(drawn.items, arrivals, strict=True)
        ),
    )


def calibration(pool: TokenPool, requests: int, hidden: bool = True) -> list[Case]:
    """Lengths of no workload: even ones between bounds. Those of the two full loops differ, which
    tells what a request costs from what its KV does."""
    source = random.Random(CALIBRATION_SEED)

    def drawn(share: float, prompts: tuple[int, int], answers: tuple[int, int]) -> list[Item]:
        return [
            Item(pool.block(f"calibration-{source.random()}", source.randint(*prompts)), answer)
            for answer in (source.randint(*answers) for _ in range(round(share * requests)))
        ]

    few, slow = drawn(0.12, (20, 600), (20, 160)), drawn(0.24, (20, 600), (20, 160))
    parts: list[tuple[list[Item], int | None]] = [
        (few, 8),
        (drawn(0.32, (20, 120), (60, 160)), 48),
        (drawn(0.32, (100, 450), (20, 120)), 2 * (SLOTS + 8)),
        (list(timed(Workload("slow", tuple(slow)), 2.0, 9).items), None),
    ]
    return [
        Case(f"calibration {n}", Workload(f"calibration {n}", tuple(part)), in_flight, hidden)
        for n, (part, in_flight) in enumerate(parts)
    ]


async def calibrate(
    session: Any, target: Target, up: Any, cal: list[Case], workers: Workers = SETS["split"]
) -> Fitted:
    """The cost model, from calibration runs."""
    urls = [worker.url for worker in up.workers]
    runs: list[Heard] = []
    for case in cal:
        async with Tap(session, urls, events=False) as tap:
            await played(session, target, urls, case, CALIBRATED_AT)
            await asyncio.sleep(1.0)
        runs.append(tap.heard)
    return workers.fit(runs)


async def played(
    session: Any, target: Target, urls: list[str], case: Case, policy: str
) -> RunOutcome:
    """A case on the workers, whose prefix caches are empty. BenchError: it is no result."""
    await set_policy(session, target.url, {"decode": policy})
    await flush_caches(session, urls)
    outcome = await play(session, target, case.items, case.load)
    check(outcome, len(case.items.items))
    return outcome


def client(outcome: RunOutcome) -> dict[str, float]:
    """What the client saw."""
    samples = outcome.samples
    tpots = [(s.latency - s.ttft) / (s.output_len - 1) for s in samples if s.output_len > 1]
    return {
        "throughput": sum(s.output_len for s in samples) / outcome.duration_s,
        "tpot": statistics.fmean(tpots),
    } | ttfts([sample.ttft for sample in samples])


def ttfts(seconds: list[float]) -> dict[str, float]:
    return {"ttft": statistics.fmean(seconds), "ttft_p99": percentile(seconds, 99)}
