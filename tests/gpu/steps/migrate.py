"""Requests that move from one decode worker to another on the same GPU while they decode.

One prefill and two decode workers, KV by Mooncake over TCP (through the host's memory: there is no
RDMA to be tried here). One long stream at a time, moved every so many tokens: directly, then by
replay, each against the same stream undisturbed; with prompts of several lengths.

figures: of each kind and length `moves`, `outcomes`, `stall_p50_ms` and `stall_p99_ms` by the
router; `changed`: whether the stream said something else than undisturbed; `causes` of what was
kept and its `reasons`, as the router said them; of direct moves `copied`, what the source measured
of each: rounds, bytes, MB a second, step time, what was left at the stop and how long it took.
`changed_repeat`, undisturbed streams that say something else when asked again; `step_ms`, between
two tokens undisturbed. Fails where a stream is lost, where none moved, where fewer than 19 of 20
direct moves took place, or where direct moves change more streams than a repetition.
"""

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
MOST = {"direct": 40, "replay": 10}
"""Moves of one stream."""
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


def contexts(context: Context) -> tuple[int, ...]:
    """Tokens of the prompts."""
    return (300,) if context.tiny else (512, 2048, 8192)


def tokens_of(context: Context) -> int:
    """Of each stream. Moves are ordered in its first half, so that there is time for them."""
    return context.size(4000, 120)


def stream(context: Context, up: Running, length: int) -> Watched:
    """One of its own; as long as the step has time for."""
    found = Watched(up, length)
    found.body = calls.greedy(calls.prompt(found.rid, length), tokens_of(context), stream=True)
    return found


async def moved(
    context: Context, http: Any, watched: Watched, most: int
) -> tuple[list[int], list[Any]]:
    """Its tokens, and what the router says of each move, `most` of them."""
    every, last = context.size(40, 15), tokens_of(context) * (2 if context.tiny else 1) // 2
    running = asyncio.ensure_future(watched.run(http))
    done: list[dict[str, Any]] = []
    due = every
    while not running.done():
        if due <= watched.count < last and len(done) < most:
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
    gaps, repeats = list[float](), 0
    told: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    async with calls.session() as http:
        for length in contexts(context):
            alone = stream(context, up, length)
            expected = await alone.run(http)
            gaps += alone.gaps()
            repeats += await stream(context, up, length).run(http) != expected
            for kind in KINDS:
                await use(up, kind)
                got, moves = await moved(context, http, stream(context, up, length), MOST[kind])
                told[kind][str(length)] = {
                    "changed": int(got != expected),
                    "moves": len(stalls(moves)),
                    "outcomes": dict(Counter(move["outcome"] for move in moves)),
                    **kept_of(moves),
                    **(tail(stalls(moves), "stall") if stalls(moves) else {}),
                }
            figures |= told
        await use(up, "auto")
    figures |= {"step_ms": statistics.median(gaps) * 1e3, "changed_repeat": repeats}


def measure(context: Context, figures: dict[str, Any]) -> None:
    with context.deployed(described(context), "migrate") as up, context.measuring("migrate"):
        asyncio.run(compared(context, up, figures))
    for kind in KINDS:
        for length, cell in figures[kind].items():
            assert cell["moves"], f"no stream of {length} moved by {kind}: {cell['outcomes']}"
            assert not cell["outcomes"].get("lost"), f"{kind} lost a stream"
    direct = figures["direct"].values()
    moves = sum(cell["moves"] for cell in direct)
    tried = moves + sum(cell["outcomes"].get("kept", 0) for cell in direct)
    reasons = [reason for cell in direct for reason in cell["reasons"]]
    assert moves >= (1 if context.tiny else SHARE * tried), f"{moves} of {tried} moved: {reasons}"
    changed = sum(cell["changed"] for cell in direct)
    assert changed <= figures["changed_repeat"], "direct moves change streams"
