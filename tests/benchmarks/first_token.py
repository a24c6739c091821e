"""Whose first token a stream begins with, prefill's or decode's: what that gains and what it costs.

Real workers (1 prefill + 2 decode on the CPU, launch/cpu-demo.yaml), one router, both settings of
`first_token` in turn:

- `identical` of `compared` streams of mixed kinds (`tests/mixed_kinds.py`), six in flight, were the
  same in both settings; `early` of them began with prefill's token.
- `ttft_added_ms` with its 95 % interval: at one in flight, the median paired difference between a
  stream through the router with `first_token: prefill` and the same streamed POST straight to the
  same prefill worker. Prompts are unique, of 40, 160 and 400 tokens; the order alternates.
- `ttft_*`, `ttst_*` (to the second token), `gap_*` (the longest one), `e2e_*`, each `_p50_ms` and
  `_p99_ms` of both settings, in the same rounds; `c4_*`: the same with four in flight.
  `ttft_ratio`, `ttst_ratio`, `gap_ratio`, `e2e_ratio`: prefill / decode, the geometric mean over
  rounds with its 95 % interval.

Stand-ins (no model), the router's own CPU time in alternating rounds, 64 streams of 128 tokens:
`chunk_us_prefill`, `chunk_us_decode` per SSE event of a client, and `cpu_ratio` of the two, the
geometric mean of pairs with its 95 % interval.
"""

import asyncio
import json
import secrets
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.late_binding import LENGTHS, Prompts
from tests.benchmarks.shared.common import (
    RECIPE,
    Result,
    arguments,
    interval,
    median_difference,
    percentile,
)
from tests.benchmarks.shared.load import load
from tests.mixed_kinds import ask, requests, same
from tests.standin.cluster import Cluster
from toolkit.bench.client import PATHS, Sample, StreamTimer, payload, send
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import new_session
from toolkit.bench.target import get_json, set_policy
from toolkit.launch.running import Running

MEASURES = ("toolkit/router", "toolkit/decide", "patches/pd", "patches/tickets.py")

SETTINGS = ("prefill", "decode")
STRAIGHT = "straight"
FLIGHT = 6
"""Streams of mixed kinds at a time."""
PAUSE_S = 0.05
"""Until a worker has forgotten a request that went away."""


async def compare_kinds(url: str, count: int) -> dict[str, Any]:
    """Both settings on the same requests of mixed kinds."""
    asked = requests(count)
    answers: dict[str, list[Any]] = {}
    began = 0
    async with new_session(120.0) as session:
        gate = asyncio.Semaphore(FLIGHT)

        async def one(path: str, body: dict[str, Any]) -> Any:
            async with gate:
                return await ask(session, url, path, body)

        for setting in SETTINGS:
            await set_policy(session, url, {"first_token": setting})
            before = await early(session, url)
            answers[setting] = await asyncio.gather(*(one(path, body) for path, body in asked))
            began += (await early(session, url)) - before
    pairs = zip(answers["prefill"], answers["decode"], strict=True)
    return {
        "identical": sum(same(one, other) for one, other in pairs),
        "compared": len(asked),
        "early": began,
    }


async def early(session: Any, url: str) -> int:
    """Streams so far that began with prefill's token."""
    async with session.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line for line in lines if line.startswith("toolkit_router_early_total ")]
    return int(float(found[0].split()[1])) if found else 0


async def straight(session: Any, worker: dict[str, Any], body: dict[str, Any]) -> Sample:
    """The same POST, streamed, to the prefill worker itself, until its first token is there."""
    sample = Sample(start_time=time.perf_counter())
    timer = StreamTimer(sample)
    meet = {"bootstrap_room": secrets.randbits(62) | 1, "rid": secrets.token_hex(16)}
    meet |= {name: worker[name] for name in ("bootstrap_host", "bootstrap_port")}
    url, key = worker["url"] + PATHS["generate"], {"Authorization": f"Bearer {worker['key']}"}
    async with session.post(url, json=body | meet, headers=key) as response:
        async for data in response.content.iter_any():
            timer.feed(data, time.perf_counter())
            if sample.output_len:
                break
        response.close()  # nobody chooses a decode worker: it is dropped there
    if not sample.output_len:
        raise BenchError("the prefill worker told no first token")
    await asyncio.sleep(PAUSE_S)
    return sample


async def play(
    session: Any, url: str, worker: dict[str, Any], arm: str, bodies: list[dict[str, Any]]
) -> list[Sample]:
    """Send the bodies at once through an arm."""
    if arm == STRAIGHT:
        return [await straight(session, worker, body) for body in bodies]
    await set_policy(session, url, {"first_token": arm})
    samples = await asyncio.gather(*(send(session, url, "generate", body) for body in bodies))
    lost = [sample.error for sample in samples if not sample.success]
    if lost:
        raise BenchError(f"{arm}: {len(lost)} request(s) were lost: {lost[0]}")
    return list(samples)


