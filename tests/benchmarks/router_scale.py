"""A router of several processes: what a request costs with 1, 2 and 4 relays, beside sglang-router.

All routers stand before the same stand-in workers (`tests/standin`: SGLang's wire format, no model)
and are measured in rounds that alternate, each in its turn first. Prompts have 1,000 words, answers
256 tokens at 10 ms a step, 64 at once; short answers have two tokens. CPU time (user + system) is
that of all processes of a router, so that it does not matter here how many cores they share.

By the number of relays (`by_relays`; 1: one process, which decides too):

- `request_ms`, `short_request_ms`: CPU time of a request; `request_ms_ratio`,
  `short_request_ms_ratio`: that by sglang-router's of the same round, geometric mean with its 95 %
  interval. `against_one`: by that of our router of one process.
- `chunk_us`: CPU time by streamed event, everything included.
- `requests_per_core_s`: how many requests of 256 tokens a core carries by that.
- `floor_ratio`: a request's CPU time by what the sends of its chunks alone cost on this machine
  (`tests/standin/floor.py --shared`, in the same rounds).
- `relay_ms`, `decider_ms`: of the relays, and of the deciding process, for a short request;
  `decider_requests_per_core_s`: how many requests a second one core of it decides.
- `decision_added_p50_ms`, `decision_added_p99_ms`: from a request's arrival to its prefill's POST,
  and from the end of the prefill to the decode's, more than in one process: 8 at once.
- `framed`: of one process before workers whose streams come in frames
  (`toolkit.router.step_frames`), in the same rounds.
- `idle_percent`: of a core, with 24 idle workers that say what they do twice a second.
- `stream_kib`: memory of all processes that is theirs alone, more with 256 streams than without,
  by stream.

`other_request_ms`, `other_short_request_ms`, `chunk_us_other`: sglang-router's. Nothing is
asserted.
Run as `python -m tests.benchmarks.router_scale [--quick]`.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from patches.streams.event_hub import HEARTBEAT_S
from tests.benchmarks.router_relay import floor, start_other, until_serving
from tests.benchmarks.shared.common import Result, arguments, interval
from tests.benchmarks.shared.load import load
from tests.ports import free_port
from tests.preloading import ROOT
from tests.standin.cluster import Cluster

MEASURES = ("toolkit/router", "toolkit/decide")

RELAYS = (1, 2, 4)
WORDS, TOKENS, SHORT = 1_000, 256, 2
AT_ONCE = 64
IDLE_WORKERS = 24
IDLE_S = 10.0
STREAMS = 256
FRAMED = "framed"


@dataclass
class Side:
    """One router, and CPU milliseconds a request of its rounds."""

    name: str
    port: int
    pid: int
    admin: int = 0
    request_ms: list[float] = field(default_factory=list)
    short_ms: list[float] = field(default_factory=list)
    decider_ms: list[float] = field(default_factory=list)
    chunk_us: list[float] = field(default_factory=list)
    decisions: list[tuple[float, float]] = field(default_factory=list)

    def processes(self) -> list[psutil.Process]:
        """All of the router, but its parsing processes."""
        router = psutil.Process(self.pid)
        parts = [child for child in router.children() if child.name().startswith("tk-")]
        return [router, *parts]

    def cpu_s(self) -> tuple[float, float]:
        """Of all, and of the deciding process."""
        times = {each: each.cpu_times() for each in self.processes()}
        used = {each: time.user + time.system for each, time in times.items()}
        return sum(used.values()), sum(t for each, t in used.items() if each.name() == "tk-decider")

    def own_kib(self) -> float:
        """Memory that no other process shares."""
        return sum(each.memory_full_info().uss for each in self.processes()) / 1024


class Routers:
    """Ours by number of relays, and theirs, before the same workers."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.sides: dict[str, Side] = {}

    async def start(self, other: bool, framed: Cluster | None = None) -> None:
        """All of them, until they serve. `framed`: the workers of one more of ours."""
        for relays in RELAYS:
            await self._start_ours(str(relays), relays, self._cluster)
        if framed is not None:
            await self._start_ours(FRAMED, 1, framed)
        if other:
            process, port = start_other(self._cluster)
            self._started.append(process)
            await until_serving(port, process)
            self.sides["other"] = Side("other", port, process.pid)

    async def _start_ours(self, name: str, relays: int, cluster: Cluster) -> None:
        given = json.loads(cluster.config_path.read_text())
        ports = {"port": free_port(), "admin_port": free_port()}
        path = self._folder / f"router-{name}.json"
        path.write_text(json.dumps(given | ports | {"relays": relays}))
        process = subprocess.Popen(
            [sys.executable, "-m", "toolkit.router", str(path)],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "TOOLKIT_WORKER_KEY": "standin"},
        )  # fmt: skip
        self._started.append(process)
        side = Side(name, ports["port"], process.pid, ports["admin_port"])
        await until_serving(side.port, process)
        self.sides[side.name] = side

    def stop(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def cpu_round(side: Side, requests: int, tokens: int, words: int) -> dict[str, float]:
    before, decided = side.cpu_s()
    result = await load(side.port, AT_ONCE, requests, tokens, words=words)
    after, decides = side.cpu_s()
    return {
        "all_ms": (after - before) / requests * 1e3,
        "decider_ms": (decides - decided) / requests * 1e3,
        "chunk_us": (after - before) / result["chunks"] * 1e6,
    }


async def decision_round(cluster: Cluster, side: Side) -> None:
    """How long requests waited for their workers, by the router's own clock."""
    admin = f"http://127.0.0.1:{side.admin}"
    async with cluster.session.post(f"{admin}/admin/policy", json={}) as answer:
        assert answer.status == 200  # what was measured before is forgotten
    await load(side.port, 8, 400, 8, words=WORDS)
    async with cluster.session.get(f"{admin}/workers") as answer:
        timing = (await answer.json())["timing"]
    queue, decide = timing["queue_ms"], timing["decide_ms"]
    side.decisions.append((queue["p50"] + decide["p50"], queue["p99"] + decide["p99"]))


async def rounds(routers: Routers, cluster: Cluster, quick: bool) -> dict[str, list[float]]:
    pairs, requests, short = (2, 128, 1_000) if quick else (6, 256, 3_000)
    sides = list(routers.sides.values())
    for side in sides:
        await load(side.port, AT_ONCE, 128, 16)
    floors: list[float] = []
    for pair in range(pairs):
        floors.append(await floor("--shared"))
        turn = pair % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            long = await cpu_round(side, requests, TOKENS, WORDS)
            side.request_ms.append(long["all_ms"])
            side.chunk_us.append(long["chunk_us"])
            few = await cpu_round(side, short, SHORT, 40)
            side.short_ms.append(few["all_ms"])
            side.decider_ms.append(few["decider_ms"])
            if side.admin:
                await decision_round(cluster, side)
    return {"floors": floors}


async def memory(side: Side) -> float:
    """KiB a stream."""
    before = side.own_kib()
    running = asyncio.create_task(load(side.port, STREAMS, STREAMS, 400))
    await asyncio.sleep(2.5)
    during = side.own_kib()
    await running
    return (during - before) / STREAMS


async def idle(quick: bool, folder: Path) -> dict[str, float]:
    """Percent of a core, by relays, before workers that have nothing to do."""
    args = ["--heartbeat", str(HEARTBEAT_S), "--steps"]
    async with Cluster(prefills=4, decodes=IDLE_WORKERS - 4, worker_args=args) as cluster:
        routers = Routers(cluster, folder)
        try:
            await routers.start(other=False)
            await asyncio.sleep(2.0)
            before = {name: side.cpu_s()[0] for name, side in routers.sides.items()}
            seconds = 3.0 if quick else IDLE_S
            await asyncio.sleep(seconds)
            return {
                name: (side.cpu_s()[0] - before[name]) / seconds * 100
                for name, side in routers.sides.items()
            }
        finally:
            routers.stop()


def ratio(own: list[float], other: list[float]) -> dict[str, float]:
    value, low, high = interval([a / b for a, b in zip(own, other, strict=True)])
    return {"value": value, "low": low, "high": high}


def of_requests(side: Side, other: Side, one: Side, sends_ms: list[float]) -> dict[str, Any]:
    """What requests cost one side."""
    median = statistics.median
    return {
        "request_ms": median(side.request_ms),
        "short_request_ms": median(side.short_ms),
        "request_ms_ratio": ratio(side.request_ms, other.request_ms),
        "short_request_ms_ratio": ratio(side.short_ms, other.short_ms),
        "against_one": ratio(side.request_ms, one.request_ms),
        "short_against_one": ratio(side.short_ms, one.short_ms),
        "chunk_us": median(side.chunk_us),
        "requests_per_core_s": 1e3 / median(side.request_ms),
        "floor_ratio": median([a / b for a, b in zip(side.request_ms, sends_ms, strict=True)]),
    }


def figures(
    routers: Routers, floors: list[float], idle_percent: dict[str, float], kib: dict[str, float]
) -> dict[str, Any]:
    median, other, one = statistics.median, routers.sides["other"], routers.sides["1"]
    sends_ms = [each * (TOKENS + 1) / 1e3 for each in floors]
    by_relays = {}
    for relays in map(str, RELAYS):
        side = routers.sides[relays]
        p50, p99 = (
            [own[at] - base[at] for own, base in zip(side.decisions, one.decisions, strict=True)]
            for at in (0, 1)
        )
        decider_ms = median(side.decider_ms)
        by_relays[relays] = of_requests(side, other, one, sends_ms) | {
            "relay_ms": median(side.short_ms) - decider_ms,
            "decider_ms": decider_ms,
            "decider_requests_per_core_s": 1e3 / decider_ms if decider_ms else None,
            "decision_added_p50_ms": median(p50),
            "decision_added_p99_ms": median(p99),
            "idle_percent": idle_percent[relays],
            "stream_kib": kib[relays],
        }
    return {
        "relays": list(RELAYS),
        "by_relays": by_relays,
        "framed": of_requests(routers.sides[FRAMED], other, one, sends_ms)
        | {"stream_kib": kib[FRAMED]},
        "other_request_ms": median(other.request_ms),
        "other_short_request_ms": median(other.short_ms),
        "chunk_us_other": median(other.chunk_us),
        "floor_send_us": median(floors),
        "decision_ms": {"p50": median([p for p, _ in one.decisions]),
                        "p99": median([p for _, p in one.decisions])},
        "samples": len(floors),
    }  # fmt: skip


async def measure(quick: bool, folder: Path) -> dict[str, Any]:
    idle_percent = await idle(quick, folder)
    config = {"parked_per_prefill": 64, "max_inflight": 1024}
    args = ["--step-ms", "10"]
    async with (
        Cluster(decodes=3, worker_args=args, config=config) as cluster,
        Cluster(decodes=3, worker_args=[*args, "--frames"], config=config) as framed,
    ):
        routers = Routers(cluster, folder)
        try:
            await routers.start(other=True, framed=framed)
            measured = await rounds(routers, cluster, quick)
            ours = [side for name, side in routers.sides.items() if name != "other"]
            kib = {side.name: await memory(side) for side in ours}
            told = await framed.stats("decode-0")
            assert told["framed"] > AT_ONCE, told["framed"]
        finally:
            routers.stop()
    return figures(routers, measured["floors"], idle_percent, kib)


def main() -> None:
    """Run the benchmark and print its line."""
    import tempfile

    options = arguments(__doc__)
    result = Result()
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure(options.quick, Path(folder)))
    samples = measured.pop("samples")
    result.keys |= measured
    result.emit(samples)


if __name__ == "__main__":
    main()
