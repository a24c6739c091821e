"""What clients may ask about requests, and the order to abort them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiohttp import web

from toolkit.router.asks import AbortRequests, FindRequests, ask_all
from toolkit.router.guard import CALLER
from toolkit.router.own_answers import as_json, refusal, told

if TYPE_CHECKING:
    from toolkit.router.asks import AskedPlane
    from toolkit.router.guard import Guard


class RequestOrders:
    """`planes`: who serves requests."""

    def __init__(self, guard: Guard, planes: Iterable[AskedPlane]) -> None:
        self._guard = guard
        self._planes = planes

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/requests/{id}", self.request)
        app.router.add_post("/abort_request", self.abort)

    async def request(self, request: web.Request) -> web.Response:
        """What is known of a request, by its `x-request-id` or the id of its answer: of all to the
        admin, to a client with a key of its own."""
        caller = request[CALLER]
        if not caller.name:
            refused = self._guard.refuse_admin(request)
            if refused is not None:
                return refused
        name = request.match_info["id"]
        ask = FindRequests(name, None if caller.admin else caller.name, places=caller.admin)
        found = [each for rows in await ask_all(self._planes, ask) for each in rows]
        if not found:
            return refusal(404, "No request of this id is running, nor among the last that ended.")
        found.sort(key=lambda each: each["came_at"], reverse=True)
        return as_json({"requests": found})

    async def abort(self, request: web.Request) -> web.Response:
        """SGLang's /abort_request: by the client's own rid, of its own requests; `abort_all`, and
        other clients' requests, are the admin's."""
        body = await told(request)
        if not isinstance(body, dict):
            return refusal(400, 'the body must be {"rid": "..."} or {"abort_all": true}')
        everything = body.get("abort_all") is True
        refused = self._guard.refuse_admin(request) if everything else None
        if refused is not None:
            return refused
        caller, rid = request[CALLER], body.get("rid")
        if everything or isinstance(rid, str):
            whose = None if caller.admin else caller.name
            await ask_all(self._planes, AbortRequests(None if everything else rid, whose))
        return web.Response(status=200)
