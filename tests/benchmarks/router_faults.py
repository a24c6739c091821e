"""A router with two relays is hurt while 1,000 streams run: what is lost, and for how long.

Stand-in workers (`tests/standin`), each stream on a connection of its own, every answer compared
with the stand-ins' function of its prompt. Each fault has a router of its own:

- `relay`, `decider`, `both`: SIGKILL. `stopped`: the decider process stands still for 3 s.
- `router`: SIGKILL of all processes of one of two routers over the same workers, each with two
  relays and half of the streams; new requests come to the other one.
- `upgrade`: none of these: the router becomes new code (`toolkit upgrade router`).

Of each: `lost`: streams that did not come to their end; `own`: those that a killed relay or router
had; `wrong`: others than they should be. `recovery_ms`: from the fault until a new request has its
first token, asked for again and again; `refused`: how many of these were refused meanwhile,
`broken`: how many broke (they were at the killed relay). Of `upgrade`, `recovery_ms` is the longest
time that a new request waited for its first token, from the order on, and `took_ms` the time until
the new processes alone took requests. `leaked`: requests that the router or a worker still counts
afterwards. Over `runs` runs: sums, and of times the largest.

Nothing is asserted. Run as `python -m tests.benchmarks.router_faults [--quick]`.
"""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import aiohttp
import psutil

from tests.benchmarks.shared.common import Result, arguments
from tests.standin.cluster import Cluster
from tests.standin.relays import (
    DECIDER,
    clients_of,
    order_upgrade,
    processes,
    until_upgrade,
)
from tests.standin.streams import seed_of, word

MEASURES = ("toolkit/router", "toolkit/decide")

FAULTS = ("relay", "decider", "both", "stopped", "router", "upgrade")
PATH = "/v1/completions"
STEP_MS, TOKENS = 200, 60
STOPPED_S = 3.0
PROBE_S = 0.02


@dataclass
class Seen:
    """What became of the streams of one run, and of the requests that came after the fault."""

    lost: int = 0
    own: int = 0
    wrong: int = 0
    refused: int = 0
    broken: int = 0
    leaked: int = 0
    recovery_ms: float = 0.0
    took_ms: float = 0.0


async def stream(url: str, number: int, ports: dict[int, int]) -> str | None:
    """Its text; None: it was lost. `ports`: of its connection."""
    body = {"prompt": f"prompt {number}", "max_tokens": TOKENS, "stream": True}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as http,
            http.post(url + PATH, json=body) as answer,
        ):
            assert answer.connection is not None and answer.connection.transport is not None
            ports[number] = answer.connection.transport.get_extra_info("sockname")[1]
            raw = await answer.read()
    except aiohttp.ClientError:
        return None
    if answer.status != 200 or not raw.endswith(b"data: [DONE]\n\n") or b'"error"' in raw:
        return None
    import orjson

    events = [part[6:] for part in raw.split(b"\n\n") if part][:-1]
    return "".join(orjson.loads(each)["choices"][0]["text"] for each in events)


async def recovery(cluster: Cluster, begun: float, seen: Seen) -> None:
    """Ask until a new request has its first token."""
    body = {"prompt": "probe", "max_tokens": 1, "stream": True}
    while True:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as http,
                http.post(cluster.url + PATH, json=body) as answer,
            ):
                await answer.content.readany()
                if answer.status == 200:
                    took_ms = (perf_counter() - begun) * 1e3
                    seen.recovery_ms = max(seen.recovery_ms, took_ms)
                    return
                seen.refused += 1
        except aiohttp.ClientError:
            seen.broken += 1
        await asyncio.sleep(PROBE_S)


async def upgraded(cluster: Cluster, seen: Seen) -> None:
    """Have it upgraded, and ask for new requests all the while."""
    begun = perf_counter()
    await order_upgrade(cluster)
    over = asyncio.create_task(until_upgrade(cluster, "ending", "done", "failed"))
    while not over.done():
        await recovery(cluster, perf_counter(), seen)
        await asyncio.sleep(PROBE_S)
    assert (await over)["phase"] != "failed", await over
    seen.took_ms = (perf_counter() - begun) * 1e3
    await recovery(cluster, perf_counter(), seen)


