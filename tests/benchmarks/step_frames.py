"""What an event costs when all events of a step come in one frame, and when each comes by itself.

Both sides, at 256 streams (`patches.streams.step_frames`, `toolkit.router.step_frames`):

- `worker_us`, `worker_framed_us`: CPU time (user + system) by event of a uvicorn server whose
  streams all say an event of a chat every 20 ms, as bodies of their answers and in frames;
  `worker_silent_us`: of the same when they are woken and say nothing, which is not the sending's.
  `worker_ratio`: what frames take by what bodies take, both without that.
- `router_us`, `router_framed_us`: CPU time of our router by event that a client got, everything
  included, before one prefill and one decode stand-in worker with 30 ms a step (256 streams at
  once, 256 tokens each). `router_ratio`: frames by bodies, per pair of rounds.
- `other_us`, `framed_by_other`: sglang-router's in the same rounds, and ours with frames by that.
- `floor_send_us`: what a send of an event to each client takes alone (`tests/standin/floor.py`).

Ratios: geometric mean with its 95 % interval. Nothing is asserted.
Run as `python -m tests.benchmarks.step_frames [--quick]`.
"""

import asyncio
import json
import os
import resource
import select
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil

from tests.benchmarks.router_relay import floor, start_other, until_serving
from tests.benchmarks.shared.common import Result, arguments, in_child, interval
from tests.benchmarks.shared.load import load
from tests.ports import free_port
from tests.standin.cluster import Cluster
from tests.standin.streams import Chat
from toolkit.contract.headers import STEP_FRAMES as HEADER
from toolkit.contract.paths import STEP_FRAMES

MEASURES = ("toolkit/router", "patches/streams")

STREAMS = 256
TOKENS = 256
STEP_MS = "30"
WORKER_STEPS, WORKER_STEP_S = 150, 0.02
PLAIN, FRAMED, SILENT = "plain", "framed", "silent"


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read_all(port: int, go: int, kind: str) -> None:
    """The other end of the server: takes what comes."""
    os.read(go, 1)
    poll, ends = select.epoll(), {}

    def ask(line: str, header: str = "") -> None:
        own = socket.create_connection(("127.0.0.1", port))
        own.sendall(f"{line} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 0\r\n\r\n".encode())
        poll.register(own.fileno(), select.EPOLLIN)
        ends[own.fileno()] = own

    if kind == FRAMED:
        ask(f"GET {STEP_FRAMES}?relay=r")
        time.sleep(0.5)
    for stream in range(1, STREAMS + 1):
        ask("POST /stream", f"{HEADER}: r {stream}\r\n" if kind == FRAMED else "")
    while ends:
        for number, _ in poll.poll():
            if not ends[number].recv(2**18):
                poll.unregister(number)
                del ends[number]


