"""A relay process: clients' connections, and the calls to workers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from toolkit.router import budget, connections, descriptors, lobby
from toolkit.router.configured_workers import ConfiguredWorkers
from toolkit.router.data_plane import DataPlane
from toolkit.router.dispatch import Dispatcher
from toolkit.router.draining import Draining
from toolkit.router.entry import Entry
from toolkit.router.guard import guard_of
from toolkit.router.kept_answers import KeptAnswers
from toolkit.router.metrics import Metrics
from toolkit.router.moves import Moves
from toolkit.router.prefill_facts import PrefillFacts
from toolkit.router.prefills import PrefillWait
from toolkit.router.processes import serving
from toolkit.router.processes.forwarding import Forwarding
from toolkit.router.processes.relay_end import RelayEnd
from toolkit.router.processes.remote_channel import RemoteChannel
from toolkit.router.processes.remote_recording import RemoteRecording
from toolkit.router.processes.retiring import Retiring
from toolkit.router.processes.shared import (
    OthersRequests,
    SharedBudget,
    SharedListener,
    SharedLobby,
)
from toolkit.router.switches import Switches

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from toolkit.decide.reservation import Reservation
    from toolkit.router.parse_server import Started
    from toolkit.router.processes.shared import SharedRows
    from toolkit.router.worker import Worker
    from toolkit.settings.router.config import RouterConfig

FIRST_S = 5.0
"""A relay waits so long for word of the workers before it takes clients."""


class _Nobody:
    """The decider process hears of prefills."""

    def decoding(self) -> None:
        pass

    def over(self) -> None:
        pass


class _RemotePrefills:
    """See `toolkit.router.prefills.PrefillWaits`."""

    def wait(
        self,
        worker: Worker,
        rid: str,
        number: int,
        reservation: Reservation,
        facts: PrefillFacts,
        sampled: bool,
    ) -> PrefillWait:
        return _Nobody()


@dataclass(frozen=True)
class ProcessPlace:
    """Where a process stands among those of its router: its row of the shared numbers, how many
    processes were forked before it, and the folder that all share."""

    rows: SharedRows
    row: int
    serial: int
    folder: Path


async def serve(
    config: RouterConfig,
    place: ProcessPlace,
    relays: int,
    sockets: Sequence[socket.socket],
    parsers: Started,
) -> int:
    """Until SIGTERM or SIGINT: the first one drains, a second one ends it at once. `RETIRE` before
    has it end by itself, when its clients have gone."""
    metrics = Metrics(str(place.folder / "metrics"))
    serving.log_and_limit(metrics)
    channel, draining = RemoteChannel(), Draining()
    switches = Switches(config.first_token, config.moves)
    key = config.secret(config.worker_api_key_env)
    known_workers = ConfiguredWorkers(config, channel, key)
    channel.begin(known_workers.workers, known_workers.listeners)
    moves = Moves(known_workers, channel, metrics, config, switches)
    known_workers.listen(moves)
    dispatcher = Dispatcher(
        config, known_workers, channel, metrics, _RemotePrefills(), moves, switches
    )
    end = RelayEnd(place.folder, place.row, channel, known_workers, switches, draining)
    recording = RemoteRecording(end) if config.record else None
    others = OthersRequests(place.rows, place.row)
    memory = SharedBudget(config.max_body_total_mib * budget.MIB, place.rows, place.row)
    data = DataPlane(
        config, known_workers, dispatcher, metrics, draining, recording, parsers, others, memory
    )
    guard = guard_of(config)
    app = Entry(config, guard, data.budget).app(
        [Forwarding(place.folder, channel), KeptAnswers()], data.serve
    )
    retiring = Retiring()
    retiring.mark(app)
    limit = descriptors.raise_limit()
    share = descriptors.client_share(limit, len(config.workers), config.max_inflight)
    most = min(config.max_connections, share * relays)
    clients = SharedLobby(
        most, config.head_timeout_s, config.write_stall_s,
        lobby.strangers_of(most, bool(guard.names), relays), place.rows, place.row,
    )  # fmt: skip
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=serving.LAST_WORDS_S
    )
    await runner.setup()
    assert runner.server is not None
    make = connections.factory(clients, runner.server, config.max_head_kib, config.keepalive_s)
    listener = SharedListener(make, most, place.rows, place.row)
    stop = serving.on_signals(serving.RETIRE)
    tasks = [
        asyncio.create_task(end.run(data)),
        asyncio.create_task(serving.beat(place.rows, place.row, metrics)),
    ]
    data.start()
    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_S):
            await end.told.wait()
    listener.adopt(sockets)
    serving.settle()
    asked = await stop.get()
    await listener.stop()
    if asked == serving.RETIRE:
        await serving.drain(retiring.over(clients, data.admission), stop)
    await serving.drain(data.drain(), stop)
    await runner.cleanup()
    await data.stop()
    await asyncio.sleep(0)  # what was said last is written
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return 0
