"""CascadeInfer's QoE model on a real CPU worker: D_0..D_4 as published and ours, held-out errors.

As in its paper (section 4.1): prompts of lengths in buckets that double ([64, 128) to [2048, 4096)
tokens; quick: to 512), and of each bucket 1, 2, 4, 8 and 16 requests in flight as far as KV holds
them, with short and long answers. Were all answers alike, sum L would be sum I plus a constant
times n, and no data of that kind tells D_2 from D_4. A plain worker (prefill and decode in one, as
an instance of the paper), embedded model. Q of a request is its latency by output token, F_1..F_4
the means over the decode steps of its life: requests, sum I, sum I^2, sum L.

`published`: plain least squares. `ours`: relative residuals, soft-l1, no coefficient below zero
(`toolkit.profile.latency`). Every fourth request judges both; the paper's own error is 8.9 %, a
constant's 64 %. `toolkit.policies.stages` plans by ours.

keys: `published` and `ours`: `D` (seconds), `error` on held-out requests, `negative` (terms);
`constant_error`; `requests`; `grid`: requests of each length and batch size.
"""

import asyncio
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import say
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.client import Sample
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import BenchLoad, check, new_session, play
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import discover, flush_caches
from toolkit.bench.workload import Item, Workload
from toolkit.profile.calibrate import LOADS
from toolkit.profile.latency import fit_qoe
from toolkit.profile.tap import Heard, Tap
from toolkit.profile_folder.schema import LinearFit

MEASURES = ("toolkit/policies/stages", "toolkit/profile")

BUCKETS = (64, 128, 256, 512, 1024, 2048)
"""A bucket's prompts have its number of tokens to twice as many."""
BATCHES = (1, 2, 4, 8, 16)
ANSWERS = "24,96,256"
KV_TOKENS, SLOTS = 32_768, 16
LEAST = 6
"""Requests of a setting."""
WORKER = {
    "name": "qoe",
    "device": "cpu",
    "model": "embedded",
    "mode": "plain",
    "worker": {"kv_tokens": KV_TOKENS, "max_running": SLOTS},
    "router": {"decode_policy": "round_robin"},
}
Setting = tuple[int, int, int]
"""Bucket, requests in flight, answer's tokens."""


def settings(buckets: tuple[int, ...], answers: tuple[int, ...]) -> list[Setting]:
    """All that KV has room for."""
    return [
        (bucket, batch, answer)
        for bucket in buckets
        for batch in BATCHES
        for answer in answers
        if batch * (2 * bucket + answer) <= KV_TOKENS
    ]


def workload(setting: Setting, pool: TokenPool, seed: int) -> Workload:
    """Prompts of their own, no two with a beginning in common."""
    bucket, batch, answer = setting
    source = random.Random(f"qoe-{seed}-{setting}")
    items = tuple(
        Item(
            pool.block(f"qoe-{seed}-{setting}-{n}", source.randint(bucket, 2 * bucket - 1)),
            source.randint(round(0.8 * answer), round(1.2 * answer)),
        )
        for n in range(max(LEAST, 2 * batch))
    )
    return Workload(f"qoe-{setting}", items)


def loads(samples: list[Sample], heard: Heard) -> np.ndarray:
    """[N, 5]: seconds by output token, and the mean F_1..F_4 of the decode steps meanwhile; NaN
    where none was heard."""
    at = {name: place for place, name in enumerate(heard.columns)}
    parts = []
    for rank, blocks in heard.steps.items():
        rows = np.concatenate(blocks)
        rows = rows[rows[:, at["decode"]] == 1]
        ends = rows[:, at["end"]] + heard.behind.get(rank, 0.0)
        parts.append(np.column_stack([ends, rows[:, [at[name] for name in LOADS]]]))
    steps = np.concatenate(parts)
    found = np.full((len(samples), 5), np.nan)
    for row, sample in zip(found, samples, strict=True):
        end = sample.start_time + sample.latency
        mine = steps[(steps[:, 0] > sample.start_time) & (steps[:, 0] <= end + 0.01)]
        if len(mine):
            row[:] = [sample.latency / sample.output_len, *mine[:, 1:].mean(axis=0)]
    return found


async def measure(
    url: str, worker: str, order: list[Setting], seed: int
) -> tuple[np.ndarray, dict[str, int]]:
    """Rows of all requests in random order of settings, and how many of each setting."""
    grid: Counter[str] = Counter()
    found = []
    random.Random(seed).shuffle(order)
    async with new_session(600.0) as session:
        target = await discover(session, url)
        pool = token_pool(load_tokenizer(target.model_path))
        await play(session, target, workload((64, 16, 24), pool, -1), BenchLoad(concurrency=16))
        for number, setting in enumerate(order):
            await flush_caches(session, [worker])
            items = workload(setting, pool, seed)
            async with Tap(session, [worker], events=False) as tap:
                outcome = await play(session, target, items, BenchLoad(concurrency=setting[1]))
                await asyncio.sleep(0.5)
            check(outcome, len(items))
            rows = loads(list(outcome.samples), tap.heard)
            found.append(rows[np.isfinite(rows).all(axis=1)])
            grid[f"{setting[0]}x{setting[1]}"] += len(found[-1])
            say(f"{number + 1}/{len(order)} {setting}: {outcome.duration_s:.1f} s")
    return np.concatenate(found), dict(sorted(grid.items()))


def told(fit: LinearFit | None) -> dict[str, Any]:
    """A fit's keys."""
    if fit is None:
        return {"error": float("nan")}
    return {
        "D": [f"{value:.4g}" for value in fit.coefficients],
        "error": fit.held_out_error,
        "negative": [t for t, c in zip(fit.terms, fit.coefficients, strict=True) if c < 0],
    }


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--seed", {"type": int, "default": 0}),
        ("--answers", {"default": ANSWERS, "help": "mean tokens, with commas between"}),
    )
    answers = tuple(int(each) for each in options.answers.split(","))
    result = Result()
    with tempfile.TemporaryDirectory(prefix="qoe-") as folder:
        path = Path(folder) / "qoe.yaml"
        path.write_text(json.dumps(WORKER))  # JSON is YAML
        with hosted(path, Path(folder)) as up:
            buckets = BUCKETS[:3] if options.quick else BUCKETS
            rows, grid = asyncio.run(
                measure(up.router_url, up.workers[0].url, settings(buckets, answers), options.seed)
            )
    shuffled = np.random.default_rng(0).permutation(len(rows))
    ours, published = fit_qoe(rows[shuffled])
    result.keys |= {"published": told(published), "ours": told(ours)}
    result.keys["constant_error"] = float("nan") if ours is None else ours.constant_error
    result.keys |= {"paper_error": 0.089, "grid": grid}
    result.emit(len(rows))


if __name__ == "__main__":
    main()