async def serve(kind: str, port: int, go: int, steps: int) -> float:
    """CPU microseconds of this process by stream and step."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    from patches.streams.relay_frames import FramedApp, FramesResponse, RelayFrames

    event = Chat({"model": "default"}, "0" * 32, 7).delta(3, 4).decode()
    turns: list[asyncio.Event] = []
    relays: dict[str, RelayFrames] = {}

    async def say() -> AsyncIterator[str]:
        turn = asyncio.Event()
        turns.append(turn)
        while True:
            await turn.wait()
            turn.clear()
            if kind != SILENT:
                yield event

    async def stream(request: Request) -> Response:
        return StreamingResponse(say(), media_type="text/event-stream")

    async def frames(request: Request) -> Response:
        return FramesResponse(relays, request.query_params["relay"])

    routes = [Route("/stream", stream, methods=["POST"]), Route(STEP_FRAMES, frames)]
    app = FramedApp(Starlette(routes=routes), relays)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", loop="none"))
    running = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    os.write(go, b"x")
    while len(turns) < STREAMS:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    framed = sum(each.taken_in for each in relays.values())
    assert framed == (STREAMS if kind == FRAMED else 0), framed
    before = cpu_s()
    for _ in range(steps):
        begin = time.perf_counter()
        for turn in turns:
            turn.set()
        await asyncio.sleep(max(0.001, WORKER_STEP_S - (time.perf_counter() - begin)))
    used = cpu_s() - before
    assert not running.done()
    return used / STREAMS / steps * 1e6


def worker_side(kind: str, steps: int) -> None:
    """In a process of its own: prints what `serve` found."""
    import uvloop

    port, (listens, goes) = free_port(), os.pipe()
    child = os.fork()
    if child == 0:
        read_all(port, listens, kind)
        os._exit(0)

    async def tell() -> None:
        print(json.dumps(await serve(kind, port, goes, steps)), flush=True)
        os.kill(child, 9)
        os._exit(0)  # the streams never end

    uvloop.run(tell())


def worker_figures(quick: bool) -> dict[str, Any]:
    kinds = (PLAIN, FRAMED, SILENT)
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(2 if quick else 5):
        for kind in (*kinds[turn % 3 :], *kinds[: turn % 3]):
            found[kind].append(in_child(kind, WORKER_STEPS // (3 if quick else 1)))
    silent = statistics.median(found[SILENT])
    ratios = [(b - silent) / (a - silent) for a, b in zip(found[PLAIN], found[FRAMED], strict=True)]
    return {
        "worker_us": statistics.median(found[PLAIN]),
        "worker_framed_us": statistics.median(found[FRAMED]),
        "worker_silent_us": silent,
        "worker_ratio": ratio(ratios),
    }


def ratio(ratios: list[float]) -> dict[str, float]:
    value, low, high = interval(ratios)
    return {"value": value, "low": low, "high": high}


async def event_us(port: int, pid: int) -> float:
    process = psutil.Process(pid)
    before = process.cpu_times()
    result = await load(port, STREAMS, STREAMS, TOKENS)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return float(used / result["chunks"] * 1e6)


async def router_figures(quick: bool) -> dict[str, Any]:
    config = {"parked_per_prefill": 64, "max_inflight": 1024}
    args = ["--step-ms", STEP_MS, "--slots", str(2 * STREAMS)]
    framed_args = [*args, "--frames"]
    async with (
        Cluster(decodes=1, worker_args=args, config=config) as plain,
        Cluster(decodes=1, worker_args=framed_args, config=config) as framed,
    ):
        assert plain.router is not None
        assert framed.router is not None
        process, port = start_other(plain)
        try:
            await until_serving(port, process)
            sides = {
                PLAIN: (plain.port, plain.router.pid),
                FRAMED: (framed.port, framed.router.pid),
                "other": (port, process.pid),
            }
            found: dict[str, list[float]] = {name: [] for name in (*sides, "floor")}
            for own, _ in sides.values():  # warm-up; the first stream asks for frames
                await load(own, STREAMS, STREAMS, 16)
            for turn in range(2 if quick else 6):
                found["floor"].append(await floor("--shared", "--streams", str(STREAMS)))
                names = [*sides]
                for name in (*names[turn % 3 :], *names[: turn % 3]):
                    found[name].append(await event_us(*sides[name]))
            told = await framed.stats("decode-0")
            assert told["framed"] > STREAMS, told["framed"]
        finally:
            process.kill()
            process.wait()

    def by(own: str, other: str) -> dict[str, float]:
        return ratio([a / b for a, b in zip(found[own], found[other], strict=True)])

    return {
        "router_us": statistics.median(found[PLAIN]),
        "router_framed_us": statistics.median(found[FRAMED]),
        "router_ratio": by(FRAMED, PLAIN),
        "other_us": statistics.median(found["other"]),
        "plain_by_other": by(PLAIN, "other"),
        "framed_by_other": by(FRAMED, "other"),
        "floor_send_us": statistics.median(found["floor"]),
        "samples": len(found[PLAIN]),
    }


def main() -> None:
    """Run the benchmark and print its line."""
    if "--child" in sys.argv:
        kind, steps = sys.argv[-2:]
        worker_side(kind, int(steps))
    options = arguments(__doc__)
    result = Result()
    measured = worker_figures(options.quick) | asyncio.run(router_figures(options.quick))
    samples = measured.pop("samples")
    result.keys |= measured
    result.emit(samples)


if __name__ == "__main__":
    main()