async def time_tokens(
    deployment: Running, rounds: int, flight: int, arms: tuple[str, ...]
) -> tuple[dict[str, list[list[Sample]]], int]:
    """Rounds of all arms, by arm; and how many requests that were."""
    url, prompts = deployment.router_url, Prompts(seed=100 + flight)
    workers = json.loads((deployment.run_dir / "router.json").read_text())["workers"]
    worker = next(worker for worker in workers if worker["role"] == "prefill")
    worker["key"] = deployment.worker_key
    found: dict[str, list[list[Sample]]] = {arm: [] for arm in arms}
    async with new_session(120.0) as session:
        for number in range(-4, rounds):  # the first ones warm connections
            length = LENGTHS[number % len(LENGTHS)]
            turn = number // len(LENGTHS) % len(arms)
            for arm in (*arms[turn:], *arms[:turn]):
                items = [prompts.item(length) for _ in range(flight)]
                bodies = [payload("generate", "", item, True) for item in items]
                samples = await play(session, url, worker, arm, bodies)
                if number >= 0:
                    found[arm].append(samples)
    return found, rounds * flight * len(arms)


SERIES = {"ttft": "ttft", "ttst": "ttst", "gap": "longest_gap", "e2e": "latency"}
"""Keys of the result, by the fields of a sample."""


def figures(found: dict[str, list[list[Sample]]]) -> dict[str, float]:
    """p50 and p99 of each setting, and the ratios of the two, paired by round."""
    keys: dict[str, float] = {}
    for name, kept in SERIES.items():
        rounds = {
            setting: [[getattr(sample, kept) for sample in group] for group in found[setting]]
            for setting in SETTINGS
        }
        for setting, groups in rounds.items():
            values = [value for group in groups for value in group]
            for percent in (50, 99):
                keys[f"{name}_{setting}_p{percent}_ms"] = percentile(values, percent) * 1e3
        means = [[statistics.fmean(group) for group in rounds[setting]] for setting in SETTINGS]
        ratios = [ours / other for ours, other in zip(*means, strict=True)]
        ratio, low, high = interval(ratios)
        keys |= {f"{name}_ratio": ratio, f"{name}_ratio_low": low, f"{name}_ratio_high": high}
    return keys


def added(found: dict[str, list[list[Sample]]]) -> dict[str, float]:
    """What the router adds to the prefill worker's own first token."""
    ours, theirs = (
        [group[0].ttft * 1e3 for group in found[arm]] for arm in (SETTINGS[0], STRAIGHT)
    )
    value, low, high = median_difference(ours, theirs)
    return {
        "ttft_added_ms": value,
        "ttft_added_ms_low": low,
        "ttft_added_ms_high": high,
        "ttft_straight_p50_ms": statistics.median(theirs),
    }


async def router_cpu(quick: bool) -> dict[str, Any]:
    """CPU us per chunk of the router over stand-ins, in pairs of rounds."""
    pairs, count, tokens = (4, 128, 128) if quick else (12, 384, 128)
    spent: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    config = {"parked_per_prefill": 64}
    args = {"worker_args": ["--step-ms", "10"], "role_args": {"prefill": ["--first-token"]}}
    async with Cluster(config=config, **args) as cluster:  # type: ignore[arg-type]
        assert cluster.router is not None
        process = psutil.Process(cluster.router.pid)
        for pair in range(-1, pairs):
            for setting in SETTINGS if pair % 2 == 0 else SETTINGS[::-1]:
                change = {"first_token": setting}
                async with cluster.session.post(
                    cluster.admin + "/admin/policy", json=change
                ) as answer:
                    assert answer.status == 200
                before = process.cpu_times()
                result = await load(cluster.port, 64, count, tokens)
                after = process.cpu_times()
                used = after.user + after.system - before.user - before.system
                if pair >= 0:
                    spent[setting].append(used / result["chunks"] * 1e6)
    ratios = [a / b for a, b in zip(spent["prefill"], spent["decode"], strict=True)]
    ratio, low, high = interval(ratios)
    medians = {f"chunk_us_{name}": statistics.median(values) for name, values in spent.items()}
    return {**medians, "cpu_ratio": ratio, "cpu_ratio_low": low, "cpu_ratio_high": high}


async def on_workers(deployment: Running, quick: bool) -> tuple[dict[str, Any], int]:
    """All that real workers are needed for; keys and the number of timed requests."""
    keys = await compare_kinds(deployment.router_url, 90 if quick else 500)
    arms = (*SETTINGS, STRAIGHT)
    alone, one = await time_tokens(deployment, 24 if quick else 150, 1, arms)
    together, four = await time_tokens(deployment, 8 if quick else 45, 4, SETTINGS)
    keys |= added(alone) | figures(alone)
    keys |= {f"c4_{name}": value for name, value in figures(together).items()}
    async with new_session(60.0) as session:
        state = await get_json(session, deployment.router_url + "/workers")
    keys["resumed"], keys["retried"] = state["resumed"], state["retried"]
    return keys, one + four


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    result.keys |= asyncio.run(router_cpu(options.quick))
    with (
        tempfile.TemporaryDirectory(prefix="first-token-") as folder,
        hosted(RECIPE, Path(folder)) as deployment,
    ):
        keys, samples = asyncio.run(on_workers(deployment, options.quick))
    result.keys |= keys
    result.emit(samples)


if __name__ == "__main__":
    main()
