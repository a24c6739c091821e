"""Requests that move from one decode worker to another on the same GPU while they decode.

One prefill and two decode workers, KV by Mooncake over TCP (through the host's memory: there is no
RDMA to be tried here). One long stream at a time, moved every so many tokens: directly, then by
replay, each against the same stream undisturbed.

figures: of each kind `moves`, `outcomes`, `stall_p50_ms` and `stall_p99_ms` by the router,
`changed`, streams that say something else than undisturbed, of `streams`; `changed_repeat`,
undisturbed ones that do so when asked again; `step_ms`, between two tokens undisturbed. Fails where
a stream is lost, where none moved, or where direct moves change more streams than a repetition.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from typing import Any

from tests.benchmarks.migrate import Watched, stalls, tail, use
from tests.e2e import calls
from tests.e2e.moving import migrate
from tests.gpu.context import Context
from tests.gpu.model import scaled_up
from toolkit.launch.running import Running

KINDS = ("direct", "replay")


def described(context: Context) -> dict[str, Any]:
    tokens = context.size(65_536, 16_384)
    keys = {} if context.on_cpu else {"transfer": {"backend": "mooncake_tcp"}}
    return context.described(
        "migrate",
        "pd",
        model=str(scaled_up(context)),
        prefill=context.role(tokens, 16),
        decode=context.role(tokens, 16, replicas=2),
        **keys,
    )


def stream(context: Context, up: Running, number: int) -> Watched:
    """One of its own; as long as the step has time for."""
    found = Watched(up, number)
    prompt = calls.prompt(found.rid, context.size(8192, 300))
    found.body = calls.greedy(prompt, context.size(400, 60), stream=True)
    return found


async def moved(context: Context, http: Any, watched: Watched) -> tuple[list[int], list[Any]]:
    """Its tokens, and what the router says of each move."""
    every = context.size(40, 15)
    running = asyncio.ensure_future(watched.run(http))
    done: list[dict[str, Any]] = []
    due = every
    while not running.done():
        if watched.count >= due:
            done += await migrate(http, watched.up, rid=watched.rid)
            due = watched.count + every
        await asyncio.sleep(0.002)
    return await running, done


async def compared(context: Context, up: Running, figures: dict[str, Any]) -> None:
    streams, gaps, repeats = context.size(6, 1), list[float](), 0
    async with calls.session() as http:
        for kind in KINDS:
            await use(up, kind)
            moves: list[dict[str, Any]] = []
            changed = 0
            for number in range(streams):
                alone = stream(context, up, number)
                expected = await alone.run(http)
                gaps += alone.gaps()
                if kind == KINDS[0]:
                    repeats += await stream(context, up, number).run(http) != expected
                got, done = await moved(context, http, stream(context, up, number))
                changed += got != expected
                moves += done
            told: dict[str, Any] = {
                "streams": streams,
                "changed": changed,
                "moves": len(stalls(moves)),
            }
            told["outcomes"] = dict(Counter(move["outcome"] for move in moves))
            if stalls(moves):
                told |= tail(stalls(moves), "stall")
            figures[kind] = told
        await use(up, "auto")
    figures |= {"step_ms": statistics.median(gaps) * 1e3, "changed_repeat": repeats}


def measure(context: Context, figures: dict[str, Any]) -> None:
    with context.deployed(described(context), "migrate") as up:
        asyncio.run(compared(context, up, figures))
    for kind in KINDS:
        assert figures[kind]["moves"], f"no stream moved by {kind}: {figures[kind]['outcomes']}"
        assert not figures[kind]["outcomes"].get("lost"), f"{kind} lost a stream"
    assert figures["direct"]["changed"] <= figures["changed_repeat"], "direct moves change streams"
