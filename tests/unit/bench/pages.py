"""Reports as `toolkit bench` makes them, of made-up figures, for what is written about them."""

import random
from typing import Any

from toolkit.bench.class_ratios import doubts
from toolkit.bench.client import Sample
from toolkit.bench.compare import Arm, Comparison
from toolkit.bench.groups import MOST
from toolkit.bench.knee import KneeSearch
from toolkit.bench.metrics import summarise
from toolkit.bench.session import Report
from toolkit.bench.swept import Curve, Point, Range, Swept

NAMES = ("eldr", "shortest_queue", "late:gimbal@0.9:0.1+composed@eldr+br0")


def metrics(factor: float, source: random.Random) -> dict[str, Any]:
    """One play: times and experts in proportion to `factor`, with some noise."""

    def about(value: float) -> float:
        return value * factor * source.uniform(0.96, 1.04)

    samples = []
    for _ in range(24):
        first, each = about(0.35), about(0.02)
        samples.append(
            Sample(success=True, ttft=first, itl=[each] * 31, latency=first + 31 * each,
                   output_len=32, prompt_len=120)
        )  # fmt: skip
    found = summarise(samples, about(4.0))
    found |= {"worker_clock": "cpu", "decode_steps": 400, "distinct_experts": about(14.0)}
    found |= {"mean_batch": 5.8, "mean_kv_tokens": 700.0, "kv_spread": about(310.0)}
    found |= {"kv_max": 910.0, "kv_mean": 700.0, "kv_min": 600.0, "barrier_share": 0.2}
    for name in ("worker_tpot", "worker_tpot_wall", "step", "step_wall"):
        for stat in ("mean", "median", "p90", "p99"):
            found[f"{stat}_{name}_ms"] = about(9.0)
    return found


def compared(arms: int = 2, rounds: int = 10, drift: float = 1.0) -> Report:
    """The first arm is faster by a tenth; the last round is `drift` times slower than the first."""
    source = random.Random(7)
    played = [
        [
            metrics(factor * drift ** (number / max(1, rounds - 1)), source)
            for number in range(rounds)
        ]
        for factor in (0.9, 1.0, 1.02)[:arms]
    ]
    comparison = Comparison([Arm.parse(name) for name in NAMES[:arms]], played)
    comparison.conclude()
    return Report(document() | {"comparison": comparison.as_json()}, comparison=comparison)


def by_class() -> Report:
    """The first arm has half the TTFT of what is in a hurry and a fifth more of the rest; in one
    round nothing of the rest kept to the SLO."""
    source = random.Random(8)
    played = []
    for urgent, other in ((0.5, 1.2), (1.0, 1.0)):
        rounds = []
        for number in range(6):
            found = metrics(1.0, source)
            found["classes"] = {
                "latency_sensitive": metrics(urgent, source) | {"slo_attainment": 1 - urgent / 2},
                "best_effort": metrics(other, source) | {"slo_attainment": 0.1 * min(number, 1)},
            }
            rounds.append(found)
        played.append(rounds)
    comparison = Comparison([Arm.parse(name) for name in NAMES[:2]], played)
    comparison.conclude()
    comparison.remarks += doubts(comparison.rounds)
    made = document() | {"comparison": comparison.as_json()}
    return Report(made, comparison=comparison, remarks=comparison.remarks)


def single() -> Report:
    source = random.Random(9)
    found = metrics(1.0, source)
    times = [source.lognormvariate(-1.2, 0.5) for _ in range(64)]
    more = {"ttfts": times, "e2e_latencies": [3 * each for each in times], "output_lens": [32] * 64}
    workers = {f"decode-{n}": found | {"finished": 12} for n in range(2)}
    remarks = ["a worker did not answer within 5 s"]
    counts = {"prefill-0": 24, "decode-0": 12, "decode-1": 12}
    return Report(document() | more, found, counts, workers, remarks=remarks)


def talked() -> Report:
    """Conversations: turns, classes, and what decode workers held."""
    source = random.Random(11)
    report = single()
    turns = []
    for turn in range(1, MOST + 1):
        more = {"median_ttft_ms": 80 + 6 * turn, "p90_ttft_ms": 140 + 9 * turn,
                "cache_hit_rate_pct": 96 * (1 - 1 / turn)}  # fmt: skip
        turns.append({"turn": turn, "and_later": turn == MOST} | metrics(1.0, source) | more)
    names = [f"decode-{number}" for number in range(4)]
    report.turns = turns
    kinds = {"": metrics(1.0, source), "batch": metrics(2.0, source)}
    report.groups = {"class": {k: v | {"slo_attainment": None} for k, v in kinds.items()}}
    report.document["decode_loads"] = {
        "seconds": [0.25 + 0.5 * n for n in range(120)],
        "workers": {
            name: {
                "requests": [source.uniform(4, 9) for _ in range(120)],
                "kv_tokens": [source.uniform(500, 1500) + 3 * n for n in range(120)],
            }
            for name in names
        },
    }
    return report


def several() -> Report:
    """Three runs of one load."""
    source = random.Random(12)
    report = single()
    report.runs = [metrics(factor, source) for factor in (0.9, 1.0, 1.1)]
    report.decode = report.workers = None
    return report


def swept(arms: int = 2, runs: int = 3) -> Report:
    """The first policy holds half as much again as the second."""
    source = random.Random(13)
    asked = Range(0.5, 16, runs)
    curves = []
    for name, most in zip(NAMES[:arms], (6.1, 4.0, 4.3), strict=False):
        curve = Curve(Arm.parse(name), asked, KneeSearch(0.5, 16))
        while (rate := curve.search.next()) is not None:
            point = Point(rate)
            for _ in range(runs):
                share = min(1.0, max(0.0, 0.9 + (most - rate) * source.uniform(0.18, 0.22)))
                play = metrics(1 + (rate / most) ** 3, source)
                play |= {"goodput_fraction": share, "goodput": share * rate * 0.97}
                point.runs.append(play)
            curve.found.append(point)
            curve.search.tell(rate, point.share >= asked.attainment)
        curves.append(curve)
    found = Swept(asked, curves)
    return Report(document() | {"sweep": found.as_json()}, swept=found)


def document() -> dict[str, Any]:
    """What `session.describe` says."""
    return {
        "date": "2026-01-31T12:00:00Z",
        "versions": {"toolkit": "0.1", "python": "3.11.9", "sglang": "0.5.21", "torch": None},
        "machine": {"cpus": 2, "load_average": 1.25, "system": "Linux-6.1-x86_64"},
        "url": "http://127.0.0.1:31000",
        "model": "embedded",
        "workload": {"name": "prompts domains=all", "hash": "0123456789abcdef", "requests": 480},
        "source": {"num_requests": 480, "seed": 0, "max_tokens": 32, "trace": "None"},
        "load": {"endpoint": "generate", "open_loop": False, "concurrency": 24, "label": None},
        "slo": {"ttft_ms": None, "tpot_ms": None},
        "policies": {"prefill": "round_robin", "decode": "eldr"},
    }
