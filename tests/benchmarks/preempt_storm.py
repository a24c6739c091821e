"""Preemption in a storm: clients that go away, and workers that are killed, beside many requests.

Two prefill workers that stop best-effort prompts, and two decode workers, on the CPU. Prompts of
`PROMPTS` (best-effort, 500 to 3,000 tokens; latency-sensitive, 30 to 200) are asked in turn, one in
five latency-sensitive, 8 at a time; prefix caches are off, so each is prefilled anew. One client in
ten goes away within a second. Every `--every` seconds a worker is killed (SIGKILL, its HTTP server
or its scheduler, prefill or decode), once the last one is back.

keys: `requests`, `gone` (whose client went away), `kills`; `lost` (an error or too few tokens),
`different` (other tokens than undisturbed), `stopped` (pauses of best-effort prompts, by the
workers' traces), `leaked` (KV tokens that workers still hold when all is over, and requests in
flight by the router).
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.eldr_rounds import say
from tests.benchmarks.shared.preempt_arms import BE, LS, SHORT
from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.workers import settled, state, victim
from toolkit.contract.headers import CLASS
from toolkit.contract.variables import TRACE_VARIABLE
from toolkit.launch.running import Running

MEASURES = (
    "toolkit/policies/preemption",
    "patches/preempt",
    "patches/classes.py",
    "toolkit/router",
    "toolkit/decide",
)

PROMPTS = 40
LONG = (500, 3000)
TOKENS = 8
IN_FLIGHT = 8
Prompt = tuple[str, list[int]]
"""A class and token ids."""


def described(folder: Path) -> dict[str, Any]:
    role: dict[str, Any] = {"replicas": 2, "kv_tokens": 32768, "max_running": 16}
    args = {"chunked-prefill-size": 4096, "disable-radix-cache": True}
    env = {TRACE_VARIABLE: str(folder / "batches")}
    prefill = {**role, "preempt": "strict", "args": args, "env": env}
    router = {"kind": "toolkit", "classes": {}}
    modes = {"device": "cpu", "mode": "pd"}
    return {"name": "preempt-storm", **modes, "prefill": prefill, "decode": role, "router": router}


def prompts() -> list[Prompt]:
    source = random.Random("preempt-storm")
    found = []
    for number in range(PROMPTS):
        kind, lengths = (LS, SHORT) if number % 5 == 0 else (BE, LONG)
        found.append((kind.value, calls.prompt(f"storm-{number}", source.randint(*lengths))))
    return found


async def ask(url: str, prompt: Prompt) -> calls.Answer:
    """As a client that comes back when it is told to."""
    kind, ids = prompt
    async with calls.session() as http:
        http.headers[CLASS] = kind
        while True:
            answer = await calls.generate(http, url, calls.greedy(ids, TOKENS, stream=True))
            if answer.retry_after is None:
                return answer
            await asyncio.sleep(float(answer.retry_after))


class Storm:
    """Asks, goes away, kills, and counts."""

    def __init__(self, up: Running, expected: list[list[int]], asked: list[Prompt]) -> None:
        self.up, self.expected, self.asked = up, expected, asked
        self.sent = self.gone = self.lost = self.different = self.kills = 0

    async def caller(self, numbers: Any, source: random.Random) -> None:
        for number in numbers:
            self.sent += 1
            which = number % len(self.asked)
            asking = ask(self.up.router_url, self.asked[which])
            if source.random() < 0.1:
                self.gone += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asking, source.uniform(0.0, 1.0))
                continue
            answer = await asking
            if answer.error or len(answer.ids) != TOKENS:
                self.lost += 1
                say(f"lost: {answer.error or answer.ids}")
            elif answer.ids != self.expected[which]:
                self.different += 1

    async def killer(self, every_s: float, source: random.Random) -> None:
        turns = ["prefill-0", "decode-0", "prefill-1", "decode-1"]
        while True:
            await asyncio.sleep(every_s)
            name = turns[self.kills % len(turns)]
            process = source.choice(("server", "scheduler"))
            restarts = self.up.worker(name).restarts
            os.kill(victim(self.up, name, process), signal.SIGKILL)
            self.kills += 1
            say(f"{self.sent} sent: killed {name} ({process})")
            await asyncio.to_thread(self.up.wait_ready, name, restarts + 1)


async def main_part(up: Running, requests: int, every_s: float) -> Storm:
    asked = prompts()
    expected = [(await ask(up.router_url, prompt)).ids for prompt in asked]
    storm = Storm(up, expected, asked)
    numbers = iter(range(requests))
    killing = asyncio.create_task(storm.killer(every_s, random.Random("kills")))
    await asyncio.gather(
        *(storm.caller(numbers, random.Random(f"caller-{n}")) for n in range(IN_FLIGHT))
    )
    killing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await killing
    await settled(up)
    return storm


async def leaked(url: str) -> int:
    """KV tokens and requests that are still on the books."""
    rows = (await state(url))["workers"]
    held = [row["load"]["used_tokens"] + row["load"]["running"] for row in rows if row["load"]]
    return int(sum(held) + sum(row["inflight"] for row in rows))


async def none_leaked(url: str) -> bool:
    return not await leaked(url)


def main() -> None:
    """Run it and print its line."""
    options = arguments(
        __doc__,
        ("--requests", {"type": int, "default": 2000}),
        ("--every", {"type": float, "default": 20.0, "help": "seconds between kills"}),
    )
    if options.quick:
        options.requests, options.every = 80, 5.0
    result = Result()
    with tempfile.TemporaryDirectory(prefix="preempt-storm-") as name:
        folder = Path(name)
        with deployed(described(folder), folder) as up:
            storm = asyncio.run(main_part(up, options.requests, options.every))
            with contextlib.suppress(AssertionError):
                asyncio.run(calls.until(partial(none_leaked, up.router_url), "nothing is left"))
            left = asyncio.run(leaked(up.router_url))
        lines = [line for file in folder.glob("batches.*") for line in file.read_text().split("\n")]
    whole = [json.loads(line) for line in lines if line.endswith("}")]  # a kill cuts the last one
    result.keys |= {
        "requests": storm.sent,
        "gone": storm.gone,
        "kills": storm.kills,
        "lost": storm.lost,
        "different": storm.different,
        "stopped": sum(len(batch["pauses"]) for batch in whole),
        "leaked": left,
    }
    result.emit(storm.sent)


if __name__ == "__main__":
    main()
