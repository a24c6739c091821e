"""The word for a request that its client, our logs and the workers' logs have in common.

It is `x-request-id`: the client's own where that is sane, else one that is made here. Every answer
has it. It is for people: workers get it in a header, beside the id of their own by which they abort
(`toolkit.router.attempt.upstream_calls`), so a client that uses one word twice, or another's,
disturbs nobody.
"""

from __future__ import annotations

import re
import secrets

from aiohttp import web

from toolkit.contract.headers import REQUEST_ID

SANE = re.compile(r"[A-Za-z0-9._~:+=-]{1,128}")
"""What a client's word may be: it goes into logs, headers, a path and a file as it is."""
KEY = web.RequestKey("request_id", str)


def new() -> str:
    """A word that nobody else has."""
    return f"req_{secrets.token_hex(16)}"


def of(said: str | None) -> str:
    """The word for a request whose header says this."""
    return said if said is not None and SANE.fullmatch(said) else new()


def enter(request: web.BaseRequest) -> str:
    """Give a request its word, once."""
    if KEY not in request:
        request[KEY] = of(request.headers.get(REQUEST_ID))
    return request[KEY]


def mark(app: web.Application) -> None:
    """Have every answer of the application say it."""

    async def say(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[REQUEST_ID] = enter(request)

    app.on_response_prepare.append(say)
