"""Stages and moves between real decode workers, beside balancers that choose once.

One prefill worker and four decode workers on the CPU (`--set attention`: one decode server of two
DP-attention ranks, which take every step together, as in `imbalance`), requests with long-tailed
lengths (see `imbalance`) in a closed loop. One router per arm stands before the same workers; every
round plays the same requests through each of them, one after the other in rotating order, prefix
caches emptied before each. Decode workers compute on two cores, so a step takes longer when others
compute: what is compared is paired, and says nothing of how long a step takes by itself.

Arms: `kv_shortest_queue`; `level`; `level+moves`, which also hands running requests on
(`router.rebalance`); `stages`: those that the exact program makes of a shipped profile's QoE fit
for these lengths, with `kv_shortest_queue` inside of a stage. All are told the answers' limits, or
with `--hidden` nobody is: lengths that turn out otherwise than predicted are what moves are for.

keys: `against`: of each arm, FIGURES over those of `kv_shortest_queue` with 95 % intervals over
rounds, and `level+moves` over `level`; `level_spread_ratio`: the spread of KV tokens (mean over
time of max - min over workers) of `level` over that of `level+moves`; `moves` of each arm by reason
and outcome, stalls; `stages`; `arms`: means.
"""

import asyncio
import json
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments, interval
from tests.benchmarks.shared.eldr_rounds import say
from tests.benchmarks.shared.lengths import workload
from tests.benchmarks.shared.own_router import own_router
from tests.dp_recipe import recipe
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.compare import Arm, compare
from toolkit.bench.ending import FLAG
from toolkit.bench.errors import BenchError
from toolkit.bench.runner import BenchLoad, new_session
from toolkit.bench.target import discover, get_json
from toolkit.launch.plan import Plan
from toolkit.launch.resolve import resolve
from toolkit.launch.running import running
from toolkit.settings.load import load_deployment

MEASURES = (
    "toolkit/policies/stages",
    "toolkit/router/moves",
    "toolkit/decide",
    "patches/move",
)

DECODES = 4
KV_TOKENS = 16384
SLOTS = 16
POLICY = {"stages": "kv_shortest_queue", "level+moves": "level"}
ARMS = ("kv_shortest_queue", "level", "level+moves", "stages")
FIGURES = ("kv_spread", "mean_tpot_ms", "p99_tpot_ms", "p99_ttft_ms", "output_throughput")
Rounds = dict[str, list[dict[str, Any]]]
KEPT = (*FIGURES, "median_tpot_ms", "median_ttft_ms", "kv_mean", "kv_max", "p99_longest_gap_ms")


def deployment() -> dict[str, Any]:
    """The workers; their own router is not started."""
    return {
        "name": "stages-live",
        "device": "cpu",
        "capture_experts": True,
        "prefill": {"replicas": 1, "kv_tokens": 4 * KV_TOKENS, "max_running": 128,
                    "args": {FLAG: True}},
        "decode": {
            "replicas": DECODES, "kv_tokens": KV_TOKENS, "max_running": SLOTS, "background": True,
            "early_place": True, "args": {"num-reserved-decode-tokens": 96, FLAG: True},
        },
        "router": {
            "dispatch": "late", "profile": "embedded", "parked_per_prefill": 64, "silent_s": 15,
            "hung_s": 40,
        },
    }  # fmt: skip


def described(options: Any, folder: Path) -> Path:
    """The deployment's file."""
    if options.set == "attention":
        return recipe("attention", folder)
    file = folder / "deployment.yaml"
    file.write_text(json.dumps(deployment()))
    return file


def planned(answers: list[tuple[int, int]], in_flight: int) -> list[dict[str, Any]]:
    """Stages for these lengths, by the fit of a model of the same size: that of the embedded one
    has a negative term, by which nothing can be planned."""
    from toolkit.policies.stages.qoe import Qoe
    from toolkit.policies.stages.staging import plan_stages
    from toolkit.profile_folder.store import read
    from toolkit.resources import profiles_dir

    latency = read(profiles_dir() / "embedded-plain")[0].latency
    assert latency is not None
    found = plan_stages(answers, DECODES, Qoe.of_profile(latency), in_flight)
    say(f"stages win {found.gain:.1%} by the fit: {found.layout.stages}")
    return [{"upto": s.upto, "replicas": s.replicas} for s in found.layout.stages]


