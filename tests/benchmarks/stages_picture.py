"""A picture of the lengths on each decode worker over time: who begins where, grows, and moves on.

`--out FILE.png`. The workers and stages of `stages_live`. A lane for each decode worker, KV tokens
upwards; the grey band is the range of its stage. A line is a request as `GET /workers?lengths=1`
tells it, black until it moves, red behind each move.
"""

import asyncio
import itertools
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.lengths import workload
from tests.benchmarks.shared.own_router import own_router
from tests.benchmarks.stages_live import DECODES, changes, described, planned
from toolkit.bench.build import load_tokenizer, token_pool
from toolkit.bench.runner import BenchLoad, new_session, play
from toolkit.bench.target import discover, get_json
from toolkit.bench.workload import Workload
from toolkit.launch.resolve import resolve
from toolkit.launch.running import running
from toolkit.settings.load import load_deployment

WIDTH, LANE, LEFT, TOP = 1600, 190, 90, 20
RANGE, FIRST, MOVED, INK, PAPER = "#e8ebef", "#1f2328", "#d1242f", "#1f2328", "#ffffff"
Seen = list[tuple[float, int, str]]
"""Of one request: when, its KV tokens, and where it was."""


async def watch(url: str, drawn: Workload, in_flight: int, every_s: float) -> dict[int, Seen]:
    """Every request's way, by its prompt's length: no two have the same."""
    found: dict[int, Seen] = defaultdict(list)
    async with new_session(600.0) as session:
        target = await discover(session, url)
        playing = asyncio.ensure_future(
            play(session, target, drawn, BenchLoad(concurrency=in_flight))
        )
        began = monotonic()
        while not playing.done():
            told = await get_json(session, url + "/workers?lengths=1")
            for prompt, length, name in (told or {}).get("lengths", ()):
                found[prompt].append((monotonic() - began, length, name))
            await asyncio.sleep(every_s)
        await playing
    return found


def draw(
    found: dict[int, Seen], stages: list[dict[str, Any]], longest: int, until: float, out: Path
) -> None:
    """One lane above the other, all on one scale."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH, TOP + LANE * DECODES + 30), PAPER)
    pen = ImageDraw.Draw(image)
    lanes = {f"decode-{number}": TOP + LANE * number for number in range(DECODES)}

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * seconds / until

    def y(name: str, tokens: float) -> float:
        return lanes[name] + (LANE - 20) * (1 - tokens / longest)

    low, number = 0, 0
    for stage in stages:
        high = stage["upto"] or longest
        for _ in range(stage["replicas"]):
            name = f"decode-{number}"
            number += 1
            box = (LEFT, y(name, min(high, longest)), WIDTH - 20, y(name, low))
            pen.rectangle(box, fill=RANGE, outline=INK)
            pen.text((8, y(name, longest)), f"{name}\n{low + 1}-{stage['upto'] or ''}", fill=INK)
        low = high
    for seen in found.values():
        first = seen[0][2]
        for (at, length, name), (then, more, where) in itertools.pairwise(seen):
            color = FIRST if name == first and where == first else MOVED
            if name == where:
                pen.line((x(at), y(name, length), x(then), y(where, more)), fill=color, width=2)
            else:
                pen.ellipse(
                    (x(then) - 3, y(where, more) - 3, x(then) + 3, y(where, more) + 3), MOVED
                )
    bottom = TOP + LANE * DECODES
    for second in range(0, int(until) + 1, max(1, int(until) // 20)):
        pen.line((x(second), bottom, x(second), bottom + 6), fill=INK)
        pen.text((x(second) + 3, bottom + 6), f"{second} s", fill=INK)
    image.save(out)


def main() -> None:
    """Draw it, and print how many requests and moves are in it."""
    options = arguments(
        __doc__,
        ("--out", {"type": Path, "default": Path("stages.png")}),
        ("--requests", {"type": int, "default": 60}),
        ("--in-flight", {"type": int, "default": 16}),
    )
    options.set = "workers"
    result = Result()
    with tempfile.TemporaryDirectory(prefix="stages-picture-") as name:
        folder = Path(name)
        plan = resolve(load_deployment(described(options, folder)))
        assert plan.router is not None
        pool = token_pool(load_tokenizer(Path(plan.model.path)))
        items = workload(None, pool, 3, 3 * options.requests, (250.0, 160.0)).items
        own = list({len(item.prompt): item for item in items}.values())[: options.requests]
        answers = [(len(item.prompt), item.output_tokens) for item in own]
        stages = planned(answers, options.in_flight)
        bare = replace(plan, routers=(), dispatch="concurrent")
        routed = folder / "router"
        routed.mkdir()
        with (
            running(bare, folder / "run"),
            own_router(plan.router, routed, changes("stages", stages)) as (url, _),
        ):
            drawn = Workload("picture", tuple(own))
            found = asyncio.run(watch(url, drawn, options.in_flight, 0.1))
    until = max(seen[-1][0] for seen in found.values())
    longest = max(length for seen in found.values() for _, length, _ in seen)
    draw(found, stages, longest, until, options.out)
    moves = sum(
        one[2] != two[2] for seen in found.values() for one, two in itertools.pairwise(seen)
    )
    result.keys |= {"picture": str(options.out), "moves": moves, "stages": stages}
    result.emit(len(found))


if __name__ == "__main__":
    main()
