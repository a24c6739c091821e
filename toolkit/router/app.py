"""A router of one process: its control plane and its data plane, behind one HTTP application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from toolkit.router import control_endpoints, kept_answers
from toolkit.router.control_plane import ControlPlane
from toolkit.router.data_plane import DataPlane
from toolkit.router.dispatch import Dispatcher
from toolkit.router.entry import Entry
from toolkit.router.guard import Guard, guard_of
from toolkit.router.metrics import Metrics
from toolkit.router.moves import Moves
from toolkit.router.recording import Recording

if TYPE_CHECKING:
    from toolkit.router.parse_server import Started
    from toolkit.settings.router.config import RouterConfig


class RouterApp:
    """Everything of one router process; `app()` is its HTTP face.

    Raises:
        ConfigError: the configuration cannot be used.
    """

    def __init__(self, config: RouterConfig, parsers: Started | None = None) -> None:
        self.config = config
        self.metrics = Metrics()
        planes: list[DataPlane] = []
        self.control = control = ControlPlane(config, self.metrics, planes)
        known_workers, switches = control.known_workers, control.switches
        channel = known_workers.channel
        moves = Moves(known_workers, channel, self.metrics, config, switches)
        known_workers.listen(moves)
        dispatcher = Dispatcher(
            config, known_workers, channel, self.metrics, control.prefills, moves, switches
        )
        self.recording = Recording(config.record) if config.record else None
        self.data = DataPlane(
            config, known_workers, dispatcher, self.metrics, control.draining, self.recording,
            parsers,
        )  # fmt: skip
        planes.append(self.data)
        self.guard: Guard = guard_of(config)
        self._entry = Entry(config, self.guard, self.data.budget)

    def app(self) -> web.Application:
        served = [
            *control_endpoints.endpoints(self.control, self.guard),
            kept_answers.KeptAnswers(),
        ]
        app = self._entry.app(served, self.data.serve)
        app.on_startup.append(self._start)
        app.on_cleanup.append(self._stop)
        return app

    async def drain(self) -> None:
        """Refuse new requests for good and wait, bounded, for those that run."""
        await self.data.drain()

    async def _start(self, _: web.Application) -> None:
        self.control.start()
        self.data.start()

    async def _stop(self, _: web.Application) -> None:
        await self.data.stop()
        await self.control.stop()
        if self.recording is not None:
            self.recording.close()