async def beside(cluster: Cluster, stack: AsyncExitStack) -> Cluster:
    """Another router over the same workers, and each knows of the other."""
    other = await stack.enter_async_context(Cluster(config=cluster.config, beside=cluster))
    for each in (cluster, other):
        await each.until(lambda state: {row.get("routers") for row in state["workers"]} == {2})
    return other


def end(router: Cluster) -> None:
    """As if its host went: all of its processes at once."""
    assert router.router is not None
    for process in (*processes(router).values(), psutil.Process(router.router.pid)):
        process.kill()
    router.router.wait()


async def hurt(cluster: Cluster, fault: str) -> None:
    victims = {"relay": ["tk-relay-1"], "decider": [DECIDER], "both": ["tk-relay-1", DECIDER],
               "stopped": []}[fault]  # fmt: skip
    for name in victims:
        os.kill(processes(cluster)[name].pid, signal.SIGKILL)
    if fault == "stopped":
        pid = processes(cluster)[DECIDER].pid
        os.kill(pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(STOPPED_S, os.kill, pid, signal.SIGCONT)


async def run(fault: str, streams: int) -> Seen:
    config = {"relays": 2, "max_inflight": 2 * streams, "parked_per_prefill": 512,
              "rerun_wait_s": 20, "no_worker_wait_s": 20}  # fmt: skip
    args = ["--step-ms", str(STEP_MS), "--slots", "4096"]
    seen, ports = Seen(), dict[int, int]()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            Cluster(prefills=2, decodes=4, worker_args=args, config=config)
        )
        other = await beside(cluster, stack) if fault == "router" else None
        urls = [each.url for each in (cluster, other) if each is not None]
        calls = [asyncio.create_task(stream(urls[n % len(urls)], n, ports)) for n in range(streams)]
        while len(ports) < streams:
            await asyncio.sleep(0.05)
        dying = clients_of(cluster, "tk-relay-1") if fault in ("relay", "both") else set()
        if fault == "upgrade":
            await upgraded(cluster, seen)
        else:
            begun = perf_counter()
            if other is None:
                await hurt(cluster, fault)
            else:
                end(other)
            await recovery(cluster, begun, seen)
        texts = await asyncio.gather(*calls)
        if other is None:
            seen.own = sum(port in dying for port in ports.values())
        else:
            seen.own = len(calls[1::2])
        for number, text in enumerate(texts):
            seed = seed_of(f"prompt {number}")
            seen.lost += text is None
            right = "".join(word(seed, at) for at in range(TOKENS))
            seen.wrong += text is not None and text != right
        await asyncio.sleep(1.0)
        state = await cluster.state()
        stats = [await cluster.stats(worker.name) for worker in cluster.workers]
        seen.leaked = state["running"] + state["parked"] + sum(w["inflight"] for w in
            state["workers"]) + sum(each["running"] for each in stats)  # fmt: skip
    return seen


async def measure(quick: bool) -> dict[str, Any]:
    streams, runs = (100, 1) if quick else (1_000, 3)
    told: dict[str, Any] = {"streams": streams, "runs": runs}
    for fault in FAULTS:
        seen = [await run(fault, streams) for _ in range(runs)]
        sums = {
            name: sum(getattr(each, name) for each in seen)
            for name in ("lost", "own", "wrong", "refused", "broken", "leaked")
        }
        told[fault] = sums | {"recovery_ms": max(each.recovery_ms for each in seen)}
        if fault == "upgrade":
            told[fault]["took_ms"] = max(each.took_ms for each in seen)
        print(fault, told[fault], flush=True)
    return told


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    measured = asyncio.run(measure(options.quick))
    result.keys |= measured
    result.emit(measured["runs"])


if __name__ == "__main__":
    main()
