"""`abuse`, fuzzed frames: from clients by raw sockets, and from workers that answer rudely."""

import random
import sys
from typing import Any

from tests.benchmarks.abuse_parts.http import exchange, head
from tests.benchmarks.abuse_parts.shapes import SHAPES, Frame
from tests.benchmarks.abuse_parts.watch import Memory, Tally, known, settled, side_by_side
from tests.standin.cluster import Cluster

LANES = 16
CONFIG = {
    "max_inflight": 64, "max_queue": 192, "max_retries": 1, "rerun_wait_s": 1.0,
    "no_worker_wait_s": 2.0, "request_timeout_s": 30,
    **known(first_token_timeout_s=2.0, idle_timeout_s=2.0),
}  # fmt: skip
PLAIN = b'{"prompt": "hello", "max_tokens": 4}'
STREAM = b'{"prompt": "hello", "max_tokens": 4, "stream": true}'


async def frames(count: int, seed: int) -> dict[str, Any]:
    """Four of five frames from clients, the others from workers: half of them decodes."""
    tally = Tally()
    result = await _from_clients(count - count // 5, seed, tally)
    halves = (count // 10, count // 5 - count // 10)
    growths = [result["growth_mib"]]
    for half, role in zip(halves, ("decode", "prefill"), strict=True):
        growths.append(await _from_workers(half, seed, role, tally))
    return {
        **result,
        "frames": tally.sent,
        "hangs": tally.hangs,
        "crashes": tally.crashes,
        "answers_500": tally.answers_500,
        "garbled": tally.garbled,
        "stuck": tally.stuck,
        "growth_mib": max(growths),
        "statuses": dict(sorted(tally.statuses.items())),
    }


async def _from_clients(count: int, seed: int, tally: Tally) -> dict[str, Any]:
    """After each 50 frames an ordinary request must be answered, beside the others."""
    choice = random.Random(seed)
    taken: dict[str, int] = {}
    async with Cluster(worker_args=["--patient"], config=CONFIG) as cluster:
        assert cluster.router is not None

        async def one(number: int) -> None:
            frame = SHAPES[number % len(SHAPES)](choice)
            outcome = await exchange(cluster.port, frame.pieces, frame.answers)
            sent = b"".join(piece for piece in frame.pieces if isinstance(piece, bytes))
            tally.count(sent, outcome, frame.name)
            if frame.refuse and any(status == 200 for status, _ in outcome.answers):
                taken[frame.name] = taken.get(frame.name, 0) + 1
            if number % 50 == 0:
                await _ordinary(cluster, tally, frame)

        await side_by_side(range(max(100, count // 10)), one, LANES)
        tally.sent = 0
        with Memory(cluster.router.pid) as memory:
            await side_by_side(range(count), one, LANES)
            await settled(cluster, tally)
            growth = memory.growth
    if taken:
        print(f"frames that should be refused and were answered: {taken}", file=sys.stderr)
    return {"growth_mib": growth, "ambiguous_taken": sum(taken.values())}


async def _ordinary(cluster: Cluster, tally: Tally, after: Frame) -> None:
    line = f"Content-Length: {len(PLAIN)}"
    outcome = await exchange(cluster.port, [head("/v1/completions", line), PLAIN])
    if [status for status, _ in outcome.answers] != [200]:
        tally.hangs += 1
        print(f"an ordinary request is not answered, after {after.name}", file=sys.stderr)


async def _from_workers(count: int, seed: int, role: str, tally: Tally) -> float:
    """All workers of a role are rude; whatever they send, each client gets some answer in time.

    A 500 counts when the router says it of itself: what a worker says in its stream is passed on.

    Growth of the router in MiB, after a tenth of the frames.
    """
    args = {role: ["--mode", "rude"]}
    patient = Cluster(worker_args=["--patient"], role_args=args, config=CONFIG)
    patient.prefills, patient.decodes = (2, 1) if role == "prefill" else (1, 2)
    async with patient as cluster:
        assert cluster.router is not None
        choice = random.Random(seed)

        async def one(number: int) -> None:
            body = choice.choice([PLAIN, STREAM])
            path = choice.choice(["/v1/completions", "/generate", "/v1/chat/completions"])
            if path == "/v1/chat/completions":
                body = body.replace(
                    b'"prompt": "hello"', b'"messages": [{"role": "user", "content": "x"}]'
                )
            if path == "/generate":
                body = body.replace(b'"prompt"', b'"text"')
            line = f"Content-Length: {len(body)}"
            outcome = await exchange(cluster.port, [head(path, line), body])
            tally.count(body, outcome, f"a rude {role} {number} {path}", outcome.internal)

        await side_by_side(range(max(10, count // 10)), one, LANES)
        tally.sent -= max(10, count // 10)
        with Memory(cluster.router.pid) as memory:
            await side_by_side(range(count), one, LANES)
            for worker in cluster.workers:
                if worker.role == role:
                    await cluster.make(worker.name, "well")
            await settled(cluster, tally)
            await _recovers(cluster, tally, role)
            return memory.growth


async def _recovers(cluster: Cluster, tally: Tally, role: str) -> None:
    """Once the workers are well again, so is the router."""
    line = f"Content-Length: {len(PLAIN)}"
    for _ in range(30):
        outcome = await exchange(cluster.port, [head("/v1/completions", line), PLAIN])
        if [status for status, _ in outcome.answers] == [200]:
            return
    tally.hangs += 1
    print(f"no request gets through after rude {role}s", file=sys.stderr)
