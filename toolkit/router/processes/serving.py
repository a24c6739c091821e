"""What every process of a router does at its begin and at its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.router.metrics import Metrics
    from toolkit.router.processes.shared import SharedRows

RETIRE, BEGIN = signal.SIGUSR1, signal.SIGUSR2
"""What the supervisor tells in an upgrade: others take over from this process; it takes over."""
ADMIN_CONNECTIONS = 256
BEAT_S = 0.25
LAST_WORDS_S = 1.0
"""What still runs after the drain has so long before it is cancelled (aiohttp gives it a minute):
an admin's request that waits for a refit, say, or a stream that outlived `drain_timeout_s`."""


def log_and_limit(metrics: Metrics) -> None:
    """Have the process log, in bounds."""
    from toolkit.limited_logs import limit_all
    from toolkit.router import quiet

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    metrics.watch_logs(limit_all())
    asyncio.get_running_loop().set_exception_handler(quiet.on_loop_error)


def on_signals(*more: signal.Signals) -> asyncio.Queue[int]:
    """SIGTERM, SIGINT and these, as they come."""
    stop: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, *more):
        loop.add_signal_handler(number, stop.put_nowait, number)
    return stop


async def drain(drained: Coroutine[Any, Any, None], stop: asyncio.Queue[int]) -> None:
    """Until what runs has ended, or another signal comes."""
    both = asyncio.ensure_future(drained), asyncio.ensure_future(stop.get())
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in both:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def called(name: str) -> None:
    """From now on `ps` and `top` show this process so."""
    Path("/proc/self/comm").write_text(name)


def settle() -> None:
    """What is there now stays: the collector need not walk it while streams wait."""
    gc.collect()
    gc.freeze()


async def beat(rows: SharedRows, row: int, metrics: Metrics) -> None:
    """Show again and again that the event loop comes round, until cancelled."""
    while True:
        rows.beat(row)
        metrics.look()
        await asyncio.sleep(BEAT_S)
