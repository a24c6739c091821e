"""Gimbal's engine choice: prefix hits of multi-turn traffic, and full engines beside empty ones.

Real CPU workers: `--engines` prefill workers (two) and one decode worker, late dispatch. `--users`
users at a time hold conversations: each turn's prompt is all that was said before, then something
new, sent some time after the answer. The prompts of users begin differently, so only an engine that
had a user's last turn has that prefix. Every round plays the same conversations once a prefill
policy, in balanced random order, prefix caches emptied before each.

--set hits (default): pools of 16,384 KV tokens. Keys: hit_gimbal, hit_round_robin (cached tokens of
the answers divided by prompt tokens, means over rounds), hit_ratio (gimbal to round robin, with its
95 % interval over paired rounds), ttft_ratio (medians, alike).
--set pressure: pools of 2560 tokens, one user asks for four times as much, and the decode worker
runs four requests at a time, so that finished prefills wait with their KV. The same keys, and
`over`: by policy, the share of looks (every 50 ms) at which an engine was at theta_kv = 0.9 or more
while another was 10 points lower; `highest`: the highest usage that was seen. Readings are a few ms
old, and one request may take an engine from below theta_kv to above it.
More: `arms`, for each policy its hits, TTFT p50 and p99, requests by engine.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments, percentile
from tests.benchmarks.shared.eldr_rounds import say
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.client import Sample, payload, send
from toolkit.bench.errors import BenchError
from toolkit.bench.hosted import hosted
from toolkit.bench.runner import new_session
from toolkit.bench.stats import orders, paired_ratio
from toolkit.bench.synthetic import TokenPool
from toolkit.bench.target import discover, flush_caches, get_json, set_policy
from toolkit.bench.watch import key, requests_per_worker
from toolkit.bench.workload import Item

ARMS = ("gimbal", "round_robin", "shortest_queue", "prefix_affinity")
THETA_KV, THETA_DIFF = 0.9, 0.10
LOOK_S = 0.05
SETS: dict[str, dict[str, Any]] = {
    "hits": {"kv_tokens": 16384, "slots": 32, "heavy": 1},
    "pressure": {"kv_tokens": 2560, "slots": 4, "heavy": 4},
}


@dataclass(frozen=True)
class Turn:
    """`pause_s` after the answer before it."""

    item: Item
    pause_s: float


@dataclass
class Played:
    """One arm in one round."""

    samples: list[Sample]
    engines: dict[str, int]
    looks: list[list[float]] = field(default_factory=list)
    """KV usage of every engine at each look."""

    @property
    def hit_share(self) -> float:
        cached = sum(sample.cached_tokens for sample in self.samples)
        return cached / sum(sample.prompt_len for sample in self.samples)

    def ttft_ms(self, percent: float) -> float:
        return percentile([1e3 * sample.ttft for sample in self.samples], percent)

    @property
    def over(self) -> float:
        """The share of looks with an engine at theta_kv and another THETA_DIFF lower."""
        wrong = [u for u in self.looks if max(u) >= THETA_KV and max(u) - min(u) >= THETA_DIFF]
        return len(wrong) / len(self.looks) if self.looks else 0.0


def recipe(options: Any, folder: Path) -> Path:
    """The deployment as a file."""
    chosen = SETS[options.set]
    sizes = {"kv_tokens": chosen["kv_tokens"], "max_running": 32}
    document = {
        "name": "gimbal",
        "device": "cpu",
        "model": "embedded",
        "prefill": {"replicas": options.engines, **sizes},
        "decode": {"kv_tokens": 16384, "max_running": chosen["slots"], "background": True},
        "router": {
            "dispatch": "late",
            "prefill_policy": "gimbal",
            "decode_policy": "shortest_queue",
            "parked_per_prefill": 24,
            "silent_s": 5,
            "hung_s": 20,
        },
    }
    path = folder / "gimbal.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


def conversations(pool: TokenPool, seed: int, options: Any) -> list[list[Turn]]:
    """Turns by user. What is said is text of the project; an answer in a prompt is not the one that
    was given, whose KV is on the decode worker in any case."""
    source = random.Random(f"turns-{seed}")
    users = []
    for user in range(options.users):
        name, turns = f"user-{seed}-{user}", []
        more = SETS[options.set]["heavy"] if user == 0 else 1
        for talk in range(options.talks * more):
            said = pool.block(f"{name}-{talk}", source.randint(60, 160))
            for turn in range(options.turns):
                item = Item(said, source.randint(4, 16), user=name)
                turns.append(Turn(item, source.expovariate(1 / options.pause) / more))
                said += pool.block(f"{name}-{talk}-{turn}", source.randint(60, 160))
        users.append(turns)
    return users


async def look(session: Any, url: str, played: Played) -> None:
    """Note what prefill workers use of their KV pools, again and again."""
    while True:
        state = await get_json(session, url + "/workers")
        loads = [
            row["load"] for row in (state or {}).get("workers", ()) if row["role"] == "prefill"
        ]
        if loads and all(load and load["total_tokens"] for load in loads):
            played.looks.append([load["used_tokens"] / load["total_tokens"] for load in loads])
        await asyncio.sleep(LOOK_S)


async def play(session: Any, url: str, users: Sequence[Sequence[Turn]], policy: str) -> Played:
    """All users at a time, each one turn after the other."""
    await set_policy(session, url, {"prefill": policy})
    before = await get_json(session, url + "/workers")
    if not await flush_caches(session, [row["url"] for row in before["workers"]]):
        raise BenchError("a worker did not empty its prefix cache")
    played = Played([], {})

    async def user(turns: Sequence[Turn]) -> None:
        for turn in turns:
            await asyncio.sleep(turn.pause_s)
            body = payload("generate", "", turn.item, True)
            sample = await send(session, url, "generate", body, user=turn.item.user)
            if not sample.success:
                raise BenchError(f"{policy}: a request was lost: {sample.error}")
            played.samples.append(sample)

    looking = asyncio.create_task(look(session, url, played))
    try:
        await asyncio.gather(*(user(turns) for turns in users))
    finally:
        looking.cancel()
    after = await get_json(session, url + "/workers")
    by_engine = requests_per_worker(before, after) or {}
    names = {key(row) for row in after["workers"] if row["role"] == "prefill"}
    played.engines = {name: count for name, count in by_engine.items() if name in names}
    return played


async def measure(url: str, options: Any) -> dict[str, list[Played]]:
    """Every arm, round by round."""
    arms = options.arms.split(",")
    found: dict[str, list[Played]] = {arm: [] for arm in arms}
    async with new_session(300.0) as session:
        target = await discover(session, url)
        pool = token_pool(load_tokenizer(target.model_path))
        await play(session, url, conversations(pool, -1, options), arms[0])  # not counted
        for number, order in enumerate(orders(len(arms), options.rounds, 0)):
            users = conversations(pool, number, options)
            for index in order:
                begin = time.perf_counter()
                one = await play(session, url, users, arms[index])
                found[arms[index]].append(one)
                took = time.perf_counter() - begin
                say(
                    f"round {number + 1} {arms[index]}: hits {one.hit_share:.3f}, TTFT p50 "
                    f"{one.ttft_ms(50):.0f} ms, over {one.over:.3f}, {one.engines}, {took:.0f} s"
                )
    return found


def keys(found: dict[str, list[Played]]) -> dict[str, Any]:
    """What the docstring promises."""

    def described(rounds: list[Played]) -> dict[str, Any]:
        engines: Counter[str] = Counter()
        for played in rounds:
            engines.update(played.engines)
        return {
            "hits": statistics.fmean(played.hit_share for played in rounds),
            "ttft_p50_ms": statistics.median(played.ttft_ms(50) for played in rounds),
            "ttft_p99_ms": statistics.median(played.ttft_ms(99) for played in rounds),
            "engines": dict(engines),
        }

    arms = {arm: described(rounds) for arm, rounds in found.items()}
    made: dict[str, Any] = {f"hit_{arm}": arms[arm]["hits"] for arm in arms}
    if {"gimbal", "round_robin"} <= arms.keys():
        ours, other = found["gimbal"], found["round_robin"]
        hits = paired_ratio([p.hit_share for p in ours], [p.hit_share for p in other])
        ttft = paired_ratio([p.ttft_ms(50) for p in ours], [p.ttft_ms(50) for p in other])
        made |= hits.keys("hit_ratio") | ttft.keys("ttft_ratio")
    made["over"] = {arm: statistics.fmean(p.over for p in rs) for arm, rs in found.items()}
    made["highest"] = {
        arm: max((max(usage) for p in rs for usage in p.looks), default=0.0)
        for arm, rs in found.items()
    }
    return made | {"arms": arms}


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(
        __doc__,
        ("--set", {"default": "hits", "choices": SETS}),
        ("--arms", {"default": ",".join(ARMS), "help": "prefill policies, separated by commas"}),
        ("--engines", {"type": int, "default": 2}),
        ("--users", {"type": int, "default": 12}),
        ("--talks", {"type": int, "default": 2, "help": "conversations of each user"}),
        ("--turns", {"type": int, "default": 6, "help": "of each conversation"}),
        ("--pause", {"type": float, "default": 0.3, "help": "mean s between turns of a user"}),
        ("--rounds", {"type": int, "default": 6}),
        ("--url", {"help": "a router that is up"}),
    )
    if options.quick:
        options.rounds, options.talks, options.arms = 1, 1, "gimbal,round_robin"
    result = Result()
    if options.url:
        found = asyncio.run(measure(options.url, options))
    else:
        with (
            tempfile.TemporaryDirectory(prefix="gimbal-") as folder,
            hosted(recipe(options, Path(folder)), Path(folder)) as up,
        ):
            found = asyncio.run(measure(up.router_url, options))
    result.keys |= keys(found) | {"set": options.set, "engines": options.engines}
    result.emit(sum(len(played.samples) for rounds in found.values() for played in rounds))


if __name__ == "__main__":
    main()
