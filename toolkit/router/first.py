"""Wait until one of several futures is done, as often as a request does so: five times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def first_of(futures: Iterable[asyncio.Future[Any]], timeout: float | None = None) -> None:
    """Return when one of them is done, or after `timeout` seconds.

    As `asyncio.wait` with FIRST_COMPLETED: nothing is cancelled, raised or taken from them. But it
    takes no tasks or coroutines and tells nothing, at half of the price.
    """
    futures = tuple(futures)
    for future in futures:
        if future.done():
            return
    loop = asyncio.get_running_loop()
    turn = loop.create_future()

    def wake(_: object) -> None:
        if not turn.done():
            turn.set_result(None)

    for future in futures:
        future.add_done_callback(wake)
    timer = loop.call_later(timeout, wake, None) if timeout is not None else None
    try:
        await turn
    finally:
        for future in futures:
            future.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
