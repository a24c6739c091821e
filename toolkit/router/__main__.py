"""`python -m toolkit.router CONFIG.json`: run the router until SIGTERM or SIGINT.

The first signal stops accepting and drains (at most `drain_timeout_s`), a second one ends it at
once. Exit codes: 0 after a drain, 2 for a wrong configuration, 1 when the port cannot be had.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import suppress


async def serve(config_path: str) -> int:
    from aiohttp import web

    from toolkit.router.app import Router
    from toolkit.router.config import ConfigError, load_config

    try:
        config = load_config(config_path)
        router = Router(config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    runner = web.AppRunner(
        router.app(), access_log=None, handler_cancellation=True, keepalive_timeout=75.0
    )
    await runner.setup()
    site = web.TCPSite(runner, config.host, config.port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        print(f"cannot listen on {config.host}:{config.port}: {error.strerror}", file=sys.stderr)
        await runner.cleanup()
        return 1
    if config.admin_port:
        try:
            await web.TCPSite(runner, "127.0.0.1", config.admin_port).start()
        except OSError as error:
            print(
                f"cannot listen on 127.0.0.1:{config.admin_port}: {error.strerror}", file=sys.stderr
            )
            await runner.cleanup()
            return 1
    host, port = runner.addresses[0][:2]
    logging.getLogger("toolkit.router").info("listening on http://%s:%d", host, port)
    # What is there now stays: the collector need not walk it while streams wait.
    gc.collect()
    gc.freeze()
    stop = _on_signals()
    await stop.get()
    await site.stop()
    drain, again = asyncio.ensure_future(router.drain()), asyncio.ensure_future(stop.get())
    await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, again):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await runner.cleanup()
    return 0


def _on_signals() -> asyncio.Queue[int]:
    stop: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.put_nowait, number)
    return stop


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m toolkit.router CONFIG.json", file=sys.stderr)
        return 2
    import uvloop

    # Numpy, where a profile brings it in: for a decision, threads only cost.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return uvloop.run(serve(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
