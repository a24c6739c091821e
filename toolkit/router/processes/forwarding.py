"""What clients ask of the whole router, at a relay: the decider process answers it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from aiohttp import web

from toolkit.contract.headers import REQUEST_ID, RETRY_AFTER, RUN
from toolkit.router import request_id
from toolkit.router.processes.relay_end import AGAIN_S, HTTP
from toolkit.router.processes.remote_channel import RemoteChannel, silent
from toolkit.router.unserved import answered
from toolkit.router.views import PROXIED

PATHS = (
    ("GET", "/readiness"), ("GET", "/workers"), ("GET", "/metrics"), ("GET", "/requests/{id}"),
    ("POST", "/abort_request"), ("POST", "/admin/{order}"), ("GET", "/admin/upgrade"),
    ("GET", "/v1/models/{model:.*}"),
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
        body = await request.read()
        while self._channel.refusal is None:
            try:
                async with self._session.request(
                    request.method, "http://router" + request.raw_path, headers=headers,
                    data=body, allow_redirects=False,
                ) as answer:  # fmt: skip
                    said, passed = await answer.read(), answer.headers
            except aiohttp.ClientConnectionError as error:  # it is gone; another one follows
                if request.method != "GET" and not isinstance(error, aiohttp.ClientConnectorError):
                    break  # it may have done it
                await asyncio.sleep(AGAIN_S)
            except (aiohttp.ClientError, TimeoutError):
                break
            else:
                kept = {name: passed[name] for name in ANSWERED if name in passed}
                return web.Response(status=answer.status, body=said, headers=kept)
        return answered(silent(), request.path)

    async def _close(self, _: web.Application) -> None:
        if self._session is not None:
            await self._session.close()
