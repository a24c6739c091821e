"""A picture of who was prefilled when: the same requests, a lane for each arm of `preempt`.

`--out FILE.png`. Grey: best-effort prompts, white gaps in them: standing still. Red: latency-
sensitive ones; a tick above the lane: when one came to the worker, and a thin line from there to
its first forward. Time runs from left to right, the scale (seconds) is at the bottom.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments
from tests.benchmarks.shared.preempt_arms import SHORT, Arm, Up, played, requests, side_by_side
from tests.benchmarks.shared.preempt_trace import Batch, since
from toolkit.bench.arrivals import poisson
from toolkit.bench.runner import new_session

WIDTH, LANE, LEFT, TOP = 1600, 110, 130, 30
BEST_EFFORT, URGENT, INK, PAPER = "#8b95a5", "#d1242f", "#1f2328", "#ffffff"


async def lanes(
    ups: Sequence[Up], count: int, rate: float, share: float
) -> list[tuple[str, list[Batch], float]]:
    """Each arm's batches and when its first request was sent, of the same open-loop arrivals."""
    items = requests("picture", count, share)
    times = poisson(rate, count, 5)
    found = []
    async with new_session(600.0) as session:
        for up in ups:
            await played(session, up, requests("warm", 4, 0.5), 2)
            had = max(batch["ended"] for batch in up.batches())
            await played(session, up, items, at=times)
            mine = [batch for batch in since(up.batches(), had) if batch["phase"] == "prefill"]
            began = min(sent for batch in mine for *_, sent, _ in batch["requests"])
            found.append((up.arm.name, mine, began))
    return found


def draw(found: Sequence[tuple[str, list[Batch], float]], out: Path) -> None:
    """One lane above the other, on one scale."""
    from PIL import Image, ImageDraw

    longest = max(batch["ended"] - began for _, batches, began in found for batch in batches)
    height = TOP + LANE * len(found) + 40
    image = Image.new("RGB", (WIDTH, height), PAPER)
    pen = ImageDraw.Draw(image)

    def x(seconds: float) -> float:
        return float(LEFT + (WIDTH - LEFT - 20) * seconds / longest)

    for row, (name, batches, began) in enumerate(found):
        top = TOP + row * LANE + 40
        pen.text((8, top + 12), name, fill=INK)
        for batch in sorted(batches, key=lambda each: each["began"]):
            lane(pen, batch, x, began, top)
    bottom = TOP + LANE * len(found) + 10
    for second in range(int(longest) + 1):
        pen.line((x(second), bottom, x(second), bottom + 6), fill=INK)
        pen.text((x(second) + 3, bottom + 6), f"{second} s", fill=INK)
    image.save(out)


def lane(pen: Any, batch: Batch, x: Any, began: float, top: float) -> None:
    """A batch, and whom of latency-sensitive requests it took in."""
    urgent = all(tokens <= SHORT[1] for _, _, tokens, *_ in batch["requests"])
    box = (x(batch["began"] - began), top, x(batch["ended"] - began), top + 40)
    pen.rectangle(box, fill=URGENT if urgent else BEST_EFFORT, outline=INK)
    for since_s, until, _ in batch["pauses"]:
        pen.rectangle((x(since_s - began), top + 1, x(until - began), top + 39), fill=PAPER)
    for _, _, tokens, sent, _ in batch["requests"]:
        if tokens <= SHORT[1]:
            at, first = x(sent - began), x(batch["began"] - began)
            pen.line((at, top - 18, at, top - 8), fill=URGENT, width=2)
            pen.line((at, top - 8, first, top - 1), fill=URGENT)


def main() -> None:
    """Draw it, and print how many requests are in it."""
    options = arguments(
        __doc__,
        ("--out", {"type": Path, "default": Path("preempt.png")}),
        ("--mode", {"choices": ("pd", "plain"), "default": "pd"}),
        ("--arms", {"default": "fcfs,shortest@512,preempt"}),
        ("--requests", {"type": int, "default": 24}),
        ("--rate", {"type": float, "default": 2.5, "help": "requests a second"}),
        ("--share", {"type": float, "default": 0.4}),
    )
    result = Result()
    arms = [Arm(name) for name in options.arms.split(",")]
    with (
        tempfile.TemporaryDirectory(prefix="preempt-picture-") as folder,
        side_by_side(arms, options.mode, Path(folder)) as ups,
    ):
        found = asyncio.run(lanes(ups, options.requests, options.rate, options.share))
    # A nested batch's line comes before the one that it stopped, but is drawn over it.
    draw(found, options.out)
    result.keys["picture"] = str(options.out)
    result.emit(options.requests * len(found))


if __name__ == "__main__":
    main()
