"""Live moves between decode workers: exactness under load, stalls, cost, rolling restarts.

One prefill and four decode workers on the CPU, a router in front; greedy streams throughout.
`--part` runs one part; without it all:

- `load`: `moves` moves beside 12 streams of 100 to 600 tokens of prompt, two at a time from a
  decode worker drawn by chance. `lost` (an error), `different` (other tokens than undisturbed), of
  `streams`; `load_stall_p50_ms`, `load_stall_p99_ms`.
- `idle`: one stream of 2,000 tokens of context and nothing beside it, moved once each 40 tokens,
  by each kind of move. `stall_p50_ms`, `stall_p99_ms`: from the last event that the client had of
  the source to the next one, by the router, of direct moves; of each kind as `direct_stall_p50_ms`,
  `replay_stall_p50_ms` .. `step_ms`: the median time between two tokens of such a stream
  undisturbed; `transfer_ms`: the median KV transfer of one page.
- `speed`: `throughput_ratio`, tokens/s of 8 streams with one move a second over those without, in
  alternating rounds of 20 s until each has 60 s; `throughput_low`, `throughput_high`: its 95 %
  interval over rounds.
- `rolling`: what `toolkit restart --rolling` does, to all four with 32 streams in flight:
  `rolling_lost`, `rolling_changed`, `rolling_streams`, `rolling_moved`, `rolling_gap_s` (the
  longest pause that a client saw), `rolling_s`.
- `cells`: another deployment, with the shortest steps that a CPU worker makes
  (`migrate_parts/cells.py`): in batches of 1, 16 and 64, at 512, 2,048 and 8,192 tokens of context,
  20 moves each. In `cells`, of each: `moves`, `direct`, `causes` of those that were kept,
  `stall_p50_ms`, `stall_p99_ms`, `step_p50_ms`, `allowed_p50_ms` (two steps, and the transfer of
  what two steps write), `rest_p50_ms` (the last transfer, as the source saw it), `rounds`, `mb_s`,
  `bytes`, `last_bytes`, `changed` of `streams`. `cells_direct_least`: the least share of direct
  ones.
"""

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.migrate_parts import cells
from tests.benchmarks.shared.common import Result, arguments, interval, percentile
from tests.benchmarks.shared.eldr_rounds import say
from tests.e2e import calls
from tests.e2e.deployments import deployed
from tests.e2e.moving import Load, migrate
from tests.e2e.workers import settled, state
from toolkit.launch.operate import Operator
from toolkit.launch.running import Running
from toolkit.launch.runs import to_stop

MEASURES = (
    "toolkit/router/moves",
    "toolkit/policies/precopy.py",
    "patches/move",
    "patches/pd/resume.py",
)

NAMES = ("direct", "replay")
SHARED = ("load", "idle", "speed", "rolling")
"""Parts that have one deployment."""
PARTS = (*SHARED, "cells")
DECODES = [f"decode-{n}" for n in range(4)]
CONTEXT, EVERY, TOKENS = 2000, 40, 400
ROUND_S = 20.0


def described() -> dict[str, Any]:
    role = {"kv_tokens": 32768, "max_running": 16}
    modes = {"device": "cpu", "mode": "pd", "router": {"kind": "toolkit"}}
    return {"name": "migrate", **modes, "prefill": role, "decode": {**role, "replicas": 4}}


def bodies(count: int, tokens: int) -> list[dict[str, Any]]:
    source = random.Random("migrate")
    lengths = [source.randint(100, 600) for _ in range(count)]
    prompts = [calls.prompt(f"migrate-{n}", length) for n, length in enumerate(lengths)]
    return [calls.greedy(prompt, tokens, stream=True) for prompt in prompts]


async def use(up: Running, kind: str) -> None:
    """Have the router move by this kind only (or `auto`)."""
    url = up.admin_url + "/admin/policy"
    async with calls.session() as http, http.post(url, json={"moves": kind}) as answer:
        assert answer.status == 200, await answer.text()