def changes(arm: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """To the router's configuration."""
    told: dict[str, Any] = {"decode_policy": POLICY.get(arm, arm)}
    if arm == "level+moves":
        told["rebalance"] = {}
    if arm == "stages":
        told |= {"stages": stages, "rebalance": {}}
    return told


async def measure(
    urls: dict[str, str], drawn: Any, options: Any
) -> dict[str, list[dict[str, Any]]]:
    """Every arm's metrics, a round each."""
    found: Rounds = {arm: [] for arm in urls}
    load = BenchLoad(concurrency=options.in_flight, hidden=options.hidden)
    async with new_session(600.0) as session:
        targets = {arm: await discover(session, url) for arm, url in urls.items()}
        for number, one in enumerate(drawn.rounds(options.rounds)):
            turn = number % len(urls)
            for arm in (*list(urls)[turn:], *list(urls)[:turn]):
                text = Arm.parse(POLICY.get(arm, arm))
                play = partial(compare, session, targets[arm], [one], load, [text], number)
                done = await play()
                metrics = done.rounds[0][0]
                if "kv_spread" not in metrics:
                    raise BenchError(f"{arm}: the workers' steps were not heard: {done.remarks}")
                found[arm].append(metrics)
                shown = ", ".join(f"{key} {metrics[key]:.4g}" for key in FIGURES)
                say(f"round {number}: {arm}: {shown}")
        for arm, url in urls.items():
            state = await get_json(session, url + "/workers")
            found[arm].append({"moves": (state or {}).get("moves", {})})
    return found


def ratios(rounds: Rounds, arm: str, other: str) -> dict[str, tuple[float, float, float]]:
    """`arm` over `other`: geometric mean over rounds, and its 95 % interval."""
    pairs = list(zip(rounds[arm], rounds[other], strict=True))
    return {key: interval([one[key] / base[key] for one, base in pairs]) for key in FIGURES}


def run(plan: Plan, folder: Path, options: Any) -> tuple[dict[str, Any], int]:
    """All rounds before the workers of `plan`; the benchmark's keys and the number of requests."""
    front = plan.router
    assert front is not None
    pool = token_pool(load_tokenizer(Path(plan.model.path)))
    count = options.rounds * options.requests
    drawn = workload(None, pool, 7, count, (options.prompt, options.answer))
    answers = [(len(item.prompt), item.output_tokens) for item in drawn.items]
    stages = planned(answers, options.in_flight) if "stages" in options.arms else []
    with ExitStack() as stack:
        urls = {}
        for arm in options.arms.split(","):
            own = folder / arm
            own.mkdir()
            told = changes(arm, stages)
            urls[arm], _ = stack.enter_context(own_router(front, own, told))
        rounds = asyncio.run(measure(urls, drawn, options))
    moves = {arm: metrics.pop()["moves"] for arm, metrics in rounds.items()}
    base = "kv_shortest_queue"
    against = {
        f"{arm} / {base}": ratios(rounds, arm, base)
        for arm in rounds
        if arm != base and base in rounds
    }
    keys: dict[str, Any] = {"moves": moves, "stages": stages}
    if {"level", "level+moves"} <= set(rounds):
        against["level+moves / level"] = ratios(rounds, "level+moves", "level")
        keys["level_spread_ratio"] = interval(
            [
                one["kv_spread"] / two["kv_spread"]
                for one, two in zip(rounds["level"], rounds["level+moves"], strict=True)
            ]
        )
    keys["against"] = against
    keys["arms"] = {
        arm: {key: statistics.fmean(one[key] for one in done if key in one) for key in KEPT}
        for arm, done in rounds.items()
    }
    keys |= {"set": options.set, "hidden": options.hidden}
    keys |= {"in_flight": options.in_flight, "rounds": options.rounds}
    return keys, count * len(rounds)


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--set", {"default": "workers", "choices": ("workers", "attention")}),
        ("--hidden", {"action": "store_true", "help": "nobody is told how long answers are"}),
        ("--arms", {"default": ",".join(ARMS)}),
        ("--in-flight", {"type": int, "default": 40}),
        ("--rounds", {"type": int, "default": 4}),
        ("--requests", {"type": int, "default": 120, "help": "of each round"}),
        ("--prompt", {"type": float, "default": 300.0, "help": "mean tokens"}),
        ("--answer", {"type": float, "default": 120.0, "help": "mean tokens"}),
    )
    if options.quick:
        options.rounds, options.requests, options.in_flight = 1, 40, 16
    result = Result()
    with tempfile.TemporaryDirectory(prefix="stages-live-") as name:
        folder = Path(name)
        plan = resolve(load_deployment(described(options, folder)))
        # The arms' routers stand before them instead of their own.
        bare = replace(plan, routers=(), dispatch="concurrent")
        with running(bare, folder / "run"):
            result.keys, samples = run(plan, folder, options)
    for text, found in result.keys["against"].items():
        say(text)
        for key, (mean, low, high) in found.items():
            say(f"  {key:20} {mean:.3g} ({low:.3g} to {high:.3g})")
    result.emit(samples)


if __name__ == "__main__":
    main()
