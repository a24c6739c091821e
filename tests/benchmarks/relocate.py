"""Experts moved under load on real CPU workers, and a traffic model against an engine's counts.

**moved**: one prefill worker and a decode server (tp 2, ep 2, dp 2, DP attention, 4 redundant
experts) under 8 requests at a time. 20 orders (5 with `--quick`) of `relocation.steps`, as large as
the relocator would make them (`Pace`), go to the decode server; each answer is compared, token by
token, with the model's in transformers.

**traffic**: a plain server (tp 2, ep 2) with experts placed at random counts, with SGLang's own
recorder, how many tokens each GPU's experts get in each layer; `dispatch.picks` predicts it from
the experts that the same tokens were routed to. Without replicas it must be exact. The server runs
without overlap: with it a step more is run for a request that has ended, and counted.

**settle**: synthetic traffic (4 layers x 64 experts, 8 GPUs, 8 redundant) whose text changes at
once: maps decided until the busiest GPU is within 5 % of a fresh fit on unseen tokens, and maps
decided in 10,000 steps of traffic that stays. No worker in it.

keys: `moves` orders, `different` answers that are not the model's, `lost` ones; `stall_ms` the
longest that an order held the server up, `stall_p50_ms`; `step_ms` the median decode step;
`transfer_ms` what one expert's transfer took (orders of two slots, halved, median); `slots`
written; `bytes` between ranks; `traffic_error_percent` without replicas and
`traffic_replicas_error_percent`; `settle_rounds`, `settle_balance_ratio` to the fresh fit's, and
`idle_maps`.
"""

import asyncio
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.shared.common import Result, arguments
from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.outputs import PROMPTS, generate, post
from tests.e2e.reference import Reference
from tests.e2e.worker_process import TWO_RANKS, worker
from tests.synthetic_routing import Recipe, token_ids
from toolkit.embedded import model_path
from toolkit.launch.running import Running
from toolkit.placement import Placement, Topology, judge, place
from toolkit.placement.dispatch import picks
from toolkit.placement.online import Cost, Ids, Online, RelocationSettings
from toolkit.placement.relocation import steps
from toolkit.placement.traffic import count
from toolkit.profile.measure import new_session
from toolkit.profile.tap import Tap
from toolkit.relocate.pace import Pace
from toolkit.relocate.server import Server

MEASURES = ("toolkit/relocate", "toolkit/placement", "patches/relocate")

TOKENS, REDUNDANT = 48, 4


def described() -> dict[str, Any]:
    role = {"kv_tokens": 8192, "max_running": 16}
    ranks = {"tp": 2, "dp": 2, "ep": 2, "dp_attention": True, "relocate": True}
    decode = {**role, **ranks, "args": {"ep-num-redundant-experts": REDUNDANT}}
    return {
        "name": "relocate", "device": "cpu", "model": "embedded", "mode": "pd", "prefill": role,
        "decode": decode, "router": {"decode_policy": "br0"},
    }  # fmt: skip


async def moved(up: Running, orders: int, wanted: list[list[int]]) -> dict[str, Any]:
    (url,) = [worker.url for worker in up.workers if worker.role == "decode"]
    bodies = [calls.greedy(calls.prompt(f"relocate-{n}", 40), TOKENS, True) for n in range(24)]
    answers: list[calls.Answer] = []
    serving = True

    async def load() -> None:
        while serving:
            answers.extend(await calls.all_of(up.router_url, bodies, 8))

    pace, taken, slots, sent, pairs = Pace(), [], 0, 0, []
    async with new_session() as session, Tap(session, [url], 0.0, events=False) as tap:
        server = Server(session, url)
        loading = asyncio.create_task(load())
        await asyncio.sleep(3)
        step_s = 0.05
        for number in range(orders):
            present = await server.present()
            rng = np.random.default_rng(number)
            table = rng.permuted(present.placement.physical_to_logical, axis=1)
            target = Placement(table, present.placement.experts, present.placement.gpus)
            most = 2 if number < 3 else pace.slots(step_s)
            step = steps(present.placement, target, present.topology, most)[0]
            done = await server.order(present, step)
            pace.took(done.seconds, step.copies.written, done.bytes)
            taken.append(done.seconds)
            slots, sent = slots + step.copies.written, sent + done.bytes
            if step.copies.written == 2 and done.bytes:
                pairs.append(done.seconds / 2)
            await asyncio.sleep(max(0.2, 10 * done.seconds))
            column = tap.heard.columns.index("seconds")
            rows = np.concatenate([block for each in tap.heard.steps.values() for block in each])
            decode = rows[rows[:, tap.heard.columns.index("decode")] == 1]
            step_s = float(np.median(decode[:, column]))
        serving = False
        await loading
    given = [answer.ids for answer in answers]
    return {
        "moves": len(taken),
        "different": sum(a != b for a, b in zip(given, wanted * len(given), strict=False)),
        "lost": sum(bool(answer.error) for answer in answers),
        "answers": len(answers),
        "stall_ms": 1e3 * max(taken),
        "stall_p50_ms": 1e3 * statistics.median(taken),
        "step_ms": 1e3 * step_s,
        "transfer_ms": 1e3 * statistics.median(pairs) if pairs else None,
        "slots": slots,
        "bytes": sent,
    }


