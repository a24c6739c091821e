"""What clients may ask about requests, and the order to abort them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiohttp import web

from toolkit.router.asks import AbortRequests, FindRequests, ask_all
from toolkit.router.errors import ApiError
from toolkit.router.guard import CALLER
from toolkit.router.own_answers import as_json, refusal, told
from toolkit.router.own_name import own_name, shown
from toolkit.router.unserved import answered

if TYPE_CHECKING:
    from toolkit.router.asks import AskedPlane
    from toolkit.router.guard import Guard
    from toolkit.router.others.requests import RequestsElsewhere

_UNKNOWN = "No request of this id is running, nor among the last that ended."
_SILENT = " Other routers over these workers that gave no answer: {}."


class RequestOrders:
    """`planes`: who serves requests; `elsewhere`: those of other routers."""

    def __init__(
        self, guard: Guard, planes: Iterable[AskedPlane], elsewhere: RequestsElsewhere
    ) -> None:
        self._guard = guard
        self._planes = planes
        self._elsewhere = elsewhere

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
        found = [
            each | {"router": own_name()}
            for rows in await ask_all(self._planes, ask)
            for each in rows
        ]
        silent = 0
        if not found:
            try:
                found, silent = await self._elsewhere.find(caller, name)
            except ApiError as error:
                return answered(error, request.path)
        if not found:
            return refusal(404, _UNKNOWN + (_SILENT.format(silent) if silent else ""))
        for each in found:
            each["router"] = shown(each["router"], caller.admin)
        found.sort(key=lambda each: float(each.get("came_at", 0.0)), reverse=True)
        return as_json({"requests": found})

    async def abort(self, request: web.Request) -> web.Response:
        """SGLang's /abort_request: by the client's own rid, of its own requests; `abort_all`, and
        other clients' requests, are the admin's. Where this router has none of that id, and of
        `abort_all` in any case, the others over the same workers are told. The answer says how
        many requests were aborted, and how many routers did not answer."""
        body = await told(request)
        if not isinstance(body, dict):
            return refusal(400, 'the body must be {"rid": "..."} or {"abort_all": true}')
        everything = body.get("abort_all") is True
        refused = self._guard.refuse_admin(request) if everything else None
        if refused is not None:
            return refused
        caller, rid = request[CALLER], body.get("rid")
        if not everything and not isinstance(rid, str):
            return as_json({"aborted": 0})
        wanted, whose = None if everything else rid, None if caller.admin else caller.name
        count, silent = sum(await ask_all(self._planes, AbortRequests(wanted, whose))), 0
        if everything or not count:
            try:
                elsewhere, silent = await self._elsewhere.abort(caller, wanted)
            except ApiError as error:
                return answered(error, request.path)
            count += elsewhere
        return as_json({"aborted": count, **({"unanswered": silent} if silent else {})})
