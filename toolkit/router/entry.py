"""What every request passes before anything else: its id, rules across origins, its key, and the
bounds of small bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from toolkit.router import bodies, identity, request_id
from toolkit.router.connections import Connection
from toolkit.router.cross_origin import CrossOrigin
from toolkit.router.errors import ApiError
from toolkit.router.guard import CALLER, Guard
from toolkit.router.request import PATHS
from toolkit.router.unserved import answered, shape, unserved

if TYPE_CHECKING:
    from toolkit.router.budget import Budget
    from toolkit.settings.router.config import RouterConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoints(Protocol):
    """Some endpoints."""

    def add_routes(self, app: web.Application) -> None: ...


class Entry:
    """The middleware of every application of the router. `budget`: of bodies."""

    def __init__(self, config: RouterConfig, guard: Guard, budget: Budget) -> None:
        self._config = config
        self._guard = guard
        self._budget = budget
        self._cross_origin = CrossOrigin(config.cors)

    def app(self, endpoints: Iterable[Endpoints], serve: Handler | None) -> web.Application:
        """With these endpoints; `serve`: takes all that runs on workers."""
        app = web.Application(middlewares=[self._enter])
        if serve is not None:
            for path in PATHS:
                app.router.add_post(path, serve, expect_handler=bodies.expect)
        for each in endpoints:
            each.add_routes(app)
        for mark in (identity.mark, request_id.mark, self._cross_origin.mark, shape):
            mark(app)
        return app

    @web.middleware
    async def _enter(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id.enter(request)
        if not self._guard.at_admin_port(request):
            asked = self._cross_origin.enter(request)
            if asked is not None:
                return asked
        refused = self._guard.refuse(request)
        if refused is None:
            refused = await unserved(request)
        if refused is not None:
            return closing(refused, request)
        if request[CALLER].known and isinstance(request.protocol, Connection):
            request.protocol.welcome()
        if request.path in PATHS:
            return await handler(request)
        return await self._read_small(request, handler)

    async def _read_small(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Bodies of all endpoints but generation: small, and within the same bounds of time."""
        try:
            bodies.refuse(request, self._config, bodies.ORDER)
            if request.can_read_body:
                with self._budget.open() as charge:
                    chunks = await bodies.read(request, self._config, charge, bodies.ORDER)
                request._read_bytes = b"".join(chunks)  # what `request.read()` gives
        except ApiError as error:
            return closing(answered(error, request.path), request)
        return await handler(request)


def closing(response: web.StreamResponse, request: web.Request) -> web.StreamResponse:
    """Of a body that was refused, what is still to come is not read as a request."""
    if not request.content.is_eof():
        response.force_close()
        if isinstance(request.protocol, Connection):
            request.protocol.refuse_body()
    return response
