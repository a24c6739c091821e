"""The decider process: it listens to all workers, decides for all relays, and answers operators."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web

from toolkit.router import budget, connections, lobby
from toolkit.router.budget import Budget
from toolkit.router.control_endpoints import endpoints
from toolkit.router.control_plane import ControlPlane
from toolkit.router.entry import Entry
from toolkit.router.guard import guard_of
from toolkit.router.listener import Listener
from toolkit.router.metrics import Metrics
from toolkit.router.processes import serving, wire
from toolkit.router.processes.hub import Hub
from toolkit.router.processes.link import ProcessLink
from toolkit.router.processes.relay_end import HTTP, LINKS
from toolkit.router.processes.switched_file import SwitchedFile
from toolkit.router.recording import Recording

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path

    from toolkit.router.processes.relay_process import ProcessPlace
    from toolkit.settings.router.config import RouterConfig


async def serve(
    config: RouterConfig, place: ProcessPlace, relays: int, admin_sockets: Sequence[socket.socket]
) -> int:
    """Until the second SIGTERM or SIGINT: the first one says that the relays drain."""
    metrics = Metrics(str(place.folder / "metrics"))
    serving.log_and_limit(metrics)
    handover = SwitchedFile(place.folder)
    hub = Hub(place.serial, relays, handover)
    control = ControlPlane(config, metrics, hub)
    handover.restore(control)
    recording = Recording(config.record) if config.record else None
    hub.begin(control, recording)
    guard = guard_of(config)
    entry = Entry(config, guard, Budget(config.max_body_total_mib * budget.MIB))
    app = entry.app(endpoints(control, guard), None)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=serving.LAST_WORDS_S
    )
    await runner.setup()
    assert runner.server is not None
    loop = asyncio.get_running_loop()
    stop = serving.on_signals()
    control.start()
    tasks = [
        asyncio.create_task(serving.beat(place.rows, place.row, metrics)),
        asyncio.create_task(hub.beat()),
        asyncio.create_task(hub.settle()),
    ]
    http = await loop.create_unix_server(runner.server, path=_free(place.folder / HTTP))
    links = await loop.create_unix_server(
        lambda: ProcessLink[Any](wire.RelayFrame, hub), path=_free(place.folder / LINKS)
    )
    # A lobby of its own: a flood of clients must not shut out whoever is to stop it.
    orders = lobby.Lobby(serving.ADMIN_CONNECTIONS, config.head_timeout_s, config.write_stall_s)
    admin = Listener(
        connections.factory(orders, runner.server, config.max_head_kib, config.keepalive_s)
    )
    admin.adopt(admin_sockets)
    serving.settle()
    await stop.get()
    control.draining.end()
    await stop.get()
    await admin.stop()
    links.close()
    http.close()
    await runner.cleanup()
    await control.stop()
    if recording is not None:
        recording.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return 0


def _free(path: Path) -> str:
    """Of a process that died its socket is left."""
    with suppress(FileNotFoundError):
        path.unlink()
    return str(path)
