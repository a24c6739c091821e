"""The decider process: it listens to all workers, decides for all relays, and answers operators."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
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
from toolkit.router.processes.router_upgrades import RouterUpgrades
from toolkit.router.processes.switched_file import SwitchedFile
from toolkit.router.recording import Recording

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path

    from toolkit.router.processes.relay_process import ProcessPlace
    from toolkit.settings.router.config import RouterConfig


NAME, WAITS = "tk-decider", "tk-next"
KNOWN_S = 3.0
LAST_ANSWERS_S = 0.05
"""An operator's question that is being answered has so long when another process takes over."""


async def serve(
    config: RouterConfig, place: ProcessPlace, admin_sockets: Sequence[socket.socket], waits: bool
) -> int:
    """Until the second SIGTERM or SIGINT: the first one says that the relays drain. `RETIRE` ends
    it at once, for the process that follows: that one `waits` for `BEGIN`."""
    metrics = Metrics(str(place.folder / "metrics"))
    serving.log_and_limit(metrics)
    stop = serving.on_signals(serving.RETIRE, serving.BEGIN)
    beating = asyncio.create_task(serving.beat(place.rows, place.row, metrics))
    if waits:
        if await stop.get() != serving.BEGIN:
            return 0
        serving.called(NAME)
    handover = SwitchedFile(place.folder)
    hub = Hub(place.serial, place.rows, handover)
    control = ControlPlane(config, metrics, hub)
    up = handover.restore(control)
    guard = guard_of(config)
    recording = Recording(config.record) if config.record else None
    hub.begin(control, recording)
    entry = Entry(config, guard, Budget(config.max_body_total_mib * budget.MIB))
    upgrades = RouterUpgrades(place.folder, place.rows)
    app = entry.app(endpoints(control, guard, upgrades), None)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=serving.LAST_WORDS_S
    )
    await runner.setup()
    assert runner.server is not None
    loop = asyncio.get_running_loop()
    control.start()
    if waits:
        await _known(control, up)
    tasks = [
        beating,
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
    retires = await stop.get() == serving.RETIRE
    if not retires:
        control.draining.end()
        await stop.get()
    await admin.stop()
    links.close()
    http.close()
    if retires:
        await asyncio.sleep(LAST_ANSWERS_S)
        hub.leave()
    else:
        await runner.cleanup()
    if recording is not None:
        recording.close()
    await control.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return 0


async def _known(control: ControlPlane, up: list[str]) -> None:
    """Until these workers have said that they are there, or too long: nobody is told meanwhile that
    there are none."""
    deadline = monotonic() + KNOWN_S
    workers = [control.known_workers.named(name) for name in up]
    while not all(worker.healthy for worker in workers) and monotonic() < deadline:
        await asyncio.sleep(0.005)


def _free(path: Path) -> str:
    """Of a process that died its socket is left."""
    with suppress(FileNotFoundError):
        path.unlink()
    return str(path)
