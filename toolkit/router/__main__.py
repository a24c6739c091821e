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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.router.parse_server import Started

ADMIN_CONNECTIONS = 256
LAST_WORDS_S = 1.0
"""What still runs after the drain has so long before it is cancelled (aiohttp gives it a minute):
an admin's request that waits for a refit, say, or a stream that outlived `drain_timeout_s`."""


async def serve(config_path: str, parsers: Started) -> int:
    from aiohttp import web

    from toolkit.contract.addresses import host_port, http_url, loopback_like
    from toolkit.front import inherited
    from toolkit.limited_logs import limit_all
    from toolkit.router import connections, descriptors, lobby, quiet
    from toolkit.router.app import RouterApp
    from toolkit.router.listener import Listener
    from toolkit.settings.router.config import ConfigError
    from toolkit.settings.router.load import load_config

    try:
        config = load_config(config_path)
        router = RouterApp(config, parsers)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    router.metrics.watch_logs(limit_all())
    asyncio.get_running_loop().set_exception_handler(quiet.on_loop_error)
    limit = descriptors.raise_limit()
    share = descriptors.client_share(limit, len(config.workers), config.max_inflight)
    most, keys = min(config.max_connections, share), bool(router.guard.names)
    clients = lobby.Lobby(most, config.head_timeout_s, config.write_stall_s, keys)
    runner = web.AppRunner(
        router.app(), access_log=None, handler_cancellation=True, shutdown_timeout=LAST_WORDS_S
    )
    await runner.setup()
    assert runner.server is not None
    make = connections.factory(clients, runner.server, config.max_head_kib, config.keepalive_s)
    listener = Listener(make)
    # A lobby of its own: a flood of clients must not shut out whoever is to stop it.
    orders = lobby.Lobby(ADMIN_CONNECTIONS, config.head_timeout_s, config.write_stall_s)
    admin = Listener(
        connections.factory(orders, runner.server, config.max_head_kib, config.keepalive_s)
    )
    where = (config.host, config.port)
    try:
        host, port = await listener.start(*where)
        listener.adopt(inherited())
        if config.admin_port:
            where = (loopback_like(config.host), config.admin_port)
            await admin.start(*where)
    except OSError as error:
        print(f"cannot listen on {host_port(*where)}: {error.strerror}", file=sys.stderr)
        await listener.stop()
        await runner.cleanup()
        return 1
    log = logging.getLogger("toolkit.router")
    log.info(
        "%d file descriptors, so at most %d connections of clients (max_connections %d)",
        limit, clients.most, config.max_connections,
    )  # fmt: skip
    log.info("listening on %s", http_url(host, port))
    # What is there now stays: the collector need not walk it while streams wait.
    gc.collect()
    gc.freeze()
    stop = _on_signals()
    await stop.get()
    await listener.stop()
    drain, again = asyncio.ensure_future(router.drain()), asyncio.ensure_future(stop.get())
    await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, again):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await admin.stop()
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
    from toolkit.router import parse_server

    # Before there is a thread, an event loop or a socket.
    parsers = parse_server.forked()
    import uvloop

    # Numpy, where a profile brings it in: for a decision, threads only cost.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return int(uvloop.run(serve(sys.argv[1], parsers)))


if __name__ == "__main__":
    sys.exit(main())