def stalls(moves: list[dict[str, Any]]) -> list[float]:
    return [move["stall_ms"] for move in moves if move["outcome"] == "moved"]


def tail(of: list[float], name: str) -> dict[str, float]:
    return {f"{name}_p50_ms": percentile(of, 50), f"{name}_p99_ms": percentile(of, 99)}


async def load_part(up: Running, wanted: int) -> dict[str, Any]:
    load = Load(up, bodies(12, 120))
    await load.learn()
    running = asyncio.ensure_future(load.run())
    source, done = random.Random("order"), list[dict[str, Any]]()
    async with calls.session() as http:
        while len(stalls(done)) < wanted:
            done += await migrate(http, up, **{"from": source.choice(DECODES), "count": 2})
            if len(done) % 50 < 2:
                say(f"load: {len(stalls(done))} moves, {load.streams} streams")
            await asyncio.sleep(0.02)
    load.over = True
    await running
    lost = len(load.lost) + sum(move["outcome"] == "lost" for move in done)
    own = {"moves": len(stalls(done)), "lost": lost, "different": len(load.changed)}
    return {**own, "streams": load.streams, **tail(stalls(done), "load_stall")}


class Watched:
    """One long stream: when its tokens came."""

    def __init__(self, up: Running, number: int) -> None:
        self.up = up
        self.rid = f"idle-{number}"
        self.times: list[float] = []
        self.count = 0
        self.body = calls.greedy(calls.prompt(self.rid, CONTEXT), TOKENS, stream=True)

    def seen(self, count: int) -> None:
        self.times.append(time.monotonic())
        self.count = count

    async def run(self, http: aiohttp.ClientSession) -> list[int]:
        body = {**self.body, "rid": self.rid}
        answer = await calls.generate(http, self.up.router_url, body, self.seen)
        assert not answer.error, answer.error
        return answer.ids

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


