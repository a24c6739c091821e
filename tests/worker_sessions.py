"""Client sessions whose requests to workers carry the key of their run."""

import aiohttp

from toolkit.launch.keys import key_at


def client_middleware() -> aiohttp.ClientMiddlewareType:
    """For `aiohttp.ClientSession(middlewares=...)`: requests to workers carry their key, and never
    the one that the session has for the router."""
    known: dict[str, str | None] = {}

    async def add(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        origin = str(request.url.origin())
        if origin not in known:
            known[origin] = key_at(origin)
        key = known[origin]
        if key is not None:
            request.headers["Authorization"] = f"Bearer {key}"
        answer = await handler(request)
        if answer.status == 401:
            known.pop(origin, None)  # perhaps another run has the port now
        return answer

    return add
