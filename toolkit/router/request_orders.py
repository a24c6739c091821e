"""What clients may ask about requests, and the order to abort them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from aiohttp import web

from toolkit.router.guard import CALLER
from toolkit.router.own_answers import as_json, refusal, told

if TYPE_CHECKING:
    from toolkit.router.guard import Guard
    from toolkit.router.known_requests import KnownRequests

ABORTED = "aborted by /abort_request"


class RequestOrders:
    """`tasks`: of what runs, by the name of the client's key and its own rid."""

    def __init__(
        self,
        guard: Guard,
        known: KnownRequests,
        tasks: Mapping[tuple[str, str], AbstractSet[asyncio.Task[Any]]],
    ) -> None:
        self._guard = guard
        self._known = known
        self._tasks = tasks

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
        found = self._known.find(name, None if caller.admin else caller.name)
        if not found:
            return refusal(404, "No request of this id is running, nor among the last that ended.")
        return as_json({"requests": [known.describe(caller.admin) for known in found]})

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
        for (owner, name), tasks in list(self._tasks.items()):
            if (caller.admin or owner == caller.name) and (everything or name == rid):
                for task in list(tasks):
                    task.cancel(ABORTED)
        return web.Response(status=200)
