"""POST /admin/drain: no new requests for a worker, or for the router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from toolkit.router import drains
from toolkit.router.asks import AskFigures, added, ask_all
from toolkit.router.errors import ApiError
from toolkit.router.guard import CALLER
from toolkit.router.own_answers import as_json, refusal, told

if TYPE_CHECKING:
    from toolkit.router.asks import RequestFigures
    from toolkit.router.control_plane import ControlPlane
    from toolkit.router.guard import Guard
    from toolkit.router.keys import Caller
    from toolkit.router.others.drains import SharedDrains


class DrainEndpoint:
    """`shared`: carries out those of workers."""

    def __init__(self, guard: Guard, control: ControlPlane, shared: SharedDrains) -> None:
        self._guard = guard
        self._control = control
        self._shared = shared

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/admin/drain", self.drain)
        app.on_cleanup.append(self._stop)

    async def drain(self, request: web.Request) -> web.Response:
        """Refuse new requests from now on, those that run go on; {"on": false}: take them again.
        With `worker`: empty that one (`toolkit.router.others.drains`)."""
        refused = self._guard.refuse_order(request)
        if refused is not None:
            return refused
        raw = await request.read()
        body = await told(request) if raw else {}
        if isinstance(body, dict) and "worker" in body:
            return await self._drain_worker(request[CALLER], body)
        if not isinstance(body, dict) or not set(body) <= {"on"}:
            return refusal(
                400, 'the body must be empty, {"on": false}, or about one worker: ' + drains.SHAPE
            )
        on = body.get("on", True)
        if not isinstance(on, bool):
            return refusal(400, "on must be true or false")
        control = self._control
        if not on and control.draining.ending:
            return refusal(409, "the router is ending")
        control.draining.on = on
        figures: RequestFigures = added(await ask_all(control.planes, AskFigures()))
        return as_json({"draining": on, "running": figures.running, "queued": figures.queued})

    async def _drain_worker(self, caller: Caller, body: Any) -> web.Response:
        limit_s = self._control.config.drain_timeout_s
        try:
            return as_json(await self._shared.order(caller, body, limit_s))
        except ApiError as error:
            return refusal(error.status, error.message)

    async def _stop(self, _: web.Application) -> None:
        await self._shared.stop()
