"""What the worst body that we know for each parser does to a router, and to a second client.

A real router process before stand-in workers (`tests/standin`: SGLang's wire format, no model). A
second client reads a stream of a token every 10 ms, and meanwhile the first sends one hostile body
(`tests/hostile_bodies.py`), of 16, 64 and 256 KiB each, or of the most that its check takes. Each
is sent REPEATS times to two routers:

- `held_ms`: the longest that the event loop was held, CPU time of its thread in one turn; the
  longest of all sendings. Measured in a router on asyncio's loop (`hostile_parts/metered.py`).
- `cpu_ms`: CPU time of the loop's thread for the body, everything included. Mean.
- `gap_ms`: the second client's longest time between two tokens while the body is with the router as
  it ships (uvloop). The least of the sendings: a busy machine adds to some of them, while what the
  body does it does each time. A worker that gets what is large holds its streams itself, too.
- `status`: what the first client got.

`inputs` has these of each body, in the order of `sizes_kib`. `longest_held_ms` and
`longest_gap_ms` are the largest of all, `held_over` and `gap_over` count cells above 20 ms and 100
ms. `quiet_gap_ms` is the gap in as many stretches of the same stream without any hostile body:
median, and `quiet_gap_max_ms`.

`large_*`: one client sends 4 bodies of 8 MiB at once, each of which takes a parsing process for
seconds; meanwhile a small body with a pattern goes through the same processes, again and again.
`large_second_ms` is their median time to the answer, and `alone_second_ms` that in peace.

`ordinary_us` is the time of `Parser.parse` for a chat of 600 characters, `ordinary_ratio` the same
to `splitting.parse` alone; `trip_us` that of a chat with a schema, which goes to a process.

Nothing is asserted. `--quick` takes 16 KiB and one sending each; `--only TEXT`: inputs whose name
has it. Run as `python -m tests.benchmarks.hostile [--quick] [--record] [--only TEXT]`.
"""

import asyncio
import json
import os
import signal
import statistics
import sys
import threading
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from tests.benchmarks.hostile_parts.client import Stream, send
from tests.benchmarks.shared.common import Result, arguments
from tests.hostile_bodies import COMPLETIONS, HOSTILE, Hostile, large
from tests.standin.cluster import Cluster

MEASURES = ("toolkit/router",)

KIB = 1024
SIZES = (16, 64, 256)
REPEATS = 5
SETTLE_S = 0.05
HELD_MS, GAP_MS = 20.0, 100.0
TOKEN_MS = "10"
CONFIG = {"parked_per_prefill": 64}
GRAMMAR = json.dumps({"prompt": "a", "max_tokens": 2, "regex": "a+"}).encode()
METERED = "tests.benchmarks.hostile_parts.metered"


def main() -> None:
    args = arguments(__doc__, ("--only", {"default": "", "help": "inputs whose name has this"}))
    wanted = [each for each in HOSTILE if args.only in each.name]
    sizes, repeats = ((16,), 1) if args.quick else (SIZES, REPEATS)
    cells: dict[tuple[str, int], dict[str, Any]] = {
        (each.name, size): {} for each in wanted for size in sizes
    }
    bodies = {(each, size): each.make(size * KIB) for each in wanted for size in sizes}
    result = Result()
    quiet = asyncio.run(_gaps(bodies, cells, repeats))
    asyncio.run(_held(bodies, cells, repeats))
    inputs: dict[str, dict[str, list[Any]]] = {}
    for (name, _), cell in cells.items():
        columns = inputs.setdefault(name, {})
        for key, value in cell.items():
            columns.setdefault(key, []).append(value)
    result.keys |= {
        "sizes_kib": list(sizes),
        "inputs": inputs,
        "cells": len(cells),
        **_largest(cells, "held_ms", HELD_MS),
        **_largest(cells, "gap_ms", GAP_MS),
        "quiet_gap_ms": statistics.median(quiet),
        "quiet_gap_max_ms": max(quiet),
        **asyncio.run(_large(2 if args.quick else 4)),
        **_ordinary(),
    }
    result.emit(len(cells) * repeats)


def _largest(cells: dict[Any, dict[str, Any]], what: str, bound: float) -> dict[str, Any]:
    """The largest of a figure, whose it is, and how many are above the bound."""
    (name, size), cell = max(cells.items(), key=lambda item: item[1][what])
    short = what.removesuffix("_ms")
    return {
        f"longest_{what}": cell[what],
        f"longest_{short}_of": f"{name}, {size} KiB",
        f"{short}_over": sum(each[what] > bound for each in cells.values()),
    }


async def _gaps(
    bodies: dict[tuple[Hostile, int], bytes], cells: dict[Any, dict[str, Any]], repeats: int
) -> list[float]:
    """Put status and gap of each into the cells; gaps of stretches without a hostile body."""
    quiet = []
    async with Cluster(worker_args=["--token-ms", TOKEN_MS], config=CONFIG) as cluster:
        with Stream(cluster.port) as stream:
            _until_flowing(stream)
            for (one, size), body in bodies.items():
                gaps, status = [], 0
                for _ in range(repeats):
                    begin = monotonic()
                    status, _ = send(cluster.port, one.path, body)
                    end = monotonic()
                    sleep(SETTLE_S)
                    gaps.append(_gap(stream, begin, end))
                    sleep(SETTLE_S + (end - begin if end - begin < 1 else 0))
                    quiet.append(_gap(stream, end + SETTLE_S, monotonic() - SETTLE_S / 2))
                cell = cells[one.name, size]
                cell["bytes"], cell["status"] = len(body), status
                cell["gap_ms"] = min(gaps)
                print(f"{one.name}, {size} KiB: {cell}", file=sys.stderr, flush=True)
    return quiet


