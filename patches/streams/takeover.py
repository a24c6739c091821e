"""A response whose connection is taken out of the HTTP server's hands.

The server reads the request and sends the head; from then on the body is written to the connection
by whoever has it (`patches.streams.outlet`), whatever the server's loop does meanwhile. The server
keeps its own end: by it the loop learns that the client has gone.

So the path, the port, the key and the network namespace are those of every other request, and
nothing more listens. What it does not give: a *new* connection while the loop is held up.
"""

import asyncio
import os
import socket

from starlette.responses import Response

from patches.sglang_types import App, Receive, Scope, Send
from patches.streams.event_hub import EventHub
from patches.streams.pulse import Pulse
from toolkit.contract.events import Event
from toolkit.contract.headers import ROUTER
from toolkit.contract.notices import ROUTER_NAME

EXCHANGE = "toolkit.exchange"
HEADERS = [(b"content-type", b"application/x-ndjson"), (b"transfer-encoding", b"chunked")]
"""Said here and not left to the server: `Outlet` writes chunks."""
LOOK_S = 0.001
UNKNOWN = b"The event stream needs uvicorn, HTTP/1.1 and no TLS."


class Exchanges:
    """ASGI application, around all others: keeps the server's own object of a request where an
    endpoint finds it (`scope[EXCHANGE]`), of one path. Others wrap `send` before it gets there."""

    def __init__(self, app: App, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == self._path:
            scope[EXCHANGE] = getattr(send, "__self__", None)
        await self._app(scope, receive, send)


class EventResponse(Response):  # type: ignore[misc]
    """`hello`, then all that `hub` publishes, until the client goes."""

    def __init__(self, hub: EventHub, hello: Event) -> None:
        super().__init__()
        self._hub = hub
        self._hello = hello

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = scope.get(EXCHANGE)
        taken = socket_of(exchange)
        if taken is None or scope["http_version"] != "1.1":
            await Response(UNKNOWN, 501)(scope, receive, send)
            return
        told = dict(scope["headers"]).get(ROUTER.encode(), b"").decode("latin-1")
        router = told if ROUTER_NAME.fullmatch(told) else ""
        outlet = self._hub.join(self._hello, Pulse(asyncio.get_running_loop()), router)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            # Middleware may pass the head on in a task of its own, and the loop may still hold it.
            assert exchange is not None, "its socket is taken"
            while not exchange.disconnected and (
                not exchange.response_started or exchange.transport.get_write_buffer_size()
            ):
                await asyncio.sleep(LOOK_S)
            if outlet.open(taken):
                self._hub.wake()
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._hub.leave(outlet)
            taken.close()


def socket_of(exchange: object) -> socket.socket | None:
    """Another descriptor of the connection that uvicorn has for a request; None: it is not one, or
    what is written there would have to be encrypted first."""
    transport = getattr(exchange, "transport", None)
    if transport is None or not hasattr(exchange, "response_started"):
        return None
    if transport.get_extra_info("sslcontext") is not None:
        return None
    own = transport.get_extra_info("socket")
    return None if own is None else socket.socket(fileno=os.dup(own.fileno()))