def traffic(redundant: int) -> float:
    """Percent of (token, expert) pairs that a GPU gets and was not predicted to."""
    import torch

    config = json.loads((model_path() / "config.json").read_text())
    experts, layers = config["num_experts"], config["num_hidden_layers"]
    rng = np.random.default_rng(redundant)
    rows = [
        rng.permutation(np.r_[:experts, rng.choice(experts, redundant, replace=False)])
        for _ in range(layers)
    ]
    placed, topology = Placement(np.array(rows), experts, 2), Topology(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        placed.save(folder / "map.json")
        flags = (
            *("--tp-size", "2", "--ep-size", "2", "--disable-radix-cache"),
            "--disable-overlap-schedule",
            *("--init-expert-location", str(folder / "map.json")),
            *("--ep-num-redundant-experts", str(redundant), "--enable-return-routed-experts"),
            *("--expert-distribution-recorder-mode", "per_pass"),
        )
        recorder = {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": name}
        with worker(*flags, log=folder / "worker.log", **TWO_RANKS, **recorder) as url:
            ids = asyncio.run(recorded(url))
        (dump,) = [path for path in folder.glob("*.pt") if path.stem.endswith("_0")]
        records = torch.load(dump, weights_only=True)["records"]
    counted = sum(record["global_physical_count"].numpy() for record in records)
    by_gpu = counted.reshape(layers, 2, -1).sum(axis=2)
    load = count(ids, experts, windows=1).load
    shares = list(picks(placed, topology, "row"))
    predicted = np.mean([np.einsum("le,leg->lg", load, share) for share in shares], axis=0)
    return float(100 * np.abs(by_gpu - predicted).sum() / 2 / by_gpu.sum())


async def recorded(url: str) -> NDArray[np.integer]:
    """What the engine routed while it counted: every token that it ran."""
    async with new_session() as session, Tap(session, [url], 1.0, events=False) as tap:
        await asyncio.to_thread(post, url, "/start_expert_distribution_record")
        with ThreadPoolExecutor(4) as pool:
            loop = asyncio.get_running_loop()
            asked = [loop.run_in_executor(pool, generate, url, text) for text in PROMPTS]
            await asyncio.gather(*asked)
        await asyncio.to_thread(post, url, "/stop_expert_distribution_record")
        await asyncio.to_thread(post, url, "/dump_expert_distribution_record")
        deadline = time.monotonic() + 30
        while len(tap.heard.experts) < len(PROMPTS) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        phases = [rows.ids for each in tap.heard.experts.values() for rows in each.values()]
    return np.concatenate(phases)


def settle() -> dict[str, float]:
    """Maps until traffic that changed is served evenly, and maps for traffic that stays."""
    length, topology = 64, Topology(8, 4)
    recipe = Recipe(layers=4, experts=64, top_k=4, families=4, document=length)
    cost = Cost(1e6, 1e9, 0.001, 8)

    def stream(seed: int, requests: int) -> list[Ids]:
        ids = token_ids(requests * length, recipe, seed)
        return list(ids.reshape(requests, length, recipe.layers, recipe.top_k))

    def fresh(requests: list[Ids]) -> Placement:
        return place("joint", count(np.concatenate(requests), recipe.experts), topology, 8)

    online = Online(topology, RelocationSettings())

    def run(now: Placement, requests: list[Ids]) -> tuple[Placement, int]:
        maps = 0
        for first in range(0, len(requests), 8):
            online.observe(requests[first : first + 8], 80)
            cause = online.due(now)
            if cause is not None:
                decision = online.decide(now, 0.02, cost, cause)
                if decision.move and decision.target is not None:
                    now, maps = decision.target, maps + 1
        return now, maps

    old, new = stream(1, 1600), stream(2, 1000)
    now, idle = run(fresh(old[:600]), old[600:])
    now, rounds = run(now, new[:700])
    unseen = np.concatenate(new[700:])
    ours = judge(now, topology, unseen).balance.mean()
    best = judge(fresh(new[:700]), topology, unseen).balance.mean()
    return {"idle_maps": idle, "settle_rounds": rounds, "settle_balance_ratio": float(ours / best)}


def main() -> None:
    """Run it and print its line."""
    options = arguments(__doc__)
    result = Result()
    prompts = [calls.prompt(f"relocate-{n}", 40) for n in range(24)]
    reference = Reference()
    wanted = [reference.greedy(prompt, TOKENS) for prompt in prompts]
    with tempfile.TemporaryDirectory() as folder, deployed(described(), Path(folder)) as up:
        result.keys |= asyncio.run(moved(up, 5 if options.quick else 20, wanted))
    if not options.quick:
        result.keys["traffic_error_percent"] = traffic(0)
        result.keys["traffic_replicas_error_percent"] = traffic(REDUNDANT)
    result.keys |= settle()
    result.emit(result.keys["moves"])


if __name__ == "__main__":
    main()