async def idle_part(up: Running, wanted: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    steps: list[float] = []
    async with calls.session() as http:
        for kind in NAMES:
            await use(up, kind)
            done: list[dict[str, Any]] = []
            number = 0
            while len(stalls(done)) < wanted:
                number += 1
                alone = Watched(up, number)
                expected = await alone.run(http)
                steps += alone.gaps()
                done += await moved_one_at_a_time(http, up, number, expected)
                say(f"idle: {kind}, {len(stalls(done))} moves")
            found |= tail(stalls(done), f"{kind}_stall")
        await use(up, "auto")
        transfer_ms = await one_page(http, up)
    found |= {f"stall_p{p}_ms": found[f"direct_stall_p{p}_ms"] for p in (50, 99)}
    return {**found, "step_ms": statistics.median(steps) * 1e3, "transfer_ms": transfer_ms}


async def moved_one_at_a_time(
    http: aiohttp.ClientSession, up: Running, number: int, expected: list[int]
) -> list[dict[str, Any]]:
    stream = Watched(up, number)
    running = asyncio.ensure_future(stream.run(http))
    done: list[dict[str, Any]] = []
    due = EVERY
    while not running.done():
        if stream.count >= due:
            done += await migrate(http, up, rid=stream.rid)
            due = stream.count + EVERY
        await asyncio.sleep(0.002)
    assert await running == expected, "a moved stream said something else"
    return done


async def one_page(http: aiohttp.ClientSession, up: Running) -> float:
    """The median time of a KV transfer of one page, by the router."""
    async with http.post(up.admin_url + "/admin/policy", json={}) as answer:  # clears its figures
        assert answer.status == 200
    for number in range(20):
        body = calls.greedy(calls.prompt(f"page-{number}", 1), 2, stream=True)
        assert not (await calls.generate(http, up.router_url, body)).error
    return float((await state(up.router_url))["timing"]["transfer_ms"]["p50"])


async def speed_part(up: Running, seconds: float, round_s: float) -> dict[str, Any]:
    load = Load(up, bodies(8, 200))
    await load.learn()
    running = asyncio.ensure_future(load.run())
    await asyncio.sleep(2.0)
    ratios, sums, moved = [], {False: 0.0, True: 0.0}, 0
    for number in range(max(1, round(seconds / round_s))):
        rates = {}
        for moving in (False, True) if number % 2 else (True, False):
            before, begin = load.tokens, time.monotonic()
            moved += len(await moves_a_second(up, round_s)) if moving else 0
            await asyncio.sleep(max(0.0, begin + round_s - time.monotonic()))
            rates[moving] = (load.tokens - before) / (time.monotonic() - begin)
            sums[moving] += rates[moving]
        ratios.append(rates[True] / rates[False])
        say(f"speed: round {number + 1}: {rates[False]:.0f} tokens/s, moving {rates[True]:.0f}")
    load.over = True
    await running
    _, low, high = interval(ratios)
    ratio = sums[True] / sums[False]
    own = {"throughput_ratio": ratio, "throughput_low": low, "throughput_high": high}
    return {**own, "speed_moves": moved, "speed_lost": len(load.lost) + len(load.changed)}


async def moves_a_second(up: Running, seconds: float) -> list[float]:
    done: list[dict[str, Any]] = []
    source, begin = random.Random("speed"), time.monotonic()
    async with calls.session() as http:
        for second in range(int(seconds)):
            await asyncio.sleep(max(0.0, begin + second + 0.5 - time.monotonic()))
            for name in source.sample(DECODES, len(DECODES)):
                found = await migrate(http, up, **{"from": name, "count": 1})
                done += found
                if stalls(found):
                    break
    return stalls(done)


async def rolling_part(up: Running) -> dict[str, Any]:
    load = Load(up, bodies(32, 200))
    await load.learn()
    running = asyncio.ensure_future(load.run())

    async def full() -> bool:
        rows = (await state(up.router_url))["workers"]
        return all(row["inflight"] >= 4 for row in rows if row["role"] == "decode")

    await calls.until(full, "every decode worker has some of them")
    begin, moved = time.monotonic(), 0
    load.gap_s = 0.0
    operator = Operator(to_stop(str(up.run_dir)))
    for name in DECODES:
        drained = await asyncio.to_thread(operator.drain, name, 120.0)
        assert not drained.left, drained
        moved += drained.moved
        await asyncio.to_thread(operator.restart, name)
        await asyncio.to_thread(operator.undrain, name)
        say(f"rolling: {drained}")
    took = time.monotonic() - begin
    load.over = True
    await running
    own = {"lost": len(load.lost), "changed": len(load.changed), "streams": load.streams}
    return {f"rolling_{name}": value for name, value in own.items()} | {
        "rolling_moved": moved,
        "rolling_gap_s": load.gap_s,
        "rolling_s": took,
    }


async def run(up: Running, parts: list[str], quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        say(part)
        match part:
            case "load":
                found |= await load_part(up, 30 if quick else 500)
            case "idle":
                found |= await idle_part(up, 8 if quick else 100)
            case "speed":
                found |= await speed_part(up, 6 if quick else 60, 3 if quick else ROUND_S)
            case "rolling":
                found |= await rolling_part(up)
        await settled(up)
    return found


def main() -> None:
    """Run it and print its line."""
    options = arguments(__doc__, ("--part", {"choices": PARTS, "action": "append"}))
    result = Result()
    parts = options.part or list(PARTS)
    with tempfile.TemporaryDirectory(prefix="migrate-") as name:
        if set(parts) & set(SHARED):
            with deployed(described(), Path(name)) as up:
                shared = [part for part in parts if part in SHARED]
                result.keys |= asyncio.run(run(up, shared, options.quick))
        if "cells" in parts:
            wanted = cells.QUICK if options.quick else cells.CELLS
            folder = Path(name) / "cells"
            folder.mkdir()
            with deployed(cells.described(folder / "model", wanted), folder) as up:
                result.keys |= asyncio.run(cells.cells_part(up, wanted))
    moved = sum(cell["direct"] for cell in result.keys.get("cells", []))
    result.emit(result.keys.get("moves", 0) + moved)


if __name__ == "__main__":
    main()
