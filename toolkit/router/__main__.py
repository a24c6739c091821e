"""`python -m toolkit.router CONFIG.json`: run the router until SIGTERM or SIGINT.

The first signal stops accepting and drains (at most `drain_timeout_s`), a second one ends it at
once. Exit codes: 0 after a drain, 2 for a wrong configuration, 1 when the port cannot be had.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.contract.variables import GENERATION_VARIABLE

if TYPE_CHECKING:
    from toolkit.router.parse_server import Started


async def serve(config_path: str, parsers: Started) -> int:
    from aiohttp import web

    from toolkit.contract.addresses import host_port, http_url, loopback_like
    from toolkit.front import inherited
    from toolkit.router import connections, descriptors, lobby
    from toolkit.router.app import RouterApp
    from toolkit.router.listener import Listener
    from toolkit.router.processes import serving
    from toolkit.settings.router.config import ConfigError
    from toolkit.settings.router.load import load_config

    try:
        config = load_config(config_path)
        router = RouterApp(config, parsers)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    serving.log_and_limit(router.metrics)
    limit = descriptors.raise_limit()
    share = descriptors.client_share(limit, len(config.workers), config.max_inflight)
    most, keys = min(config.max_connections, share), bool(router.guard.names)
    strangers = lobby.strangers_of(most, keys)
    clients = lobby.Lobby(most, config.head_timeout_s, config.write_stall_s, strangers)
    runner = web.AppRunner(
        router.app(), access_log=None, handler_cancellation=True,
        shutdown_timeout=serving.LAST_WORDS_S,
    )  # fmt: skip
    await runner.setup()
    assert runner.server is not None
    make = connections.factory(clients, runner.server, config.max_head_kib, config.keepalive_s)
    listener = Listener(make)
    # A lobby of its own: a flood of clients must not shut out whoever is to stop it.
    orders = lobby.Lobby(serving.ADMIN_CONNECTIONS, config.head_timeout_s, config.write_stall_s)
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
    serving.settle()
    stop = serving.on_signals()
    await stop.get()
    await listener.stop()
    await serving.drain(router.drain(), stop)
    await admin.stop()
    await runner.cleanup()
    return 0


def relays_of(config_path: str) -> int:
    """How many relay processes the configuration asks for; 1 of one that cannot be read, which the
    router then says. Little is imported for it: the parsing processes are forked first."""
    from toolkit.bounded_files import read_json

    try:
        given = read_json(Path(config_path))
        asked, most = given.get("relays", 1), given.get("max_inflight", 0)
        here = given.get("routers_here", 1)
    except (OSError, ValueError, AttributeError):  # whoever reads all of it says so
        return 1
    if asked == "auto":
        from toolkit.settings.router.relays import automatic

        most = most if isinstance(most, int) else 0
        here = here if type(here) is int and here > 0 else 1
        return automatic(len(os.sched_getaffinity(0)), most, here)
    return asked if type(asked) is int else 1


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m toolkit.router CONFIG.json", file=sys.stderr)
        return 2
    from toolkit.router import parse_server
    from toolkit.router.own_name import own_name

    own_name()
    # Before there is a thread, an event loop or a socket.
    relays = relays_of(sys.argv[1])
    if relays > 1 or GENERATION_VARIABLE in os.environ:
        from toolkit.router.processes import supervisor

        # Numpy, where a profile brings it in: for a decision, threads only cost.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        return supervisor.run(sys.argv[1], relays)
    parsers = parse_server.forked()
    import uvloop

    # Numpy, where a profile brings it in: for a decision, threads only cost.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return int(uvloop.run(serve(sys.argv[1], parsers)))


if __name__ == "__main__":
    sys.exit(main())
