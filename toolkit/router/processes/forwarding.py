"""What clients ask of the whole router, at a relay: the decider process answers it."""

from __future__ import annotations

from pathlib import Path

import aiohttp
from aiohttp import web

from toolkit.contract.headers import REQUEST_ID, RETRY_AFTER, RUN
from toolkit.router import request_id
from toolkit.router.processes.relay_end import HTTP
from toolkit.router.processes.remote_channel import RemoteChannel, silent
from toolkit.router.unserved import answered
from toolkit.router.views import PROXIED

PATHS = (
    ("GET", "/readiness"), ("GET", "/workers"), ("GET", "/metrics"), ("GET", "/requests/{id}"),
    ("POST", "/abort_request"), ("POST", "/admin/{order}"), ("GET", "/v1/models/{model:.*}"),
    *(("GET", path) for path in PROXIED),
)  # fmt: skip
ASKED = ("Authorization", "x-api-key", "Content-Type", RUN)
ANSWERED = ("Content-Type", "WWW-Authenticate", "x-should-retry", RETRY_AFTER, RUN)
"""Headers that go along."""
CONNECT_S = 1.0


class Forwarding:
    """The endpoints of the decider process. `folder`: which the router's processes share."""

    def __init__(self, folder: Path, channel: RemoteChannel) -> None:
        self._path = str(folder / HTTP)
        self._channel = channel
        self._session: aiohttp.ClientSession | None = None

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/health", self.health)
        for method, path in PATHS:
            add = app.router.add_get if method == "GET" else app.router.add_post
            add(path, self.forward)
        app.on_cleanup.append(self._close)

    async def health(self, _: web.Request) -> web.Response:
        """This process serves."""
        return web.Response(text="ok")

    async def forward(self, request: web.Request) -> web.Response:
        """Ask the decider process."""
        if (refusal := self._channel.refusal) is not None:
            return answered(refusal, request.path)
        headers = {name: request.headers[name] for name in ASKED if name in request.headers}
        headers[REQUEST_ID] = request[request_id.KEY]
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._path, limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
            )
        try:
            async with self._session.request(
                request.method, "http://router" + request.raw_path, headers=headers,
                data=await request.read(), allow_redirects=False,
            ) as answer:  # fmt: skip
                passed = {n: answer.headers[n] for n in ANSWERED if n in answer.headers}
                return web.Response(status=answer.status, body=await answer.read(), headers=passed)
        except (aiohttp.ClientError, TimeoutError):
            return answered(silent(), request.path)

    async def _close(self, _: web.Application) -> None:
        if self._session is not None:
            await self._session.close()
