"""What the router says by itself, in JSON, and what it is told so."""

from typing import Any

import orjson
from aiohttp import web

from toolkit.router.errors import ApiError
from toolkit.router.unserved import answered


async def told(request: web.Request) -> Any:
    """The body's value; None when it is no JSON."""
    try:
        return orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        return None


def as_json(value: Any) -> web.Response:
    """A value as the answer."""
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def refusal(status: int, message: str) -> web.Response:
    """What is wrong, in words."""
    return answered(ApiError(status, message), "")
