"""OpenAI's endpoints about answers of /v1/responses that a server has kept: none are here."""

from __future__ import annotations

from aiohttp import web

from toolkit.router.errors import ApiError

KEPT = (
    ("GET", "/v1/responses/{id}"),
    ("DELETE", "/v1/responses/{id}"),
    ("GET", "/v1/responses/{id}/input_items"),
    ("POST", "/v1/responses/{id}/cancel"),
)


class KeptAnswers:
    """Their endpoints."""

    def add_routes(self, app: web.Application) -> None:
        for method, path in KEPT:
            app.router.add_route(method, path, _nothing_is)


async def _nothing_is(_: web.Request) -> web.Response:
    error = ApiError(
        404,
        "No answer of /v1/responses is kept here: workers share no state. Send the whole "
        "conversation in `input`, and do not ask for `store` or `background`.",
    )
    return web.Response(status=404, body=error.body("responses"), content_type="application/json")