def _gap(stream: Stream, begin: float, end: float) -> float:
    """The gap, once the stream has gone on."""
    for _ in range(2000):
        gap = stream.gap_ms(begin, end)
        if gap == gap:
            return gap
        sleep(0.01)
    raise RuntimeError("the stream stands still, or has ended")


def _until_flowing(stream: Stream) -> None:
    while stream.count < 20:
        sleep(0.01)


async def _held(
    bodies: dict[tuple[Hostile, int], bytes], cells: dict[Any, dict[str, Any]], repeats: int
) -> None:
    """Put CPU times of the loop into the cells."""
    async with Cluster(config=CONFIG, router_module=METERED) as cluster:
        assert cluster.router is not None
        for first in (GRAMMAR, json.dumps({"prompt": "a", "max_tokens": 2}).encode()):
            send(cluster.port, COMPLETIONS, first)
        for (one, size), body in bodies.items():
            _meter(cluster)
            for _ in range(repeats):
                send(cluster.port, one.path, body)
            sleep(SETTLE_S)
            told = _meter(cluster)
            cell = cells[one.name, size]
            cell["held_ms"], cell["cpu_ms"] = told["held_ms"], told["cpu_ms"] / repeats
            print(f"{one.name}, {size} KiB: {told}", file=sys.stderr, flush=True)


def _meter(cluster: Cluster) -> dict[str, float]:
    """What the loop has done since the last time."""
    assert cluster.router is not None
    path = Path(f"{cluster.config_path}.held")
    path.unlink(missing_ok=True)
    os.kill(cluster.router.pid, signal.SIGUSR1)
    deadline = monotonic() + 120
    while not path.exists():
        if monotonic() > deadline:
            raise RuntimeError("the router does not tell")
        sleep(0.002)
    return json.loads(path.read_text())


async def _large(count: int) -> dict[str, Any]:
    """One client's large bodies, and another client's small ones beside them."""
    body = large(8 * 2**20)
    async with Cluster(worker_args=["--token-ms", TOKEN_MS], config=CONFIG) as cluster:
        send(cluster.port, COMPLETIONS, GRAMMAR)
        alone = [_seconds(cluster.port) for _ in range(20)]
        with Stream(cluster.port) as stream:
            _until_flowing(stream)
            statuses: list[int] = []
            threads = [
                threading.Thread(
                    target=lambda: statuses.append(send(cluster.port, COMPLETIONS, body)[0])
                )
                for _ in range(count)
            ]
            begin = monotonic()
            for thread in threads:
                thread.start()
            sleep(0.2)
            beside: list[float] = []
            while any(thread.is_alive() for thread in threads) and len(beside) < 500:
                beside.append(_seconds(cluster.port))
                sleep(0.02)
            for thread in threads:
                thread.join()
            end = monotonic()
            sleep(SETTLE_S)
            gap = _gap(stream, begin, end)
    return {
        "large_bodies": count,
        "large_statuses": {str(each): statuses.count(each) for each in sorted(set(statuses))},
        "large_s": end - begin,
        "large_gap_ms": gap,
        "large_second_ms": statistics.median(beside) * 1e3,
        "large_second_max_ms": max(beside) * 1e3,
        "large_second_requests": len(beside),
        "alone_second_ms": statistics.median(alone) * 1e3,
    }


def _seconds(port: int) -> float:
    begin = perf_counter()
    status, text = send(port, COMPLETIONS, GRAMMAR)
    if status != 200:
        raise RuntimeError(f"the second client got {status}: {text}")
    return perf_counter() - begin


def _ordinary() -> dict[str, float]:
    """What looking at a body adds to that of an ordinary one, and what a trip takes."""
    from toolkit.router import splitting
    from toolkit.router.budget import Budget
    from toolkit.router.parsing import Parser

    chat = {"model": "m", "messages": [{"role": "user", "content": "hello " * 100}],
            "max_tokens": 5, "stream": True}  # fmt: skip
    plain = json.dumps(chat).encode()
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    guided = json.dumps({**chat, "response_format": asked}).encode()
    path, rounds = "/v1/chat/completions", 400

    async def measure() -> dict[str, float]:
        parser, budget = Parser(), Budget(2**28)

        async def parse(body: bytes) -> float:
            begin = perf_counter()
            for _ in range(rounds):
                with budget.open() as charge:
                    await parser.parse(path, [body], charge)
            return (perf_counter() - begin) / rounds * 1e6

        def alone() -> float:
            begin = perf_counter()
            for _ in range(rounds):
                splitting.parse(path, plain)
            return (perf_counter() - begin) / rounds * 1e6

        await parse(guided)
        pairs = [(await parse(plain), alone()) for _ in range(20)]
        trips = [await parse(guided) for _ in range(5)]
        await parser.stop()
        return {
            "ordinary_us": statistics.median(ours for ours, _ in pairs),
            "ordinary_ratio": statistics.median(ours / other for ours, other in pairs),
            "trip_us": statistics.median(trips),
        }

    return asyncio.run(measure())


if __name__ == "__main__":
    main()
