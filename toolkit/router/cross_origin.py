"""CORS: which web pages may read what this router answers (`router.cors`; nobody's, by default).

A browser lets a page of another origin read an answer only if the answer says so, and asks before
(a preflight, which has no key) where the request has a key or a JSON body. Cookies are never
allowed: the router has none, and a key is a header that a page must know. Admin's endpoints answer
no page.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from toolkit.contract.headers import REQUEST_ID, TO_CLIENT
from toolkit.settings.router.origins import ANY

METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
EXPOSED = ", ".join((REQUEST_ID, *TO_CLIENT))
"""What a page may read beside the few headers that it always may."""
MAX_AGE_S = 600
"""A browser may remember the answer to a preflight for so long."""
NOT_FOR_PAGES = ("/admin/",)
_PAGES = web.RequestKey("pages", bool)
"""Of a request at the public port, which pages may send; at the admin's own port none may."""


class CrossOrigin:
    """Which origins may read. Without any it does nothing at all."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def enter(self, request: web.Request) -> web.Response | None:
        """Let a request be a page's. The answer to a browser that asks whether its page may send
        one; None: this is another request. Who may not gets the same answer without the headers
        that allow it."""
        request[_PAGES] = True
        asked = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or not asked or "Origin" not in request.headers:
            return None
        if not self._origins:
            return None
        response = web.Response(status=204)
        if self._allowed(request) is not None:
            headers = response.headers
            headers["Access-Control-Allow-Methods"] = METHODS
            wanted = request.headers.get("Access-Control-Request-Headers")
            if wanted:  # a header that the router does not know does not hurt it
                headers["Access-Control-Allow-Headers"] = wanted
            headers["Access-Control-Max-Age"] = str(MAX_AGE_S)
        return response

    def mark(self, app: web.Application) -> None:
        """Have every answer of the application say who may read it."""
        if not self._origins:
            return

        async def say(request: web.Request, response: web.StreamResponse) -> None:
            if ANY not in self._origins or request.method == "OPTIONS":
                _vary(response, request)
            allowed = self._allowed(request)
            if allowed is not None:
                response.headers["Access-Control-Allow-Origin"] = allowed
                response.headers["Access-Control-Expose-Headers"] = EXPOSED

        app.on_response_prepare.append(say)

    def _allowed(self, request: web.Request) -> str | None:
        origin = request.headers.get("Origin")
        if origin is None or _PAGES not in request or request.path.startswith(NOT_FOR_PAGES):
            return None
        if ANY in self._origins:
            return ANY
        return origin if origin in self._origins else None


def _vary(response: web.StreamResponse, request: web.Request) -> None:
    """A cache must keep the answers to different pages apart."""
    names = ["Origin"]
    if request.method == "OPTIONS":
        names += ["Access-Control-Request-Method", "Access-Control-Request-Headers"]
    response.headers["Vary"] = ", ".join(names)
