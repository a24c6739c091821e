"""Requests that move from one decode worker to another on the same GPU while they decode.

One prefill and two decode workers, KV by Mooncake over TCP (through the host's memory: there is no
RDMA to be tried here). One long stream at a time, moved every so many tokens: directly, then by
replay, each against the same stream undisturbed.

figures: of each kind `moves`, `outcomes`, `stall_p50_ms` and `stall_p99_ms` by the router,
`changed`, streams that say something else than undisturbed, of `streams`; `causes` of what was kept
and its `reasons`, as the router said them; of direct moves `copied`, what the source measured of
each: rounds, bytes, MB a second, step time, what was left at the stop and how long it took.
`changed_repeat`, undisturbed streams that say something else when asked again; `step_ms`, between
two tokens undisturbed. Fails where a stream is lost, where none moved, where fewer than 19 of 20
direct moves took place, or where direct moves change more streams than a repetition. With tiny
sizes one may fail to move: on a busy machine its stream ends first.
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
REASONS = 20
SHARE = 0.95
"""Of direct moves that must take place, with sizes that mean something."""


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


def tokens_of(context: Context) -> int:
    """Of each stream."""
    return context.size(1200, 120)


def stream(context: Context, up: Running, number: int) -> Watched:
    """One of its own; as long as the step has time for."""
    found = Watched(up, number)
    prompt = calls.prompt(found.rid, context.size(8192, 300))
    found.body = calls.greedy(prompt, tokens_of(context), stream=True)
    return found


async def moved(context: Context, http: Any, watched: Watched) -> tuple[list[int], list[Any]]:
    """Its tokens, and what the router says of each move."""
    every, last = context.size(40, 15), tokens_of(context) - context.size(400, 40)
    running = asyncio.ensure_future(watched.run(http))
    done: list[dict[str, Any]] = []
    due = every
    while not running.done():
        if due <= watched.count < last:  # what ends soon cannot be sent in time
            done += await migrate(http, watched.up, rid=watched.rid)
            due = watched.count + every
        await asyncio.sleep(0.002)
    return await running, done


def kept_of(moves: list[dict[str, Any]]) -> dict[str, Any]:
    """Why some were kept, and what the sources of all measured."""
    kept = [move for move in moves if move["outcome"] == "kept"]
    return {
        "causes": dict(Counter(move.get("cause", "not begun") for move in kept)),
        "reasons": sorted({move.get("reason", "") for move in kept})[:REASONS],
        "copied": [{"outcome": m["outcome"], **m["copied"]} for m in moves if "copied" in m],
    }


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
            told |= kept_of(moves)
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
    direct = figures["direct"]
    tried = direct["moves"] + direct["outcomes"].get("kept", 0)
    wanted = 1 if context.tiny else SHARE * tried
    assert direct["moves"] >= wanted, f"{direct['moves']} of {tried} moved: {direct['reasons']}"
    assert figures["direct"]["changed"] <= figures["changed_repeat"], "direct moves change streams"
