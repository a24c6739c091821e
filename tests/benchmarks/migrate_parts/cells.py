"""Direct moves at the shortest steps that a CPU worker makes, by batch and by length of context.

A model of one layer with random weights, one prefill and two decode workers. In each cell one
stream goes from one decode worker to the other and back, and on each of them there are as many
others as make a batch of that size, with contexts as long as its own.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.shared.common import percentile
from tests.benchmarks.shared.eldr_rounds import say
from tests.e2e import calls
from tests.e2e.moving import migrate
from tests.e2e.workers import state
from tests.gpu.model import Size, make
from toolkit.launch.running import Running

CONTEXT = 16_384
SMALLEST = Size(1, 64, 2, 1, 32, 4, 1, 32, CONTEXT)
CELLS = [(batch, context) for batch in (1, 16, 64) for context in (512, 2048, 8192)]
QUICK = [(1, 512), (1, 2048), (16, 512)]
MOVES, EVERY = 20, 24
LEAVES_OFF = 20
"""Tokens before the end of a stream from which it is not moved any more."""
TOKENS = 700
MOST = 16 * TOKENS
"""Of those beside it: longer than the cell takes, as far as the model's context goes."""
BEGUN_S = 300.0


def described(folder: Path, cells: list[tuple[int, int]]) -> dict[str, Any]:
    """Pools as large as the largest cell."""
    make(folder, SMALLEST, "cpu")
    tokens = max(batch * (context + 2 * TOKENS) for batch, context in cells) + 32_768
    most = max(batch for batch, _ in cells) + 8
    role = {"kv_tokens": tokens, "max_running": most}
    modes = {"device": "cpu", "mode": "pd", "router": {"kind": "toolkit"}, "model": str(folder)}
    return {"name": "cells", **modes, "prefill": role, "decode": {**role, "replicas": 2}}


class Stream:
    """One of a cell. Its prompt is the cell's but for the last token, so that most of it is in the
    prefill worker's cache."""

    def __init__(self, up: Running, rid: str, context: int, last: int, tokens: int) -> None:
        self._up = up
        self.rid, self.count = rid, 0
        prompt = [*calls.prompt(f"cell-{context}", context - 1), calls.VOCABULARY[last]]
        self.body = calls.greedy(prompt, tokens, stream=True) | {"rid": rid}

    def _seen(self, count: int) -> None:
        self.count = count

    async def run(self, http: aiohttp.ClientSession) -> list[int]:
        answer = await calls.generate(http, self._up.router_url, self.body, self._seen)
        assert not answer.error, answer.error
        return answer.ids


async def one_cell(up: Running, batch: int, context: int) -> dict[str, Any]:
    """The figures of one."""
    async with calls.session() as http:
        name = f"{batch}x{context}"
        alone = await Stream(up, f"alone-{name}", context, 0, TOKENS).run(http)
        tokens = min(MOST, CONTEXT - context - 16)
        others = [
            asyncio.ensure_future(Stream(up, f"other-{name}-{n}", context, 1 + n, tokens).run(http))
            for n in range(2 * (batch - 1))
        ]
        try:
            await _begun(up, others)
            moves, streams, changed = list[dict[str, Any]](), 0, 0
            while sum(move["outcome"] != "ended" for move in moves) < MOVES:
                assert not any(task.done() for task in others), "the batch is smaller than it was"
                moved = Stream(up, f"moved-{name}-{streams}", context, 0, TOKENS)
                got, done = await _moved(http, up, moved)
                moves += done
                streams, changed = streams + 1, changed + (got != alone)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await _begun(up, [])
    return {"batch": batch, "context": context, "streams": streams, "changed": changed} | _figures(
        [move for move in moves if move["outcome"] != "ended"]
    )


async def _begun(up: Running, streams: Sequence[asyncio.Future[Any]]) -> None:
    """Until so many decode, and no others."""
    deadline = time.monotonic() + BEGUN_S
    while True:
        rows = (await state(up.router_url))["workers"]
        if sum(row["inflight"] for row in rows if row["role"] == "decode") == len(streams):
            return
        for task in streams:
            if task.done():
                task.result()
        assert time.monotonic() < deadline, f"{len(streams)} streams are to decode"
        await asyncio.sleep(0.2)


async def _moved(
    http: aiohttp.ClientSession, up: Running, stream: Stream
) -> tuple[list[int], list[dict[str, Any]]]:
    running = asyncio.ensure_future(stream.run(http))
    done: list[dict[str, Any]] = []
    due = EVERY
    while not running.done():
        if due <= stream.count < TOKENS - LEAVES_OFF:
            done += await migrate(http, up, rid=stream.rid)
            due = stream.count + EVERY
        await asyncio.sleep(0.001)
    return await running, done


def _figures(moves: list[dict[str, Any]]) -> dict[str, Any]:
    """`rest_ms`: from the stop to the end of the transfer, as the source saw it; `allowed_ms`: two
    steps, and what two steps write by the measured rate."""
    direct = [move for move in moves if move["outcome"] == "moved"]
    kept = [move for move in moves if move["outcome"] == "kept"]
    found: dict[str, Any] = {"moves": len(moves), "direct": len(direct)}
    found["causes"] = dict(Counter(move.get("cause", "not begun") for move in kept))
    if not direct:
        return found
    told = [move["copied"] for move in direct if "copied" in move]
    allowed = [
        2 * each["step_ms"] + 2 * each["token_bytes"] / each["mb_s"] / 1e3
        for each in told
        if each["mb_s"]
    ]
    for name, of in (
        ("stall", [move["stall_ms"] for move in direct]),
        ("step", [each["step_ms"] for each in told]),
        ("allowed", allowed),
        ("rest", [each["last_ms"] for each in told if each["last_ms"]]),
    ):
        if of:
            found |= {f"{name}_p50_ms": percentile(of, 50), f"{name}_p99_ms": percentile(of, 99)}
    for name in ("rounds", "mb_s", "bytes", "last_bytes"):
        found[name] = statistics.median(each[name] for each in told) if told else 0
    return found


async def cells_part(up: Running, cells: list[tuple[int, int]]) -> dict[str, Any]:
    """All of them, and the least share of direct moves among them."""
    found = []
    for batch, context in cells:
        cell = await one_cell(up, batch, context)
        say(f"cells: {cell}")
        found.append(cell)
    least = min(cell["direct"] / cell["moves"] for cell in found)
    return {"cells": found, "cells_direct_least": least}
