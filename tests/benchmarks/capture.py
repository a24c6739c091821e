"""What capturing experts costs a calibration.

Two real workers on the CPU, one as the profiler starts it (`--enable-return-routed-experts`), one
without. The same waves of prompts go to both in turn (ABBA), to the first with every request's
experts asked for and read by the profiler's own listener, to the second plainly; the one that is
not being measured sleeps.

keys: slowdown_percent (of a wave's time, geometric mean of the paired ratios, with the 95 %
interval of their logarithm), and the medians `captured_s`, `plain_s`.
"""

import asyncio
import math
import secrets
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.shared.common import Result, arguments, interval
from tests.e2e.worker_process import worker
from toolkit.contract.ticket import TICKET_KEY, sign
from toolkit.profile.calibrate import CalibrationSettings, request
from toolkit.profile.calibration_prompts import CalibrationPrompt, own_prompts
from toolkit.profile.measure import new_session
from toolkit.profile.tap import PHASES, Tap

WAVE = 8
KEY = secrets.token_hex(32)
"""Of the worker's own: it asks none of its callers, and takes tickets signed with this."""
SETTINGS = CalibrationSettings(output_tokens=48, temperature=0.0)


async def wave(
    session: Any, url: str, tap: Tap | None, prompts: list[CalibrationPrompt], number: int
) -> float:
    """Seconds until every request of the wave is done, its experts included."""

    async def one(index: int, prompt: CalibrationPrompt) -> None:
        rid = f"capture-{number}-{index}"
        path, body = request(prompt, SETTINGS, "any", rid)
        if tap is not None:  # what a router that may capture makes of the header
            ticket = sign(KEY, rid, capture=rid)
            body["custom_params"] = {TICKET_KEY: ticket}
        async with session.post(url + path, json=body) as response:
            if response.status != 200:
                raise RuntimeError(await response.text())
            await response.read()
        if tap is not None:
            rows = await tap.request(rid, PHASES, 30)
            assert len(rows["decode"].ids) == SETTINGS.output_tokens - 1

    begin = time.perf_counter()
    await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts)))
    return time.perf_counter() - begin


async def measure(captured: str, plain: str, pairs: int) -> tuple[list[float], list[float]]:
    prompts = own_prompts()
    times: tuple[list[float], list[float]] = ([], [])
    async with new_session() as session, Tap(session, [captured]) as tap:
        for number in range(-2, pairs):  # two pairs to warm up
            start = (number + 2) * WAVE % (len(prompts) - WAVE)
            chosen = prompts[start : start + WAVE]
            order = (0, 1) if number % 2 == 0 else (1, 0)
            for side in order:
                url, listener = ((captured, tap), (plain, None))[side]
                seconds = await wave(session, url, listener, chosen, number)
                if number >= 0:
                    times[side].append(seconds)
    return times


def main() -> None:
    """Run the benchmark and print its line."""
    options = arguments(__doc__)
    result = Result()
    pairs = 8 if options.quick else 40
    with (
        tempfile.TemporaryDirectory(prefix="capture-") as folder,
        worker(
            "--sleep-on-idle",
            "--enable-return-routed-experts",
            log=Path(folder) / "captured.log",
            TOOLKIT_OWN_KEY=KEY,
        ) as captured,
        worker("--sleep-on-idle", log=Path(folder) / "plain.log") as plain,
    ):
        ours, other = asyncio.run(measure(captured, plain, pairs))
    ratio, low, high = interval([a / b for a, b in zip(ours, other, strict=True)])
    result.keys |= {
        "slowdown_percent": (ratio - 1) * 100,
        "slowdown_percent_low": (low - 1) * 100,
        "slowdown_percent_high": (high - 1) * 100,
        "captured_s": statistics.median(ours),
        "plain_s": statistics.median(other),
    }
    assert math.isfinite(ratio)
    result.emit(2 * pairs)


if __name__ == "__main__":
    main()
